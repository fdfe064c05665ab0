"""Gateway: text in, text out. Serves octavo.inference.v1 and the OpenAI API on the same handlers, in one event loop."""

import gc
import platform
import sys
import time
from functools import partial

if __name__ == "__main__":
    # Where torch is installed transformers would import it, for nothing: two seconds and 230 MiB.
    sys.modules["torch"] = None  # type: ignore[assignment] # "not here", to every import

from gateway import failures, handover, http_server, model_profile, scheduler_session, tokenizer
from gateway.config import GatewayConfig
from gateway.generator import Generator
from gateway.http_connections import Connections
from gateway.inference_servicer import SERVICE_NAME, InferenceServicer
from gateway.openai.app import create_app
from gateway.request_metrics import RequestMetrics
from gateway.serving import Serving
from octavo import config, logs, metrics, model_files, server, shutdown, telemetry
from octavo.inference.v1.inference_pb2_grpc import add_InferenceServiceServicer_to_server


async def main() -> None:
    settings = config.load(GatewayConfig, "GATEWAY")
    logs.configure("gateway", level=settings.process.log_level, log_format=settings.process.log_format)
    try:
        files = model_files.resolve(settings.model)
        with (
            telemetry.configured("gateway", attributes={"octavo.model": files.name}),
            tokenizer.loaded(files.config_dir) as loaded,
        ):
            await serve(settings, files, loaded)
    except model_files.ModelFilesError as unusable:
        raise SystemExit(f"octavo gateway: {unusable}") from None


async def serve(settings: GatewayConfig, files: model_files.ModelFiles, loaded: tokenizer.Tokenizer) -> None:
    """Everything that runs, from the session to the two public ports; leaving it is the drain."""
    readiness = server.Readiness(reason="the scheduler does not answer yet")
    serving = Serving(
        model_profile.load(files.config_dir),
        names=settings.served_model_name or (files.name,),
        created_s=time.time(),
        readiness=readiness,
    )
    request_metrics = RequestMetrics(metrics.REGISTRY, model_name=serving.name, max_model_len=serving.max_model_len)
    async with (
        scheduler_session.connected(
            settings.scheduler_addr,
            gateway_id=settings.gateway_id or platform.node(),
            tokenizer_digest=files.tokenizer_digest,
            on_state=serving.hear,
        ) as session,
    ):
        request_metrics.show_open(lambda: session.num_open)
        generator = Generator(
            tokenizer=loaded, session=session, serving=serving, metrics=request_metrics, settings=settings.limits
        )
        await listen(settings, generator, serving, readiness=readiness)


async def listen(
    settings: GatewayConfig, generator: Generator, serving: Serving, *, readiness: server.Readiness
) -> None:
    """The two public ports, until the drain is over."""
    servicer = InferenceServicer(generator, stalled_client_s=settings.limits.stalled_client_s)
    network = settings.network
    if network.reuse_port:
        await handover.before_listening(network.port, readiness)
    async with (
        server.started(
            f"{network.host}:{network.grpc_port}",
            partial(add_InferenceServiceServicer_to_server, servicer),
            failures.STATUSES,
            service_names=[SERVICE_NAME],
            readiness=readiness,
            exposure=server.Exposure(
                health_names=(serving.name,),
                reflection=settings.reflection,
                options=(*settings.limits.grpc_options, *(handover.GRPC_OPTIONS if network.reuse_port else ())),
                slow_request_s=settings.limits.slow_request_s,
            ),
        ) as running,
        http_server.started(
            create_app(generator, settings),
            network.host,
            network.port,
            connections=Connections(settings.limits.of_connections, metrics.REGISTRY),
            reuse_port=network.reuse_port,
        ) as http,
    ):
        hand_over = None
        if network.reuse_port:
            handover.take_over(running, http)
            hand_over = partial(handover.to_successor, running, http)
        gc.freeze()  # what is loaded by now stays for ever: no collection need look at it again
        await server.run_until_stopped(
            running, hand_over=hand_over, drain=generator.drain, drain_timeout_s=settings.process.drain_timeout_s
        )


if __name__ == "__main__":
    shutdown.run(main)

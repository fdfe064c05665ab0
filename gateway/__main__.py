"""Gateway: text in, text out. Serves octavo.inference.v1 and the OpenAI API on the same handlers, in one event loop."""

import asyncio
import gc
import platform
import time
from functools import partial

from gateway import failures, http_server, model_profile, scheduler_session, tokenizer
from gateway.config import GatewayConfig
from gateway.generator import Generator
from gateway.inference_servicer import SERVICE_NAME, InferenceServicer
from gateway.openai.app import create_app
from gateway.request_metrics import RequestMetrics
from gateway.serving import Serving
from octavo import client, config, logs, metrics, model_files, server, telemetry
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
        client.channel(settings.scheduler_addr) as channel,
        scheduler_session.connected(
            channel,
            gateway_id=settings.gateway_id or platform.node(),
            tokenizer_digest=files.tokenizer_digest,
            on_state=serving.hear,
        ) as session,
    ):
        generator = Generator(
            tokenizer=loaded, session=session, serving=serving, metrics=request_metrics, settings=settings.limits
        )
        servicer = InferenceServicer(generator, stalled_client_s=settings.limits.stalled_client_s)
        register = partial(add_InferenceServiceServicer_to_server, servicer)
        async with (
            server.started(
                f"{settings.host}:{settings.grpc_port}",
                register,
                failures.STATUSES,
                service_names=[SERVICE_NAME],
                health_names=[serving.name],
                readiness=readiness,
                reflection=settings.reflection,
            ) as running,
            http_server.started(create_app(generator, settings), settings.host, settings.port),
        ):
            gc.freeze()  # what is loaded by now stays for ever: no collection need look at it again
            await server.run_until_stopped(
                running, drain=generator.drain, drain_timeout_s=settings.process.drain_timeout_s
            )


if __name__ == "__main__":
    asyncio.run(main())

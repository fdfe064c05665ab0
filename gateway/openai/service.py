"""What the handlers of one HTTP server share."""

from dataclasses import dataclass

from gateway.config import GatewayConfig
from gateway.generator import Generator
from gateway.openai.body import BodyReader
from gateway.openai.generating import Runner
from gateway.openai.load import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Passed to every router."""

    generator: Generator
    settings: GatewayConfig
    bodies: BodyReader
    load: Load
    runner: Runner


def build(generator: Generator, settings: GatewayConfig) -> Service:
    """The shared parts, wired."""
    load = Load()
    return Service(
        generator=generator,
        settings=settings,
        bodies=BodyReader(max_body_bytes=settings.limits.max_body_bytes, is_strict=settings.strict_params),
        load=load,
        runner=Runner(generator, load),
    )

"""Settings of the gateway."""

from dataclasses import dataclass, field

from octavo.process_config import ProcessConfig, check_port


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client may ask of the gateway."""

    max_body_bytes: int = 16 * 2**20  # bytes of an HTTP request body; a larger one is refused with 413
    max_concurrent_requests: int = 1024  # open generations; more are refused with QUEUE_FULL
    max_choices: int = 128  # largest n of one request
    max_stop_sequences: int = 32  # stop strings of one request
    keepalive_s: float = 15.0  # silence on an HTTP stream after which a comment line is sent; 0 = never
    stalled_client_s: float = 120.0  # time a client may take to accept one write; then its request is cancelled

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_concurrent_requests", "max_choices"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("max_stop_sequences", "keepalive_s", "stalled_client_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """One gateway process; `python -m gateway --help` prints the comments."""

    model: str | None = None  # a Hugging Face folder, a GGUF file or a hub id; none = the demo model
    served_model_name: tuple[str, ...] = ()  # name clients use, then aliases; none = the model's own name
    host: str = "127.0.0.1"  # address of both public ports; 0.0.0.0 = every interface
    port: int = 8000  # OpenAI-compatible HTTP
    grpc_port: int = 50051  # octavo.inference.v1
    scheduler_addr: str = "127.0.0.1:50052"  # host:port or unix:/path of the scheduler
    gateway_id: str = ""  # name in the scheduler's logs and state; none = the host's name
    enable_force_include_usage: bool = False  # send usage in every HTTP stream, asked for or not
    strict_params: bool = False  # refuse unknown fields of an HTTP body instead of ignoring them
    reflection: bool = True  # let clients such as grpcurl ask which gRPC methods there are; off tells nobody
    limits: Limits = field(default_factory=Limits)
    process: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        check_port("port", self.port)
        check_port("grpc_port", self.grpc_port)

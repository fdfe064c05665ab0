"""Settings of the gateway."""

from dataclasses import dataclass, field

from gateway.http_connections import ConnectionLimits
from octavo.process_config import ProcessConfig, check_port

GRPC_IDLE_S = 600.0  # without a call, before a client has to connect again, which it does by itself
BODIES_AT_ONCE = 16  # as many of the largest kind may be in memory; of the usual kind, thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client may ask of the gateway."""

    max_body_bytes: int = 16 * 2**20  # bytes of an HTTP request body; a larger one is refused with 413
    max_concurrent_requests: int = 1024  # open generations; more are refused with QUEUE_FULL
    max_choices: int = 128  # largest n of one request
    max_stop_sequences: int = 32  # stop strings of one request
    keepalive_s: float = 15.0  # silence on an HTTP stream after which a comment line is sent; 0 = never
    stalled_client_s: float = 120.0  # time a client may go without reading what is sent; then its request is
    #   cancelled; 0 = for ever, over HTTP
    slow_request_s: float = 30.0  # time for a request to arrive; the body of an HTTP request has it again, and a second
    #   more for every 16 KiB that came
    max_connections: int = 4096  # open HTTP connections, and as many for gRPC; the HTTP one that waits the longest for
    #   its client gives way to a new one; each takes an open file

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_concurrent_requests", "max_choices", "max_connections"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("max_stop_sequences", "keepalive_s", "stalled_client_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.slow_request_s <= 0:
            raise ValueError(f"slow_request_s must be more than 0, got {self.slow_request_s:g}")

    @property
    def grpc_options(self) -> tuple[tuple[str, int], ...]:
        """The same bounds for gRPC connections; its own limit of a call's metadata is 8 KiB."""
        return (
            ("grpc.max_allowed_incoming_connections", self.max_connections),
            ("grpc.max_concurrent_streams", 2 * self.max_concurrent_requests),  # of one connection
            ("grpc.server_handshake_timeout_ms", round(self.slow_request_s * 1e3)),
            ("grpc.max_connection_idle_ms", round(GRPC_IDLE_S * 1e3)),
        )

    @property
    def of_connections(self) -> ConnectionLimits:
        return ConnectionLimits(
            max_connections=self.max_connections,
            max_body_bytes=self.max_body_bytes * BODIES_AT_ONCE,
            slow_request_s=self.slow_request_s,
            stalled_s=self.stalled_client_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Where clients find the gateway."""

    host: str = "127.0.0.1"  # address of both public ports; 0.0.0.0 = every interface
    port: int = 8000  # OpenAI-compatible HTTP
    grpc_port: int = 50051  # octavo.inference.v1
    reuse_port: bool = False  # share both ports with the gateway that this one replaces, and later with its own
    #   successor: it listens when it is ready, new connections are its own from then on, and after SIGTERM the older
    #   one answers what its connections still bring; gRPC connections are renewed every 15 s

    def __post_init__(self) -> None:
        check_port("port", self.port)
        check_port("grpc_port", self.grpc_port)
        if self.reuse_port and 0 in (self.port, self.grpc_port):
            raise ValueError("reuse_port needs ports that are known: neither may be 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """One gateway process; `python -m gateway --help` prints the comments."""

    model: str | None = None  # a Hugging Face folder, a GGUF file or a hub id; none = the demo model
    served_model_name: tuple[str, ...] = ()  # name clients use, then aliases; none = the model's own name
    scheduler_addr: str = "127.0.0.1:50052"  # host:port or unix:/path of the scheduler
    gateway_id: str = ""  # name in the scheduler's logs and state; none = the host's name
    enable_force_include_usage: bool = False  # send usage in every HTTP stream, asked for or not
    strict_params: bool = False  # refuse unknown fields of an HTTP body instead of ignoring them
    reflection: bool = True  # let clients such as grpcurl ask which gRPC methods there are; off tells nobody
    network: Network = field(default_factory=Network)
    limits: Limits = field(default_factory=Limits)
    process: ProcessConfig = field(default_factory=ProcessConfig)

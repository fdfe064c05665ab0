"""Settings of the KV cache service."""

from dataclasses import dataclass, field

from octavo.process_config import ProcessConfig, check_port

REDIS_SCHEMES = ("redis://", "rediss://", "unix://")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheConfig:
    """One KV cache service; `python -m kvcache_service --help` prints the comments."""

    listen_addr: str = "127.0.0.1:50053"  # host:port or unix:/path; schedulers call it, nobody else
    redis_url: str = "redis://127.0.0.1:6379/0"  # redis://, rediss:// or unix://path; only written behind, may be down
    namespace_key: str = ""  # secret that tenants' prefixes are kept apart under; none = drawn anew at every start
    enable_prefix_caching: bool = True  # off: no prompt starts behind what another has computed
    metrics_port: int = 51053  # HTTP port of /metrics, on every interface; 0 = none
    process: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        if not self.redis_url.startswith(REDIS_SCHEMES):
            raise ValueError(f"redis_url must begin with {', '.join(REDIS_SCHEMES)}, got {self.redis_url!r}")
        check_port("metrics_port", self.metrics_port)

"""Settings of the KV cache service."""

import re
from dataclasses import dataclass, field

from kvcache_service.core.pins import MAX_PINNED_SHARE
from octavo.process_config import ProcessConfig, check_port

REDIS_SCHEMES = (
    "redis://",
    "rediss://",
    "unix://",
    "redis+cluster://",
    "rediss+cluster://",
    "redis+sentinel://",
    "rediss+sentinel://",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheConfig:
    """One KV cache service; `python -m kvcache_service --help` prints the comments."""

    listen_addr: str = "127.0.0.1:50053"  # host:port or unix:/path; schedulers call it, nobody else
    redis_url: str = "redis://127.0.0.1:6379/0"  # redis://, rediss:// (TLS), unix://path, redis+cluster://host,host or
    #   redis+sentinel://host,host/service/0; read at the start, then only written behind; may be down
    kvcache_id: str = "kvcache"  # this service's name in Redis; services that share a Redis need different ones
    namespace_key: str = ""  # secret that tenants' prefixes are kept apart under; none = drawn anew at every start, and
    #   then no tenant's prefix comes back after a restart
    enable_prefix_caching: bool = True  # off: no prompt starts behind what another has computed
    max_pinned_share: float = MAX_PINNED_SHARE  # of a pool's blocks, for one tenant's pins; all together have half
    metrics_port: int = 51053  # HTTP port of /metrics, on every interface; 0 = none
    process: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        if not self.redis_url.startswith(REDIS_SCHEMES):
            raise ValueError(f"redis_url must begin with {', '.join(REDIS_SCHEMES)}, got {self.redis_url!r}")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", self.kvcache_id):
            raise ValueError(f"kvcache_id must be 1 to 128 letters, digits or . _ -, got {self.kvcache_id!r}")
        if not 0 <= self.max_pinned_share <= 1:
            raise ValueError(f"max_pinned_share must be a share from 0 to 1, got {self.max_pinned_share}")
        check_port("metrics_port", self.metrics_port)

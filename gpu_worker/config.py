"""Every setting of a worker."""

import platform
from dataclasses import dataclass, field
from typing import Literal

from octavo.process_config import ProcessConfig, check_port

BLOCK_SIZES = (8, 16, 32, 64, 128)


def _default_worker_id() -> str:
    return platform.node() or "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """How the model runs."""

    device: Literal["cpu"] = "cpu"  # where the model runs
    dtype: Literal["auto", "stored", "bfloat16", "float32"] = "auto"  # of weights and K/V; stored = as the GGUF has
    #   them, rounding activations to int8; auto = stored for a quantised GGUF, else bfloat16
    num_threads: int | None = None  # threads of the model; default the physical cores, at most 16 (torch: one less)
    max_model_len: int | None = None  # longest sequence in tokens; default is the model's; lower needs less memory
    max_num_batched_tokens: int = 104  # most tokens of one step; the scheduler plans with the lower of this and its own
    #   (on a CPU more makes a prompt hardly faster, and every other request waits for the whole step)

    def __post_init__(self) -> None:
        if self.num_threads is not None and self.num_threads < 1:
            raise ValueError(f"num_threads is {self.num_threads}; it must be positive")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ValueError(f"max_model_len is {self.max_model_len}; a prompt and a token take 2")
        if self.max_num_batched_tokens < 1:
            raise ValueError(f"max_num_batched_tokens is {self.max_num_batched_tokens}; it must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVMemory:
    """How much memory K/V takes, and in what pieces."""

    block_size: int = 16  # tokens per block; smaller shares more of a prefix, larger costs less per step
    num_blocks: int | None = None  # K/V blocks including the null block; default fills memory_utilization
    memory_utilization: float = 0.3  # share of the memory available after loading the weights that K/V may take

    def __post_init__(self) -> None:
        if self.block_size not in BLOCK_SIZES:
            raise ValueError(f"block_size is {self.block_size}; choose one of {', '.join(map(str, BLOCK_SIZES))}")
        if self.num_blocks is not None and self.num_blocks < 2:
            raise ValueError(f"num_blocks is {self.num_blocks}; it takes 2, because block 0 stores nothing")
        if not 0 < self.memory_utilization <= 0.95:
            raise ValueError(f"memory_utilization is {self.memory_utilization}; it must be above 0 and at most 0.95")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One worker process: what it serves, with how much memory, and who gives it work."""

    model: str | None = None  # Hugging Face folder, GGUF file or hub id; nothing = the demo model
    listen_addr: str = "127.0.0.1:50054"  # where it answers Describe and health: host:port or unix:/path
    scheduler_addr: str = "127.0.0.1:50052"  # the scheduler it dials: host:port or unix:/path
    worker_id: str = field(default_factory=_default_worker_id)  # stable name, also of its block pool; default host name
    metrics_port: int = 51054  # HTTP port of /metrics, on every interface; 0 = none
    compute: Compute = field(default_factory=Compute)
    kv_memory: KVMemory = field(default_factory=KVMemory)
    process: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        check_port("metrics_port", self.metrics_port)
        if not self.worker_id:
            raise ValueError("worker_id is empty; leave it out to be called by the host's name")

"""A KV cache service and a scheduler as processes of their own, without Redis; what they say goes to the terminal."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grpc

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 30.0
STOP_LIMIT_S = 20.0


@contextmanager
def kvcache(address: str, folder: Path) -> Iterator[None]:
    """Serves at `address` while the block runs."""
    settings = {
        "OCTAVO_KVCACHE_LISTEN_ADDR": address,
        "OCTAVO_KVCACHE_REDIS_URL": f"unix://{folder}/no-redis.sock",
        "OCTAVO_KVCACHE_METRICS_PORT": "0",
        "OCTAVO_KVCACHE_LOG_LEVEL": "error",
    }
    with _process("kvcache_service", address, settings):
        yield


@contextmanager
def scheduler(address: str, kvcache_address: str, *, max_num_seqs: int) -> Iterator[None]:
    """Serves at `address` while the block runs."""
    settings = {
        "OCTAVO_SCHEDULER_LISTEN_ADDR": address,
        "OCTAVO_SCHEDULER_KVCACHE_ADDR": kvcache_address,
        "OCTAVO_SCHEDULER_MAX_NUM_SEQS": str(max_num_seqs),
        "OCTAVO_SCHEDULER_METRICS_PORT": "0",
        "OCTAVO_SCHEDULER_LOG_LEVEL": "error",
        "OCTAVO_SCHEDULER_DRAIN_TIMEOUT_S": "0",
    }
    with _process("scheduler_service", address, settings):
        yield


@contextmanager
def _process(module: str, address: str, settings: Mapping[str, str]) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", module], cwd=ROOT, env={"PATH": os.environ["PATH"], **settings})
    try:
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(timeout=START_LIMIT_S)
        yield
    finally:
        process.terminate()
        process.wait(STOP_LIMIT_S)

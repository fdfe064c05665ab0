"""The process: starts without Redis, is healthy, serves, and ends with status 0 on SIGTERM."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.kvcache.v1 import kvcache_pb2 as pb
from octavo.kvcache.v1 import kvcache_pb2_grpc as pb_grpc

ROOT = Path(__file__).parents[2]


def test_the_process_serves_and_leaves_on_sigterm(tmp_path: Path):
    address = f"unix:{tmp_path}/kvcache.sock"
    settings = {
        "OCTAVO_KVCACHE_LISTEN_ADDR": address,
        "OCTAVO_KVCACHE_REDIS_URL": f"unix://{tmp_path}/no-redis.sock",
        "OCTAVO_KVCACHE_METRICS_PORT": "0",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "kvcache_service"], cwd=ROOT, env={"PATH": os.environ["PATH"], **settings}
    )
    try:
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(timeout=20)
            health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            assert not pb_grpc.KVCacheServiceStub(channel).GetStats(pb.GetStatsRequest(), timeout=5).pools
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(timeout=10)
    assert status == 0

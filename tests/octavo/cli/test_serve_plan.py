"""What `octavo serve` decides: addresses, shares, programs; and what it refuses before anything starts."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from octavo.cli import serve_flags, serve_plan
from octavo.cli.serve_plan import Plan

FOLDER = Path("/run/o")


def plan(line: str = "", environ: Mapping[str, str] | None = None) -> Plan:
    return serve_plan.make(serve_plan.load(serve_flags.parse(line.split()), environ or {}), FOLDER, environ or {})


def variables(planned: Plan, name: str) -> Mapping[str, str]:
    (program,) = (program for program in planned.programs if program.name == name)
    return program.environ


def refused(line: str, capsys: pytest.CaptureFixture[str], environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(SystemExit) as ended:
        plan(line, environ)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_drain_order_is_from_the_client_inwards():
    assert [program.name for program in plan().programs] == ["gateway", "scheduler", "worker-0", "kvcache", "redis"]


def test_services_meet_on_sockets_in_the_private_folder():
    planned = plan()
    assert variables(planned, "gateway")["OCTAVO_GATEWAY_SCHEDULER_ADDR"] == "unix:/run/o/scheduler.sock"
    assert variables(planned, "scheduler")["OCTAVO_SCHEDULER_LISTEN_ADDR"] == "unix:/run/o/scheduler.sock"
    assert variables(planned, "scheduler")["OCTAVO_SCHEDULER_KVCACHE_ADDR"] == "unix:/run/o/kvcache.sock"
    assert variables(planned, "kvcache")["OCTAVO_KVCACHE_REDIS_URL"] == "unix:///run/o/redis.sock"
    assert variables(planned, "worker-0")["OCTAVO_WORKER_SCHEDULER_ADDR"] == "unix:/run/o/scheduler.sock"
    assert variables(planned, "worker-0")["OCTAVO_WORKER_WORKER_ID"] == "worker-0"


def test_gateways_overlap_unless_that_is_switched_off():
    assert [endpoint.flag for endpoint in plan().shared] == ["--port", "--grpc-port"]
    assert variables(plan(), "gateway")["OCTAVO_GATEWAY_REUSE_PORT"] == "true"
    switched_off = {"OCTAVO_GATEWAY_REUSE_PORT": "false"}
    for without in (plan("--no-reuse-port"), plan(environ=switched_off)):
        assert not without.shared
        assert variables(without, "gateway")["OCTAVO_GATEWAY_REUSE_PORT"] == "false"


def test_only_the_public_ports_are_opened():
    assert [str(endpoint) for endpoint in plan().endpoints] == ["127.0.0.1:8000", "127.0.0.1:50051"]


def test_address_that_was_given_is_kept_and_told_to_the_others():
    planned = plan("--scheduler-listen-addr 127.0.0.1:7001")
    assert variables(planned, "scheduler")["OCTAVO_SCHEDULER_LISTEN_ADDR"] == "127.0.0.1:7001"
    assert variables(planned, "gateway")["OCTAVO_GATEWAY_SCHEDULER_ADDR"] == "127.0.0.1:7001"
    assert "127.0.0.1:7001" in [str(endpoint) for endpoint in planned.endpoints]
    assert planned.ready_addrs["scheduler"] == "127.0.0.1:7001"


def test_flags_come_before_the_environment_and_that_before_defaults():
    environ = {"OCTAVO_SCHEDULER_MAX_NUM_SEQS": "8", "OCTAVO_SCHEDULER_MAX_QUEUE_LEN": "9"}
    settings = serve_plan.load(serve_flags.parse(["--max-num-seqs", "4"]), environ)
    assert (settings.scheduler.scheduling.max_num_seqs, settings.scheduler.queue.max_queue_len) == (4, 9)
    assert settings.given["scheduler"] == {"max_num_seqs": (4, "flag"), "max_queue_len": (9, "environment")}
    started = variables(plan("--max-num-seqs 4", environ), "scheduler")
    assert started["OCTAVO_SCHEDULER_MAX_NUM_SEQS"] == "4"
    assert started["OCTAVO_SCHEDULER_MAX_QUEUE_LEN"] == "9"


def test_redis_by_url_starts_none():
    planned = plan("--redis-url redis://elsewhere:6379/0")
    assert "redis" not in [program.name for program in planned.programs]
    assert planned.redis_socket is None
    assert variables(planned, "kvcache")["OCTAVO_KVCACHE_REDIS_URL"] == "redis://elsewhere:6379/0"


def test_several_workers_share_memory_and_have_names_of_their_own():
    planned = plan("--num-workers 3 --memory-utilization 0.6")
    workers = [variables(planned, f"worker-{index}") for index in range(3)]
    assert [worker["OCTAVO_WORKER_WORKER_ID"] for worker in workers] == ["worker-0", "worker-1", "worker-2"]
    assert all(worker["OCTAVO_WORKER_MEMORY_UTILIZATION"] == "0.6" for worker in workers)
    shares = [
        float(variables(plan("--num-workers 3"), f"worker-{i}")["OCTAVO_WORKER_MEMORY_UTILIZATION"]) for i in range(3)
    ]
    assert shares == pytest.approx([0.1, 0.1, 0.1], rel=0.01)


def test_one_worker_has_the_machine_to_itself():
    assert "OCTAVO_WORKER_NUM_THREADS" not in variables(plan(), "worker-0")


def test_metrics_ports_follow_each_other():
    planned = plan("--metrics-port 7000 --num-workers 2")
    assert variables(planned, "scheduler")["OCTAVO_SCHEDULER_METRICS_PORT"] == "7000"
    assert variables(planned, "kvcache")["OCTAVO_KVCACHE_METRICS_PORT"] == "7001"
    assert variables(planned, "worker-1")["OCTAVO_WORKER_METRICS_PORT"] == "7003"


def test_services_write_json_whatever_is_shown():
    planned = plan("--log-format text", {"OCTAVO_LOG_FORMAT": "text"})
    assert variables(planned, "gateway")["OCTAVO_GATEWAY_LOG_FORMAT"] == "json"


def test_traces_endpoint_reaches_every_service():
    planned = plan("--otlp-traces-endpoint http://c:4317")
    for name in ("gateway", "scheduler", "worker-0", "kvcache"):
        assert variables(planned, name)["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "http://c:4317"


def test_every_interface_is_reached_by_this_machines_address():
    planned = plan("--host 0.0.0.0 --port 81 --grpc-port 82")
    assert (planned.http_url, planned.grpc_addr) == ("http://127.0.0.1:81", "127.0.0.1:82")
    assert str(planned.endpoints[0]) == "0.0.0.0:81"


@pytest.mark.parametrize(("line", "environ", "said"), [
    ("", {"OCTAVO_SCHEDULER_MAX_NUM_SEQ": "8"}, "SEQ; did you mean OCTAVO_SCHEDULER_MAX_NUM_SEQS?"),
    ("", {"OCTAVO_SERVE_NUM_WORKER": "2"}, "WORKER; did you mean OCTAVO_SERVE_NUM_WORKERS?"),
    ("", {"OCTAVO_REDIS_URL": "r"}, "OCTAVO_REDIS_URL; did you mean OCTAVO_KVCACHE_REDIS_URL?"),
    ("", {"OCTAVO_MODLE": "m"}, "OCTAVO_MODLE; did you mean OCTAVO_MODEL?"),
    ("", {"OCTAVO_PROT": "80"}, "OCTAVO_PROT; did you mean OCTAVO_GATEWAY_PORT?"),
    ("", {"OCTAVO_DTYP": "m"}, "OCTAVO_DTYP; did you mean OCTAVO_WORKER_DTYPE?"),
    ("", {"OCTAVO_ZZZ": "m"}, "OCTAVO_ZZZ; this service reads OCTAVO_<SERVICE>_<FIELD>, see --help"),
    ("--port abc", {}, "octavo serve: --port wants an int, got 'abc'"),
    ("--max-num-seqs many", {}, "--max-num-seqs wants an int"),
    ("--dtype float8", {}, "--dtype wants one of"),
    ("--block-size 17", {}, "--block-size is 17"),
    ("", {"OCTAVO_WORKER_BLOCK_SIZE": "17"}, "OCTAVO_WORKER_BLOCK_SIZE is 17"),
    ("--num-workers 0", {}, "--num-workers must be at least 1"),
    ("--port 0", {}, "must be known in advance"),
    ("--num-workers 2 --worker-id w", {}, "2 workers cannot share one worker_id"),
])  # fmt: skip
def test_mistake_is_told_before_anything_starts(
    line: str, environ: Mapping[str, str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert said in refused(line, capsys, environ)

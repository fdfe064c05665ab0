"""What `octavo serve` says before and after its start."""

import socket
from pathlib import Path

from octavo import model_files
from octavo.cli import serve, serve_flags, serve_plan
from octavo.cli.serve_ready import Phases
from tests.octavo.cli.program import octavo

FILES = model_files.ModelFiles(
    name="tiny", weights=Path("/m/tiny.gguf"), config_dir=Path("/m/c"), weights_format="gguf", tokenizer_digest=b"1"
)


def test_banner_names_version_model_and_every_setting_that_was_given():
    environ = {"OCTAVO_WORKER_DTYPE": "float32"}
    line = ["--num-workers", "2", "--max-num-batched-tokens", "64", "--kvcache-namespace-key", "hidden"]
    banner = serve.banner(serve_plan.load(serve_flags.parse(line), environ), FILES).splitlines()
    assert banner[0].startswith("octavo ")
    assert banner[0].endswith("tiny (gguf, /m/tiny.gguf)  2 workers on cpu")
    assert banner[1:] == [
        "  num_workers = 2  (serve; flag)",
        "  max_num_batched_tokens = 64  (scheduler, worker; flag)",
        "  namespace_key = ***  (kvcache; flag)",
        "  dtype = float32  (worker; environment)",
    ]


def test_ready_line_has_addresses_and_the_seconds_of_each_phase():
    plan = serve_plan.make(serve_plan.load(serve_flags.parse([]), {}), Path("/run/o"), {})
    phases = Phases()
    for name in ("model", "redis", "gateway"):
        phases.done(name)
    line = serve.ready_line(plan, phases)
    assert line.startswith("ready after 0.0 s (model 0.0, redis 0.0, gateway 0.0): ")
    assert line.endswith("HTTP http://127.0.0.1:8000/v1  gRPC 127.0.0.1:50051")


async def test_taken_ports_are_all_told_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as http, socket.create_server(("127.0.0.1", 0)) as grpc:
        ports = [server.getsockname()[1] for server in (http, grpc)]
        done = await octavo("serve", "--port", str(ports[0]), "--grpc-port", str(ports[1]))
    assert (done.status, done.out) == (1, "")
    told = done.err.splitlines()
    assert [f"127.0.0.1:{port} is taken" in line for port, line in zip(ports, told, strict=True)] == [True, True]
    assert "choose another with --port" in told[0]
    assert "choose another with --grpc-port" in told[1]


async def test_taken_port_does_not_hide_a_wrong_model(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as http:
        port = http.getsockname()[1]
        done = await octavo("serve", str(tmp_path / "absent.gguf"), "--port", str(port), "--grpc-port", "18998")
    assert (done.status, done.out) == (1, "")
    taken, absent = done.err.splitlines()
    assert f"127.0.0.1:{port} is taken" in taken
    assert "absent.gguf" in absent


async def test_model_that_is_nowhere_is_told_before_anything_starts(tmp_path: Path):
    done = await octavo("serve", str(tmp_path / "absent.gguf"), "--port", "18999", "--grpc-port", "18998")
    assert done.status == 1
    assert done.err.startswith("octavo serve: ")
    assert "absent.gguf" in done.err

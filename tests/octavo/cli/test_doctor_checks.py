"""Each check of `octavo doctor`, against what it looks at."""

import socket
from pathlib import Path

import pytest

from gpu_worker.cpu.library import load
from octavo.cli import doctor_checks
from octavo.cli.doctor_checks import KernelsMissing, Verdict
from octavo.cli.ports import Endpoint
from octavo.cli.redis_server import MISSING, RedisNotFound
from octavo.cli.runtime import ServeState


def no_redis() -> Path:
    raise RedisNotFound(MISSING)


@pytest.mark.parametrize(("version", "verdict"), [
    ((3, 10), Verdict.MISSING), ((3, 11), Verdict.OK), ((3, 13), Verdict.OK),
])  # fmt: skip
def test_python_must_be_new_enough(version: tuple[int, int], verdict: Verdict):
    assert doctor_checks.python(version).verdict is verdict


def test_package_that_is_not_installed_is_missing_only_if_essential():
    assert doctor_checks.package("no-such-package", "pip install it", is_essential=True).verdict is Verdict.MISSING
    assert doctor_checks.package("no-such-package", "pip install it", is_essential=False).verdict is Verdict.ADVICE
    assert doctor_checks.package("grpcio", "", is_essential=True).verdict is Verdict.OK


def test_redis_by_url_needs_no_server_program_and_hides_the_password():
    finding = doctor_checks.redis({"OCTAVO_KVCACHE_REDIS_URL": "redis://u:secret@host:6379/0"}, no_redis)
    assert finding.verdict is Verdict.OK
    assert "host:6379" in finding.found
    assert "secret" not in finding.found


def test_no_redis_is_missing_and_says_all_three_ways():
    finding = doctor_checks.redis({}, no_redis)
    assert (finding.verdict, finding.to_do) == (Verdict.MISSING, MISSING)


@pytest.mark.parametrize(("available_kib", "verdict"), [(1 << 20, Verdict.MISSING), (3 << 20, Verdict.OK)])
def test_memory_is_what_the_kernel_says_is_available(available_kib: int, verdict: Verdict, tmp_path: Path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\nMemAvailable: {available_kib} kB\n")
    finding = doctor_checks.memory(meminfo)
    assert finding.verdict is verdict
    assert finding.found == f"{available_kib / 2**20:.1f} of 8.0 GiB available"


def test_missing_kernels_are_advice_with_the_reason_and_the_apt_line():
    def in_use() -> str:
        raise KernelsMissing("liboctavo_cpu.so is not there")

    finding = doctor_checks.kernels(in_use)
    assert (finding.verdict, finding.found) == (Verdict.ADVICE, "none: liboctavo_cpu.so is not there")
    assert "apt-get install g++" in finding.to_do


def test_kernels_in_use_are_those_that_the_worker_would_choose():
    library = load()
    assert library is not None
    assert doctor_checks.kernels(doctor_checks.kernels_in_use).found.startswith(f"{library.isa} ")


def test_cpu_lists_the_features_that_matter(tmp_path: Path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags : fpu avx2 avx512_bf16 sse\n")
    assert doctor_checks.cpu(cpuinfo).found.endswith("avx2 avx512_bf16")


def test_model_that_is_not_here_is_advice(tmp_path: Path):
    finding = doctor_checks.model_present(str(tmp_path / "no-model"))
    assert finding.verdict is Verdict.ADVICE
    assert "no-model" in finding.to_do


def test_taken_port_is_advice_with_its_holder():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        finding = doctor_checks.port(Endpoint(host="127.0.0.1", port=port, flag="--port"), [])
    assert finding.verdict is Verdict.ADVICE
    assert "taken by process" in finding.to_do


@pytest.mark.parametrize("which", ["http", "grpc"])
def test_port_of_ones_own_server_is_as_it_should_be(which: str):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        serve = ServeState(
            pid=7, http_url=f"http://127.0.0.1:{port if which == 'http' else 1}", scheduler_addr="unix:/s",
            grpc_addr=f"127.0.0.1:{port if which == 'grpc' else 1}", kvcache_addr="unix:/k", control_socket="/c",
        )  # fmt: skip
        finding = doctor_checks.port(Endpoint(host="127.0.0.1", port=port, flag="--port"), [serve])
    assert (finding.verdict, finding.to_do) == (Verdict.OK, "")
    assert "your octavo serve (process 7)" in finding.found

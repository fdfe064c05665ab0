"""The kernels' threads: under ThreadSanitizer every read of shared memory is ordered behind the write it relies on."""

import resource
import subprocess
from pathlib import Path

import pytest

from tools import build_cpu

RACES = Path(__file__).with_name("pool_races.cpp")
SHORT_OF_THREADS = Path(__file__).with_name("pool_short_of_threads.cpp")


@pytest.mark.slow
def test_shared_loops_of_changing_teams_have_no_races_and_right_results(tmp_path: Path):
    program = tmp_path / "pool_races"
    flags = ("-std=c++20", "-O1", "-g", "-fsanitize=thread", "-pthread", "-I", build_cpu.SOURCES)
    subprocess.run(["g++", *flags, RACES, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "400 regions\n", "")


def test_where_the_system_gives_fewer_threads_than_asked_for_they_do_all_the_work(tmp_path: Path):
    program = tmp_path / "pool_short_of_threads"
    flags = ("-std=c++20", "-pthread", "-I", build_cpu.SOURCES)
    subprocess.run(["g++", *flags, SHORT_OF_THREADS, "-o", program], check=True)
    done = subprocess.run(
        [program], capture_output=True, text=True, timeout=60, check=False, preexec_fn=_with_few_stacks
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert 1 <= int(done.stdout) < 16


def _with_few_stacks() -> None:
    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    resource.setrlimit(resource.RLIMIT_AS, (80 << 20, 80 << 20))

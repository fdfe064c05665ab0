"""The kernels' threads under ThreadSanitizer: every read of shared memory is ordered behind the write it relies on."""

import subprocess
from pathlib import Path

import pytest

from tools import build_cpu

PROGRAM = Path(__file__).with_name("pool_races.cpp")


@pytest.mark.slow
def test_shared_loops_of_changing_teams_have_no_races_and_right_results(tmp_path: Path):
    program = tmp_path / "pool_races"
    flags = ("-std=c++20", "-O1", "-g", "-fsanitize=thread", "-pthread", "-I", build_cpu.SOURCES)
    subprocess.run(["g++", *flags, PROGRAM, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "400 regions\n", "")

"""The kernels' threads: no races under ThreadSanitizer, fewer than asked for, and where they are held."""

import os
import resource
import subprocess
from ctypes import byref
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.cpu import library
from gpu_worker.cpu.packed_weight import Packer
from tests.gpu_worker.cpu.stored_matrices import Q8_0, random_matrix
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


def _where_helpers_may_run(num_threads: int) -> list[set[int]]:
    """The processors of each thread that a pool has of its own, after it has worked."""
    kernels = library.opened()
    weight = Packer(kernels, as_stored=True).pack(random_matrix(Q8_0, rows=256, columns=64))
    x, y = np.ones((4, 64), dtype=np.float32), np.empty((4, 256), dtype=np.float32)
    before = set(os.listdir("/proc/self/task"))
    pool = kernels.c.octavo_pool_new(num_threads)
    helpers = [int(thread) for thread in set(os.listdir("/proc/self/task")) - before]
    kernels.c.octavo_linear(pool, byref(weight.as_struct()), x.ctypes.data, len(x), y.ctypes.data)
    processors = [os.sched_getaffinity(thread) for thread in helpers]
    kernels.c.octavo_pool_free(pool)
    return processors


def test_threads_that_fill_all_processors_are_held_on_one_each_and_the_caller_is_not():
    mine = os.sched_getaffinity(0)
    helpers = _where_helpers_may_run(len(mine))
    assert sorted(map(list, helpers)) == [[processor] for processor in sorted(mine)[1:]]
    assert os.sched_getaffinity(0) == mine


def test_threads_that_do_not_fill_the_processors_are_left_to_the_system():
    mine = os.sched_getaffinity(0)
    assert _where_helpers_may_run(len(mine) + 1) == [mine] * len(mine)

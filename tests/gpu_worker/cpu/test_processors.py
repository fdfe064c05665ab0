"""The kernels on processors that this machine is not: under qemu, from C++, against plain loops."""

import functools
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools import build_cpu

PROGRAM = Path(__file__).with_name("every_processor.cpp")


@dataclass(frozen=True, slots=True)
class Processor:
    """What to compile with, what to run it under, and the instruction set that must then be chosen."""

    compiler: str
    emulator: tuple[str, ...]
    isa: str


X86_64_V1 = Processor("g++", ("qemu-x86_64", "-cpu", "Nehalem"), "generic")
X86_64_V3 = Processor("g++", ("qemu-x86_64", "-cpu", "Haswell"), "avx2")
ARM_64 = Processor("aarch64-linux-gnu-g++", ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"), "generic")
ARM_64_DOTPROD = Processor(f"{ARM_64.compiler} -march=armv8.2-a+dotprod", ARM_64.emulator, "generic")
PROCESSORS = {
    "x86-64-v1": X86_64_V1,
    "x86-64-v3": X86_64_V3,
    "aarch64": ARM_64,
    "aarch64-dotprod": ARM_64_DOTPROD,
}


def needs(program: str) -> None:
    """Skipped where a tool is missing, with its name; never in CI, which installs all of them."""
    if shutil.which(program):
        return
    reason = f"{program} is not installed (apt-get install g++ g++-aarch64-linux-gnu qemu-user)"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The program of a compiler, linked with a library of the same one; each is made once."""

    @functools.cache
    def program_of(compiler: str) -> Path:
        folder = tmp_path_factory.mktemp("made")
        library, program = folder / "liboctavo_cpu.so", folder / "every_processor"
        build_cpu.build(library=library, compiler=compiler)
        flags = ("-std=c++20", "-O1", "-I", build_cpu.SOURCES, "-Wl,-rpath,$ORIGIN")
        subprocess.run([*compiler.split(), *flags, PROGRAM, library, "-o", program], check=True)
        return program

    return program_of


@pytest.mark.slow
@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS)
def test_the_best_kernels_of_a_processor_are_chosen_and_right(processor: Processor, made: Callable[[str], Path]):
    for tool in (processor.compiler.split()[0], processor.emulator[0]):
        needs(tool)
    if processor.compiler == "g++" and platform.machine() != "x86_64":
        pytest.skip("g++ compiles for another processor here")
    command = [*processor.emulator, str(made(processor.compiler))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        f"isa: {processor.isa}",
        "bf16: equal",
        "q8: equal",
        "q4: equal",
        "attention: within 0.01",
    ]

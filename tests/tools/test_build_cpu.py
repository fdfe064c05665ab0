"""The kernels' build: done when sources, flags or compiler changed; without a compiler a reason in one line."""

import ctypes
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import build_cpu
from tools.build_cpu import BuildFailed, NoCompiler

HEADER = 'extern "C" __attribute__((visibility("default"))) inline int octavo_answer() { return 42; }\n'
HEADER_OF_TWO_ANSWERS = """
extern "C" __attribute__((visibility("default"), noinline)) inline int octavo_answer() {
#ifdef __AVX2__
    return 2;
#else
    return 1;
#endif
}
"""
SOURCES = {
    "answer.h": HEADER,
    "kernels.cpp": '#include "answer.h"\nnamespace OCTAVO_ISA { int twice() { return 2 * octavo_answer(); } }\n',
    "octavo_cpu.cpp": '#include "answer.h"\nint (*kept)() = octavo_answer;\n',
    "pack.cpp": "int packed = 1;\n",
}  # fmt: skip


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A library small enough to be compiled in a moment, of files with the names of the real one's."""
    folder = tmp_path / "src"
    folder.mkdir()
    for name, text in SOURCES.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return tmp_path / "liboctavo_cpu.so"


def answer_of(library: Path) -> int:
    """Asked in a process of its own: this one would keep the first library that it loads under a path."""
    question = f"import ctypes; print(ctypes.CDLL({str(library)!r}).octavo_answer())"
    return int(subprocess.run([sys.executable, "-c", question], capture_output=True, check=True).stdout)


def test_the_library_is_compiled_once_and_again_when_any_source_changes(sources: Path, library: Path):
    assert build_cpu.build(sources, library)
    assert not build_cpu.build(sources, library)
    (sources / "answer.h").write_text(HEADER.replace("42", "43"))
    assert build_cpu.build(sources, library)
    assert answer_of(library) == 43


def test_a_lost_library_is_made_again(sources: Path, library: Path):
    build_cpu.build(sources, library)
    library.unlink()
    assert build_cpu.build(sources, library)


def test_changed_flags_compile_again(sources: Path, library: Path, monkeypatch: pytest.MonkeyPatch):
    build_cpu.build(sources, library)
    monkeypatch.setattr(build_cpu, "FLAGS", (*build_cpu.FLAGS, "-DSOMETHING"))
    assert build_cpu.build(sources, library)


def test_broken_sources_fail_with_the_compilers_words_and_leave_the_library(sources: Path, library: Path):
    build_cpu.build(sources, library)
    (sources / "pack.cpp").write_text("int packed = no_such_name;\n")
    with pytest.raises(BuildFailed, match=r"pack\.cpp:1:14: error: .*no_such_name"):
        build_cpu.build(sources, library)
    assert answer_of(library) == 42


def test_without_a_compiler_a_fresh_library_is_kept_and_one_of_other_sources_is_not(sources: Path, library: Path):
    build_cpu.build(sources, library)
    assert not build_cpu.build(sources, library, compiler="no-such-compiler")
    (sources / "answer.h").write_text(HEADER.replace("42", "43"))
    with pytest.raises(NoCompiler, match="no-such-compiler"):
        build_cpu.build(sources, library, compiler="no-such-compiler")
    assert not library.exists()


def test_a_compiler_that_does_not_know_the_flags_counts_as_none(sources: Path, library: Path, tmp_path: Path):
    old = tmp_path / "old-g++"
    old.write_text("""#!/bin/sh
        case "$*" in
            -dumpmachine) echo x86_64-linux-gnu ;;
            --version) echo 'old-g++ 9.1' ;;
            *) echo "old-g++: error: unrecognized option '-mavx512bf16'" >&2; exit 1 ;;
        esac\n""")
    old.chmod(0o755)
    with pytest.raises(NoCompiler, match=r"old-g\+\+ 9\.1 is too old .*-mavx512bf16.*apt-get install g\+\+"):
        build_cpu.build(sources, library, compiler=str(old))


@pytest.mark.parametrize(("flags", "status"), [((), 1), (("--if-possible",), 0)])
def test_the_command_says_in_one_line_what_is_lost_without_a_compiler(flags: tuple[str, ...], status: int, tmp_path):
    command = [sys.executable, "-m", "tools.build_cpu", "--output", str(tmp_path / "lib.so"), *flags]
    done = subprocess.run(
        command,
        cwd=build_cpu.ROOT,
        env=os.environ | {"PATH": str(tmp_path), "CXX": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert done.stderr == (
        "build_cpu: no C++ compiler (g++), so the CPU worker computes with torch alone; "
        "to add its kernels: apt-get install g++, then make setup\n"
    )


def test_where_nothing_can_be_written_the_command_says_so_in_one_line():
    command = [sys.executable, "-m", "tools.build_cpu", "--output", "/proc/octavo/lib.so"]
    done = subprocess.run(command, cwd=build_cpu.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"build_cpu: /proc/octavo/lib\.so cannot be made: .*\n", done.stderr)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere there is one instruction set")
def test_an_inline_function_of_several_instruction_sets_is_the_one_that_every_machine_can_run(
    sources: Path, library: Path
):
    (sources / "answer.h").write_text(HEADER_OF_TWO_ANSWERS)
    build_cpu.build(sources, library)
    assert answer_of(library) == 1


def test_the_real_library_has_the_interface_and_nothing_else(tmp_path: Path):
    """What the header declares is there; no other name can meet that of another library in the process."""
    build_cpu.build()
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(build_cpu.LIBRARY)], capture_output=True, text=True, check=True
    )
    exported = {line.split()[-1] for line in listed.stdout.splitlines()}
    declared = set(re.findall(r"\b(octavo_\w+)\(", (build_cpu.SOURCES / "octavo_cpu.h").read_text()))
    assert exported == declared
    assert ctypes.CDLL(str(build_cpu.LIBRARY)).octavo_abi() >= 1

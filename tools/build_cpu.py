"""Compiles gpu_worker/cpu/src into gpu_worker/cpu/liboctavo_cpu.so: the kernels once per instruction set, one library.

`python -m tools.build_cpu` does nothing when a stamp says that the library is fresh; `--force` compiles anyway. Nothing
is tuned for the machine that compiles: which kernels run is decided when the library is loaded.
"""

import argparse
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "gpu_worker" / "cpu" / "src"
LIBRARY = ROOT / "gpu_worker" / "cpu" / "liboctavo_cpu.so"

# Sums are in the order that the code says: no contraction, no reassociation. So a row's bits do not depend on how many
# rows were compiled into one loop. The AVX-512 headers of GCC 12 look uninitialised to it.
FLAGS = (
    "-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized",
)  # fmt: skip
LINK_FLAGS = ("-shared", "-pthread", "-static-libstdc++", "-static-libgcc")
EXPORTS = "{ global: octavo_*; local: *; };\n"  # no other name may meet that of another library in the process

# Compiled once per instruction set of the architecture, least first. The order is that of the link as well: an inline
# function of the standard library that several of them hold is taken from the first, which every machine can run.
_ISA_FLAGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "x86_64": {
        "generic": (),
        "avx2": ("-mavx2", "-mfma", "-mf16c"),
        "avx512": (
            "-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni",
            "-mavx512bf16", "-mprefer-vector-width=512",
        ),
    },
}  # fmt: skip
_OTHER_ISA_FLAGS: Mapping[str, tuple[str, ...]] = {"generic": ()}


_WITHOUT = "so the CPU worker computes with torch alone; to add its kernels: apt-get install g++, then make setup"


class NoCompiler(Exception):
    """Nothing here can compile the library; the message says what was looked for and what to install."""


class BuildFailed(Exception):
    """The compiler refused the sources; the message has its words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """What makes code, and for which architecture."""

    command: tuple[str, ...]
    machine: str  # as in x86_64, aarch64
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    """One file to compile."""

    source: str
    name: str
    flags: tuple[str, ...]


def build(
    sources: Path = SOURCES, library: Path = LIBRARY, *, force: bool = False, compiler: str | None = None
) -> bool:
    """Bring the library up to date; true if it was compiled. Raises NoCompiler or BuildFailed.

    A library that is fresh needs no compiler. One of other sources does not outlive NoCompiler: it would compute
    something else than the code says. Safe to call from several processes at once: one compiles, the others wait.
    """
    digest = _digest(sources)
    stamp = library.with_suffix(".stamp")
    library.parent.mkdir(parents=True, exist_ok=True)
    with _lock(library.with_suffix(".lock")):
        try:
            made_by = _find_compiler(compiler)
        except NoCompiler:
            if _stamped(library, stamp)[:1] == [digest]:
                return False
            library.unlink(missing_ok=True)
            raise
        identity = [digest, f"{shlex.join(made_by.command)}: {made_by.version}, {made_by.machine}"]
        if not force and _stamped(library, stamp) == identity:
            return False
        with tempfile.TemporaryDirectory(prefix="octavo-cpu-") as folder:
            _compile(made_by, sources, into=Path(folder))
            _link(made_by, Path(folder), library=library)
        stamp.write_text("\n".join(identity) + "\n", encoding="utf-8")
    return True


def _find_compiler(asked: str | None) -> Compiler:
    """What was asked for, else CXX, else g++; it must know the standard and the flags."""
    command = tuple(shlex.split(asked or os.environ.get("CXX") or "g++"))
    if not shutil.which(command[0]):
        raise NoCompiler(f"no C++ compiler ({command[0]}), {_WITHOUT}")
    return _examined(command)


def _examined(command: tuple[str, ...]) -> Compiler:
    machine = _told(command, "-dumpmachine").split("-")[0]
    version = _told(command, "--version").partition("\n")[0]
    flags = [flag for isa in _isa_flags(machine).values() for flag in isa]
    try:
        _run([*command, "-std=c++20", *flags, "-x", "c++", "-fsyntax-only", os.devnull])
    except BuildFailed as refused:
        reason = str(refused).partition("\n")[2].partition("\n")[0]
        raise NoCompiler(f"{version} is too old ({reason}), {_WITHOUT}") from None
    return Compiler(command=command, machine=machine, version=version)


def _told(command: tuple[str, ...], question: str) -> str:
    return subprocess.run([*command, question], capture_output=True, text=True, check=False).stdout.strip()


def _stamped(library: Path, stamp: Path) -> list[str]:
    """What the library that is there was made of: digest and compiler; nothing if there is none."""
    return stamp.read_text(encoding="utf-8").splitlines() if library.exists() and stamp.exists() else []


def _isa_flags(machine: str) -> Mapping[str, tuple[str, ...]]:
    return _ISA_FLAGS.get(machine, _OTHER_ISA_FLAGS)


def _objects(machine: str) -> tuple[_Object, ...]:
    isa_flags = _isa_flags(machine)
    has_isas = tuple(f"-DOCTAVO_HAS_{isa.upper()}" for isa in isa_flags)
    common = (
        _Object(source="octavo_cpu.cpp", name="octavo_cpu.o", flags=has_isas),
        _Object(source="pack.cpp", name="pack.o", flags=()),
    )
    kernels = tuple(
        _Object(source="kernels.cpp", name=f"kernels_{isa}.o", flags=(f"-DOCTAVO_ISA={isa}", *flags))
        for isa, flags in isa_flags.items()
    )
    return common + kernels


def _digest(sources: Path) -> str:
    """The identity of what the library depends on beside the compiler: every byte of the sources, and the flags."""
    digest = hashlib.sha256(repr((FLAGS, LINK_FLAGS, EXPORTS, _ISA_FLAGS, _OTHER_ISA_FLAGS)).encode())
    for path in sorted((*sources.glob("*.h"), *sources.glob("*.cpp"))):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _compile(compiler: Compiler, sources: Path, *, into: Path) -> None:
    def compile_one(item: _Object) -> None:
        _run([*compiler.command, *FLAGS, *item.flags, "-c", str(sources / item.source), "-o", str(into / item.name)])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as compilers:
        list(compilers.map(compile_one, reversed(_objects(compiler.machine))))  # the longest first


def _link(compiler: Compiler, folder: Path, *, library: Path) -> None:
    """Into place in one rename: a process that has the old library open keeps it whole."""
    staged, exports = library.with_name(f".{library.name}.new"), folder / "exports.map"
    exports.write_text(EXPORTS, encoding="utf-8")
    objects = [str(folder / item.name) for item in _objects(compiler.machine)]
    _run([*compiler.command, *objects, *LINK_FLAGS, f"-Wl,--version-script={exports}", "-o", str(staged)])
    os.replace(staged, library)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildFailed(f"{' '.join(command)} failed:\n{done.stderr.rstrip()}")
    if done.stderr:
        print(done.stderr.rstrip())


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true", help="compile even if the library is fresh")
    parser.add_argument("--if-possible", action="store_true", help="without a compiler say so and succeed")
    parser.add_argument("--output", type=Path, default=LIBRARY, help="the library to write")
    parser.add_argument("--compiler", help="instead of CXX or g++; also one for another architecture")
    arguments = parser.parse_args()
    try:
        was_compiled = build(library=arguments.output, force=arguments.force, compiler=arguments.compiler)
    except NoCompiler as reason:
        print(f"build_cpu: {reason}", file=sys.stderr)
        raise SystemExit(0 if arguments.if_possible else 1) from None
    except BuildFailed as failed:
        raise SystemExit(f"build_cpu: {failed}") from None
    except OSError as refused:  # as where the installation is read-only
        raise SystemExit(f"build_cpu: {arguments.output} cannot be made: {refused}") from None
    print(f"{arguments.output.name} compiled" if was_compiled else f"{arguments.output.name} is fresh")


if __name__ == "__main__":
    main()

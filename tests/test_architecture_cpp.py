"""The architecture as tests, for the C++ of the CPU kernels: what it includes, how it is compiled, how it is cut."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "gpu_worker/cpu/src"
# Whatever says how C++ is compiled, here or in an image.
RECIPES = ("tools/build_cpu.py", "setup.py", "pyproject.toml", "Makefile", "deploy/Dockerfile", ".ci/run")

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 400
INTRINSICS = {"immintrin.h", "emmintrin.h", "arm_neon.h"}
SYSTEM_HEADERS = {"sched.h": "processors.h"}  # header -> the one file that may include it
C_HEADERS = {"math.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h", "errno.h", "time.h"}
OWN_HEADERS = {path.name for path in SOURCES.glob("*.h")}

FUNCTION = re.compile(r"^( *)(?!namespace|struct|class|enum|union|extern|if|for|while|switch|do|else)\S.*\{$")


@dataclass(frozen=True, slots=True)
class CppFile:
    """One C++ file of ours."""

    name: str
    source: str

    @property
    def includes(self) -> list[str]:
        return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', self.source, re.MULTILINE)

    @property
    def functions(self) -> Iterator[tuple[str, int]]:
        """First line and number of lines of every function, as clang-format lays them out."""
        lines = self.source.splitlines()
        for index, line in enumerate(lines):
            if "(" not in line or not (found := FUNCTION.match(line)) or len(found[1]) > 4:
                continue
            end = next((i for i in range(index, len(lines)) if lines[i].startswith(f"{found[1]}}}")), index)
            yield line.strip(), end - index + 1


Rule = Callable[[CppFile], Iterator[str]]


def files_say_what_they_own(file: CppFile) -> Iterator[str]:
    if not file.source.startswith("// "):
        yield "does not begin with a comment"


def files_are_short(file: CppFile) -> Iterator[str]:
    if (num_lines := file.source.count("\n")) > MAX_FILE_LINES:
        yield f"has {num_lines} lines"


def functions_are_short(file: CppFile) -> Iterator[str]:
    for first_line, num_lines in file.functions:
        if num_lines > MAX_FUNCTION_LINES:
            yield f"has {num_lines} lines in {first_line}"


def only_the_standard_library_is_included(file: CppFile) -> Iterator[str]:
    """No torch, no Python, no OpenMP: the library is loaded by ctypes and has threads of its own."""
    for header in file.includes:
        is_standard = re.fullmatch(r"[a-z_]+", header) or header in C_HEADERS | INTRINSICS
        if not (is_standard or header in OWN_HEADERS or file.name.endswith(SYSTEM_HEADERS.get(header, "?"))):
            yield f"includes {header}"
    if "#pragma omp" in file.source:
        yield "uses OpenMP"


def results_do_not_hang_on_the_compiler(file: CppFile) -> Iterator[str]:
    """Sums in another order, or denormals gone, would change bits from one build to the next."""
    for switch in ("fast-math", "-Ofast", "float_control", "STDC FP_CONTRACT"):
        if switch in file.source:
            yield f"has {switch}"


RULES: tuple[Rule, ...] = (
    files_say_what_they_own,
    files_are_short,
    functions_are_short,
    only_the_standard_library_is_included,
    results_do_not_hang_on_the_compiler,
)


def files() -> list[CppFile]:
    others = [path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.cpp")]
    paths = sorted((*SOURCES.iterdir(), *others))
    return [CppFile(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
def test_every_file_obeys(rule: Rule):
    broken = [f"{file.name} {violation}" for file in files() for violation in rule(file)]
    assert not broken, "\n".join(["", *broken])


def test_the_rules_see_the_interface_and_its_functions():
    seen = {Path(file.name).name: file for file in files()}
    assert {"octavo_cpu.h", "octavo_cpu.cpp", "kernels.cpp"} <= set(seen)
    assert any("octavo_use_isa" in first_line for first_line, _ in seen["octavo_cpu.cpp"].functions)


@pytest.mark.parametrize("recipe", RECIPES)
def test_nothing_is_compiled_for_one_machine_or_with_other_arithmetic(recipe: str):
    words = re.findall(r"-m(?:arch|tune|cpu)=native|-Ofast|-ffast-math|-fopenmp", (ROOT / recipe).read_text())
    assert words == []


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (files_say_what_they_own, "#pragma once\n"),
        (files_are_short, "// A file.\n" * 401),
        (functions_are_short, "void f() {\n" + "    g();\n" * 59 + "}\n"),
        (functions_are_short, "struct S {\n    void f() const {\n" + "        g();\n" * 59 + "    }\n};\n"),
        (only_the_standard_library_is_included, "#include <torch/extension.h>\n"),
        (only_the_standard_library_is_included, "#include <Python.h>\n"),
        (only_the_standard_library_is_included, "#include <omp.h>\n"),
        (only_the_standard_library_is_included, "    #pragma omp parallel for\n"),
        (results_do_not_hang_on_the_compiler, '#pragma GCC optimize("fast-math")\n'),
    ],
)
def test_each_rule_notices_when_it_is_broken(rule: Rule, source: str):
    assert list(rule(CppFile("a.h", source)))


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (functions_are_short, "namespace octavo {\n" + "int x;\n" * 80 + "}  // namespace octavo\n"),
        (functions_are_short, "void f() {\n" + "    g();\n" * 58 + "}\n"),
        (only_the_standard_library_is_included, '#include <vector>\n#include <math.h>\n#include "octavo_cpu.h"\n'),
    ],
)
def test_each_rule_lets_through_what_is_right(rule: Rule, source: str):
    assert not list(rule(CppFile("a.h", source)))

"""The mirror of the C interface: every struct, constant and function is in Python what the header says."""

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from gpu_worker.core import work_list
from gpu_worker.cpu import library
from gpu_worker.cpu.library import LibraryMissing
from tools import build_cpu

HEADER = (build_cpu.SOURCES / "octavo_cpu.h").read_text(encoding="utf-8")
STRUCTS: tuple[type[ctypes.Structure], ...] = (
    library.Weight,
    library.WorkList,
    library.AttentionShape,
    library.Layer,
    library.Model,
    library.Step,
    library.StepReport,
)


def test_every_struct_has_the_compilers_layout(tmp_path: Path):
    lines, expected = [], []
    for struct in STRUCTS:
        name = f"Octavo{struct.__name__}"
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
            expected.append(f"{name}.{field} {getattr(struct, field).offset}")
    source, program = tmp_path / "layout.cpp", tmp_path / "layout"
    includes = '#include <stddef.h>\n#include <stdio.h>\n#include "octavo_cpu.h"\n'
    source.write_text(f"{includes}int main() {{ {' '.join(lines)} }}\n")
    subprocess.run(["g++", "-I", build_cpu.SOURCES, source, "-o", program], check=True)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines() == expected


def test_no_struct_or_field_of_the_header_is_left_out():
    bodies = re.findall(r"typedef struct Octavo(\w+) \{(.*?)\} ", HEADER, re.DOTALL)
    in_header = {name: _fields(body) for name, body in bodies}
    assert in_header == {struct.__name__: [field for field, *_ in struct._fields_] for struct in STRUCTS}


def _fields(body: str) -> list[str]:
    """The names that a struct's body declares, in order."""
    declarations = re.sub(r"//.*", "", body).split(";")
    return [re.sub(r".*[ *]", "", name.strip()) for line in declarations if line.strip() for name in line.split(",")]


def test_every_function_of_the_header_is_declared_with_as_many_arguments():
    in_header = {
        name: 0 if arguments == "void" else len(arguments.split(","))
        for name, arguments in re.findall(r"^\w[\w *]*?\b(octavo_\w+)\(([^)]*)\);", HEADER, re.MULTILINE)
    }
    assert in_header == {name: len(arguments) for name, (_, arguments) in library._FUNCTIONS.items()}


def test_constants_are_those_of_the_header():
    numbers = dict(re.findall(r"(OCTAVO_\w+)(?: = | )(\d+)", HEADER))
    ours = {"ABI": library.ABI, "SEGMENT": work_list.SEGMENT, "BF16": library.BF16, "Q8": library.Q8, "Q4": library.Q4}
    ours |= {"SILU": library.SILU, "GELU_TANH": library.GELU_TANH}
    assert {name: int(number) for name, number in numbers.items()} == {f"OCTAVO_{key}": ours[key] for key in ours}


def test_a_library_that_is_not_there_is_none_for_the_worker_and_a_reason_for_who_asks(tmp_path: Path):
    assert library.load(tmp_path / "liboctavo_cpu.so") is None
    with pytest.raises(LibraryMissing, match=r"liboctavo_cpu\.so is not there"):
        library.opened(tmp_path / "liboctavo_cpu.so")


@pytest.mark.parametrize(("function", "reason"), [
    ("int octavo_abi(void) { return 999; }", "has interface 999"),
    ("int something_else(void) { return 1; }", "cannot be loaded"),
    (f"int octavo_abi(void) {{ return {library.ABI}; }}", "cannot be loaded: .*octavo_isa"),
])  # fmt: skip
def test_a_library_of_another_interface_is_not_used(function: str, reason: str, tmp_path: Path):
    (tmp_path / "other.cpp").write_text(f'extern "C" {{ {function} }}\n')
    path = tmp_path / "other.so"
    subprocess.run(["g++", "-shared", "-fPIC", tmp_path / "other.cpp", "-o", path], check=True)
    with pytest.raises(LibraryMissing, match=reason):
        library.opened(path)


def test_a_file_that_is_no_library_is_not_used(tmp_path: Path):
    path = tmp_path / "broken.so"
    path.write_bytes(b"not a library")
    with pytest.raises(LibraryMissing, match="cannot be loaded"):
        library.opened(path)

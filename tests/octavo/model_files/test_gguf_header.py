"""The header reader sees what the `gguf` package sees, and refuses what is no whole file."""

import mmap
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

from octavo.model_files.file_mapping import mapped
from octavo.model_files.gguf_header import GGUFHeader, TensorPlace

MATRIX = np.arange(3 * 64, dtype=np.float32).reshape(3, 64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a value of every type, lists of them, and tensors of several types."""
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "gemma3")
    for kind, value in {
        "uint8": 200, "int8": -100, "uint16": 60000, "int16": -30000, "uint32": 4_000_000_000, "int32": -2_000_000_000,
        "uint64": 2**63 + 1, "int64": -(2**62), "float32": 0.1, "float64": 0.1, "bool": True, "string": "naïve ☃",
    }.items():  # fmt: skip
        getattr(writer, f"add_{kind}")(f"test.{kind}", value)
    writer.add_array("test.texts", ["", "a", "☃ b"])
    writer.add_array("test.numbers", [1, -2, 3])
    writer.add_array("test.fractions", [0.5, -0.25])
    writer.add_custom_alignment(64)
    writer.add_tensor("plain", np.arange(5, dtype=np.float32))
    for encoding in (GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1):
        writer.add_tensor(encoding.name, quants.quantize(MATRIX, encoding), raw_dtype=encoding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_fields_and_places_are_those_of_the_gguf_package(path: Path):
    header, reader = GGUFHeader(mapped(path)), GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert {name: list(v) if isinstance(v, tuple) else v for name, v in header.fields.items()} == fields
    assert header.tensors == {
        tensor.name: TensorPlace(
            encoding=tensor.tensor_type, shape=tuple(tensor.shape.tolist()), offset=tensor.data_offset
        )
        for tensor in reader.tensors
    }


def test_a_file_that_ends_anywhere_before_its_end_is_refused(path: Path):
    whole = path.read_bytes()
    for num_bytes in range(1, len(whole) - 32, 7):  # the last tensor is padded
        path.write_bytes(whole[:num_bytes])
        with pytest.raises((ValueError, struct.error)):
            GGUFHeader(mapped(path))


def in_memory(content: bytes) -> mmap.mmap:
    file = mmap.mmap(-1, len(content))
    file.write(content)
    return file


@pytest.mark.parametrize("with_lists_of_texts", [True, False])
def test_whatever_the_bytes_say_a_header_is_read_or_refused(path: Path, with_lists_of_texts: bool):
    whole = path.read_bytes()
    size = GGUFHeader(mapped(path)).tensors["plain"].offset
    num_refused = 0
    for at in range(4, size):
        for damage in (b"\0", b"\xff", b"\0" * 8, b"\xff" * 8, b"\xff" * 7 + b"\x7f"):
            damaged = in_memory(whole[:at] + damage + whole[at + len(damage) :])
            try:
                header = GGUFHeader(damaged, with_lists_of_texts=with_lists_of_texts)
            except (ValueError, struct.error):
                num_refused += 1
            else:
                assert all(place.offset < len(damaged) for place in header.tensors.values())
    assert num_refused > size


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (64, 0)])
def test_a_tensor_of_nothing_is_refused(shape: tuple[int, ...]):
    name = b"nothing"
    tensor = struct.pack(f"<Q{len(name)}sI{len(shape)}QIQ", len(name), name, len(shape), *shape, 0, 0)
    with pytest.raises(ValueError, match="a tensor has the shape"):
        GGUFHeader(in_memory(struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + tensor + bytes(64)))


@pytest.mark.parametrize(("kind", "layout", "value"), [(4, "I", 0), (5, "i", -32), (6, "f", float("inf"))])
def test_data_aligned_to_what_is_no_number_of_bytes_is_refused(kind: int, layout: str, value: float):
    name = b"general.alignment"
    pair = struct.pack(f"<Q{len(name)}sI{layout}", len(name), name, kind, value)
    with pytest.raises(ValueError, match=r"general\.alignment is"):
        GGUFHeader(in_memory(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + pair))

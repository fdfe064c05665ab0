"""The header reader sees what the `gguf` package sees, and refuses what is no whole file."""

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

from octavo.model_files.gguf_header import GGUFHeader, TensorPlace, opened

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
    header, reader = GGUFHeader(opened(path)), GGUFReader(path)
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
            GGUFHeader(opened(path))

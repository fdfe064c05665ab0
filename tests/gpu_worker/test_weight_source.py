"""Matrices come out of both file formats as they are stored, are read only when they are used, and lie in the file."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from gpu_worker.errors import UnreadableWeights
from gpu_worker.gguf_file import GGUFFile
from gpu_worker.safetensors_folder import SafetensorsFolder
from gpu_worker.weight_source import BF16, F16, F32, StoredMatrix, WeightSource, expanded

GATE = "model.layers.0.mlp.gate_proj.weight"
VALUES = np.random.default_rng(5).standard_normal((6, 256)).astype(np.float32)
QUANTISED = (Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0)


def write_gguf(path: Path, kind: Kind, values: np.ndarray[Any, Any] = VALUES) -> Path:
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_tensor("blk.0.ffn_gate.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_safetensors(folder: Path, dtype: str, data: bytes, shape: list[int], *, end: int | None = None) -> Path:
    """A file with GATE in it, which says that it ends at `end`."""
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data) if end is None else end]}
    contents = json.dumps({"__metadata__": {"format": "pt"}, GATE: entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(contents)) + contents + data)
    return folder


def as_bf16(values: np.ndarray[Any, Any]) -> bytes:
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


@pytest.mark.parametrize("kind", [*QUANTISED, Kind.F32, Kind.F16, Kind.BF16])
def test_every_encoding_expands_to_what_ggufs_own_reader_makes_of_it(tmp_path: Path, kind: Kind) -> None:
    stored = GGUFFile(write_gguf(tmp_path / "m.gguf", kind)).matrix(GATE)
    assert (stored.encoding, stored.rows, stored.columns) == (kind, 6, 256)
    assert (expanded(stored) == gguf.quants.dequantize(stored.data, kind)).all()
    assert np.abs(expanded(stored) - VALUES).max() < 0.3


@pytest.mark.parametrize(
    ("dtype", "encoding", "data"),
    [
        ("F32", F32, VALUES.tobytes()),
        ("F16", F16, VALUES.astype(np.float16).tobytes()),
        ("BF16", BF16, as_bf16(VALUES)),
    ],
)
def test_safetensors_of_every_float_type_are_read(tmp_path: Path, dtype: str, encoding: int, data: bytes) -> None:
    stored = SafetensorsFolder(write_safetensors(tmp_path, dtype, data, [6, 256])).matrix(GATE)
    assert (stored.encoding, stored.rows, stored.columns) == (encoding, 6, 256)
    assert stored.data.tobytes() == data
    assert np.abs(expanded(stored) - VALUES).max() < 0.02


def sources(folder: Path) -> list[tuple[Path, WeightSource]]:
    write_safetensors(folder, "F32", VALUES.tobytes(), [6, 256])
    quantised = write_gguf(folder / "m.gguf", Kind.Q8_0)
    return [(folder / "model.safetensors", SafetensorsFolder(folder)), (quantised, GGUFFile(quantised))]


def test_a_matrix_is_a_view_of_the_file_that_cannot_be_written_to(tmp_path: Path) -> None:
    for _, source in sources(tmp_path):
        first, again = source.matrix(GATE), source.matrix(GATE)
        assert np.shares_memory(first.data, again.data)
        with pytest.raises(ValueError, match="read-only"):
            first.data[:] = 0


def test_a_name_that_is_not_there_is_a_key_error(tmp_path: Path) -> None:
    for _, source in sources(tmp_path):
        assert source.has(GATE)
        assert not source.has("model.norm.weight")
        with pytest.raises(KeyError):
            source.matrix("model.norm.weight")


def test_no_part_of_a_gguf_can_be_missing(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", Kind.Q4_1).read_bytes()
    short = tmp_path / "short.gguf"
    size_of_data = 6 * 256 // 32 * 20
    start_of_data = len(whole) - -(-size_of_data // 32) * 32
    for num_bytes in (0, 3, 20, 60, start_of_data - 40, start_of_data + size_of_data - 1):
        short.write_bytes(whole[:num_bytes])
        with pytest.raises(UnreadableWeights, match=r"short\.gguf cannot be read as GGUF; is it whole\?"):
            GGUFFile(short)


def test_a_safetensors_entry_that_disagrees_with_its_shape_is_refused(tmp_path: Path) -> None:
    source = SafetensorsFolder(write_safetensors(tmp_path, "F32", VALUES.tobytes(), [5, 256]))
    with pytest.raises(UnreadableWeights, match="has 6144 bytes, its shape takes 5120"):
        source.matrix(GATE)
    source = SafetensorsFolder(write_safetensors(tmp_path, "F32", VALUES.tobytes(), [600, 256]))
    with pytest.raises(UnreadableWeights, match=r"gate_proj\.weight lies outside of the file"):
        source.matrix(GATE)


def test_a_safetensors_file_of_another_length_than_its_contents_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableWeights, match=r"model\.safetensors cannot be read as safetensors; is it whole\?"):
        SafetensorsFolder(write_safetensors(tmp_path, "F32", VALUES.tobytes(), [6, 256], end=6145))


def test_a_type_that_no_model_runs_in_is_named(tmp_path: Path) -> None:
    source = SafetensorsFolder(write_safetensors(tmp_path, "F8_E4M3", bytes(6 * 256), [6, 256]))
    with pytest.raises(UnreadableWeights, match="is stored as F8_E4M3; supported are BF16, F16, F32"):
        source.matrix(GATE)


def test_an_encoding_that_nobody_can_expand_is_named() -> None:
    data = np.zeros((1, 292), dtype=np.uint8)
    with pytest.raises(UnreadableWeights, match="stored as Q8_K cannot be expanded"):
        expanded(StoredMatrix(encoding=Kind.Q8_K, rows=1, columns=256, data=data))


HOSTILE_TYPES: list[Any] = [None, ["F32"], {}, ""]
HOSTILE_ENTRIES: list[Any] = [
    None, 7, [], {}, {"dtype": "F32"}, {"dtype": "F32", "shape": [6, 256]},
    *({"dtype": "F32", "shape": [6, 256], "data_offsets": offsets}
      for offsets in (None, [], [6144], [0, 1, 6144], [-8, 6144], [0.0, 6144], [0, "6144"], [6144, 0], [0, 2**70])),
    *({"dtype": dtype, "shape": [6, 256], "data_offsets": [0, 6144]} for dtype in HOSTILE_TYPES),
    *({"dtype": "F32", "shape": shape, "data_offsets": [0, 6144]}
      for shape in (None, 1536, "ab", [6, -256], [-6, -256], [1.5, 1024], ["6", 256], [[6], 256], [True, 1536],
                    [2**70, 0], [0, 256], [2**40, 2**40])),
]  # fmt: skip


@pytest.mark.parametrize("entry", HOSTILE_ENTRIES, ids=str)
def test_whatever_safetensors_say_of_a_matrix_it_is_refused_or_right(tmp_path: Path, entry: Any) -> None:
    contents = json.dumps({GATE: entry}).encode()
    file = struct.pack("<Q", len(contents)) + contents + VALUES.tobytes()
    (tmp_path / "model.safetensors").write_bytes(file)
    with pytest.raises(UnreadableWeights, match=r"model\.safetensors"):
        SafetensorsFolder(tmp_path).matrix(GATE)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"1234567", struct.pack("<Q", 2**64 - 1) + b"{}", struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 4) + b"\xff\xff\xff\xff", struct.pack("<Q", 3) + b"NaN",
        struct.pack("<Q", 200_000) + b"[" * 200_000, struct.pack("<Q", 3) + b"{}",
    ],
)  # fmt: skip
def test_what_is_no_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UnreadableWeights, match="cannot be read as safetensors"):
        SafetensorsFolder(tmp_path)


def test_whatever_the_bytes_of_a_gguf_say_it_is_read_or_refused(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", Kind.Q4_1).read_bytes()
    path, size_of_header = tmp_path / "damaged.gguf", len(whole) - 6 * 256 // 32 * 20
    for at in range(4, size_of_header):
        for damage in (b"\0", b"\xff", b"\0" * 8, b"\xff" * 8):
            path.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
            try:
                source = GGUFFile(path)
            except UnreadableWeights:
                continue
            if source.has(GATE):
                assert source.matrix(GATE).data.nbytes <= len(whole)

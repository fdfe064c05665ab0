"""The model digest tells models apart, quickly, and does not depend on where the files lie."""

import shutil
from pathlib import Path

import pytest

from gpu_worker.identity import model_digest, new_incarnation


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"hidden_size": 8, "vocab_size": 4}')
    (tmp_path / "a.safetensors").write_bytes(bytes(range(256)) * 20_000)
    return tmp_path


def digest(folder: Path, dtype: str = "bfloat16") -> bytes:
    return model_digest(folder / "config.json", sorted(folder.glob("*.safetensors")), dtype=dtype)


def test_the_same_files_elsewhere_have_the_same_digest(files: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in files.glob("*.*"):
        shutil.copy(file, copy)
    (copy / "config.json").write_text('{"vocab_size": 4,   "hidden_size": 8}')
    assert digest(copy) == digest(files)


def test_another_configuration_name_size_head_or_tail_is_another_model(files: Path) -> None:
    seen = {digest(files)}
    weights = files / "a.safetensors"
    original = weights.read_bytes()
    for changed in (original + b"x", b"x" + original[1:], original[:-1] + b"x"):
        weights.write_bytes(changed)
        seen.add(digest(files))
    weights.write_bytes(original)
    weights.rename(files / "b.safetensors")
    seen.add(digest(files))
    (files / "config.json").write_text('{"hidden_size": 9, "vocab_size": 4}')
    seen.add(digest(files))
    assert len(seen) == 6


def test_other_numerics_are_another_model(files: Path) -> None:
    assert len({digest(files, dtype) for dtype in ("stored", "bfloat16", "float32")}) == 3


def test_incarnations_differ() -> None:
    assert len({new_incarnation() for _ in range(100)}) == 100

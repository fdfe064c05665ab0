"""Files are mapped, not read."""

from pathlib import Path

from octavo.model_files.file_mapping import mapped


def test_a_file_may_be_larger_than_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a terabyte of nothing
    assert len(mapped(path)) == 1 << 40

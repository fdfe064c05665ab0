"""Turns a GGUF's metadata into a folder with Hugging Face style configuration and tokenizer, once per file.

Knows where the converted folder lies and how to make it appear whole; what is in it is `gguf_config`'s and
`gguf_tokenizer`'s business.
"""

import hashlib
import json
import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.model_files import gguf_header
from octavo.model_files.errors import ModelFilesError
from octavo.model_files.file_mapping import mapped

if TYPE_CHECKING:
    from octavo.model_files.gguf_config import Metadata

FORMAT = 2  # part of the folder's name: raise it when what is written changes
HEAD_BYTES = 16 * 2**20  # what the key covers beside the size; metadata comes first in a GGUF


def config_dir_of(weights: Path, converted: Path) -> Path:
    """The folder made from the metadata of `weights`, under `converted`; makes it if it is not there (2-4 s)."""
    folder = converted / f"{weights.stem}-{_key(weights)}"
    if not folder.is_dir():
        _convert(weights, folder)
    return folder


def _key(weights: Path) -> str:
    """Depends on content and size only, so that a copy under another path or date needs no new conversion."""
    with weights.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if head[:4] != b"GGUF":
        raise ModelFilesError(f"{weights.absolute()} is not a GGUF file: it does not begin with GGUF")
    size = weights.stat().st_size
    return hashlib.sha256(b"%d:%d:" % (FORMAT, size) + head).hexdigest()[:16]


def _convert(weights: Path, folder: Path) -> None:
    """Write a temporary folder and rename it: other processes see all of it or nothing."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
    except OSError as refused:
        raise ModelFilesError(
            f"the tokenizer of {weights} has to be converted once, but {folder.parent} cannot be written "
            f"({refused.strerror}); run `octavo pull {weights}` where it can"
        ) from None
    try:
        _write(weights, temporary)
        temporary.chmod(0o755)
        os.rename(temporary, folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster, with the same content
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(weights: Path, folder: Path) -> None:
    metadata = _metadata(weights)
    try:
        _write_what_it_means(metadata, folder)
    except (ModelFilesError, OSError):
        raise
    except Exception as broken:  # values of any type may stand for any other; the tokenizers library raises no subclass
        raise ModelFilesError(f"{weights} has metadata that make no sense ({broken})") from broken


def _write_what_it_means(metadata: "Metadata", folder: Path) -> None:
    from octavo.model_files import gguf_config, gguf_tokenizer  # noqa: PLC0415 - 0.2 s, once a file and not every start

    (folder / "config.json").write_text(_json(gguf_config.config(metadata)))
    (folder / "generation_config.json").write_text(_json(gguf_config.generation_config(metadata)))
    gguf_tokenizer.tokenizer(metadata).save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(_json(gguf_tokenizer.tokenizer_config(metadata)))
    if template := metadata.text("tokenizer.chat_template", ""):
        (folder / "chat_template.jinja").write_text(template)


def _metadata(weights: Path) -> "Metadata":
    """A file that was cut short, as by a broken download, trips the reader in several ways."""
    from octavo.model_files.gguf_config import Metadata  # noqa: PLC0415

    try:
        file = mapped(weights)
        return Metadata(file, gguf_header.GGUFHeader(file), weights)
    except (ValueError, struct.error) as broken:
        raise ModelFilesError(f"{weights} cannot be read as a GGUF file; is it whole? ({broken})") from None


def _json(values: dict[str, object]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"

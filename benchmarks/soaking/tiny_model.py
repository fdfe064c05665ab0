"""A Llama of random weights with a tokenizer of bytes: real work for every process, a millisecond a step."""

from pathlib import Path

from tests.gateway import tiny_model
from tests.gpu_worker import tiny_models


def write(folder: Path) -> Path:
    """A model folder; the weights' own files first, because both builders write config.json."""
    tiny_model.write(folder, tiny_model.byte_level())
    tiny_models.save_llama(folder, "gqa_tied")
    tiny_model.byte_level().save(str(folder / "tokenizer.json"))
    return folder

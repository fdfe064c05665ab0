"""What the gateway must know of a model beside its tokenizer, from config.json and generation_config.json."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.core.submission import SamplingDefaults
from octavo.model_files import ModelFilesError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """A model as its makers describe it."""

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults


def load(config_dir: Path) -> ModelProfile:
    """Read the two files; generation_config.json may be absent. Raises ModelFilesError."""
    config = _read(config_dir / "config.json")
    generation = _read(config_dir / "generation_config.json", is_optional=True)
    for needed in ("max_position_embeddings", "vocab_size"):
        if not isinstance(config.get(needed), int):
            raise ModelFilesError(f"{config_dir / 'config.json'} has no {needed}; is it a language model's?")
    return ModelProfile(
        max_model_len=config["max_position_embeddings"],
        vocab_size=config["vocab_size"],
        eos_token_ids=_ids(generation.get("eos_token_id", config.get("eos_token_id"))),
        defaults=_defaults(generation),
    )


def _defaults(generation: dict[str, Any]) -> SamplingDefaults:
    """The sampling that the model's makers recommend, where they do; as vLLM takes it."""
    known = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return SamplingDefaults(**{name: generation[name] for name in known if generation.get(name) is not None})


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _read(path: Path, *, is_optional: bool = False) -> dict[str, Any]:
    if is_optional and not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as broken:
        raise ModelFilesError(f"cannot read {path}: {broken}") from None
    if not isinstance(values, dict):
        raise ModelFilesError(f"cannot read {path}: it holds no JSON object")
    return values

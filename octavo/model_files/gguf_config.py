"""config.json and generation_config.json from a GGUF's metadata, in the form of transformers' LlamaConfig.

Knows GGUF's names of things and Hugging Face's; reads no weights but the few numbers of `rope_freqs`.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader

from octavo.model_files.errors import ModelFilesError

# GGUF architecture -> (model_type, architecture class) of transformers.
ARCHITECTURES = {"llama": ("llama", "LlamaForCausalLM"), "qwen2": ("qwen2", "Qwen2ForCausalLM")}


class Metadata:
    """Typed access to the key-value part of a GGUF."""

    def __init__(self, reader: GGUFReader, path: Path) -> None:
        self.path = path
        self._reader = reader
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.architecture = self.text("general.architecture")
        if self.architecture not in ARCHITECTURES:
            raise ModelFilesError(
                f"{path} holds a {self.architecture!r} model; supported are {', '.join(ARCHITECTURES)}"
            )

    def __contains__(self, key: str) -> bool:
        return key in self._reader.fields

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._value(key, default))

    def integer(self, key: str, default: int | None = None) -> int:
        return int(self._value(key, default))  # type: ignore[call-overload,no-any-return]

    def number(self, key: str, default: float | None = None) -> float:
        """A float32 of the file with the fewest digits that mean it: 1e-05, not 9.999999747378752e-06."""
        return float(str(np.float32(self._value(key, default))))  # type: ignore[arg-type]

    def flag(self, key: str, *, default: bool) -> bool:
        return bool(self._value(key, default))

    def texts(self, key: str) -> list[str]:
        return [str(value) for value in self._value(key, None)]  # type: ignore[attr-defined]

    def integers(self, key: str) -> list[int]:
        return [int(value) for value in self._value(key, None)]  # type: ignore[attr-defined]

    def numbers(self, key: str) -> list[float]:
        return [float(value) for value in self._value(key, None)]  # type: ignore[attr-defined]

    def has_tensor(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> Sequence[float]:
        return [float(value) for value in self._tensors[name].data]

    def optional_id(self, name: str) -> int | None:
        """`tokenizer.ggml.<name>_token_id`."""
        key = f"tokenizer.ggml.{name}_token_id"
        return self.integer(key) if key in self else None

    def _value(self, key: str, default: object) -> object:
        if key in self._reader.fields:
            return self._reader.fields[key].contents()
        if default is None:
            raise ModelFilesError(f"{self.path} lacks {key!r}; is it a language model with its tokenizer?")
        return default


def config(metadata: Metadata) -> dict[str, object]:
    """Complete enough for the worker and for transformers.AutoConfig."""
    arch = metadata.architecture
    model_type, architecture = ARCHITECTURES[arch]
    hidden_size = metadata.integer(f"{arch}.embedding_length")
    num_heads = metadata.integer(f"{arch}.attention.head_count")
    values: dict[str, object] = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": len(metadata.texts("tokenizer.ggml.tokens")),
        "hidden_size": hidden_size,
        "intermediate_size": metadata.integer(f"{arch}.feed_forward_length"),
        "num_hidden_layers": metadata.integer(f"{arch}.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.integer(f"{arch}.attention.head_count_kv", num_heads),
        "head_dim": metadata.integer(f"{arch}.attention.key_length", hidden_size // num_heads),
        "max_position_embeddings": metadata.integer(f"{arch}.context_length"),
        "rms_norm_eps": metadata.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "tie_word_embeddings": not metadata.has_tensor("output.weight"),
        "use_cache": True,
        "dtype": "float32",
    }
    if model_type == "llama":
        values |= {"attention_bias": metadata.has_tensor("blk.0.attn_q.bias"), "mlp_bias": False}
    return values | _rope(metadata) | _special_ids(metadata)


def generation_config(metadata: Metadata) -> dict[str, object]:
    """The ids that end an answer: every one the file names."""
    ends = [metadata.optional_id(name) for name in ("eos", "eot", "eom")]
    eos_token_ids = list(dict.fromkeys(token_id for token_id in ends if token_id is not None))
    return _special_ids(metadata) | {"eos_token_id": eos_token_ids}


def _special_ids(metadata: Metadata) -> dict[str, object]:
    ids = {f"{name}_token_id": metadata.optional_id(gguf) for name, gguf in _SPECIAL.items()}
    return {name: token_id for name, token_id in ids.items() if token_id is not None}


_SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding"}


def _rope(metadata: Metadata) -> dict[str, object]:
    """`rope_parameters` for transformers 5, `rope_theta` and `rope_scaling` for older readers."""
    arch = metadata.architecture
    theta = metadata.number(f"{arch}.rope.freq_base", 10000.0)
    scaling = _rope_scaling(metadata)
    return {
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_theta": theta, **(scaling or {"rope_type": "default"})},
    }


def _rope_scaling(metadata: Metadata) -> dict[str, object] | None:
    """None where positions are not scaled.

    A GGUF keeps Llama 3's scaling as one divisor per frequency in `rope_freqs`: 1 for the high ones, the factor for
    the low ones. The bounds between are the same in every Llama 3.1, 3.2 and 3.3.
    """
    arch = metadata.architecture
    if metadata.has_tensor("rope_freqs.weight"):
        return {
            "rope_type": "llama3",
            "factor": max(metadata.tensor("rope_freqs.weight")),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    kind = metadata.text(f"{arch}.rope.scaling.type", "none")
    match kind:
        case "none":
            return None
        case "linear":
            return {"rope_type": "linear", "factor": metadata.number(f"{arch}.rope.scaling.factor")}
        case "yarn":
            return {
                "rope_type": "yarn",
                "factor": metadata.number(f"{arch}.rope.scaling.factor"),
                "original_max_position_embeddings": metadata.integer(f"{arch}.rope.scaling.original_context_length"),
            }
        case _:
            raise ModelFilesError(f"{metadata.path} scales positions by {kind!r}; supported are none, linear, yarn")

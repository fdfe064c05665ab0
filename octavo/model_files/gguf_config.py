"""config.json and generation_config.json from a GGUF's metadata, in the form of transformers' configurations.

Knows GGUF's names of things and Hugging Face's; reads no weights but the few numbers of `rope_freqs`.
"""

import math
import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from octavo.model_files.errors import ModelFilesError
from octavo.model_files.gguf_header import GGUFHeader

# GGUF architecture -> (model_type, architecture class) of transformers.
ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),  # and Mistral, which llama.cpp runs as a Llama, too
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma2": ("gemma2", "Gemma2ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}

# What llama.cpp knows of the Gemmas without being told: every how many layers one sees everything, the theta of the
# others, and the number of layers of the models whose scores are scaled by the width of a head's share of the stream.
_WINDOW_PATTERNS = {"gemma2": 2, "gemma3": 6}
_LOCAL_THETA = 10000.0
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
_END_OF_TURN = "<end_of_turn>"
_SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding"}  # tokens: Hugging Face's name of one, and GGUF's


class Metadata:
    """Typed access to the key-value part of a GGUF."""

    def __init__(self, file: mmap.mmap, header: GGUFHeader, path: Path) -> None:
        self.path = path
        self._file = file
        self._header = header
        self.architecture = self.text("general.architecture")
        if self.architecture not in ARCHITECTURES:
            raise ModelFilesError(
                f"{path} holds a {self.architecture!r} model; supported are {', '.join(ARCHITECTURES)}"
            )

    def __contains__(self, key: str) -> bool:
        return key in self._header.fields

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._value(key, default))

    def integer(self, key: str, default: int | None = None) -> int:
        return int(self._value(key, default))  # type: ignore[call-overload,no-any-return]

    def number(self, key: str, default: float | None = None) -> float:
        """A float32 of the file with the fewest digits that mean it: 1e-05, not 9.999999747378752e-06."""
        return float(str(np.float32(self._value(key, default))))  # type: ignore[arg-type]

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if key in self else None

    def flag(self, key: str, *, default: bool) -> bool:
        return bool(self._value(key, default))

    def texts(self, key: str) -> list[str]:
        return [str(value) for value in self._value(key, None)]  # type: ignore[attr-defined]

    def integers(self, key: str) -> list[int]:
        return [int(value) for value in self._value(key, None)]  # type: ignore[attr-defined]

    def numbers(self, key: str) -> list[float]:
        return [float(value) for value in self._value(key, None)]  # type: ignore[attr-defined]

    def has_tensor(self, name: str) -> bool:
        return name in self._header.tensors

    def float_tensor(self, name: str) -> Sequence[float]:
        """Of a tensor that is kept in float32."""
        place = self._header.tensors[name]
        values: list[float] = np.frombuffer(self._file, "<f4", math.prod(place.shape), place.offset).tolist()
        return values

    def optional_id(self, name: str) -> int | None:
        """`tokenizer.ggml.<name>_token_id`."""
        key = f"tokenizer.ggml.{name}_token_id"
        return self.integer(key) if key in self else None

    def _value(self, key: str, default: object) -> object:
        if key in self._header.fields:
            return self._header.fields[key]
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
        "hidden_act": "gelu_pytorch_tanh" if arch in _WINDOW_PATTERNS else "silu",
        "tie_word_embeddings": not metadata.has_tensor("output.weight"),
        "use_cache": True,
        "dtype": "float32",
    }
    if model_type == "llama":
        values |= {"attention_bias": metadata.has_tensor("blk.0.attn_q.bias"), "mlp_bias": False}
    if arch in _WINDOW_PATTERNS:
        values |= _gemma(metadata)
    return values | _rope(metadata) | _special_ids(metadata)


def _gemma(metadata: Metadata) -> dict[str, object]:
    """Windows, soft caps and the scale of scores."""
    arch = metadata.architecture
    num_layers = metadata.integer(f"{arch}.block_count")
    num_heads = metadata.integer(f"{arch}.attention.head_count")
    share = metadata.integer(f"{arch}.embedding_length") // num_heads
    pattern = _WINDOW_PATTERNS[arch]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": metadata.integer(f"{arch}.attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(num_layers)
        ],
        "query_pre_attn_scalar": (
            share if num_layers == _LAYERS_OF_27B[arch] else metadata.integer(f"{arch}.attention.key_length", share)
        ),
        "attn_logit_softcapping": metadata.optional_number(f"{arch}.attn_logit_softcapping"),
        "final_logit_softcapping": metadata.optional_number(f"{arch}.final_logit_softcapping"),
    }


def generation_config(metadata: Metadata) -> dict[str, object]:
    """The ids that end an answer: every one the file names."""
    ends = [metadata.optional_id(name) for name in ("eos", "eot", "eom")]
    if metadata.architecture in _WINDOW_PATTERNS and _END_OF_TURN in (
        tokens := metadata.texts("tokenizer.ggml.tokens")
    ):
        ends.append(tokens.index(_END_OF_TURN))  # the files of Gemma name only the end of a text
    eos_token_ids = list(dict.fromkeys(token_id for token_id in ends if token_id is not None))
    return _special_ids(metadata) | {"eos_token_id": eos_token_ids}


def _special_ids(metadata: Metadata) -> dict[str, object]:
    ids = {f"{name}_token_id": metadata.optional_id(gguf) for name, gguf in _SPECIAL.items()}
    return {name: token_id for name, token_id in ids.items() if token_id is not None}


def _rope(metadata: Metadata) -> dict[str, object]:
    """`rope_parameters` for transformers 5, `rope_theta` and `rope_scaling` for older readers."""
    arch = metadata.architecture
    theta = metadata.number(f"{arch}.rope.freq_base", 10000.0)
    scaling = _rope_scaling(metadata)
    if arch == "gemma3":
        local_theta = metadata.number(f"{arch}.rope.freq_base_swa", _LOCAL_THETA)
        return {
            "rope_parameters": {
                "full_attention": {"rope_theta": theta, **(scaling or {"rope_type": "default"})},
                "sliding_attention": {"rope_theta": local_theta, "rope_type": "default"},
            }
        }
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
            "factor": max(metadata.float_tensor("rope_freqs.weight")),
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

"""The tensors of a model on disk, one at a time, under Hugging Face's names: a safetensors folder or a GGUF file.

Knows file formats; what the tensors are for is the model's business.
"""

import struct
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from gguf import GGUFReader, GGUFValueType, dequantize
from safetensors import SafetensorError, safe_open

from gpu_worker.errors import UnreadableWeights

FREQUENCY_DIVISORS = "rope_freqs.weight"  # only in GGUF files of Llama 3

_GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    FREQUENCY_DIVISORS: FREQUENCY_DIVISORS,
}
_GGUF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class WeightSource(Protocol):
    """Where tensors come from. Reading may happen in several threads."""

    has_adjacent_pairs: bool  # whether the rows of q and k are already ordered as `models/rope.py` wants them

    def has(self, name: str) -> bool: ...

    def tensor(self, name: str) -> torch.Tensor: ...


class SafetensorsFolder:
    """A Hugging Face folder: one or several *.safetensors."""

    has_adjacent_pairs = False

    def __init__(self, folder: Path) -> None:
        self._files = [_opened(path) for path in weight_files(folder)]
        self._file_of = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118 - not a dict

    def has(self, name: str) -> bool:
        return name in self._file_of

    def tensor(self, name: str) -> torch.Tensor:
        """Raises KeyError when no file has it."""
        tensor: torch.Tensor = self._file_of[name].get_tensor(name)
        return tensor


class GGUFFile:
    """A GGUF file; quantised tensors are expanded to float32."""

    def __init__(self, path: Path) -> None:
        reader = _HeaderReader(path)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        # llama.cpp reorders q and k of this architecture, and of no other, to rotate neighbours.
        self.has_adjacent_pairs = reader.fields["general.architecture"].contents() == "llama"

    def has(self, name: str) -> bool:
        return _gguf_name(name) in self._tensors

    def tensor(self, name: str) -> torch.Tensor:
        """Raises KeyError when the file does not have it."""
        stored = self._tensors[_gguf_name(name)]
        values = dequantize(stored.data, stored.tensor_type)
        return torch.from_numpy(values if values.flags.writeable else values.copy())


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as broken:
        raise UnreadableWeights(f"{path} cannot be read as safetensors; is it whole? ({broken})") from None


def weight_files(weights: Path) -> list[Path]:
    """The files that hold the weights: the GGUF file itself, or every *.safetensors of the folder."""
    return sorted(weights.glob("*.safetensors")) if weights.is_dir() else [weights]


def _gguf_name(name: str) -> str:
    if name in _GGUF_NAMES:
        return _GGUF_NAMES[name]
    _, _, index, rest = name.split(".", 3)  # model.layers.7.self_attn.q_proj.weight
    module, _, kind = rest.rpartition(".")
    return f"blk.{index}.{_GGUF_LAYER_NAMES[module]}.{kind}"


class _HeaderReader(GGUFReader):
    """Skips the tokenizer's lists of strings, which take the plain reader two seconds and are not wanted here."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type == GGUFValueType.ARRAY:
            item_type, count = struct.unpack_from("<IQ", memoryview(self.data), orig_offs)  # type: ignore[arg-type]
            if item_type == GGUFValueType.STRING:
                end = _end_of_strings(memoryview(self.data), orig_offs + 12, count)  # type: ignore[arg-type]
                return end - orig_offs, [], [], [GGUFValueType.ARRAY, GGUFValueType.STRING]
            if item_type in self.gguf_scalar_to_np:
                size = 12 + count * np.dtype(self.gguf_scalar_to_np[item_type]).itemsize
                return size, [], [], [GGUFValueType.ARRAY, GGUFValueType(item_type)]
        parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
        return parts


def _end_of_strings(data: memoryview, start: int, count: int) -> int:
    length_at = struct.Struct("<Q").unpack_from
    offset = start
    for _ in range(count):
        offset += 8 + length_at(data, offset)[0]
    return offset

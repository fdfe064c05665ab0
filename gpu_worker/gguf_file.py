"""A GGUF file as a source of weights: its matrices under Hugging Face's names."""

import math
import mmap
import struct
from pathlib import Path

from gpu_worker.errors import UnreadableWeights
from gpu_worker.weight_source import FREQUENCY_DIVISORS, StoredMatrix, matrix_in
from octavo.model_files.file_mapping import mapped
from octavo.model_files.gguf_header import GGUFHeader, TensorPlace

_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    FREQUENCY_DIVISORS: FREQUENCY_DIVISORS,
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_AFTER_ATTENTION = "post_attention_layernorm"  # Gemma's norm of what attention gives, or the others' of the MLP's input


class GGUFFile:
    """A GGUF file as a WeightSource."""

    has_norm_offset = True  # llama.cpp's converter adds it

    def __init__(self, path: Path) -> None:
        """Raises UnreadableWeights if the file is cut short or is no GGUF."""
        try:
            file = mapped(path)
            header = GGUFHeader(file, with_lists_of_texts=False)
            self._matrices = {name: _matrix(file, place) for name, place in header.tensors.items()}
        except (ValueError, KeyError, struct.error) as broken:
            raise UnreadableWeights(f"{path} cannot be read as GGUF; is it whole? ({broken})") from None
        # llama.cpp reorders q and k of this architecture, and of no other, to rotate neighbours.
        self.has_adjacent_pairs = header.fields.get("general.architecture") == "llama"

    def has(self, name: str) -> bool:
        return self._stored_name(name) in self._matrices

    def matrix(self, name: str) -> StoredMatrix:
        """Raises KeyError when the file does not have it."""
        return self._matrices[self._stored_name(name)]

    def _stored_name(self, name: str) -> str:
        if name in _NAMES:
            return _NAMES[name]
        _, _, index, rest = name.split(".", 3)  # model.layers.7.self_attn.q_proj.weight
        module, _, kind = rest.rpartition(".")
        if module == _AFTER_ATTENTION:
            is_sandwich = f"blk.{index}.post_attention_norm.{kind}" in self._matrices
            return f"blk.{index}.{'post_attention_norm' if is_sandwich else 'ffn_norm'}.{kind}"
        return f"blk.{index}.{_LAYER_NAMES[module]}.{kind}"


def _matrix(file: mmap.mmap, place: TensorPlace) -> StoredMatrix:
    columns, *rest = place.shape
    return matrix_in(file, place.offset, encoding=place.encoding, rows=math.prod(rest), columns=columns)

"""GGUF files that the tests make themselves: metadata as in real ones, and one small tensor."""

from pathlib import Path

import numpy as np
from gguf import GGUFValueType, GGUFWriter
from gguf.gguf_writer import GGUFValue
from tokenizers import pre_tokenizers

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def write_byte_level(
    path: Path,
    *,
    pre: str | None,
    words: dict[str, tuple[str, str]] | None = None,
    instead: dict[str, object] | None = None,
) -> Path:
    """Every byte is a token, then each of `words`, made by joining its pair; then <s> and </s>.

    `instead` stands for what these metadata should be.
    """
    words = words or {"he": ("h", "e")}
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *words, "<s>", "</s>"]
    writer = _writer(path, tokens)
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_types([NORMAL] * (len(tokens) - 2) + [CONTROL] * 2)
    writer.add_token_merges([" ".join(pair) for pair in words.values()])
    for key, value in (instead or {}).items():
        writer.kv_data[0][key] = GGUFValue(value=value, type=GGUFValueType.get_type(value))
    return _written(writer, path)


def write_sentencepiece(path: Path, scored: dict[str, float]) -> Path:
    """<unk>, <s>, </s>, all bytes, then the pieces of `scored` (▁ is the space)."""
    specials = ["<unk>", "<s>", "</s>"]
    tokens = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *scored]
    writer = _writer(path, tokens)
    writer.add_tokenizer_model("llama")
    writer.add_unk_token_id(0)
    writer.add_token_types([UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(scored))
    writer.add_token_scores([0.0] * 259 + list(scored.values()))
    return _written(writer, path)


def _writer(path: Path, tokens: list[str]) -> GGUFWriter:
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(16)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(tokens)
    writer.add_bos_token_id(tokens.index("<s>"))
    writer.add_eos_token_id(tokens.index("</s>"))
    writer.add_chat_template("{{ messages[0].content }}")
    return writer


def _written(writer: GGUFWriter, path: Path) -> Path:
    writer.add_tensor("token_embd.weight", np.zeros((4, 16), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

"""Tokenizers that the tests make themselves, in folders as gateway.tokenizer loads them."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

TEMPLATE = (
    "{% for message in messages %}{% if message.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('roles are system, user, assistant, not ' + message.role) }}{% endif %}"
    "<|im_start|>{{ message.role }}:{{ message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
)
IM_START, IM_END, END = 256, 257, 258


def byte_level() -> Tokenizer:
    """Every byte is a token; a few words have one of their own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: at for at, char in enumerate(alphabet)}
    vocab |= {"<|im_start|>": IM_START, "<|im_end|>": IM_END, "<|end|>": END, "he": 259, "ll": 260, "hell": 261}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[("h", "e"), ("l", "l"), ("he", "ll")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, normalized=False) for text in ("<|im_start|>", "<|im_end|>", "<|end|>")])
    return made


def sentencepiece() -> Tokenizer:
    """Letters and a few words; everything else falls back to bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefgh", "▁a", "be", "▁be"]
    vocab = {piece: at for at, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("b", "e"), ("▁", "be")]
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    made.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    return made


def write(folder: Path, tokenizer: Tokenizer, *, template: str | None = TEMPLATE, max_model_len: int = 4096) -> Path:
    """A model folder without weights."""
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    )
    _write_json(
        folder / "config.json",
        {"model_type": "llama", "vocab_size": 512, "max_position_embeddings": max_model_len, "eos_token_id": END},
    )
    _write_json(folder / "generation_config.json", {"eos_token_id": [END], "top_k": 40})
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def _write_json(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values))

"""tokenizer.json and tokenizer_config.json from a GGUF's metadata.

Knows the pre-tokenizers that GGUF names only by a word (`tokenizer.ggml.pre`). An unknown word is refused: a wrong
one gives other ids than the model was trained with, and nothing would tell.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from octavo.model_files.errors import ModelFilesError
from octavo.model_files.gguf_config import Metadata

# Text is cut into words, each of which becomes tokens by itself; llama.cpp's llama-vocab.cpp keeps the same two.
_WORD_START = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_WORD_END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_WORD = rf"{_WORD_START}|\p{{N}}{{1,3}}|{_WORD_END}"
_QWEN2_WORD = rf"{_WORD_START}|\p{{N}}|{_WORD_END}"

_SPACE = "▁"  # SentencePiece's visible space


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """An entry of the vocabulary."""

    token_id: int
    text: str
    type: TokenType


def tokenizer(metadata: Metadata) -> Tokenizer:
    """The tokenizer that the file describes."""
    match metadata.text("tokenizer.ggml.model"):
        case "gpt2":
            made = _byte_level(metadata)
        case "llama":
            made = _sentencepiece(metadata)
        case other:
            raise ModelFilesError(f"{metadata.path} has a {other!r} tokenizer; supported are gpt2 and llama")
    made.add_special_tokens([_added(piece) for piece in _pieces(metadata) if piece.type == TokenType.CONTROL])
    made.add_tokens([_added(piece) for piece in _pieces(metadata) if piece.type == TokenType.USER_DEFINED])
    if (start := _bos(metadata)) is not None:
        made.post_processor = _beginning_with(start)
    return made


def tokenizer_config(metadata: Metadata) -> dict[str, object]:
    """tokenizer_config.json: which tokens play which part."""
    tokens = metadata.texts("tokenizer.ggml.tokens")
    parts = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    ids = {f"{part}_token": metadata.optional_id(gguf) for part, gguf in parts.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata.integer(f"{metadata.architecture}.context_length"),
        "clean_up_tokenization_spaces": False,
        **{name: tokens[token_id] for name, token_id in ids.items() if token_id is not None},
    }


def _byte_level(metadata: Metadata) -> Tokenizer:
    kind = metadata.text("tokenizer.ggml.pre", "default")
    merges = [(left, right) for left, right in (merge.split(" ") for merge in metadata.texts("tokenizer.ggml.merges"))]
    # Llama 3 takes a whole word that is in the vocabulary, whatever the merges would make of it.
    made = Tokenizer(models.BPE(vocab=_vocab(metadata), merges=merges, ignore_merges=kind == "llama-bpe"))
    made.pre_tokenizer = _pre_tokenizer(kind, metadata)
    made.decoder = decoders.ByteLevel()
    if kind == "qwen2":
        made.normalizer = normalizers.NFC()
    return made


def _pre_tokenizer(kind: str, metadata: Metadata) -> pre_tokenizers.PreTokenizer:
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    match kind:
        case "smollm":
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
        case "gpt2" | "gpt-2" | "default":
            return gpt2
        case "llama-bpe":
            return _by_words(_LLAMA3_WORD)
        case "qwen2":
            return _by_words(_QWEN2_WORD)
        case _:
            raise ModelFilesError(
                f"{metadata.path} cuts text by the rule {kind!r} (tokenizer.ggml.pre), which is not known here; "
                "supported are smollm, gpt2, default, llama-bpe, qwen2"
            )


def _by_words(pattern: str) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece(metadata: Metadata) -> Tokenizer:
    """SentencePiece merges the neighbours whose union scores best; the same as ranked merges."""
    unknown = metadata.optional_id("unknown")
    vocab = _vocab(metadata)
    made = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=list(_ranked_merges(metadata, vocab)),
            unk_token=None if unknown is None else metadata.texts("tokenizer.ggml.tokens")[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    adds_space = metadata.flag("tokenizer.ggml.add_space_prefix", default=True)
    replaced = normalizers.Replace(" ", _SPACE)
    made.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replaced]) if adds_space else replaced
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if adds_space else steps)
    return made


def _ranked_merges(metadata: Metadata, vocab: dict[str, int]) -> Iterator[tuple[str, str]]:
    scores = metadata.numbers("tokenizer.ggml.scores")
    normal = [piece for piece in _pieces(metadata) if piece.type in (TokenType.NORMAL, TokenType.USER_DEFINED)]
    for piece in sorted(normal, key=lambda piece: -scores[piece.token_id]):
        cuts = [(piece.text[:at], piece.text[at:]) for at in range(1, len(piece.text))]
        halves = [(left, right) for left, right in cuts if left in vocab and right in vocab]
        yield from sorted(halves, key=lambda half: (vocab[half[0]], vocab[half[1]]))


def _bos(metadata: Metadata) -> Piece | None:
    """The token every text begins with, if there is one."""
    kind = metadata.text("tokenizer.ggml.pre", "default")
    by_default = metadata.text("tokenizer.ggml.model") == "llama" or kind == "llama-bpe"
    token_id = metadata.optional_id("bos")
    if token_id is None or not metadata.flag("tokenizer.ggml.add_bos_token", default=by_default):
        return None
    return Piece(token_id, metadata.texts("tokenizer.ggml.tokens")[token_id], TokenType.CONTROL)


def _beginning_with(start: Piece) -> processors.PostProcessor:
    return processors.TemplateProcessing(
        single=f"{start.text} $A",
        pair=f"{start.text} $A {start.text}:1 $B:1",
        special_tokens=[(start.text, start.token_id)],
    )


def _vocab(metadata: Metadata) -> dict[str, int]:
    return {text: token_id for token_id, text in enumerate(metadata.texts("tokenizer.ggml.tokens"))}


def _pieces(metadata: Metadata) -> Iterator[Piece]:
    types = metadata.integers("tokenizer.ggml.token_type")
    for token_id, text in enumerate(metadata.texts("tokenizer.ggml.tokens")):
        yield Piece(token_id, text, TokenType(types[token_id]))


def _added(piece: Piece) -> AddedToken:
    return AddedToken(piece.text, normalized=False, special=piece.type == TokenType.CONTROL)

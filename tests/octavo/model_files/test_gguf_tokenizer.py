"""Tokenizers made from GGUF metadata give the ids that the model was trained with."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from octavo.model_files import ModelFilesError, resolve
from tests.octavo.model_files import tiny_gguf

NUMBERS = {"12": ("1", "2"), "123": ("12", "3"), "1234": ("123", "4"), "Ġ1": ("Ġ", "1")}


def tokenizer_of(weights: Path) -> Tokenizer:
    config_dir = resolve(str(weights), cache_dir=weights.parent / "cache").config_dir
    return Tokenizer.from_file(str(config_dir / "tokenizer.json"))


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["a", "Ġ", "1", "2", "3", "4"]),
        ("gpt2", ["a", "Ġ", "1234"]),
        (None, ["a", "Ġ", "1234"]),
        ("llama-bpe", ["<s>", "a", "Ġ", "123", "4"]),
        ("qwen2", ["a", "Ġ", "1", "2", "3", "4"]),
    ],
)
def test_numbers_are_cut_as_the_models_pre_tokenizer_does(tmp_path: Path, pre: str | None, pieces: list[str]):
    weights = tiny_gguf.write_byte_level(tmp_path / "model.gguf", pre=pre, words=NUMBERS)
    assert tokenizer_of(weights).encode("a 1234").tokens == pieces


@pytest.mark.parametrize("pre", ["smollm", "gpt2", "llama-bpe", "qwen2"])
@pytest.mark.parametrize("text", ["", " ", "a  b\n\n c", "naïve ☃ \U0001f600 1234", "it's  WE'LL\t\r\n x"])
def test_byte_level_text_survives_the_round_trip(tmp_path: Path, pre: str, text: str):
    made = tokenizer_of(tiny_gguf.write_byte_level(tmp_path / "model.gguf", pre=pre, words=NUMBERS))
    assert made.decode(made.encode(text).ids) == text


def test_control_tokens_are_found_in_text_and_left_out_of_it(tmp_path: Path):
    made = tokenizer_of(tiny_gguf.write_byte_level(tmp_path / "model.gguf", pre="gpt2"))
    encoded = made.encode("a</s>b")
    assert encoded.tokens == ["a", "</s>", "b"]
    assert made.decode(encoded.ids) == "ab"


def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path: Path):
    weights = tiny_gguf.write_byte_level(tmp_path / "model.gguf", pre="mystery")
    with pytest.raises(ModelFilesError, match=r"'mystery'.*supported are smollm, gpt2"):
        resolve(str(weights), cache_dir=tmp_path / "cache")
    assert not any((tmp_path / "cache" / "converted").iterdir())


def test_sentencepiece_joins_the_best_scored_neighbours_first(tmp_path: Path):
    letters = {"▁": -9.0, "a": -9.0, "b": -9.0, "c": -9.0}
    weights = tiny_gguf.write_sentencepiece(tmp_path / "m.gguf", letters | {"ab": -3.0, "bc": -2.0, "▁a": -1.0})
    made = tokenizer_of(weights)
    assert made.encode("abc").tokens == ["<s>", "▁a", "bc"]
    assert made.decode(made.encode("abc ☃ ab").ids) == "abc ☃ ab"


def test_the_demo_models_ids_are_those_of_its_makers():
    files = resolve(None)
    made = Tokenizer.from_file(str(files.config_dir / "tokenizer.json"))
    assert made.get_vocab_size() == 49152
    assert made.encode("foo  12").ids == [15236, 256, 33, 34]  # each digit by itself, as SmolLM was trained
    assert made.encode("<|im_start|>user\nHi<|im_end|>").ids == [1, 4093, 198, 26843, 2]
    assert made.encode("Hello, world!").ids == [19556, 28, 905, 17]

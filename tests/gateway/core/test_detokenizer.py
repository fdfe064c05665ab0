"""Text in pieces: joined they are the decoded whole, and no piece holds half a character."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.detokenizer import ByteDetokenizer, Detokenizer, PrefixDetokenizer
from tests.gateway import tiny_model

BYTE_LEVEL = tiny_model.byte_level()
SENTENCEPIECE = tiny_model.sentencepiece()
any_text = st.text(max_size=20)


def byte_detokenizer() -> ByteDetokenizer:
    byte_of = {char: byte for byte, char in enumerate(_gpt2_chars())}
    return ByteDetokenizer(
        lambda token_id: bytes(byte_of[char] for char in BYTE_LEVEL.id_to_token(token_id) or ""),
        skipped={tiny_model.IM_START, tiny_model.IM_END, tiny_model.END},
    )


def prefix_detokenizer(context: list[int] | None = None) -> PrefixDetokenizer:
    return PrefixDetokenizer(
        lambda ids: SENTENCEPIECE.decode(list(ids), skip_special_tokens=False), context=context or [], skipped={0, 1, 2}
    )


def joined(detokenizer: Detokenizer, token_ids: list[int]) -> str:
    return "".join(detokenizer.push(token_id) for token_id in token_ids) + detokenizer.flush()


@given(any_text)
def test_byte_level_pieces_join_to_the_text(text: str):
    assert joined(byte_detokenizer(), BYTE_LEVEL.encode(text).ids) == text


@given(st.lists(st.integers(0, 261), max_size=30))
def test_byte_level_pieces_of_any_ids_join_to_the_decoded_whole(token_ids: list[int]):
    assert joined(byte_detokenizer(), token_ids) == BYTE_LEVEL.decode(token_ids, skip_special_tokens=True)


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=20))
def test_no_byte_level_piece_holds_half_a_character(text: str):
    detokenizer = byte_detokenizer()
    pieces = [detokenizer.push(token_id) for token_id in BYTE_LEVEL.encode(text).ids]
    assert not any("\ufffd" in piece for piece in pieces)


@given(st.text(alphabet="abeh \u00e9\u4f60\U0001f600\n", max_size=20))
def test_sentencepiece_pieces_join_to_the_decoded_whole(text: str):
    token_ids = SENTENCEPIECE.encode(text).ids
    assert joined(prefix_detokenizer(), token_ids) == SENTENCEPIECE.decode(token_ids)


@given(st.text(alphabet="abeh \u00e9\u4f60\U0001f600\n", max_size=20))
def test_after_a_prompt_the_pieces_are_what_the_answer_adds_to_the_decoded_prompt(text: str):
    prompt, answer = SENTENCEPIECE.encode("a be").ids, SENTENCEPIECE.encode(text).ids
    assert "a be" + joined(prefix_detokenizer(prompt), answer) == SENTENCEPIECE.decode([*prompt, *answer])


def test_the_first_word_after_a_prompt_keeps_its_space():
    prompt = SENTENCEPIECE.encode("a").ids
    assert joined(prefix_detokenizer(prompt), SENTENCEPIECE.encode("be").ids) == " be"


@pytest.mark.parametrize("make", [byte_detokenizer, prefix_detokenizer])
def test_an_emoji_comes_out_with_its_last_byte_only(make: Callable[[], Detokenizer]):
    detokenizer = make()
    tokenizer = BYTE_LEVEL if isinstance(detokenizer, ByteDetokenizer) else SENTENCEPIECE
    pieces = [detokenizer.push(token_id) for token_id in tokenizer.encode("\U0001f600").ids]
    assert pieces[-4:] == ["", "", "", "\U0001f600"]


def test_half_a_character_at_the_end_becomes_a_replacement_character():
    first_byte = BYTE_LEVEL.encode("\u00e9").ids[:1]
    assert joined(byte_detokenizer(), first_byte) == "\ufffd"


@given(st.lists(st.integers(3, 258), min_size=20, max_size=60))
def test_bytes_that_are_no_text_are_not_held_back_for_ever(token_ids: list[int]):
    detokenizer = prefix_detokenizer()
    for token_id in token_ids:
        detokenizer.push(token_id)
        assert len(detokenizer._window) <= 24


def _gpt2_chars() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]

"""An answer as it grows: what piled up becomes one chunk, and what comes after the stop is dropped."""

from gateway.core.answer import Answer
from gateway.core.detokenizer import ByteDetokenizer
from gateway.core.generation import FinishReason, TextChunk
from gateway.core.stop import StopMatcher


def answer(*stops: str, hidden_ids: set[int] | None = None, min_tokens: int = 0) -> Answer:
    """Token ids are ASCII codes."""
    detokenizer = ByteDetokenizer(lambda token_id: bytes([token_id]))
    return Answer(0, detokenizer, StopMatcher(stops), hidden_ids=hidden_ids or set(), min_tokens=min_tokens)


def test_everything_that_piled_up_is_one_chunk():
    growing = answer()
    growing.push(b"he")
    growing.push(b"llo")
    assert growing.take_chunk() == TextChunk(index=0, text="hello", token_ids=tuple(b"hello"))
    assert growing.take_chunk() is None


def test_tokens_after_a_stop_string_do_not_count():
    growing = answer("STOP")
    growing.push(b"a STOP b")
    chunk = growing.take_chunk()
    assert chunk is not None
    assert (chunk.text, chunk.finish_reason, chunk.stop_sequence) == ("a ", FinishReason.STOP, "STOP")
    assert growing.num_tokens == len("a STOP")


def test_a_chunk_comes_for_tokens_whose_text_is_held_back():
    growing = answer("STOP")
    growing.push(b"ST")
    assert growing.take_chunk() == TextChunk(index=0, text="", token_ids=tuple(b"ST"))


def test_the_end_brings_what_was_held_back():
    growing = answer("STOP")
    growing.push(b"ST")
    growing.finish(FinishReason.LENGTH)
    chunk = growing.take_chunk()
    assert chunk is not None
    assert (chunk.text, chunk.finish_reason) == ("ST", FinishReason.LENGTH)
    assert growing.take_chunk() is None


def test_the_text_of_the_token_that_ends_the_answer_is_hidden():
    growing = answer(hidden_ids={ord("!")})
    growing.push(b"ab!")
    growing.finish(FinishReason.STOP, stop_token_id=ord("!"))
    chunk = growing.take_chunk()
    assert chunk is not None
    assert (chunk.text, chunk.stop_token_id, len(chunk.token_ids)) == ("ab", ord("!"), 3)


def test_stop_strings_are_not_looked_for_in_the_first_min_tokens():
    growing = answer("ab", min_tokens=3)
    growing.push(b"ab-ab-")
    chunk = growing.take_chunk()
    assert chunk is not None
    assert (chunk.text, chunk.stop_sequence, growing.num_tokens) == ("ab-", "ab", 5)


def test_a_stop_string_that_matched_is_the_reason_whatever_comes_later():
    growing = answer("x")
    growing.push(b"x")
    growing.finish(FinishReason.CANCELLED)
    assert growing.finish_reason is FinishReason.STOP

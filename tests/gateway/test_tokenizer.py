"""The tokenizer as the gateway loads it: both families, the chat template, and no torch."""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import tokenizer
from gateway.core.generation import ChatMessage, ChatPrompt, TextPrompt
from gateway.core.limits import InvalidParameter
from gateway.tokenizer import Tokenizer
from octavo.model_files import ModelFilesError, resolve
from tests.gateway import tiny_model

USER = ChatPrompt(messages=(ChatMessage(role="user", content="hi"),))


@pytest.fixture
def demo() -> Iterator[Tokenizer]:
    with tokenizer.loaded(resolve(None).config_dir) as loaded:
        yield loaded


@pytest.fixture
def sentencepiece(tmp_path: Path) -> Iterator[Tokenizer]:
    with tokenizer.loaded(tiny_model.write(tmp_path, tiny_model.sentencepiece(), template=None)) as loaded:
        yield loaded


def joined(loaded: Tokenizer, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
    detokenizer = loaded.detokenizer((), skip_special_tokens=skip_special_tokens)
    return "".join(detokenizer.push(token_id) for token_id in token_ids) + detokenizer.flush()


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_any_tokens_of_the_demo_model_come_out_as_the_decoded_whole(demo: Tokenizer, skip_special_tokens: bool):
    draw = random.Random(0)
    for _ in range(200):
        token_ids = [draw.randrange(49152) if draw.random() < 0.9 else draw.randrange(17) for _ in range(30)]
        whole = demo.decode(token_ids, skip_special_tokens=skip_special_tokens)
        assert joined(demo, token_ids, skip_special_tokens=skip_special_tokens) == whole


def test_the_bytes_of_the_demo_models_tokens_join_to_the_text(demo: Tokenizer):
    text = "naïve ☃ \U0001f600 12\n"
    token_ids = demo._encode(TextPrompt(text=text))
    assert b"".join(demo.token_bytes(token_id) for token_id in token_ids).decode() == text
    assert demo.token_bytes(2) == b"<|im_end|>"
    assert demo.token_bytes(10**6) == b""


async def test_a_chat_of_the_demo_model_is_what_it_was_trained_on(demo: Tokenizer):
    text = demo.decode(await demo.encode(USER))
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_sentencepiece_text_comes_out_as_the_decoded_whole(sentencepiece: Tokenizer):
    for text in ("a be", "é☃ \U0001f600 a", "  a  be ", "bad\ncafe"):
        token_ids = sentencepiece._encode(TextPrompt(text=text))
        assert joined(sentencepiece, token_ids) == sentencepiece.decode(token_ids) == text


def test_the_bytes_of_sentencepiece_tokens(sentencepiece: Tokenizer):
    token_ids = sentencepiece._encode(TextPrompt(text="be☃"))
    assert b"".join(sentencepiece.token_bytes(token_id) for token_id in token_ids) == " be☃".encode()


async def test_a_model_without_a_template_says_so(sentencepiece: Tokenizer):
    with pytest.raises(InvalidParameter, match="messages: the model has no chat template"):
        await sentencepiece.encode(USER)


@pytest.mark.parametrize("content", [None, "hi"])
async def test_a_message_the_template_trips_over_is_the_callers_mistake(tmp_path: Path, content: str | None):
    template = "{{ messages[0].content + messages[0].nothing.more }}"
    chat = ChatPrompt(messages=(ChatMessage(role="user", content=content),))
    with (
        tokenizer.loaded(tiny_model.write(tmp_path, tiny_model.byte_level(), template=template)) as loaded,
        pytest.raises(InvalidParameter, match="the chat template refuses this chat"),
    ):
        await loaded.encode(chat)


def test_a_folder_that_is_no_tokenizer_is_refused(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFilesError, match="cannot load the tokenizer in"), tokenizer.loaded(tmp_path):
        pass


def test_it_works_without_torch_and_says_nothing(tmp_path: Path):
    tiny_model.write(tmp_path, tiny_model.byte_level())
    program = (
        "import sys; from pathlib import Path; sys.modules['torch'] = None\n"
        "from gateway import tokenizer\n"
        f"with tokenizer.loaded(Path({str(tmp_path)!r})) as loaded: print(loaded.decode([261, 78]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("hello\n", "")

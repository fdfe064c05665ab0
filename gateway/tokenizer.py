"""The model's tokenizer and chat template. The only place that knows transformers; torch is not needed.

Long texts are encoded in one named thread, so that they hold nobody else up.
"""

import asyncio
import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer as Backend
from tokenizers import decoders

from gateway.core.detokenizer import ByteDetokenizer, Detokenizer, PrefixDetokenizer
from gateway.core.generation import ChatMessage, ChatPrompt, TextPrompt
from gateway.core.limits import InvalidParameter
from octavo.model_files import ModelFilesError

# Read while transformers is imported: "PyTorch was not found" is as it should be here.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
from transformers import AutoTokenizer, PreTrainedTokenizerFast

INLINE_CHARS = 4096  # about a millisecond of encoding; longer texts leave the event loop
CONTEXT_TOKENS = 5  # of the prompt, for the spelling of the first word of the answer

_SPACE = "▁"  # SentencePiece's visible space

# Parameters of apply_chat_template that a request may not set; everything else goes to the template.
_RESERVED = set(inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters) - {"tools", "documents"}


@contextlib.contextmanager
def loaded(config_dir: Path) -> Iterator["Tokenizer"]:
    """The tokenizer of a model folder, and its thread while the block runs. Raises ModelFilesError."""
    try:
        fast = AutoTokenizer.from_pretrained(config_dir, local_files_only=True)
    except (OSError, ValueError, KeyError) as broken:
        raise ModelFilesError(f"cannot load the tokenizer in {config_dir}: {broken}") from broken
    if not isinstance(fast, PreTrainedTokenizerFast):
        raise ModelFilesError(f"the tokenizer in {config_dir} has no tokenizer.json form ({type(fast).__name__})")
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-tokenizer") as thread:
        yield Tokenizer(fast, thread)


class Tokenizer:
    """Text to ids and back."""

    def __init__(self, fast: PreTrainedTokenizerFast, thread: ThreadPoolExecutor) -> None:
        self._fast = fast
        # Used directly: transformers' own encode changes the backend's settings, which is an error in two threads.
        self._backend: Backend = fast.backend_tokenizer
        self._render: Callable[..., Any] = (
            fast.apply_chat_template
        )  # its annotations leave out the template's own arguments
        self._thread = thread
        self._special_ids = frozenset(
            token_id for token_id, token in self._backend.get_added_tokens_decoder().items() if token.special
        )
        self._is_byte_level = isinstance(self._backend.decoder, decoders.ByteLevel)
        self._knows_developer = "developer" in (self._template() or "")
        self.token_bytes = functools.lru_cache(maxsize=65536)(self._token_bytes)

    @property
    def eos_token_id(self) -> int | None:
        """For models whose configuration names none."""
        token_id: int | None = self._fast.eos_token_id
        return token_id

    async def encode(self, prompt: TextPrompt | ChatPrompt) -> list[int]:
        """Token ids of a text, or of a chat through the template. Raises InvalidParameter if that refuses the chat."""
        if _num_chars(prompt) <= INLINE_CHARS:
            return self._encode(prompt)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, prompt)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids."""
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def detokenizer(self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> Detokenizer:
        """For one answer to this prompt."""
        skipped = self._special_ids if skip_special_tokens else frozenset[int]()
        if self._is_byte_level:
            return ByteDetokenizer(self.token_bytes, skipped=skipped)
        return PrefixDetokenizer(self.decode, context=prompt_token_ids[-CONTEXT_TOKENS:], skipped=skipped)

    def _encode(self, prompt: TextPrompt | ChatPrompt) -> list[int]:
        if isinstance(prompt, TextPrompt):
            return self._backend.encode(prompt.text, add_special_tokens=prompt.add_special_tokens).ids
        return self._backend.encode(self._rendered(prompt), add_special_tokens=False).ids

    def _rendered(self, prompt: ChatPrompt) -> str:
        if self._template() is None:
            raise InvalidParameter("messages", "the model has no chat template; send a text")
        if reserved := _RESERVED & set(prompt.template_kwargs):
            raise InvalidParameter("chat_template_kwargs", f"{', '.join(sorted(reserved))} cannot be set by a request")
        try:
            text: str = self._render(
                [self._message(message) for message in prompt.messages],
                tokenize=False,
                add_generation_prompt=prompt.add_generation_prompt,
                continue_final_message=prompt.continue_final_message,
                **prompt.template_kwargs,
            )
        # A template is a program for well-formed chats: it raises on purpose (TemplateError), or trips over a message.
        except (TemplateError, TypeError, ValueError, AttributeError, KeyError) as refused:
            raise InvalidParameter("messages", f"the chat template refuses this chat: {refused}") from refused
        return text

    def _template(self) -> str | None:
        template: str | None = self._fast.chat_template
        return template

    def _message(self, message: ChatMessage) -> dict[str, object]:
        """As templates expect it. `developer` is OpenAI's newer word for `system`, which most models know."""
        role = "system" if message.role == "developer" and not self._knows_developer else message.role
        name = {} if message.name is None else {"name": message.name}
        return {"role": role, "content": message.content, **name, **message.extras}

    def _token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text; can be a part of a character. Empty for an id without a token."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self._special_ids:
            return token.encode()
        return _byte_level_bytes(token) if self._is_byte_level else _sentencepiece_bytes(token)


def _byte_level_bytes(token: str) -> bytes:
    """As the ByteLevel decoder does it: a token with a foreign character stands for itself."""
    byte_of = _byte_of_char()
    if all(char in byte_of for char in token):
        return bytes(byte_of[char] for char in token)
    return token.encode()


def _sentencepiece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(_SPACE, " ").encode()


@functools.cache
def _byte_of_char() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones as themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(others)}


def _num_chars(prompt: TextPrompt | ChatPrompt) -> int:
    if isinstance(prompt, TextPrompt):
        return len(prompt.text)
    return sum(len(message.content or "") for message in prompt.messages)

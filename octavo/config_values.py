"""Turns the text of a flag or variable into the value that a setting's type asks for."""

import typing
from collections.abc import Sequence
from enum import Enum
from typing import Any, Literal

from octavo.config_fields import Field

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


class BadValue(Exception):
    """A mistake of whoever started the process; the message is one line and says what to do."""


def parse(field: Field, texts: Sequence[str], origin: str) -> object:
    """The value of `texts` (a repeated flag gives several; all but tuples take the last)."""
    if field.is_optional and texts[-1].lower() in ("", "none"):
        return None
    try:
        if field.is_many:
            (item_type, _) = typing.get_args(field.value_type)
            items = [item.strip() for text in texts for item in text.split(",")]
            return tuple(_scalar(item_type, item) for item in items if item)
        return _scalar(field.value_type, texts[-1])
    except ValueError:
        raise BadValue(f"{spelled(field, origin)} wants {describe(field)}, got {texts[-1]!r}") from None


def spelled(field: Field, origin: str) -> str:
    """A setting as whoever gave it wrote it; one that nobody gave, as a flag."""
    return field.env_var if origin == "environment" else field.flag


def describe(field: Field) -> str:
    """What a setting accepts, in words for a message: "an int", "one of fp32, bf16"."""
    if field.is_many:
        return "a comma-separated list"
    options = choices(field.value_type)
    words = f"one of {', '.join(options)}" if options else _WORDS[field.value_type]
    return f"{words} or none" if field.is_optional else words


def choices(value_type: Any) -> tuple[str, ...]:
    """The texts that a Literal or Enum accepts; empty for other types."""
    if typing.get_origin(value_type) is Literal:
        return tuple(str(option) for option in typing.get_args(value_type))
    if isinstance(value_type, type) and issubclass(value_type, Enum):
        return tuple(str(member.value) for member in value_type)
    return ()


def _scalar(value_type: Any, text: str) -> object:
    """Raises ValueError when `text` is not a `value_type`."""
    if value_type is bool:
        return _bool(text)
    if typing.get_origin(value_type) is Literal:
        return _one_of(typing.get_args(value_type), text)
    if issubclass(value_type, Enum):
        return _one_of(tuple(value_type), text)
    assert value_type in _WORDS, f"a setting cannot be a {value_type}"
    return value_type(text)


def _bool(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def _one_of(options: Sequence[object], text: str) -> object:
    for option in options:
        if text == str(option.value if isinstance(option, Enum) else option):
            return option
    raise ValueError(text)


_WORDS: dict[type, str] = {int: "an int", float: "a number", str: "text", bool: "true or false"}

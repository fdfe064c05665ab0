"""Describes a configuration dataclass as a flat list of settings: name, flag, variable, type, default, help.

Knows source text (a field's trailing comment is its help); never reads flags or the environment.
"""

import ast
import dataclasses
import functools
import inspect
import io
import re
import textwrap
import tokenize
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any

# Settings that mean the same in every service, so one variable sets them all.
SHARED_VARIABLES = {"model": "OCTAVO_MODEL", "log_level": "OCTAVO_LOG_LEVEL", "log_format": "OCTAVO_LOG_FORMAT"}

_SECRET_NAME = re.compile(r"(^|_)(api_keys?|namespace_key|password|secret|token)$")
_URL_PASSWORD = re.compile(r"(://[^/@:]*:)[^/@]+@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One setting of a service."""

    name: str
    flag: str
    env_var: str
    type: Any  # the annotation, resolved: int, `str | None`, tuple[str, ...], Literal[...], a StrEnum
    default: object  # dataclasses.MISSING when a value must be given
    help: str
    group: str | None = None  # name of the field that holds the dataclass this setting is in
    group_cls: type | None = None

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def is_optional(self) -> bool:
        return type(None) in typing.get_args(self.type) and typing.get_origin(self.type) in (UnionType, typing.Union)

    @property
    def value_type(self) -> Any:
        """The type without `| None`."""
        if not self.is_optional:
            return self.type
        (value_type,) = (arg for arg in typing.get_args(self.type) if arg is not type(None))
        return value_type

    @property
    def is_many(self) -> bool:
        return typing.get_origin(self.value_type) is tuple

    def value_in(self, config: object) -> object:
        """This setting's value in a built configuration."""
        holder = vars_of(config)[self.group] if self.group else config
        return vars_of(holder)[self.name]

    def shown(self, value: object) -> object:
        """The value as it may be printed: secrets and passwords in URLs are masked."""
        if value and _SECRET_NAME.search(self.name):
            return "***"
        return _URL_PASSWORD.sub(r"\1***@", value) if isinstance(value, str) else value


def vars_of(config: object) -> dict[str, object]:
    """Field name -> value of a dataclass instance, nested ones as they are."""
    assert dataclasses.is_dataclass(config), f"{config!r} is not a dataclass instance"
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def flatten(cls: type, prefix: str) -> list[Field]:
    """The settings of `cls` in source order; those of a nested dataclass take the place of its field."""
    settings = list(_settings(cls, prefix))
    names = [setting.name for setting in settings]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"{cls.__name__} has settings of the same name in two groups: {sorted(twice)}"
    return settings


def _settings(cls: type, prefix: str) -> Iterator[Field]:
    annotations = typing.get_type_hints(cls)
    comments = trailing_comments(cls)
    for field in dataclasses.fields(cls):
        annotation = annotations[field.name]
        default = default_of(field)
        if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
            given = {} if default is dataclasses.MISSING else vars_of(default)
            for inner in _settings(annotation, prefix):
                yield dataclasses.replace(
                    inner, group=field.name, group_cls=annotation, default=given.get(inner.name, inner.default)
                )
        else:
            yield Field(
                name=field.name,
                flag="--" + field.name.replace("_", "-"),
                env_var=SHARED_VARIABLES.get(field.name, f"OCTAVO_{prefix}_{field.name.upper()}"),
                type=annotation,
                default=default,
                help=comments.get(field.name, ""),
            )


def default_of(field: "dataclasses.Field[Any]") -> object:
    """The value a field has when none is given; dataclasses.MISSING when one must be."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@functools.cache  # reading a class's source takes milliseconds, and `octavo serve` asks for all settings many times
def trailing_comments(cls: type) -> Mapping[str, str]:
    """Field name -> the comment behind it, with the lines below that continue it: `#` and at least two spaces."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _comments_in(base)
    return found


def _comments_in(cls: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except OSError:  # installed without sources: there is no help, everything else works
        return {}
    comments = {
        token.start[0]: token.string.removeprefix("#")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    (class_node,) = ast.parse(source).body
    assert isinstance(class_node, ast.ClassDef)
    found: dict[str, str] = {}
    for node in class_node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno in comments:
            found[node.target.id] = _joined(comments, node.end_lineno)
    return found


def _joined(comments: dict[int, str], line: int) -> str:
    parts = [comments[line]]
    while (following := comments.get(line + len(parts), "")).startswith("  "):
        parts.append(following)
    return " ".join(part.strip() for part in parts)

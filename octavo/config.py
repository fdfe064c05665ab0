"""Fills a service's frozen configuration dataclass once: flags, then environment, then defaults.

Knows dataclasses, argv and the environment; never what a field means. Every mistake ends the process with status 2
and one line that names the nearest known flag or variable.
"""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar, cast

from octavo import environment, flags
from octavo.config_fields import Field, default_of, flatten
from octavo.config_values import BadValue, parse, spelled

T = TypeVar("T")
Origin = Literal["flag", "environment", "default"]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A configuration made by load(), kept so that its id stays its own."""

    config: object
    prefix: str
    origins: Mapping[str, Origin]


# By id, so that a start-up banner can say where each value came from.
_LOADED: dict[int, _Loaded] = {}


def load(
    cls: type[T],
    prefix: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    program: str | None = None,
) -> T:
    """Build `cls` from flags (`--max-num-seqs`), variables (`OCTAVO_<prefix>_MAX_NUM_SEQS`) and defaults.

    Exits with status 2 and one line on stderr for an unknown flag or variable, a value that does not fit its type, a
    field without a value, or a ValueError from a `__post_init__`. `--help` prints every field and exits with 0. The
    line begins with `program`, "octavo <service>" if left out.
    """
    program = program or f"octavo {prefix.lower()}"
    known = fields(cls, prefix)
    try:
        from_flags = flags.parse(program, known, sys.argv[1:] if argv is None else argv)
        from_environment = environment.read(prefix, known, os.environ if environ is None else environ)
        values: dict[str, object] = {}
        origins: dict[str, Origin] = {}
        for field in known:
            text, origin = _choose(field, from_flags, from_environment)
            origins[field.name] = origin
            if text is not None:
                values[field.name] = parse(field, text, origin)
        config = _build(cls, known, values, origins)
    except BadValue as mistake:
        _exit(program, str(mistake))
    _LOADED[id(config)] = _Loaded(config, prefix, origins)
    return config


def fields(cls: type, prefix: str | None = None) -> list[Field]:
    """Every setting of `cls`, groups flattened, in source order; without `prefix`, that of the class's package."""
    return flatten(cls, environment.prefix_of(cls) if prefix is None else prefix)


def non_defaults(config: object) -> dict[str, tuple[object, Origin]]:
    """The settings given by flag or variable: name -> (value, origin). Secrets are masked."""
    loaded = _LOADED.get(id(config)) or _Loaded(config, environment.prefix_of(type(config)), {})
    changed: dict[str, tuple[object, Origin]] = {}
    for field in flatten(type(config), loaded.prefix):
        origin = loaded.origins.get(field.name, "default")
        if origin != "default":
            changed[field.name] = (field.shown(field.value_in(config)), origin)
    return changed


def _choose(
    field: Field, from_flags: Mapping[str, list[str]], from_environment: Mapping[str, str]
) -> tuple[list[str] | None, Origin]:
    if field.name in from_flags:
        return from_flags[field.name], "flag"
    if field.name in from_environment:
        return [from_environment[field.name]], "environment"
    return None, "default"


def _build(cls: type[T], known: Sequence[Field], values: Mapping[str, object], origins: Mapping[str, Origin]) -> T:
    """Construct the groups, then the whole; what is absent from `values` keeps its default."""
    missing = [field for field in known if field.is_required and field.name not in values]
    if missing:
        wanted = ", ".join(f"{field.flag} (or {field.env_var})" for field in missing)
        raise BadValue(f"needs {wanted}")
    try:
        arguments = {field.name: values[field.name] for field in known if not field.group and field.name in values}
        for group, group_cls in _groups(known).items():
            inside = {
                field.name: values[field.name] for field in known if field.group == group and field.name in values
            }
            arguments[group] = _build_group(cls, group, group_cls, inside)
        return cls(**arguments)
    except ValueError as mistake:
        raise BadValue(_as_given(str(mistake), known, origins)) from mistake


def _as_given(message: str, known: Sequence[Field], origins: Mapping[str, Origin]) -> str:
    """A dataclass names its field first, "block_size is 7"; people gave a flag or a variable, and look for that."""
    name, _, rest = message.partition(" ")
    for field in known:
        if field.name == name:
            return f"{spelled(field, origins[name])} {rest}"
    return message


def _groups(known: Sequence[Field]) -> dict[str, type]:
    return {field.group: field.group_cls for field in known if field.group and field.group_cls}


def _build_group(cls: type, group: str, group_cls: type, inside: Mapping[str, object]) -> object:
    """The group's own default with what was given changed, or a new one where it has no default."""
    (holder,) = (field for field in dataclasses.fields(cls) if field.name == group)
    default = default_of(holder)
    return group_cls(**inside) if default is dataclasses.MISSING else dataclasses.replace(cast(Any, default), **inside)


def _exit(program: str, message: str) -> NoReturn:
    print(f"{program}: {message}", file=sys.stderr)
    raise SystemExit(2)

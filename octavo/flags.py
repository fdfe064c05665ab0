"""Reads the flags of a configuration from argv and prints `--help`. Knows argparse; leaves values as text."""

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import NoReturn

from octavo.config_fields import Field
from octavo.config_values import BadValue, choices

MIN_LIKENESS = 0.6  # of a word and the one that may be meant; below it a suggestion misleads


def parse(program: str, known: Sequence[Field], argv: Sequence[str]) -> dict[str, list[str]]:
    """Setting name -> the texts given for it. Raises BadValue for an unknown flag, naming the nearest."""
    parsed, rest = _parser(program, known).parse_known_args(list(argv))
    if rest:
        raise BadValue(_unknown(rest, known))
    return {name: texts for name, texts in vars(parsed).items() if texts is not None}


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean X?' for the most similar known word, or nothing when none is similar."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=MIN_LIKENESS)
    return f"; did you mean {found[0]}?" if found else ""


def off(flag: str) -> str:
    """The flag that switches off what `flag` switches on."""
    return f"--no-{flag.removeprefix('--')}"


def metavar(field: Field) -> str:
    """What stands for the value in `--help`."""
    if field.is_many:
        return "A,B"
    options = choices(field.value_type)
    return "{" + ",".join(options) + "}" if options else str(field.value_type.__name__).upper()


def _unknown(rest: Sequence[str], known: Sequence[Field]) -> str:
    flags = [argument for argument in rest if argument.startswith("--")]
    if not flags:
        return f"unexpected argument {rest[0]!r}; every setting is a flag, see --help"
    flag = flags[0].split("=")[0]
    spellings = [field.flag for field in known] + [off(field.flag) for field in known if field.value_type is bool]
    return f"unknown flag {flag}{nearest(flag, spellings) or '; see --help'}"


def _parser(program: str, known: Sequence[Field]) -> argparse.ArgumentParser:
    parser = _Parser(prog=program, allow_abbrev=False, formatter_class=_HelpFormatter)
    groups: dict[str | None, argparse._ActionsContainer] = {None: parser}
    for field in known:
        if field.group not in groups:
            groups[field.group] = parser.add_argument_group(str(field.group))
        _add(groups[field.group], field)
    return parser


def _add(group: argparse._ActionsContainer, field: Field) -> None:
    text = _help(field)
    if field.value_type is bool:
        group.add_argument(field.flag, dest=field.name, action="store_const", const=["true"], help=text)
        group.add_argument(
            off(field.flag), dest=field.name, action="store_const", const=["false"], help=argparse.SUPPRESS
        )
        return
    group.add_argument(field.flag, dest=field.name, action="append", metavar=metavar(field), help=text)


def _help(field: Field) -> str:
    if field.is_required:
        default = "required"
    elif field.value_type is bool:
        default = f"default: {'on' if field.default else 'off'}; {off(field.flag)} to switch off"
    else:
        default = f"default: {field.shown(field.default)}"
    return f"{field.help} [{default}; {field.env_var}]".strip().replace("%", "%%")


class _HelpFormatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=110)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadValue(message.removeprefix("argument "))

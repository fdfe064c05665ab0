"""The argument parser of the client commands: mistakes are one line, and an unknown flag names the nearest."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from octavo.flags import nearest


class Parser(argparse.ArgumentParser):
    """Like argparse's, without abbreviations and without a page of usage in front of each mistake."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"octavo {command}", description=description, allow_abbrev=False)

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """The parsed line; exits with status 2 for a mistake."""
        parsed, rest = self.parse_known_args(list(argv))
        if rest:
            self.error(self._unknown(rest[0]))
        return parsed

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message.removeprefix('argument ')}", file=sys.stderr)
        raise SystemExit(2)

    def _unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"unexpected argument {argument!r}; see --help"
        flag = argument.partition("=")[0]
        return f"unknown flag {flag}{nearest(flag, self._option_string_actions) or '; see --help'}"


def positive_int(text: str) -> int:
    """An int above zero, for argparse's `type`."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"wants an int above 0, got {text}")
    return value


def positive_ints(text: str) -> tuple[int, ...]:
    """Comma-separated ints above zero, for argparse's `type`."""
    return tuple(positive_int(part) for part in text.split(","))


def non_negative_int(text: str) -> int:
    """An int from zero, for argparse's `type`."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"wants an int from 0, got {text}")
    return value


def positive_float(text: str) -> float:
    """A number above zero, for argparse's `type`."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"wants a number above 0, got {text}")
    return value

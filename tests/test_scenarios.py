"""Every scenario of docs/scenarios.md has a test that names it, or says why it cannot have one yet."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "scenarios.md"
ROW = re.compile(r"^\| (?P<number>\d+) \|.*\| (?P<where>[^|]+) \|$", re.MULTILINE)
NAMED = re.compile(r"[Ss]cenarios?[ _](\d+)")
NOT_YET = "not yet: "
KNOWN = frozenset(
    [*range(1, 5), 7, 8, 10, 12, 13, 14, 16, 17, 18, *range(19, 23), *range(24, 30), 31, 32, 34, *range(36, 43), 44,
     *range(45, 51), *range(52, 56), *range(57, 61), 62, *range(65, 70), 71, 72, 73, 76, 77, *range(78, 81), 82, 83, 84,
     87, 88, 89, 90, *range(93, 97), 101, 102, 103]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the page."""

    number: int
    where: str

    @property
    def files(self) -> list[str]:
        return [] if self.where.startswith(NOT_YET) else self.where.split(", ")


def scenarios(text: str) -> list[Scenario]:
    return [Scenario(int(row["number"]), row["where"].strip()) for row in ROW.finditer(text)]


def named(source: str) -> Iterator[int]:
    """The scenarios that a file's tests name: each for itself, or a file that is about one, in its first line."""
    tree = ast.parse(source)
    yield from (int(number) for number in re.findall(r"^Scenario (\d+)", ast.get_docstring(tree) or ""))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            text = f"{node.name}\n{ast.get_docstring(node) or ''}"
            yield from (int(number) for number in NAMED.findall(text))


def scenarios_by_file() -> dict[str, set[int]]:
    """File name -> scenarios named in it."""
    found: dict[str, set[int]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path.name != Path(__file__).name:
            found.setdefault(path.name, set()).update(named(path.read_text(encoding="utf-8")))
    return found


def problems(page: list[Scenario], tests: dict[str, set[int]]) -> Iterator[str]:
    """Where the page and the tests disagree."""
    numbers = [scenario.number for scenario in page]
    yield from (f"scenario {n} is told twice" for n in sorted(set(numbers)) if numbers.count(n) > 1)
    for scenario in page:
        number = scenario.number
        missing = [name for name in scenario.files if number not in tests.get(name, set())]
        yield from (f"no test of {name} names scenario {number}" for name in missing)
        covering = [name for name, found in tests.items() if number in found]
        if not scenario.files and covering:
            yield f"scenario {number} has a reason to be untested, and tests in {covering}"
        if not scenario.files and len(scenario.where) < len(NOT_YET) + 20:
            yield f"scenario {number} has neither a test nor a reason: {scenario.where!r}"
    unknown = {number for found in tests.values() for number in found} - set(numbers)
    yield from (f"tests name scenario {number}, which the page does not tell" for number in sorted(unknown))


def test_every_scenario_has_a_test_or_a_reason() -> None:
    found = list(problems(scenarios(PAGE.read_text(encoding="utf-8")), scenarios_by_file()))
    assert not found, "\n".join(["", *found])


def test_no_scenario_has_been_lost() -> None:
    assert {scenario.number for scenario in scenarios(PAGE.read_text(encoding="utf-8"))} == KNOWN


@pytest.mark.parametrize(
    ("row", "tests"),
    [
        ("| 1 | D | N=2 | take | taken | test_a.py |", {}),
        ("| 1 | D | N=2 | take | taken | test_a.py |", {"test_b.py": {1}}),
        ("| 1 | D | N=2 | take | taken | not yet: no |", {}),
        ("| 1 | D | N=2 | take | taken | not yet: a pool has one group only |", {"test_a.py": {1}}),
        ("| 1 | D | N=2 | take | taken | test_a.py |", {"test_a.py": {1, 2}}),
        ("| 1 | a | b | c | d | test_a.py |\n| 1 | a | b | c | d | test_a.py |", {"test_a.py": {1}}),
    ],
)
def test_a_disagreement_is_noticed(row: str, tests: dict[str, set[int]]) -> None:
    assert list(problems(scenarios(row), tests))


def test_names_and_docstrings_of_tests_count() -> None:
    source = """
"Scenario 6: a whole file."
def test_scenario_7_x(): ...
async def test_y():
    "Scenario 8, and scenario 9."
def helper_scenario_10(): ...
"""
    assert sorted(named(source)) == [6, 7, 8, 9]

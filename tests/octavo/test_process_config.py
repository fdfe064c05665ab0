"""The settings that every process has, and what they have in common in the four services."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import config
from octavo.cli.serve_flags import CONFIGS
from octavo.process_config import ProcessConfig, check_port

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("port", [-1, 65536])
def test_what_is_no_port_is_refused(port: int):
    with pytest.raises(ValueError, match=f"metrics_port must be 0 to 65535, got {port}"):
        check_port("metrics_port", port)


def test_a_drain_takes_no_negative_time():
    with pytest.raises(ValueError, match="drain_timeout_s must not be negative, got -1"):
        ProcessConfig(drain_timeout_s=-1)


@pytest.mark.parametrize("service", ["scheduler", "kvcache", "worker"])
def test_every_service_with_metrics_checks_their_port(service: str):
    with pytest.raises(ValueError, match="metrics_port must be 0 to 65535, got 70000"):
        CONFIGS[service](metrics_port=70000)


@pytest.mark.parametrize("service", CONFIGS)
def test_no_dataclass_has_more_than_12_settings_and_no_service_more_than_four_groups(service: str):
    by_group: dict[str | None, int] = {}
    for setting in config.fields(CONFIGS[service]):
        by_group[setting.group] = by_group.get(setting.group, 0) + 1
    assert max(by_group.values()) <= 12
    assert len(by_group.keys() - {None}) <= 4


@pytest.mark.parametrize("service", CONFIGS)
def test_every_setting_is_read(service: str):
    """By name outside the module that declares it, or there by a property that is read outside."""
    cls = CONFIGS[service]
    home = ROOT / f"{cls.__module__.replace('.', '/')}.py"
    others = [path for path in home.parent.rglob("*.py") if path != home]
    outside = {name for path in others for name in read_in(ast.parse(path.read_text(encoding="utf-8")))}
    functions = [node for node in ast.walk(ast.parse(home.read_text())) if isinstance(node, ast.FunctionDef)]
    by_property = {name for function in functions if function.name in outside for name in read_in(function)}
    settings = {setting.name for setting in config.fields(cls)}
    groups = {field.name for field in dataclasses.fields(cls)} - settings
    assert (settings | groups) <= outside | by_property, sorted((settings | groups) - outside - by_property)


def read_in(tree: ast.AST) -> Iterator[str]:
    """Names of the attributes that the code reads."""
    return (node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))

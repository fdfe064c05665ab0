"""The choice of the sub-command: what is printed, what is refused, and what is not imported."""

import subprocess
import sys

import pytest

import octavo
from octavo.cli import commands


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]):
    assert commands.main(["--version"]) == 0
    assert capsys.readouterr().out == f"octavo {octavo.__version__}\n"


@pytest.mark.parametrize("argv", [[], ["help"], ["--help"], ["-h"]])
def test_help_lists_every_command(argv: list[str], capsys: pytest.CaptureFixture[str]):
    assert commands.main(argv) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in commands.COMMANDS)


@pytest.mark.parametrize(("typed", "meant"), [("srve", "serve"), ("benhc", "bench"), ("doktor", "doctor")])
def test_unknown_command_names_the_nearest(typed: str, meant: str, capsys: pytest.CaptureFixture[str]):
    assert commands.main([typed]) == 2
    assert capsys.readouterr().err == f"octavo: unknown command {typed}; did you mean {meant}?\n"


def test_command_like_no_other_points_to_help(capsys: pytest.CaptureFixture[str]):
    assert commands.main(["zzz"]) == 2
    assert "see octavo help" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["nosuch", "zzz"])
def test_help_of_a_command_that_is_like_no_other_points_to_help(command: str, capsys: pytest.CaptureFixture[str]):
    assert commands.main(["help", command]) == 2
    assert capsys.readouterr().err == f"octavo: unknown command {command}; see octavo help\n"


@pytest.mark.parametrize("command", ["pull", "chat", "generate", "bench", "status", "restart", "doctor"])
def test_help_of_a_command_is_its_own(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        commands.main(["help", command])
    assert ended.value.code == 0
    assert f"usage: octavo {command}" in capsys.readouterr().out


@pytest.mark.parametrize(("command", "flag", "meant"), [
    ("chat", "--modle", "--model"), ("generate", "--max-token", "--max-tokens"),
    ("bench", "--concurency", "--concurrency"), ("status", "--josn", "--json"),
])  # fmt: skip
def test_unknown_flag_names_the_nearest(command: str, flag: str, meant: str, capsys: pytest.CaptureFixture[str]):
    prompt = ["hello"] if command == "generate" else []
    with pytest.raises(SystemExit) as ended:
        commands.main([command, *prompt, flag, "1"])
    assert ended.value.code == 2
    assert f"unknown flag {flag}; did you mean {meant}?" in capsys.readouterr().err


def test_choosing_a_command_imports_nothing_heavy():
    heavy = ("grpc", "torch", "httpx", "rich", "asyncio", "opentelemetry", "numpy")
    program = f"import sys, octavo.cli; octavo.cli.main(['--version']); print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "[]"


def test_alias_of_a_service_becomes_it():
    done = subprocess.run(
        [sys.executable, "-m", "octavo.cli", "gateway", "--no-such-flag"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "octavo gateway: unknown flag --no-such-flag" in done.stderr

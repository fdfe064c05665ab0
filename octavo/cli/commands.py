"""Chooses the sub-command and hands it the rest of the line. Knows their names, nothing of what they do."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import octavo
from octavo import environment

# Name -> what it does, in the order in which `octavo help` lists them.
COMMANDS = {
    "serve": "start everything on this machine: Redis, KV cache service, scheduler, worker, gateway",
    "pull": "fetch a model into the cache folder; without a name the demo model",
    "chat": "talk to a running server in the terminal",
    "generate": "stream one answer from a running server, over gRPC",
    "bench": "put load on a running server and print latency and throughput",
    "status": "show services, workers, queue and cache of a running server",
    "restart": "replace services of a running octavo serve one after another; no request fails by it",
    "doctor": "check what this machine needs to run Octavo, and say what to do",
    "gateway": "run one gateway; the same as python -m gateway",
    "scheduler": "run one scheduler; the same as python -m scheduler_service",
    "kvcache": "run one KV cache service; the same as python -m kvcache_service",
    "worker": "run one worker; the same as python -m gpu_worker",
}
PACKAGES = {prefix.lower(): package for package, prefix in environment.SERVICES.items()}
INTERRUPTED = 130  # the shell's exit status for Ctrl-C


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command; the exit status is its result."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    match arguments:
        case [] | ["help"] | ["-h" | "--help", *_]:
            print(overview())
            return 0
        case ["--version" | "-V" | "version", *_]:
            print(f"octavo {octavo.__version__}")
            return 0
        case ["help", command, *_]:
            arguments = [command, "--help"]
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        return _refuse(command)
    if command in PACKAGES:
        become(PACKAGES[command], rest)
    try:
        return _run(command, rest)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `octavo status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def overview() -> str:
    """The text of `octavo help`."""
    width = max(map(len, COMMANDS))
    lines = [f"octavo {octavo.__version__}: serves large language models", "", "usage: octavo COMMAND [...]", ""]
    lines += [f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join([*lines, "", "octavo help COMMAND lists a command's flags."])


def become(package: str, argv: Sequence[str]) -> NoReturn:
    """Replace this process by `python -m package`, so that signals and the exit status are the service's own.

    -P: nothing is imported from the folder that this was started in, which may hold a checkout named `octavo`.
    """
    os.execv(sys.executable, [sys.executable, "-P", "-m", package, *argv])


def _run(command: str, argv: Sequence[str]) -> int:
    """The imports are here because each costs tenths of a second that the other commands should not pay."""
    match command:
        case "serve":
            from octavo.cli import serve

            return serve.run(argv)
        case "pull":
            from octavo.cli import pull

            return pull.run(argv)
        case "chat":
            from octavo.cli import chat

            return chat.run(argv)
        case "generate":
            from octavo.cli import generate

            return generate.run(argv)
        case "bench":
            from octavo.cli.bench import command as bench

            return bench.run(argv)
        case "status":
            from octavo.cli import status

            return status.run(argv)
        case "restart":
            from octavo.cli import restart

            return restart.run(argv)
        case "doctor":
            from octavo.cli import doctor

            return doctor.run(argv)
    raise AssertionError(f"{command} is listed but cannot be run")


def _refuse(command: str) -> int:
    from octavo.flags import nearest

    known = [*COMMANDS, "help", "--help", "--version"]
    print(f"octavo: unknown command {command}{nearest(command, known) or '; see octavo help'}", file=sys.stderr)
    return 2

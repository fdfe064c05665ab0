"""The stack of compose.yaml under a project name and ports of its own, driven by `docker compose`."""

import json
import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Calls `docker compose` with this project's name and published ports."""

    project: str
    http_port: int
    grpc_port: int
    environ: Mapping[str, str] = field(repr=False)

    @classmethod
    def on_free_ports(cls, *more_files: str) -> "Stack":
        """The stack of compose.yaml, changed by `more_files`."""
        http_port, grpc_port = _free_ports(2)
        settings = {"HTTP_PORT": str(http_port), "GRPC_PORT": str(grpc_port)}
        settings["COMPOSE_FILE"] = os.pathsep.join(("compose.yaml", *more_files))
        return cls(
            project=f"octavo-test-{os.getpid()}",
            http_port=http_port,
            grpc_port=grpc_port,
            environ={**os.environ, **settings},
        )

    def compose(self, *arguments: str) -> str:
        """What `docker compose ARGUMENTS` prints; a failure carries its stderr."""
        return run("docker", "compose", "--project-name", self.project, *arguments, environ=self.environ)

    def services(self) -> list[dict[str, Any]]:
        """Every container, running or not, as `compose ps` shows it."""
        lines = self.compose("ps", "--all", "--format", "json").splitlines()
        return [json.loads(line) for line in lines]


def run(*command: str, environ: Mapping[str, str] | None = None, stdin: str = "") -> str:
    """The standard output of a command that must succeed."""
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environ, input=stdin, capture_output=True, text=True,
        timeout=COMMAND_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr[-4000:]}"
    return done.stdout


def inspect(*objects: str) -> list[dict[str, Any]]:
    """`docker inspect` of containers or images."""
    found: list[dict[str, Any]] = json.loads(run("docker", "inspect", *objects))
    return found


def _free_ports(num_ports: int) -> list[int]:
    sockets = [socket.socket() for _ in range(num_ports)]
    for open_socket in sockets:
        open_socket.bind(("127.0.0.1", 0))
    ports = [int(open_socket.getsockname()[1]) for open_socket in sockets]
    for open_socket in sockets:
        open_socket.close()
    return ports

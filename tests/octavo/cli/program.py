"""Runs the command line as a person does: a process of its own, with pipes."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What is left of a process."""

    status: int
    out: str
    err: str


async def octavo(*argv: str, typed: str = "", environ: Mapping[str, str] | None = None) -> Done:
    """Run to the end; the event loop goes on, so that a server in it can answer."""
    process = await start(*argv, environ=environ)
    out, err = await asyncio.wait_for(process.communicate(typed.encode()), 30)
    assert process.returncode is not None
    return Done(status=process.returncode, out=out.decode(), err=err.decode())


async def start(*argv: str, environ: Mapping[str, str] | None = None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "octavo.cli", *argv),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(environ or {})},
    )  # fmt: skip

"""`octavo restart`: replaces services of a running `octavo serve` one after another; no request fails by it."""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from octavo.cli import control, runtime
from octavo.cli.arguments import Parser
from octavo.cli.runtime import ServeState
from octavo.cli.server_address import CannotAsk, http_url


def run(argv: Sequence[str]) -> int:
    """Print a line per service when it is ready again; 1 if one was not restarted."""
    arguments = _parser().read(argv)
    try:
        serve = _chosen(runtime.running(os.environ), arguments.url)
        asyncio.run(_restart(serve, arguments.SERVICE))
    except (CannotAsk, control.Refused) as refused:
        print(f"octavo restart: {refused}", file=sys.stderr)
        return 1
    return 0


async def _restart(serve: ServeState, names: Sequence[str]) -> None:
    async with aclosing(control.order_restart(Path(serve.control_socket), names)) as sentences:
        async for sentence in sentences:
            print(sentence, flush=True)


def _chosen(serves: Sequence[ServeState], url: str | None) -> ServeState:
    """The one that runs, or the one at `url`."""
    if url is not None:
        wanted = http_url(url)
        serves = [serve for serve in serves if serve.http_url == wanted]
    if not serves:
        at = f" at {url}" if url else ""
        raise CannotAsk(f"no `octavo serve` of yours runs{at}; what you started otherwise you restart the same way")
    if len(serves) > 1:
        raise CannotAsk(f"{len(serves)} servers run; say --url {' or '.join(serve.http_url for serve in serves)}")
    return serves[0]


def _parser() -> Parser:
    parser = Parser("restart", "Replace services of a running octavo serve one after another; no request fails by it.")
    parser.add_argument(
        "SERVICE",
        nargs="*",
        help="gateway, scheduler, kvcache, worker (all of them), worker-0, redis; all but redis if left out",
    )
    parser.add_argument("--url", help="the gateway of the server that is meant, if several run")
    return parser

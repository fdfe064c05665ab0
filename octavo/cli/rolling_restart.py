"""Replaces the services of a running `octavo serve` one after another, so that no request fails. Knows their order."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from octavo.cli.control import Refused
from octavo.cli.kept_service import RestartFailed
from octavo.cli.serve_plan import GATEWAY, REDIS
from octavo.cli.supervisor import Supervisor
from octavo.flags import nearest

ORDER = ("worker", "scheduler", "kvcache", GATEWAY)  # what `octavo restart` restarts; Redis only by its name


class RollingRestart:
    """Restarts services of `supervisor`; between two of them it awaits `whole`: everything answers again."""

    def __init__(self, supervisor: Supervisor, whole: Callable[[], Awaitable[None]]) -> None:
        self._supervisor = supervisor
        self._whole = whole
        self._is_busy = False

    async def __call__(self, asked: Sequence[str]) -> AsyncGenerator[str, None]:
        """A sentence per service when it is ready again. Raises Refused."""
        names = selected(asked, self._supervisor.names)
        if self._is_busy:
            raise Refused("a restart is under way; wait for its end")
        self._is_busy = True
        try:
            for name in names:
                yield await self._restart(name)
        except RestartFailed as failed:
            raise Refused(str(failed)) from None
        finally:
            self._is_busy = False

    async def _restart(self, name: str) -> str:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        pause_s = await self._supervisor.restart(name)
        await self._whole()
        if pause_s is None:
            return f"{name}: a new one took over after {loop.time() - began_s:.1f} s, without a pause"
        return f"{name}: ready again after {pause_s:.1f} s, everything with it after {loop.time() - began_s:.1f} s"


def selected(asked: Sequence[str], known: Sequence[str]) -> list[str]:
    """The processes of the services `asked`, of all if none is, in the order of ORDER. Raises Refused."""
    services = list(dict.fromkeys(map(_service, known)))
    for name in asked:
        if name not in known and name not in services:
            names = [*services, *known]
            raise Refused(f"no service {name}{nearest(name, names)}; there are {', '.join(dict.fromkeys(names))}")
    wanted = asked or ORDER
    chosen = [name for name in known if name in wanted or _service(name) in wanted]
    return sorted(chosen, key=lambda name: (*ORDER, REDIS).index(_service(name)))


def _service(name: str) -> str:
    """The service of a process: "worker" of "worker-0"."""
    return name.partition("-")[0]

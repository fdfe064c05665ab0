"""One link between two processes: TCP proxies, and between them one of messages where one of our streams is carried.

    dials ──▶ TCP proxy ──▶ messages ──▶ TCP proxy ──▶ target

What happens to bytes happens in both TCP proxies at once, so neither end hears from the other, not even keepalive.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from tests.chaos import tcp_proxy
from tests.chaos.ports import unused_port
from tests.chaos.tcp_proxy import HOST, TcpProxy
from tests.faults import proxy as message_proxy
from tests.faults.proxy import Direction, Faults, Proxy
from tests.faults.proxy import Fault as MessageFault


class SwitchedFaults(Faults):
    """None at first; others can be set and taken away while streams run."""

    def __init__(self) -> None:
        super().__init__(kinds=[], directions=[], seed=0, rate=0.0, most=0)
        self.current: Faults | None = None

    def draw(self, direction: Direction, message: bytes) -> MessageFault | None:
        return None if self.current is None else self.current.draw(direction, message)


class Link:
    """Up is the direction from whoever dials."""

    def __init__(self, name: str, port: int, proxies: Sequence[TcpProxy], messages: Proxy | None) -> None:
        self.name = name
        self.port = port  # where to dial
        self._proxies = proxies
        self._messages = messages

    def cut(self) -> None:
        """Reset every connection that there is; new ones are served."""
        for proxy in self._proxies:
            proxy.cut()

    def hold(self, direction: Direction) -> None:
        """Let no byte through, nor the end of a connection, until `let_go`."""
        for proxy in self._proxies:
            proxy.hold(direction)

    def let_go(self, direction: Direction) -> None:
        for proxy in self._proxies:
            proxy.let_go(direction)

    def delay(self, delay_s: float) -> None:
        """Deliver every byte this late from now on."""
        self._proxies[0].delay_s = delay_s

    def harm_messages(self, faults: Faults | None) -> None:
        """Let these happen to the messages of the link's stream; None ends it."""
        assert self._messages is not None, f"{self.name} carries bytes only"
        assert isinstance(self._messages.faults, SwitchedFaults)
        self._messages.faults.current = faults


@asynccontextmanager
async def listening(name: str, target_port: int, *, method: str | None = None) -> AsyncIterator[Link]:
    """A link to `target_port`; with `method`, the streams of that gRPC method can be harmed message by message."""
    async with AsyncExitStack() as exits:
        first_port = unused_port()
        if method is None:
            whole_way = await exits.enter_async_context(tcp_proxy.listening(first_port, target_port))
            yield Link(name, first_port, [whole_way], None)
            return
        messages_port, last_port = unused_port(), unused_port()
        last = await exits.enter_async_context(tcp_proxy.listening(last_port, target_port))
        messages = await exits.enter_async_context(
            message_proxy.listening(f"{HOST}:{messages_port}", f"{HOST}:{last_port}", method, faults=SwitchedFaults())
        )
        first = await exits.enter_async_context(tcp_proxy.listening(first_port, messages_port))
        yield Link(name, first_port, [first, last], messages)

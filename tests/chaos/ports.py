"""Ports for processes that die and come back: outside the range of which the kernel gives ports to those who dial."""

import random
import socket

FIRST, LAST = 20000, 32000  # Linux gives those who dial ports from 32768 on

_drawn: set[int] = set()
_random = random.SystemRandom()  # two runs on one machine must not draw the same


def unused_port() -> int:
    """A port that nobody listens on, and that this function has not given before."""
    while True:
        port = _random.randint(FIRST, LAST)
        if port not in _drawn and _is_unused(port):
            _drawn.add(port)
            return port


def _is_unused(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

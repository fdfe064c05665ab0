"""Counts the generations that HTTP clients of this gateway have open, and how much of their prompts was cached."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.core.generation import Usage


@dataclass(slots=True)
class Load:
    """What /load and the status page show."""

    num_waiting: int = 0  # sent, and not admitted yet
    num_running: int = 0
    num_finished: int = 0
    num_prompt_tokens: int = 0  # of finished generations
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0

    @contextmanager
    def one(self) -> "Iterator[Ticket]":
        """Count one generation from here to the end of the block, however it ends."""
        ticket = Ticket(self)
        self.num_waiting += 1
        try:
            yield ticket
        finally:
            ticket.close()


class Ticket:
    """Moves one generation through the counters."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._is_running = False

    def started(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._load.num_waiting -= 1
            self._load.num_running += 1

    def finished(self, usage: Usage) -> None:
        self._load.num_finished += 1
        self._load.num_prompt_tokens += usage.num_prompt_tokens
        self._load.num_cached_tokens += usage.num_cached_tokens
        self._load.num_completion_tokens += usage.num_completion_tokens

    def close(self) -> None:
        if self._is_running:
            self._load.num_running -= 1
        else:
            self._load.num_waiting -= 1

"""Whether requests can be served now: the scheduler's last word together with this process's own state."""

import dataclasses
from typing import Literal

from gateway import failures
from gateway.core.generation import ModelEntry, ServingState
from gateway.core.limits import UnknownModel
from gateway.core.submission import SchedulerState
from gateway.model_profile import ModelProfile
from octavo.health import Readiness


class Serving:
    """Hears the scheduler, keeps `readiness` true to it, and knows the names of the model."""

    def __init__(
        self, profile: ModelProfile, *, names: tuple[str, ...], created_s: float, readiness: Readiness
    ) -> None:
        """`names`: the model's name, then its aliases."""
        self.profile = profile
        self.name, *aliases = names
        self._aliases = tuple(aliases)
        self._created_s = created_s
        self._readiness = readiness
        self._scheduler = SchedulerState()
        self._was_ready = False
        self.is_draining = False  # this process: it takes nothing new

    @property
    def state(self) -> ServingState:
        scheduler = self._scheduler
        is_ready = scheduler.is_ready and not scheduler.is_draining and not self.is_draining
        return ServingState(
            is_ready=is_ready,
            reason="" if is_ready else self._reason(),
            cause="" if is_ready else self._cause(),
            num_blocks=scheduler.num_blocks,
            block_size=scheduler.block_size,
        )

    @property
    def max_model_len(self) -> int:
        """The workers' if one has told, else the model's own."""
        return self._scheduler.max_model_len or self.profile.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._scheduler.vocab_size or self.profile.vocab_size

    def hear(self, scheduler: SchedulerState) -> None:
        """The scheduler's state changed, or the connection to it. What was known of the model stays."""
        if scheduler.max_model_len is None and self._scheduler.max_model_len is not None:
            scheduler = _with_model(scheduler, self._scheduler)
        self._scheduler = scheduler
        self._was_ready = self._was_ready or scheduler.is_ready
        self._tell()

    def start_draining(self) -> None:
        self.is_draining = True
        self._tell()

    def check_accepting(self) -> None:
        """Refuse what cannot be served soon: raises Failed.

        While a worker or the scheduler is restarting nothing is refused: the scheduler, or the session, holds requests.
        """
        if self.is_draining:
            raise failures.draining()
        if not self._was_ready:
            raise failures.loading(self.state.reason)

    def entry(self, name: str) -> ModelEntry:
        """The model of that name or alias; an empty name is the only one. Raises UnknownModel."""
        if name not in ("", self.name, *self._aliases):
            raise UnknownModel(name, (self.name, *self._aliases))
        return ModelEntry(
            name=self.name,
            aliases=self._aliases,
            max_model_len=self.max_model_len,
            is_ready=self.state.is_ready,
            created_s=self._created_s,
        )

    def _tell(self) -> None:
        state = self.state
        self._readiness.set(state.is_ready, state.reason)

    def _reason(self) -> str:
        if self.is_draining:
            return "draining"
        return self._scheduler.reason or ("the scheduler is draining" if self._scheduler.is_draining else "no worker")

    def _cause(self) -> Literal["loading", "no_worker", "stalled", "draining"]:
        if self.is_draining or self._scheduler.is_draining or self._scheduler.is_refusing:
            return "draining"
        if not self._was_ready:
            return "loading"
        return "stalled" if self._scheduler.num_blocks else "no_worker"


def _with_model(scheduler: SchedulerState, known: SchedulerState) -> SchedulerState:
    return dataclasses.replace(scheduler, max_model_len=known.max_model_len, vocab_size=known.vocab_size)

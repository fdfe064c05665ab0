"""The account of a campaign: what was done how often, the pauses it caused, and what was wrong. Pure."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.chaos.campaign import Round


class Account:
    """Rounds are added as they are done."""

    def __init__(self) -> None:
        self.num_failed = 0  # rounds, and times at which something was left over
        self._rounds: dict[str, list[Round]] = defaultdict(list)
        self._num_left = 0

    def add(self, done: Round) -> None:
        self._rounds[" + ".join(fault.what for fault in done.faults)].append(done)
        self.num_failed += bool(done.complaints)

    def add_left(self, problems: Sequence[str]) -> None:
        """What was found when everything had ended."""
        self._num_left += bool(problems)
        self.num_failed += bool(problems)

    def table(self) -> Iterator[str]:
        """One line for each kind of fault of each target, and the sum."""
        yield f"{'fault':44s} {'times':>5s} {'failed':>6s} {'median pause':>12s} {'worst pause':>12s}"
        for what, rounds in sorted(self._rounds.items()):
            pauses_s = [done.worst_pause_s for done in rounds]
            num_failed = sum(bool(done.complaints) for done in rounds)
            yield (
                f"{what:44s} {len(rounds):5d} {num_failed:6d} "
                f"{statistics.median(pauses_s):10.2f} s {max(pauses_s):10.2f} s"
            )
        rounds = [done for of_kind in self._rounds.values() for done in of_kind]
        yield (
            f"{sum(len(done.faults) for done in rounds)} faults, {sum(done.num_outcomes for done in rounds)} answers; "
            f"{self.num_failed} failed, {self._num_left} of them because something was left over"
        )

"""Where a worker's time went during a load: differences of its `octavo_worker_step_duration_seconds{phase}` sums."""

import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

METRIC = "octavo_worker_step_duration_seconds"
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Of one load: steps, and the means of what they were made of."""

    num_steps: int
    step_ms: float  # gap, prepare, forward and sample
    gap_us: float  # the step lay ready and nothing ran
    outside_forward: float  # share of the step that was not the model, 0 to 1


class WorkerPhases:
    """The counters of one worker since `restart`."""

    def __init__(self, metrics_port: int) -> None:
        self._url = f"http://127.0.0.1:{metrics_port}/metrics"
        self._sums: dict[str, float] = {}
        self._num_steps = 0.0

    def restart(self) -> None:
        self._sums, self._num_steps = self._read()

    def share(self) -> Share:
        sums, num_steps = self._read()
        seconds = {phase: value - self._sums[phase] for phase, value in sums.items()}
        total_s, steps = sum(seconds.values()), num_steps - self._num_steps
        return Share(
            num_steps=int(steps),
            step_ms=1e3 * total_s / steps,
            gap_us=1e6 * seconds["gap"] / steps,
            outside_forward=1 - seconds["forward"] / total_s,
        )

    def _read(self) -> tuple[dict[str, float], float]:
        with urllib.request.urlopen(self._url, timeout=TIMEOUT_S) as answer:
            text = answer.read().decode()
        (family,) = (family for family in text_string_to_metric_families(text) if family.name == METRIC)
        sums = {s.labels["phase"]: s.value for s in family.samples if s.name == f"{METRIC}_sum"}
        (num_steps,) = (
            s.value for s in family.samples if s.name == f"{METRIC}_count" and s.labels["phase"] == "forward"
        )
        return sums, num_steps

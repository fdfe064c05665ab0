"""What Prometheus sees of requests: vLLM's names, labels and buckets, so that its dashboards work."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.core.generation import FinishReason

ENGINE = "0"  # vLLM numbers its engines; here the scheduler is the one

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
E2E_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)

# vLLM's word where it differs from OpenAI's.
_FINISHED_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",
    FinishReason.ERROR: "error",
}


class RequestMetrics:
    """The histograms and counters of one model. `trace_id`, where given, becomes the exemplar."""

    def __init__(self, registry: CollectorRegistry, *, model_name: str, max_model_len: int) -> None:
        labels = {"model_name": model_name, "engine": ENGINE}
        lengths = _one_two_five(max_model_len)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"vllm:{name}", text, tuple(labels), buckets=buckets, registry=registry)
            return made.labels(**labels)

        self._ttft = histogram("time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS)
        self._itl = histogram("inter_token_latency_seconds", "Time between tokens of one answer.", ITL_BUCKETS)
        self._e2e = histogram("e2e_request_latency_seconds", "Arrival to end.", E2E_BUCKETS)
        self._prompt = histogram("request_prompt_tokens", "Tokens of the prompt.", lengths)
        self._generation = histogram("request_generation_tokens", "Tokens of an answer.", lengths)
        self._open = Gauge(
            "octavo_gateway_open_answers", "Answers that have not ended.", tuple(labels), registry=registry
        ).labels(**labels)
        success = Counter(
            "vllm:request_success", "Answers that ended.", (*labels, "finished_reason"), registry=registry
        )
        # Made now, so that a rate over them works from the first answer on.
        self._success = {
            reason: success.labels(**labels, finished_reason=word) for reason, word in _FINISHED_REASONS.items()
        }

    def show_open(self, num_open: Callable[[], int]) -> None:
        """Answers that the scheduler owes, asked for whenever somebody looks."""
        self._open.set_function(num_open)

    def first_token(self, ttft_s: float, *, trace_id: str | None) -> None:
        self._ttft.observe(ttft_s, _exemplar(trace_id))

    def next_tokens(self, gap_s: float, num_tokens: int, *, trace_id: str | None) -> None:
        """Tokens that came together share the time since the last ones."""
        for _ in range(num_tokens):
            self._itl.observe(gap_s / num_tokens, _exemplar(trace_id))

    def answer_ended(self, reason: FinishReason, *, num_tokens: int) -> None:
        self._generation.observe(num_tokens)
        self._success[reason].inc()

    def call_ended(self, e2e_s: float, *, num_prompt_tokens: int, trace_id: str | None) -> None:
        self._e2e.observe(e2e_s, _exemplar(trace_id))
        self._prompt.observe(num_prompt_tokens)


def _exemplar(trace_id: str | None) -> dict[str, str] | None:
    return None if trace_id is None else {"trace_id": trace_id}


def _one_two_five(highest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... up to `highest`."""
    steps = (digit * 10**power for power in range(len(str(highest))) for digit in (1, 2, 5))
    return tuple(float(step) for step in steps if step <= highest)

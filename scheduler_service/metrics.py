"""What Prometheus sees of requests and steps as they happen, under vLLM's names where vLLM has one.

What the schedulers count themselves is in `worker_metrics`.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                80.0, 160.0, 640.0, 2560.0)  # fmt: skip
LATENCY_BUCKETS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
                   480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
STEP_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
FINISHED_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}
LABELS = ("model_name", "engine")


class Metrics:
    """The histograms and the counters that no scheduler keeps."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(name, text, LABELS, buckets=tuple(buckets), registry=registry)

        self.success = Counter(
            "vllm:request_success", "Requests that ended, by reason.", (*LABELS, "finished_reason"), registry=registry
        )
        self.prompt_tokens = Counter("vllm:prompt_tokens", "Prompt tokens of requests.", LABELS, registry=registry)
        self.queue = histogram("vllm:request_queue_time_seconds", "Submitted to first scheduled.", LATENCY_BUCKETS)
        self.prefill = histogram("vllm:request_prefill_time_seconds", "Scheduled to first token.", LATENCY_BUCKETS)
        self.decode = histogram("vllm:request_decode_time_seconds", "First token to end.", LATENCY_BUCKETS)
        self.ttft = histogram("vllm:time_to_first_token_seconds", "Submitted to first token.", TTFT_BUCKETS)
        self.step = histogram("octavo_step_duration_seconds", "A step in the worker.", STEP_BUCKETS)
        self.batch = histogram("octavo_step_batch_tokens", "Tokens in a step.", TOKEN_BUCKETS)

    def preset(self, model_name: str, worker_id: str) -> None:
        """All label values from the start, so that rates work from the first event."""
        for reason in FINISHED_REASONS.values():
            self.success.labels(model_name, worker_id, reason)
        for metric in (self.prompt_tokens, self.queue, self.prefill, self.decode, self.ttft, self.step, self.batch):
            metric.labels(model_name, worker_id)

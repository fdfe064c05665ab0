"""What Prometheus sees of requests and steps as they happen, under vLLM's names where vLLM has one.

What the schedulers count themselves is in `worker_metrics`; what a client sees of a request, its first token and its
end, is the gateway's to count.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

LATENCY_BUCKETS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
                   480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
STEP_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
LABELS = ("model_name", "engine")


class Metrics:
    """The histograms and the counters that no scheduler keeps."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(name, text, LABELS, buckets=tuple(buckets), registry=registry)

        self.prompt_tokens = Counter("vllm:prompt_tokens", "Prompt tokens of requests.", LABELS, registry=registry)
        self.rejected = Counter("octavo_requests_rejected", "Requests not taken.", ("reason",), registry=registry)
        self.queue = histogram("vllm:request_queue_time_seconds", "Submitted to first scheduled.", LATENCY_BUCKETS)
        self.prefill = histogram("vllm:request_prefill_time_seconds", "Scheduled to first token.", LATENCY_BUCKETS)
        self.decode = histogram("vllm:request_decode_time_seconds", "First token to end.", LATENCY_BUCKETS)
        self.step = histogram("octavo_step_duration_seconds", "A step in the worker.", STEP_BUCKETS)
        self.batch = histogram("octavo_step_batch_tokens", "Tokens in a step.", TOKEN_BUCKETS)

    def preset(self, model_name: str, worker_id: str) -> None:
        """All label values from the start, so that rates work from the first event."""
        for metric in (self.prompt_tokens, self.queue, self.prefill, self.decode, self.step, self.batch):
            metric.labels(model_name, worker_id)

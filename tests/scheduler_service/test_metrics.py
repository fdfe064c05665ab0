"""What Prometheus reads, under vLLM's names."""

from octavo import metrics as exposition
from tests.fakes.worker import FakeWorker
from tests.scheduler_service.stack import Stack

LABELS = {"model_name": "fake", "engine": "w0"}


async def test_a_served_request_shows_in_counters_and_histograms(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    await gateway.submit(1, list(range(40)))
    await gateway.end_of(1)
    value = stack.registry.get_sample_value
    assert value("vllm:prompt_tokens_total", LABELS) == 40
    assert value("vllm:generation_tokens_total", LABELS) == 10
    assert value("vllm:prefix_cache_queries_total", LABELS) == 40
    for histogram in ("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"):
        assert value(f"vllm:{histogram}_count", LABELS) == 1
    assert value("octavo_step_batch_tokens_count", LABELS) == 10


async def test_every_worker_is_there_from_the_start(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    await stack.ready_gateway()
    text = exposition.render("", stack.registry)[0].decode()
    assert 'vllm:prompt_tokens_total{engine="w0",model_name="fake"} 0.0' in text
    assert 'vllm:num_requests_running{engine="w0",model_name="fake"} 0.0' in text


async def test_what_a_client_sees_is_left_to_the_gateway(stack: Stack) -> None:
    text = exposition.render("", stack.registry)[0].decode()
    assert "request_success" not in text
    assert "time_to_first_token" not in text

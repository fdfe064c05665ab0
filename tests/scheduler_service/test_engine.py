"""Requests through the whole shell: a real KV cache service, a worker and a gateway that keep the contracts."""

from pathlib import Path

from octavo.scheduler.v1 import scheduler_pb2 as pb
from octavo.scheduler.v1 import scheduler_pb2_grpc
from scheduler_service.core.plan import Limits
from tests.fakes.gateway import FakeGateway
from tests.fakes.paged_worker import continuation
from tests.fakes.worker import FakeWorker
from tests.scheduler_service import stack as stacks
from tests.scheduler_service.stack import Stack

PROMPT = list(range(100, 140))


def prompts(num: int, *, num_shared: int = 20) -> list[list[int]]:
    return [list(range(num_shared)) + list(range(1000 * number, 1000 * number + 25)) for number in range(1, num + 1)]


async def test_a_request_goes_from_submit_to_finished(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    await gateway.submit(1, PROMPT, max_tokens=20)
    finished = await gateway.end_of(1)
    assert gateway.tokens[1] == continuation(PROMPT, 20)
    assert finished.reason == pb.FINISH_REASON_LENGTH
    assert finished.figures.num_output_tokens == 20


async def test_the_state_names_the_model_of_the_worker(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    assert gateway.state.model.name == "fake"
    assert (gateway.state.num_blocks, gateway.state.block_size) == (63, 16)


async def test_the_second_of_two_like_prompts_starts_behind_the_first(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    await gateway.submit(1, PROMPT)
    await gateway.end_of(1)
    await gateway.submit(2, PROMPT)
    finished = await gateway.end_of(2)
    assert finished.figures.num_cached_tokens == gateway.admitted[2].num_cached_tokens == 32
    assert gateway.tokens[2] == continuation(PROMPT, 10)


async def test_many_requests_in_a_small_pool_are_all_answered(tmp_path: Path) -> None:
    limits = Limits(max_num_batched_tokens=64, max_num_seqs=8, watermark=0.05)
    async with stacks.started(tmp_path, limits=limits) as stack:
        await stack.dial(FakeWorker(num_blocks=14))
        gateway = await stack.ready_gateway()
        asked = prompts(24)
        for number, prompt in enumerate(asked):
            await gateway.submit(number, prompt, max_tokens=40)
        for number, prompt in enumerate(asked):
            await gateway.end_of(number)
            assert gateway.tokens[number] == continuation(prompt, 40)
        assert sum(finished.figures.num_preemptions for finished in gateway.finished.values()) > 0
        assert gateway.num_messages < 40 * 24


async def test_a_cancelled_request_ends_and_its_blocks_come_back(stack: Stack) -> None:
    worker = FakeWorker()
    await stack.dial(worker)
    gateway = await stack.ready_gateway()
    await gateway.submit(1, PROMPT, max_tokens=400)
    await gateway.until(lambda: len(gateway.tokens[1]) > 3)
    worker.gate.clear()  # so that it cannot end by itself
    await gateway.cancel(1)
    finished = await gateway.end_of(1)
    assert finished.reason == pb.FINISH_REASON_CANCELLED
    worker.gate.set()
    await gateway.submit(2, [1, 2, 3], max_tokens=2)
    await gateway.end_of(2)
    await stack.idle()
    assert stack.num_held_blocks == 0


async def test_an_eos_token_stops_a_request(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    stopping = continuation(PROMPT, 5)[4]
    await gateway.submit(1, PROMPT, max_tokens=100, eos=[stopping])
    finished = await gateway.end_of(1)
    assert (finished.reason, finished.stop_token_id) == (pb.FINISH_REASON_STOP, stopping)
    assert gateway.tokens[1] == continuation(PROMPT, 5)


async def test_a_prompt_that_is_too_long_is_rejected_with_the_numbers(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    await gateway.submit(1, list(range(600)))
    await gateway.until(lambda: 1 in gateway.rejected)
    failure = gateway.rejected[1]
    assert failure.reason == "CONTEXT_LENGTH_EXCEEDED"
    assert failure.metadata["limit"] == "512"


async def test_a_full_queue_says_when_to_come_back(tmp_path: Path) -> None:
    async with stacks.started(tmp_path, limits=Limits(max_queue_len=1, max_num_seqs=1)) as stack:
        worker = FakeWorker()
        await stack.dial(worker)
        gateway = await stack.ready_gateway()
        worker.gate.clear()
        await gateway.submit(0, PROMPT)
        await gateway.until(lambda: 0 in gateway.admitted)  # until then it is in the queue itself
        for number in (1, 2):
            await gateway.submit(number, PROMPT)
        await gateway.until(lambda: 2 in gateway.rejected)
        assert gateway.rejected[2].reason == "QUEUE_FULL"
        assert gateway.rejected[2].retry_after.seconds == 1
        worker.gate.set()


async def test_a_request_whose_deadline_passes_in_the_queue_fails(tmp_path: Path) -> None:
    async with stacks.started(tmp_path, limits=Limits(max_num_seqs=1)) as stack:
        worker = FakeWorker()
        await stack.dial(worker)
        gateway = await stack.ready_gateway()
        await gateway.submit(1, PROMPT, max_tokens=450)
        await gateway.until(lambda: 1 in gateway.admitted)
        worker.gate.clear()  # so that it keeps its place
        remaining = pb.Submit().remaining
        remaining.FromMilliseconds(30)
        await gateway.submit(2, [9] * 20, max_tokens=5, remaining=remaining)
        finished = await gateway.end_of(2)
        assert finished.failure.reason == "DEADLINE_EXCEEDED"
        assert "while it waited" in finished.failure.message
        worker.gate.set()


async def test_submits_wait_for_a_worker(stack: Stack) -> None:
    gateway = FakeGateway()
    await stack.dial(gateway)
    await gateway.until(lambda: gateway.state.scheduler_incarnation)
    assert "no worker" in gateway.state.reason
    await gateway.submit(1, PROMPT)
    await stack.dial(FakeWorker())
    await gateway.end_of(1)
    assert gateway.tokens[1] == continuation(PROMPT, 10)


async def test_without_a_worker_for_too_long_requests_fail(tmp_path: Path) -> None:
    async with stacks.started(tmp_path, limits=Limits(no_worker_timeout_s=0.1)) as stack:
        gateway = FakeGateway()
        await stack.dial(gateway)
        await gateway.until(lambda: gateway.state.scheduler_incarnation)
        await gateway.submit(1, PROMPT)
        finished = await gateway.end_of(1)
    assert finished.failure.reason == "NO_WORKER"
    assert finished.failure.retry_after.seconds > 0


async def test_a_draining_scheduler_finishes_what_it_has_and_takes_nothing_new(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    await gateway.submit(1, PROMPT, max_tokens=50)
    await gateway.until(lambda: 1 in gateway.admitted)
    async with stack.channel() as channel:
        answer = await scheduler_pb2_grpc.SchedulerServiceStub(channel).Drain(pb.DrainRequest())
    assert answer.num_open_requests == 0
    await gateway.end_of(1)  # the answer may overtake the stream
    assert gateway.tokens[1] == continuation(PROMPT, 50)
    await gateway.submit(2, PROMPT)
    await gateway.until(lambda: 2 in gateway.rejected)
    assert gateway.rejected[2].reason == "SERVER_DRAINING"
    assert (gateway.state.ready, gateway.state.reason) == (False, "draining")
    # It stays, so nothing is kept for the next.
    assert (gateway.state.refusing, gateway.state.draining) == (True, False)


async def test_the_state_shows_workers_gateways_and_totals(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    await gateway.submit(1, PROMPT)
    await gateway.end_of(1)
    async with stack.channel() as channel:
        state = await scheduler_pb2_grpc.SchedulerServiceStub(channel).GetState(pb.GetStateRequest())
    (worker,) = state.workers
    assert (worker.worker_id, worker.num_blocks, worker.num_prompt_tokens) == ("w0", 63, 40)
    assert (worker.num_output_tokens, worker.num_running) == (10, 0)
    assert [gateway.gateway_id for gateway in state.gateways] == ["g0"]
    assert state.kvcache_connected


async def test_an_idle_pool_is_free_before_anything_ran(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    await stack.ready_gateway()
    async with stack.channel() as channel:
        state = await scheduler_pb2_grpc.SchedulerServiceStub(channel).GetState(pb.GetStateRequest())
    assert [(worker.num_free_blocks, worker.num_blocks) for worker in state.workers] == [(63, 63)]


async def test_requests_go_to_the_worker_that_has_their_prefix(stack: Stack) -> None:
    await stack.dial(FakeWorker("w0"))
    await stack.dial(FakeWorker("w1", incarnation=2))
    gateway = await stack.ready_gateway()
    await gateway.until(lambda: gateway.state.num_blocks == 126)
    shared = list(range(64))
    await gateway.submit(1, [*shared, 1])
    await gateway.end_of(1)
    for number in range(2, 8):
        await gateway.submit(number, [*shared, 100 + number])
        finished = await gateway.end_of(number)
        assert finished.figures.num_cached_tokens == 64


async def test_two_workers_share_the_load(stack: Stack) -> None:
    workers = [FakeWorker("w0"), FakeWorker("w1", incarnation=2)]
    for worker in workers:
        await stack.dial(worker)
    gateway = await stack.ready_gateway()
    await gateway.until(lambda: gateway.state.num_blocks == 126)
    asked = prompts(8, num_shared=0)
    for number, prompt in enumerate(asked):
        await gateway.submit(number, prompt)
    for number, prompt in enumerate(asked):
        await gateway.end_of(number)
        assert gateway.tokens[number] == continuation(prompt, 10)
    assert all(loop.core.figures.num_steps > 0 for loop in stack.engine.workers.loops)


async def test_a_kv_cache_service_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    async with stacks.started(tmp_path, has_kvcache=False) as stack:
        await stack.dial(FakeWorker())
        gateway = FakeGateway()
        await stack.dial(gateway)
        await gateway.until(lambda: "KV cache" in gateway.state.reason)
        await gateway.submit(1, PROMPT)
        await stack.start_kvcache()
        await gateway.end_of(1)
        assert gateway.tokens[1] == continuation(PROMPT, 10)


async def test_a_restarted_kv_cache_service_gets_the_tables_and_nothing_is_lost(stack: Stack) -> None:
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    for number in range(3):
        await gateway.submit(number, [*PROMPT, number], max_tokens=200)
    await gateway.until(lambda: len(gateway.tokens[2]) > 20)
    await stack.stop_kvcache()
    await stack.start_kvcache()
    for number in range(3):
        await gateway.end_of(number)
        assert gateway.tokens[number] == continuation([*PROMPT, number], 200)
        assert gateway.finished[number].figures.num_preemptions == 0


async def test_a_restarted_kv_cache_service_gets_the_pool_of_a_worker_without_work(stack: Stack) -> None:
    """It would forget what it has recorded of a pool that nobody opens."""
    await stack.dial(FakeWorker())
    gateway = await stack.ready_gateway()
    await gateway.submit(1, PROMPT)
    await gateway.end_of(1)
    await stack.stop_kvcache()
    await stack.start_kvcache()
    await stack.until(lambda: list(stack.pools))


async def test_without_chunks_no_sequence_may_exceed_one_step(tmp_path: Path) -> None:
    limits = Limits(is_chunked_prefill=False, max_num_batched_tokens=128)
    async with stacks.started(tmp_path, limits=limits) as stack:
        await stack.dial(FakeWorker())
        gateway = await stack.ready_gateway()
        assert gateway.state.model.max_model_len == 128

"""The simulator: the same for the same seed, nothing is lost, and times that can be reckoned by hand."""

from array import array
from collections.abc import Iterable
from dataclasses import replace

import pytest

from benchmarks.simulation import report
from benchmarks.simulation.cell import Cell
from benchmarks.simulation.step_time import StepTime
from benchmarks.simulation.worker import Setting
from benchmarks.simulation.workload import Arrivals, Conversation, Turn, Workload, conversations
from scheduler_service.core.policy import Policy

STEP_TIME = StepTime(
    fixed_s=10e-3,
    per_prefill_token_s=1e-3,
    per_decode_row_s=2e-3,
    per_context_token_s=1e-6,
    num_blocks=1000,
    max_num_batched_tokens=64,
)
SETTING = Setting(step_time=STEP_TIME, control_s=1e-3)
WORKLOAD = Workload(
    rate_per_s=20, duration_s=3, output_tokens=10, user_tokens=30, system_tokens=64, num_system_prompts=2
)


def simulated(workload: Workload, setting: Setting = SETTING, *, num_workers: int = 2) -> Cell:
    cell = Cell(num_workers, setting, seed=workload.seed)
    cell.run(conversations(workload))
    return cell


def a_conversation(*lengths: int, number: int = 0, start_s: float = 0.0, tenant: str = "t") -> Conversation:
    """Turns of (tokens in, tokens out), one second apart."""
    turns = [
        Turn(
            user_tokens=array("H", [number] * num_in),
            output_tokens=array("H", [number] * num_out),
            think_s=1.0,
        )
        for num_in, num_out in zip(lengths[::2], lengths[1::2], strict=True)
    ]
    return Conversation(number=number, start_s=start_s, tenant=tenant, system_tokens=array("H"), turns=tuple(turns))


def served(talks: Iterable[Conversation], setting: Setting = SETTING) -> Cell:
    cell = Cell(1, setting)
    cell.run(talks)
    return cell


@pytest.mark.parametrize("arrivals", Arrivals)
def test_the_same_seed_gives_the_same_outcome(arrivals: Arrivals) -> None:
    workload = replace(WORKLOAD, arrivals=arrivals)
    first, second = (report.outcome(simulated(workload)) for _ in range(2))
    assert first == second
    assert first != report.outcome(simulated(replace(workload, seed=1)))


@pytest.mark.parametrize("policy", Policy)
def test_every_request_ends_with_all_its_tokens(policy: Policy) -> None:
    """Blocks are short: some lose theirs on the way, and nobody a token."""
    workload = replace(WORKLOAD, num_system_prompts=0, user_tokens=60, output_tokens=60, max_output_tokens=150, turns=1)
    cell = simulated(workload, replace(SETTING, policy=policy, num_blocks=40))
    assert sum(worker.core.figures.num_preemptions for worker in cell.workers) > 0
    assert len(cell.served) == sum(1 for _ in conversations(workload))
    for each in cell.served:
        assert each.ended_s is not None
        assert each.request.output_token_ids == list(each.conversation.turns[each.turn].output_tokens)


def test_no_block_is_held_when_everybody_has_gone() -> None:
    cell = simulated(WORKLOAD)
    assert all(worker.core.num_requests == 0 for worker in cell.workers)
    assert all(worker.core.figures.pool.num_held == 0 for worker in cell.workers)


def test_the_first_token_of_a_lone_request_comes_after_its_prefill() -> None:
    """40 tokens fit one step: control, then fixed + 40 prefill tokens + 40 tokens of context."""
    (one,) = served([a_conversation(40, 3)]).served
    assert one.ttft_s == pytest.approx(1e-3 + 10e-3 + 40 * 1e-3 + 40 * 1e-6)


def test_a_prompt_longer_than_the_budget_takes_two_steps_back_to_back() -> None:
    """64 + 36 tokens; the second step is planned while the first one runs, so no control time comes between them."""
    (one,) = served([a_conversation(100, 3)]).served
    assert one.ttft_s == pytest.approx(1e-3 + 2 * 10e-3 + 100 * 1e-3 + (64 + 100) * 1e-6)


def test_a_token_follows_the_one_before_by_one_decode_step() -> None:
    (one,) = served([a_conversation(40, 3)]).served
    assert list(one.itls_s) == pytest.approx([10e-3 + 2e-3 + 41 * 1e-6, 10e-3 + 2e-3 + 42 * 1e-6])


def test_the_second_turn_hits_what_the_first_left_behind() -> None:
    """40 in and 10 out: the last token was never fed, 49 are computed, three blocks of 16 are full."""
    cell = served([a_conversation(40, 10, 5, 1)])
    first, second = cell.served
    assert second.arrived_s - (first.ended_s or 0.0) == pytest.approx(1.0)
    assert second.request.num_prompt_tokens == 55
    assert second.request.num_cached_tokens == 48


def test_arrivals_of_every_kind_have_the_rate_that_was_asked_for() -> None:
    for kind in Arrivals:
        workload = replace(WORKLOAD, rate_per_s=50, duration_s=200, arrivals=kind, output_tokens=1, burst_s=0.5)
        assert sum(1 for _ in conversations(workload)) == pytest.approx(50 * 200, rel=0.1), kind


def test_jain_is_one_for_equals_and_one_over_n_for_a_monopoly() -> None:
    assert report.jain([3, 3, 3]) == pytest.approx(1)
    assert report.jain([5, 0, 0, 0]) == pytest.approx(1 / 4)


def test_fair_serves_the_small_tenant_sooner_than_fcfs_does() -> None:
    """Twenty requests of one tenant are there first; the other's only one waits behind them, or in its turn."""
    crowd = [a_conversation(60, 4, number=n, tenant="heavy") for n in range(20)]
    late = a_conversation(60, 4, number=99, start_s=0.01, tenant="light")
    ttft_s = {}
    for policy in (Policy.FCFS, Policy.FAIR):
        cell = served([*crowd, late], replace(SETTING, policy=policy, max_num_seqs=2))
        ttft_s[policy] = next(each.ttft_s for each in cell.served if each.conversation.tenant == "light")
    assert ttft_s[Policy.FAIR] < ttft_s[Policy.FCFS] / 3


def test_under_overload_fcfs_gives_by_demand_and_fair_gives_all_the_same() -> None:
    """Four tenants, one of which asks twice as often as each of the others."""
    workload = replace(WORKLOAD, rate_per_s=120, duration_s=3, turns=1, num_system_prompts=0)
    index = {}
    for policy in (Policy.FCFS, Policy.FAIR):
        index[policy] = report.outcome(simulated(workload, replace(SETTING, policy=policy), num_workers=1)).fairness
    assert index[Policy.FCFS] == pytest.approx(1 / (4 * (0.4**2 + 3 * 0.2**2)), abs=0.05)
    assert index[Policy.FAIR] == pytest.approx(1, abs=0.01)

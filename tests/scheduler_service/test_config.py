"""Settings: flags and variables, and what is refused."""

import pytest

from octavo import config
from scheduler_service.config import Queue, SchedulerConfig, Scheduling
from scheduler_service.core.policy import Policy


def test_scheduling_settings_have_the_names_of_vllm() -> None:
    argv = ["--max-num-seqs", "8", "--scheduling-policy", "priority"]
    settings = config.load(SchedulerConfig, "SCHEDULER", argv, {"OCTAVO_SCHEDULER_MAX_NUM_BATCHED_TOKENS": "64"})
    limits = settings.limits
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (8, 64)
    assert settings.scheduling.policy is Policy.PRIORITY


@pytest.mark.parametrize("field", ["max_num_batched_tokens", "max_num_seqs", "max_queue_len"])
def test_limits_below_one_are_refused(field: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        config.load(SchedulerConfig, "SCHEDULER", [], {f"OCTAVO_SCHEDULER_{field.upper()}": "0"})
    assert f"OCTAVO_SCHEDULER_{field.upper()} must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("field", ["max_queued_tokens", "max_tenant_queue_len", "long_prefill_token_threshold"])
def test_bounds_that_can_be_off_are_not_negative(field: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        config.load(SchedulerConfig, "SCHEDULER", [], {f"OCTAVO_SCHEDULER_{field.upper()}": "-1"})
    assert f"OCTAVO_SCHEDULER_{field.upper()} must be at least 0" in capsys.readouterr().err


def test_a_wait_has_a_bound_unless_it_is_told_to_have_none() -> None:
    assert SchedulerConfig().limits.max_queue_wait_s == 0.0
    assert config.load(SchedulerConfig, "SCHEDULER", ["--max-queue-wait-s", "4"], {}).limits.max_queue_wait_s == 4.0


@pytest.mark.parametrize("wait_s", [-1.0, float("inf"), float("nan")])
def test_the_bound_of_a_wait_is_a_time(wait_s: float) -> None:
    with pytest.raises(ValueError, match="max_queue_wait_s"):
        Queue(max_queue_wait_s=wait_s)


def test_policies_have_their_settings() -> None:
    argv = ["--scheduling-policy", "fair", "--tenant-weights", "a=2,b=0.5", "--max-queued-tokens", "9000",
            "--max-tenant-queue-len", "7", "--priority-aging-s", "5", "--no-enable-slot-preemption"]  # fmt: skip
    settings = config.load(SchedulerConfig, "SCHEDULER", argv, {})
    limits = settings.limits
    assert settings.scheduling.policy is Policy.FAIR
    assert limits.tenant_weights == {"a": 2.0, "b": 0.5}
    assert (limits.max_queued_tokens, limits.max_tenant_queue_len) == (9000, 7)
    assert (limits.priority_aging_s, limits.preempts_for_slots) == (5.0, False)
    assert SchedulerConfig().limits.preempts_for_slots


@pytest.mark.parametrize("item", ["a", "a=", "a=0", "a=-1", "a=x", "a=inf", "a=nan"])
def test_a_weight_is_above_zero(item: str) -> None:
    with pytest.raises(ValueError, match="tenant_weights"):
        Scheduling(tenant_weights=(item,))


@pytest.mark.parametrize("aging_s", [0, -1, float("inf"), float("nan")])
def test_ageing_takes_time_and_ends(aging_s: float) -> None:
    with pytest.raises(ValueError, match="priority_aging_s"):
        Scheduling(priority_aging_s=aging_s)


def test_a_watermark_is_a_share() -> None:
    with pytest.raises(ValueError, match="watermark"):
        Scheduling(watermark=1.0)

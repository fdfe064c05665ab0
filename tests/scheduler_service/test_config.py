"""Settings: flags and variables, and what is refused."""

import pytest

from octavo import config
from scheduler_service.config import SchedulerConfig, Scheduling
from scheduler_service.core.policy import Policy


def test_scheduling_settings_have_the_names_of_vllm() -> None:
    argv = ["--max-num-seqs", "8", "--scheduling-policy", "priority"]
    settings = config.load(SchedulerConfig, "SCHEDULER", argv, {"OCTAVO_SCHEDULER_MAX_NUM_BATCHED_TOKENS": "64"})
    limits = settings.scheduling.limits
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (8, 64)
    assert settings.scheduling.policy is Policy.PRIORITY


@pytest.mark.parametrize("field", ["max_num_batched_tokens", "max_num_seqs", "max_queue_len"])
def test_limits_below_one_are_refused(field: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        config.load(SchedulerConfig, "SCHEDULER", [], {f"OCTAVO_SCHEDULER_{field.upper()}": "0"})
    assert f"{field} must be at least 1" in capsys.readouterr().err


def test_a_watermark_is_a_share() -> None:
    with pytest.raises(ValueError, match="watermark"):
        Scheduling(watermark=1.0)

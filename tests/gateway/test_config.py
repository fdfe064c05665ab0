"""The gateway's settings: mistakes end the start, and say what was asked."""

from typing import Any

import pytest

from gateway.config import GatewayConfig, Limits
from octavo import config


@pytest.mark.parametrize("name", ["max_body_bytes", "max_concurrent_requests", "max_choices"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    values: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        Limits(**values)


@pytest.mark.parametrize("name", ["max_stop_sequences", "keepalive_s", "stalled_client_s"])
def test_a_negative_limit_is_refused(name: str) -> None:
    values: dict[str, Any] = {name: -1}
    with pytest.raises(ValueError, match=f"{name} must not be negative, got -1"):
        Limits(**values)


def test_an_unknown_log_level_ends_the_start_and_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        config.load(GatewayConfig, "GATEWAY", argv=["--log-level", "loud"], environ={})
    assert "--log-level wants one of debug, info, warning, error, got 'loud'" in capsys.readouterr().err

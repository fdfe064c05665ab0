"""Logs: one line per event, everybody's in the same shape."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from octavo import logs, telemetry

CONTEXT = telemetry.context_from_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (text,) = capsys.readouterr().err.splitlines()
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def test_an_event_is_one_json_line_with_its_fields(capsys: pytest.CaptureFixture[str]):
    logs.configure("octavo-scheduler")
    logs.get("scheduler_service.engine").info("request_preempted", request_id="r1", num_computed_tokens=7)
    logged = line(capsys)
    assert logged.pop("ts").endswith("Z")
    assert logged == {
        "level": "info",
        "service": "octavo-scheduler",
        "event": "request_preempted",
        "logger": "scheduler_service.engine",
        "request_id": "r1",
        "num_computed_tokens": 7,
    }


def test_inside_a_span_a_line_names_it(capsys: pytest.CaptureFixture[str]):
    logs.configure("s")
    with telemetry.use(telemetry.start_span("queue", parent=CONTEXT)):
        logs.get("x").warning("queue_full")
    logged = line(capsys)
    assert (logged["trace_id"], logged["span_id"]) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


def test_lines_of_other_libraries_have_the_same_shape(capsys: pytest.CaptureFixture[str]):
    logs.configure("s")
    logging.getLogger("third.party").error("lost %d of %d", 1, 2)
    logged = line(capsys)
    assert (logged["event"], logged["level"], logged["logger"]) == ("lost 1 of 2", "error", "third.party")


def test_an_exception_brings_its_traceback(capsys: pytest.CaptureFixture[str]):
    logs.configure("s")
    try:
        raise KeyError("gone")
    except KeyError:
        logs.get("x").exception("step_failed", step=3)
    logged = line(capsys)
    assert logged["step"] == 3
    assert "KeyError: 'gone'" in logged["traceback"]


def test_below_the_level_nothing_is_written(capsys: pytest.CaptureFixture[str]):
    logs.configure("s", level="warning")
    logs.get("x").info("step_done")
    assert capsys.readouterr().err == ""


def test_a_field_cannot_overwrite_the_line_itself(capsys: pytest.CaptureFixture[str]):
    logs.configure("s")
    logs.get("x").info("loaded", service="other", percent="100%")
    logged = line(capsys)
    assert (logged["service"], logged["percent"]) == ("s", "100%")


def test_the_text_format_is_for_people(capsys: pytest.CaptureFixture[str]):
    logs.configure("octavo-worker", log_format="text")
    logs.get("x").info("weights_loaded", duration_s=1.5)
    assert capsys.readouterr().err.endswith(" info    octavo-worker: weights_loaded duration_s=1.5\n")


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="log level 'loud' is unknown; choose one of debug, info"):
        logs.configure("s", level="loud")

"""How the lines of the services are shown."""

import io
import json

from octavo.cli.log_view import LogView

LINE = (
    '{"ts": "2026-11-30T01:02:03.456Z", "level": "info", "service": "scheduler_service", "event": "worker_attached", '
    '"logger": "x", "worker_id": "w0"}'
)


def shown(log_format: str, name: str, text: str) -> str:
    stream = io.StringIO()
    LogView("json" if log_format == "json" else "text", stream).line(name, text)
    return stream.getvalue()


def test_text_has_time_service_event_and_fields():
    assert shown("text", "scheduler", LINE) == "01:02:03.456 info    scheduler  worker_attached worker_id=w0\n"


def test_traceback_follows_on_its_own_lines():
    line = '{"ts": "2026-11-30T01:02:03.456Z", "level": "error", "event": "failed", "traceback": "Traceback:\\n  boom"}'
    assert shown("text", "gateway", line).endswith("failed\nTraceback:\n  boom\n")


def test_line_of_another_shape_is_kept_whole():
    assert shown("text", "redis", "Ready to accept connections").endswith(" redis      Ready to accept connections\n")
    assert shown("text", "redis", "{not json").endswith(" redis      {not json\n")


def test_json_passes_events_through_and_wraps_the_rest():
    assert shown("json", "scheduler", LINE) == LINE + "\n"
    wrapped = json.loads(shown("json", "redis", "hello"))
    assert (wrapped["service"], wrapped["event"], wrapped["text"]) == ("redis", "output_written", "hello")

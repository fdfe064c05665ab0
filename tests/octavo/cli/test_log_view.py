"""How the lines of the services are shown."""

import json

from octavo.cli.log_view import LogView

LINE = (
    '{"ts": "2026-11-30T01:02:03.456Z", "level": "info", "service": "scheduler_service", "event": "worker_attached", '
    '"logger": "x", "worker_id": "w0"}'
)


class Written:
    """Takes lines, unless it is full."""

    def __init__(self) -> None:
        self.text = ""
        self.is_full = False

    def put(self, line: str) -> bool:
        if not self.is_full:
            self.text += f"{line}\n"
        return not self.is_full


def shown(log_format: str, name: str, text: str) -> str:
    written = Written()
    LogView("json" if log_format == "json" else "text", written.put).line(name, text)
    return written.text


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


def test_lost_lines_are_counted_and_told_when_there_is_room_again():
    written = Written()
    view = LogView("text", written.put)
    written.is_full = True
    view.say("gateway", "ended")
    view.line("gateway", "hello")
    written.is_full = False
    view.say("gateway", "is ready again")
    first, second = written.text.splitlines()
    assert first.endswith(" serve      2 lines are lost: nobody took them")
    assert second.endswith(" gateway    is ready again")

"""Shows the log lines of the services: as they are, or as text with the service's name in front.

Knows the shape that `octavo.logs` writes; a line of any other shape is shown as it is.
"""

import json
import time
from typing import Any, Literal

from octavo.cli.line_writer import PutLine

_HIDDEN = ("ts", "level", "service", "event", "logger", "traceback")  # shown by position, or not at all
_NAME_WIDTH = 10


class LogView:
    """A line per call; when some were lost it says so as soon as there is room again."""

    def __init__(self, log_format: Literal["text", "json"], put: PutLine) -> None:
        self._is_json = log_format == "json"
        self._put = put
        self._num_lost = 0

    def line(self, name: str, text: str) -> None:
        """A line of output of the child `name`."""
        record = _parsed(text)
        if not self._is_json:
            self._write(_as_text(name, record) if record else _plain(name, text))
        elif record:
            self._write(text)
        else:
            self._write(json.dumps(_event(name, "output_written", text), ensure_ascii=False))

    def say(self, name: str, text: str) -> None:
        """A sentence of `octavo serve` itself about the child `name`, or a line of the child's quoted in one."""
        self._write(self._said(name, text))

    def _said(self, name: str, text: str) -> str:
        if self._is_json:
            return json.dumps(_event(name, "supervised", text), ensure_ascii=False)
        record = _parsed(text.strip())
        return _plain(name, f"  {_as_text('', record)}" if record else text)

    def _write(self, text: str) -> None:
        if self._num_lost and self._put(self._said("serve", f"{self._num_lost} lines are lost: nobody took them")):
            self._num_lost = 0
        if not self._put(text):
            self._num_lost += 1


def _parsed(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "event" in record else None


def _as_text(name: str, record: dict[str, Any]) -> str:
    clock = str(record.get("ts", ""))[11:23]
    fields = " ".join(f"{key}={value}" for key, value in record.items() if key not in _HIDDEN)
    head = f"{clock} {record.get('level', 'info'):7} {name:{_NAME_WIDTH}} {record['event']} {fields}".rstrip()
    traceback = record.get("traceback")
    return f"{head}\n{traceback}" if traceback else head


def _plain(name: str, text: str) -> str:
    return f"{_clock()} {'':7} {name:{_NAME_WIDTH}} {text}"


def _clock() -> str:
    now = time.time()
    return f"{time.strftime('%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}"


def _event(name: str, event: str, text: str) -> dict[str, str]:
    stamp = f"{time.strftime('%Y-%m-%d', time.gmtime())}T{_clock()}Z"
    return {"ts": stamp, "level": "info", "service": name, "event": event, "text": text}

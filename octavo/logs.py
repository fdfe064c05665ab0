"""Writes one line per event to stderr, for our own loggers and everybody else's alike.

Knows stdlib logging and the current span; sends nothing anywhere.
"""

import json
import logging
import sys
import time
from typing import Any, Literal

from opentelemetry import trace

LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

# Third-party loggers that describe every call they make at INFO.
_CHATTY = ("httpx", "httpcore", "urllib3", "filelock", "huggingface_hub", "transformers", "asyncio", "grpc")


class Logger:
    """Says what happened: an event in the past tense, and fields instead of prose."""

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(name)

    def debug(self, event: str, /, **fields: object) -> None:
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._emit(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: object) -> None:
        """An error with the traceback of the exception being handled."""
        self._emit(logging.ERROR, event, fields, exc_info=True)

    def _emit(self, level: int, event: str, fields: dict[str, object], *, exc_info: bool = False) -> None:
        if self._log.isEnabledFor(level):
            self._log.log(level, "%s", event, extra={"octavo_fields": fields}, exc_info=exc_info)


def get(name: str) -> Logger:
    """The logger of a module; call it with `__name__`."""
    return Logger(name)


def configure(service: str, *, level: str = "info", log_format: LogFormat = "json") -> None:
    """Send every log line of this process to stderr, once, in one shape. Calling it again replaces the set-up."""
    if level not in _LEVELS:
        raise ValueError(f"log level {level!r} is unknown; choose one of {', '.join(_LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(service) if log_format == "json" else _TextFormatter(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    logging.captureWarnings(True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(_LEVELS[level], logging.WARNING))


def _event(record: logging.LogRecord, service: str) -> dict[str, Any]:
    """The line as a dict: ts, level, service, event, logger, the fields, and the ids of the current span."""
    line: dict[str, Any] = {
        "ts": _timestamp(record.created),
        "level": record.levelname.lower(),
        "service": service,
        "event": record.getMessage(),
        "logger": record.name,
    }
    line |= {name: value for name, value in vars(record).get("octavo_fields", {}).items() if name not in line}
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        line |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
    return line


def _timestamp(seconds: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds % 1 * 1000):03d}Z"


class _JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line = _event(record, self._service)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class _TextFormatter(logging.Formatter):
    """For people at a terminal: time, level, service, event, then name=value pairs."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line = _event(record, self._service)
        head = [line.pop(name) for name in ("ts", "level", "service", "event")]
        line.pop("logger")
        pairs = " ".join(f"{name}={value}" for name, value in line.items())
        text = f"{head[0][11:23]} {head[1]:7} {head[2]}: {head[3]} {pairs}".rstrip()
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text

"""One HTTP exchange: its id, its span, and what its headers say about the caller."""

import re
import time
import uuid
from dataclasses import dataclass, field

from opentelemetry.trace import INVALID_SPAN
from starlette.datastructures import Headers
from starlette.types import Scope

from gateway.core import limits
from gateway.core.limits import InvalidParameter
from octavo import telemetry
from octavo.telemetry import Span, SpanContext

# Ours first; the others are what inference gateways in front of us send.
_TENANT_HEADERS = ("x-tenant-id", "x-gateway-inference-fairness-id", "x-llm-d-inference-fairness-id")
# The caller's patience in milliseconds: ours, and what Envoy in front of us says of its own.
_TIMEOUT_HEADERS = ("x-request-timeout-ms", "x-envoy-expected-rq-timeout-ms")
_SAFE_REQUEST_ID = re.compile(r"^[\x21-\x7e]{1,128}$")
_SCOPE_KEY = "octavo.exchange"
# Asked for every few seconds by machines; a span for each would bury the requests.
_UNTRACED = frozenset({"/", "/health", "/v1/health", "/ping", "/livez", "/readyz", "/metrics", "/load", "/version"})


@dataclass(slots=True, kw_only=True)
class Exchange:
    """State of one exchange, from the first byte in to the last byte out."""

    request_id: str  # x-request-id: the client's, or unique_id
    unique_id: str
    span: Span
    headers: Headers
    created_s: float = field(default_factory=time.time)
    is_client_gone: bool = False
    error: str | None = None  # what failed after the status line had been sent

    @property
    def trace_parent(self) -> SpanContext | None:
        context = self.span.get_span_context()
        return context if context.is_valid else None

    @property
    def wants_metrics(self) -> bool:
        return self.headers.get("x-octavo-metrics", "").lower() in ("1", "true", "yes")


def begin(scope: Scope) -> Exchange:
    """Read the headers of a request and start its span."""
    headers = Headers(scope=scope)
    given = headers.get("x-request-id", "")
    unique_id = uuid.uuid4().hex
    exchange = Exchange(
        request_id=given if _SAFE_REQUEST_ID.match(given) else unique_id,
        unique_id=unique_id,
        span=_server_span(scope, headers),
        headers=headers,
    )
    scope[_SCOPE_KEY] = exchange
    return exchange


def current(scope: Scope) -> Exchange:
    """The exchange that `begin` put into this scope."""
    exchange = scope[_SCOPE_KEY]
    assert isinstance(exchange, Exchange), f"{exchange!r} in the scope"
    return exchange


def tenant(headers: Headers) -> str:
    """Whose request it is; empty when no header says so."""
    name = next((header for header in _TENANT_HEADERS if header in headers), None)
    if name is None:
        return ""
    value = headers[name].strip()
    if len(value) > limits.MAX_ID_CHARS:  # told here by the name of the header that was sent
        raise InvalidParameter(name, f"at most {limits.MAX_ID_CHARS} characters, got {len(value)}")
    return value


def priority(headers: Headers, in_body: int | None) -> int:
    """Lower is served first; the body's field wins over the header."""
    return limits.priority_of(headers.get("x-priority", "0").strip()) if in_body is None else in_body


def timeout_s(headers: Headers) -> float | None:
    """Seconds until the caller gives up; None when no header says so."""
    name = next((header for header in _TIMEOUT_HEADERS if header in headers), None)
    return None if name is None else limits.timeout_ms_of(name, headers[name]) / 1000


def _server_span(scope: Scope, headers: Headers) -> Span:
    parent = telemetry.context_from_traceparent(headers.get("traceparent"), headers.get("tracestate"))
    method = scope["method"]
    if scope["path"] in _UNTRACED:
        return INVALID_SPAN
    if not telemetry.is_enabled():
        return telemetry.start_span(method, parent=parent, kind="server")
    host, port = scope.get("server") or ("", 0)
    attributes = {
        "http.request.method": method,
        "url.scheme": scope["scheme"],
        "url.path": scope["path"],
        "server.address": host,
        "server.port": port or 0,
        "network.protocol.version": scope["http_version"],
        "user_agent.original": headers.get("user-agent", ""),
    }
    return telemetry.start_span(f"{method} {scope['path']}", parent=parent, kind="server", attributes=attributes)

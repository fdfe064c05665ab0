"""Reads the body of a request into its model: size limit, JSON, types, and what to do about unknown fields."""

from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from gateway.core.limits import InvalidParameter
from gateway.openai.edge import ClientGone
from gateway.openai.errors import BodyTooLarge, from_validation
from gateway.openai.protocol import Body
from octavo import logs

B = TypeVar("B", bound=Body)

WARNING_HEADER = "x-octavo-warning"

_MAX_REMEMBERED_FIELDS = 256  # so that a client with random field names fills neither log nor memory
_MAX_NAMED_FIELDS = 8
_MAX_FIELD_CHARS = 40

_log = logs.get(__name__)


class BodyReader:
    """Reads bodies under one server's rules."""

    def __init__(self, *, max_body_bytes: int, is_strict: bool) -> None:
        self._max_body_bytes = max_body_bytes
        self._is_strict = is_strict
        self._logged: set[str] = set()

    async def read(self, request: Request, model: type[B]) -> B:
        """The body as `model`. Raises InvalidParameter, BodyTooLarge or ClientGone."""
        body = parse(await self._bytes(request), model)
        if body.model_extra:
            self._notice([field[:_MAX_FIELD_CHARS] for field in sorted(body.model_extra)])
        return body

    async def _bytes(self, request: Request) -> bytes:
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and (len(announced) > 18 or int(announced) > self._max_body_bytes):
            raise BodyTooLarge(self._max_body_bytes)
        body = bytearray()
        try:
            async for piece in request.stream():
                body += piece
                if len(body) > self._max_body_bytes:
                    raise BodyTooLarge(self._max_body_bytes)
        except ClientDisconnect:
            raise ClientGone from None
        return bytes(body)

    def _notice(self, fields: list[str]) -> None:
        if self._is_strict:
            raise InvalidParameter(
                fields[0], f"unknown; this server refuses fields it does not know ({_named(fields)})"
            )
        new = [field for field in fields if field not in self._logged]
        if new and len(self._logged) < _MAX_REMEMBERED_FIELDS:
            self._logged.update(new[:_MAX_REMEMBERED_FIELDS])
            _log.warning("unknown_fields_ignored", fields=[field[:80] for field in new[:_MAX_NAMED_FIELDS]])


def parse(data: bytes, model: type[B]) -> B:
    """The JSON text `data` as `model`. Raises InvalidParameter with one sentence that names the field."""
    if not data.strip():
        raise InvalidParameter("", "the body is empty; send a JSON object")
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise from_validation(error) from None


def warning_headers(body: Body) -> dict[str, str]:
    """The header that names the fields of `body` that were ignored; none if there were none."""
    return {WARNING_HEADER: f"ignored unknown fields: {_named(sorted(body.model_extra))}"} if body.model_extra else {}


def _named(fields: list[str]) -> str:
    """The names, made safe for a header, a few of them."""
    names = [_ascii(field[:_MAX_FIELD_CHARS]) for field in fields[:_MAX_NAMED_FIELDS]]
    more = [f"and {len(fields) - len(names)} more"] if len(fields) > len(names) else []
    return ", ".join(names + more)


def _ascii(name: str) -> str:
    ascii_only = name.encode("ascii", "backslashreplace").decode()
    return "".join(char if char.isprintable() else "?" for char in ascii_only)

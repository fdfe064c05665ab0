"""What a gateway's /readyz says. On raw asyncio: it is asked many times while everything else starts."""

import asyncio
import json

TIMEOUT_S = 5.0


async def missing(host: str, port: int) -> str | None:
    """What a gateway's /readyz says is missing; None if it is ready."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), port)
            writer.write(f"GET /readyz HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
    except (OSError, TimeoutError) as refused:
        return f"no answer yet ({refused})"
    head, _, body = answer.partition(b"\r\n\r\n")
    return None if head.split()[1:2] == [b"200"] else reason(body)


def reason(body: bytes) -> str:
    """The words of a /readyz answer, whatever its shape."""
    text = body.decode(errors="replace").strip()
    try:
        answer = json.loads(text)
    except ValueError:
        return text[:200]
    return str(answer.get("reason", text[:200])) if isinstance(answer, dict) else text[:200]

"""Metrics over HTTP: what a scraper gets."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Histogram

from octavo import metrics


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    ttft = Histogram("octavo_ttft_seconds", "time to first token", registry=registry)
    ttft.observe(0.1, exemplar={"trace_id": "abc"})
    return registry


async def get(port: int, path: str, *headers: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_plain_scraper_gets_the_text_format(registry: CollectorRegistry):
    async with metrics.serve("127.0.0.1:0", registry) as port:
        answer = await get(port, "/metrics")
    assert answer.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
    assert "octavo_ttft_seconds_count 1.0" in answer


async def test_a_scraper_that_accepts_openmetrics_gets_exemplars(registry: CollectorRegistry):
    async with metrics.serve("127.0.0.1:0", registry) as port:
        answer = await get(port, "/metrics", "Accept: application/openmetrics-text; version=1.0.0,text/plain;q=0.5")
    assert 'trace_id="abc"' in answer
    assert answer.endswith("# EOF\n")


async def test_other_paths_are_not_there(registry: CollectorRegistry):
    async with metrics.serve("127.0.0.1:0", registry) as port:
        assert (await get(port, "/")).startswith("HTTP/1.1 404")


async def test_a_client_that_says_nothing_is_cut_off(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metrics, "READ_TIMEOUT_S", 0.05)
    async with metrics.serve("127.0.0.1:0", registry) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()


async def test_a_taken_port_ends_the_process_with_a_message(registry: CollectorRegistry):
    async with metrics.serve("127.0.0.1:0", registry) as port:
        with pytest.raises(SystemExit, match=f"cannot serve metrics at 127.0.0.1:{port}"):
            async with metrics.serve(f"127.0.0.1:{port}", registry):
                pass


def test_the_registry_of_the_process_shows_the_process():
    body, content_type = metrics.render()
    assert b"process_cpu_seconds_total" in body
    assert content_type.startswith("text/plain")

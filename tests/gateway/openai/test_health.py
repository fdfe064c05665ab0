"""Probes and figures."""

import pytest

import octavo
from gateway.core.generation import ServingState
from tests.fakes.generator import FakeGenerator
from tests.gateway.openai.servers import client

READINESS = ["/health", "/v1/health", "/ping", "/readyz"]
LOADING = ServingState(is_ready=False, reason="no worker has connected yet", cause="no_worker")


@pytest.mark.parametrize("path", READINESS)
async def test_ready_is_200_and_not_ready_is_503_with_the_reason(path: str):
    fake = FakeGenerator()
    async with client(fake) as http:
        assert (await http.get(path)).status_code == 200
        assert (await http.head(path)).status_code == 200
        fake.serving_state = LOADING
        refused = await http.get(path)
    assert refused.status_code == 503
    assert refused.json() == {"status": "not_ready", "cause": "no_worker", "reason": "no worker has connected yet"}
    assert refused.headers["retry-after"] == "1"


async def test_alive_does_not_depend_on_ready():
    async with client(FakeGenerator(serving_state=LOADING)) as http:
        assert (await http.get("/livez")).json() == {"status": "alive"}


async def test_version_and_load():
    async with client(FakeGenerator()) as http:
        assert (await http.get("/version")).json() == {"version": octavo.__version__}
        assert (await http.get("/load")).json() == {"server_load": 0, "running": 0, "waiting": 0}


async def test_metrics_are_in_the_format_that_the_scraper_accepts():
    async with client(FakeGenerator()) as http:
        plain = await http.get("/metrics")
        openmetrics = await http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert plain.headers["content-type"].startswith("text/plain")
    assert "process_" in plain.text
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")

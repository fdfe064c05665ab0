"""The page for people."""

from dataclasses import replace

from gateway.core.generation import ServingState
from gateway.openai.load import Load
from gateway.openai.status_page import page
from tests.fakes.generator import ENTRY, READY, FakeGenerator
from tests.gateway.openai.servers import client


async def test_the_page_is_html_without_anything_from_elsewhere():
    async with client(FakeGenerator()) as http:
        response = await http.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert "src=" not in response.text
    assert "http://" not in response.text
    assert "https://" not in response.text


def test_the_page_shows_model_readiness_load_and_cache():
    load = Load(num_running=3, num_waiting=2, num_prompt_tokens=200, num_cached_tokens=50)
    text = page([ENTRY], READY, load=load)
    assert "Model m" in text
    assert "3 running, 2 waiting" in text
    assert "200, 25% of them from the prefix cache" in text
    assert "100 blocks of 16 tokens" in text


def test_a_server_that_is_not_ready_says_why():
    state = ServingState(is_ready=False, reason="loading <weights>", cause="loading")
    assert "no: loading &lt;weights&gt;" in page([], state, load=Load())


def test_names_are_escaped():
    assert "<script>" not in page([replace(ENTRY, name="<script>")], READY, load=Load())

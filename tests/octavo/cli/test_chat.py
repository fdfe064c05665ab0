"""A conversation with a real HTTP server, by the program itself."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from tests.fakes import openai_server
from tests.fakes.openai_server import MODEL, OpenAIServer
from tests.octavo.cli.program import octavo, start


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with openai_server.running() as running:
        yield running


async def test_answers_stream_and_the_conversation_is_kept(server: OpenAIServer):
    done = await octavo("chat", "--url", server.url, "--system", "be brief", typed="one\ntwo\n/exit\nthree\n")
    assert (done.status, done.out, done.err) == (0, " you said one\n you said two\n", "")
    roles = [message["role"] for message in server.bodies[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert server.bodies[-1]["messages"][2]["content"] == " you said one"


async def test_reset_forgets_all_but_the_system_message(server: OpenAIServer):
    await octavo("chat", "--url", server.url, "--system", "be brief", typed="one\n/reset\ntwo\n")
    assert [message["content"] for message in server.bodies[-1]["messages"]] == ["be brief", "two"]


async def test_only_options_that_were_given_are_sent(server: OpenAIServer):
    await octavo("chat", "--url", server.url, "--temperature", "0", "--max-tokens", "7", typed="one\n")
    sent = {name: value for name, value in server.bodies[0].items() if name != "messages"}
    assert sent == {"model": MODEL, "stream": True, "temperature": 0.0, "max_tokens": 7}


async def test_url_comes_from_the_environment_too(server: OpenAIServer):
    done = await octavo("chat", typed="one\n", environ={"OCTAVO_URL": f"{server.url}/v1/"})
    assert done.out == " you said one\n"


async def test_failed_turn_is_reported_and_forgotten(server: OpenAIServer):
    done = await octavo("chat", "--url", server.url, typed="boom\none\n")
    assert "octavo chat: the server broke off: it broke" in done.err
    assert [message["content"] for message in server.bodies[-1]["messages"]] == ["one"]


async def test_ctrl_c_stops_an_answer_and_a_second_one_leaves(server: OpenAIServer):
    process = await start("chat", "--url", server.url)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"slow\n")
    await asyncio.wait_for(process.stdout.readuntil(b"slow"), 20)
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.stdout.readuntil(b"(stopped)\n"), 20)
    assert await asyncio.to_thread(server.gone.wait, 20)
    leaving = asyncio.create_task(process.communicate())
    while not leaving.done():  # a signal just before input() blocks is seen only with the next one
        process.send_signal(signal.SIGINT)
        await asyncio.wait({leaving}, timeout=0.5)
    assert process.returncode == 0


async def test_without_a_server_the_address_and_the_way_to_start_one_are_named():
    done = await octavo("chat", "--url", "127.0.0.1:9", typed="one\n")
    assert done.status == 1
    assert "no server answers at http://127.0.0.1:9 (" in done.err
    assert "octavo serve" in done.err

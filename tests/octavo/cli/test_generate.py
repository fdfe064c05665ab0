"""One answer from a real gRPC server, by the program itself."""

import asyncio
import signal

from tests.fakes import inference_server
from tests.fakes.inference_server import InferenceServer
from tests.octavo.cli.program import octavo, start


async def test_answer_alone_goes_to_standard_output():
    server = InferenceServer()
    async with inference_server.running(server) as target:
        done = await octavo("generate", "how are you", "--target", target)
    assert (done.status, done.out, done.err) == (0, "how are you \n", "")
    assert server.requests[0].chat.messages[0].role == "user"


async def test_flags_become_the_request():
    server = InferenceServer()
    async with inference_server.running(server) as target:
        flags = ["--max-tokens", "7", "--temperature", "0", "--seed", "3", "--raw"]
        await octavo("generate", "-", *flags, "--url", target, typed="from a pipe")
    (request,) = server.requests
    assert request.text == "from a pipe"
    assert (request.stopping.max_tokens, request.sampling.seed) == (7, 3)
    assert request.sampling.HasField("temperature")
    assert not request.sampling.HasField("top_p")


async def test_refusal_is_shown_in_the_servers_words():
    async with inference_server.running(InferenceServer()) as target:
        done = await octavo("generate", "hello", "--model", "other", "--target", target)
    assert done.status == 1
    assert f"octavo generate: {target} answered NOT_FOUND: there is no model other" in done.err


async def test_ctrl_c_cancels_the_call():
    server = InferenceServer()
    async with inference_server.running(server) as target:
        process = await start("generate", "slow", "--target", target)
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readuntil(b"slow "), 20)
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(server.gone.wait(), 20)
        await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 130


async def test_without_a_server_the_address_and_the_way_to_start_one_are_named():
    done = await octavo("generate", "hello", "--target", "127.0.0.1:9")
    assert done.status == 1
    assert "no server answers at 127.0.0.1:9 (" in done.err
    assert "octavo serve" in done.err

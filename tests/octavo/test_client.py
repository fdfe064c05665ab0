"""Waiting for a peer: in any order of starting, saying who is expected where."""

import asyncio
import logging

import pytest

from octavo import client, logs, server
from octavo.server import Readiness
from tests.octavo.echo_service import NAME, EchoService

LOG = logs.get("test")


async def test_a_peer_that_is_there_is_not_waited_for(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    async with (
        server.started("127.0.0.1:0", EchoService().register, {}, service_names=[NAME]) as running,
        client.channel(running.address) as channel,
    ):
        caplog.clear()
        await client.wait_ready(channel, NAME, log=LOG)
    assert "waiting_for_peer" not in caplog.text


async def test_a_peer_may_start_later(caplog: pytest.LogCaptureFixture, tmp_path: object):
    caplog.set_level(logging.INFO, "test")
    address = f"unix:{tmp_path}/late.sock"
    async with client.channel(address) as channel:
        waiting = asyncio.create_task(client.wait_ready(channel, NAME, log=LOG))
        await asyncio.sleep(0.15)
        async with server.started(address, EchoService().register, {}, service_names=[NAME]):
            await asyncio.wait_for(waiting, 5)
    events = [record.getMessage() for record in caplog.records if record.name == "test"]
    assert events == ["waiting_for_peer", "peer_found"]
    fields = vars(caplog.records[0])["octavo_fields"]
    assert (fields["expected"], fields["address"], fields["then_every_s"]) == (NAME, address, 2.0)


async def test_a_peer_that_is_not_ready_is_waited_for():
    readiness = Readiness()
    async with (
        server.started("127.0.0.1:0", lambda _: None, {}, service_names=[NAME], readiness=readiness) as running,
        client.channel(running.address) as channel,
    ):
        with pytest.raises(client.PeerMissing, match="it is there but not ready"):
            await client.wait_ready(channel, NAME, log=LOG, timeout_s=0.05)
        readiness.set(True)
        await asyncio.wait_for(client.wait_ready(channel, NAME, log=LOG), 5)


async def test_giving_up_names_the_address_and_who_was_expected():
    async with client.channel("127.0.0.1:1") as channel:
        with pytest.raises(client.PeerMissing, match=f"{NAME} at 127.0.0.1:1 after"):
            await client.wait_ready(channel, NAME, log=LOG, timeout_s=0.05)

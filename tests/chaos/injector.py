"""Carries one fault out on a stack. What the fault is was decided before."""

import asyncio
import random

from tests.chaos.faults import Fault, Kind
from tests.chaos.link import Link
from tests.chaos.stack import Stack
from tests.chaos.supervised import Supervised
from tests.faults.proxy import Fault as MessageFault
from tests.faults.proxy import Faults

SLOW_S = 0.3  # what bytes are late under DELAY
MESSAGE_RATE = 0.1  # of the messages while some are harmed
MOST_MESSAGES = 5  # harmed by one fault
MESSAGE_FAULTS = {
    Kind.DUPLICATE: MessageFault.DUPLICATE,
    Kind.REORDER: MessageFault.REORDER,
    Kind.DROP: MessageFault.DROP,
}


async def inject(stack: Stack, fault: Fault) -> None:
    """Do it, and undo it after its time; a process that died runs again by then, though it may not be ready yet."""
    if process := stack.processes.get(fault.target):
        await _harm_process(process, fault)
    else:
        await _harm_link(stack.links[fault.target], fault)


async def _harm_process(process: Supervised, fault: Fault) -> None:
    match fault.kind:
        case Kind.KILL:
            await process.kill()
        case Kind.TERM:
            await process.terminate()
        case Kind.STOP:
            process.pause()
            try:
                await asyncio.sleep(fault.duration_s)
            finally:
                process.resume()
        case _:
            raise AssertionError(f"{fault.kind} is nothing that happens to a process")


async def _harm_link(link: Link, fault: Fault) -> None:
    match fault.kind:
        case Kind.CUT:
            link.cut()
        case Kind.HALF_OPEN:
            await _half_open(link, fault)
        case Kind.DELAY:
            link.delay(SLOW_S)
            try:
                await asyncio.sleep(fault.duration_s)
            finally:
                link.delay(0)
        case Kind.DUPLICATE | Kind.REORDER | Kind.DROP:
            await _harm_messages(link, fault)
        case _:
            raise AssertionError(f"{fault.kind} is nothing that happens to a link")


async def _half_open(link: Link, fault: Fault) -> None:
    """Afterwards the old connections live on, or turn out to be dead, as the seed says."""
    for direction in fault.directions:
        link.hold(direction)
    try:
        await asyncio.sleep(fault.duration_s)
    finally:
        if random.Random(fault.seed).random() < 0.5:
            link.cut()
        for direction in fault.directions:
            link.let_go(direction)


async def _harm_messages(link: Link, fault: Fault) -> None:
    kinds, directions = [MESSAGE_FAULTS[fault.kind]], list(fault.directions)
    link.harm_messages(
        Faults(kinds=kinds, directions=directions, seed=fault.seed, rate=MESSAGE_RATE, most=MOST_MESSAGES)
    )
    try:
        await asyncio.sleep(fault.duration_s)
    finally:
        link.harm_messages(None)

"""One server's turn: runs the loads that were asked for, in a fixed order, and files what they gave under its rows."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from benchmarks.compare import own_cost, rows
from benchmarks.compare.rows import CONCURRENCIES, DECODE, Load, Row
from benchmarks.compare.running import Running
from benchmarks.loads import Loads

DECODES_OF_COST = 2


@dataclass(slots=True)
class Turn:
    """What one turn measured."""

    figures: dict[Row, list[float]] = field(default_factory=dict)

    def add(self, row: Row, figure: float) -> None:
        self.figures.setdefault(row, []).append(figure)


async def take(running: Running, loads: Loads, wanted: Collection[Load], *, num_repeats: int) -> Turn:
    """Every load `num_repeats` times, after a warm-up."""
    turn = Turn()
    decodes = [(row, CONCURRENCIES[row.load]) for row in DECODE if row.load in wanted]
    await loads.warm_up([concurrency for _, concurrency in decodes])
    for _ in range(num_repeats):
        for row, concurrency in decodes:
            turn.add(row, (await loads.decode(concurrency)).output_tokens_per_s)
        if Load.PREFILL in wanted:
            turn.add(rows.PREFILL, await loads.prefill())
        if Load.MIXED in wanted:
            await _mixed(turn, loads)
        if Load.SHARED in wanted:
            await _shared(turn, loads)
    if Load.COST in wanted and running.server.metrics_port is not None:
        await _cost(turn, loads, running, running.server.metrics_port)
    if Load.MEMORY in wanted:
        memory = running.memory()
        turn.add(rows.RSS, memory.rss)
        turn.add(rows.PSS, memory.pss)
    return turn


async def _mixed(turn: Turn, loads: Loads) -> None:
    mixed = await loads.mixed()
    turn.add(rows.ITL_BEFORE, mixed.itl_before_ms)
    turn.add(rows.ITL_MAX, mixed.itl_max_ms)
    turn.add(rows.TTFT_MIXED, mixed.ttft_ms)
    turn.add(rows.TTFT_SLOWDOWN, mixed.ttft_ms / mixed.ttft_alone_ms)


async def _shared(turn: Turn, loads: Loads) -> None:
    cold = await loads.shared_prefix()
    turn.add(rows.SHARED, cold.duration_s)
    turn.add(rows.SHARED_AGAIN, await loads.again(cold))


async def _cost(turn: Turn, loads: Loads, running: Running, metrics_port: int) -> None:
    processes = running.processes()
    before, started_at = own_cost.now(processes, metrics_port=metrics_port), time.perf_counter()
    for _ in range(DECODES_OF_COST):
        await loads.decode(1)
    wall_s = time.perf_counter() - started_at
    cost = own_cost.between(before, own_cost.now(processes, metrics_port=metrics_port), wall_s=wall_s)
    print(f"{running.server.name}: {cost}", flush=True)
    turn.add(rows.OUTSIDE_SHARE, 100 * cost.outside / cost.wall)
    turn.add(rows.OUTSIDE_MS, cost.outside)
    turn.add(rows.GAP_P50, cost.gap_p50)
    turn.add(rows.GAP_P99, cost.gap_p99)
    turn.add(rows.IDLE, cost.idle)

"""Medians of every server, and the ratio of ours to the best peer, as a Markdown table. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.compare.rows import ALL, Goal, Row
from benchmarks.compare.servers import Server

# Of each server, row by row, what was measured in all turns.
Measured = Mapping[str, Mapping[Row, Sequence[float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One of ours in one row."""

    ours: str
    ratio: float | None  # to the best peer; None if no peer has the row
    best_peer: str | None
    goal: Goal | None
    is_met: bool | None  # None if there is no goal, or no peer to compare with


def best_peer(row: Row, medians: Mapping[str, float]) -> str | None:
    """The peer with the best median in this row; None of nobody."""
    choose = max if row.more_is_better else min
    return choose(medians, key=lambda name: medians[name]) if medians else None


def judge(row: Row, server: Server, *, median: float, peers: Mapping[str, float]) -> Verdict:
    """One of ours against the medians of the peers."""
    best = best_peer(row, peers)
    ratio = median / peers[best] if best is not None and peers[best] else None
    goal = row.goal_quantised if server.is_quantised else row.goal
    return Verdict(ours=server.name, ratio=ratio, best_peer=best, goal=goal, is_met=_is_met(row, goal, median, ratio))


def markdown(servers: Sequence[Server], measured: Measured) -> str:
    """A line per row that anybody has figures of."""
    ours = [server for server in servers if server.is_ours]
    head = ["", *(server.name for server in servers), *(f"{server.name} / best peer" for server in ours)]
    lines = [_line(head), _line(["---"] * len(head))]
    for row in ALL:
        runs = {server.name: measured.get(server.name, {}).get(row, ()) for server in servers}
        if any(runs.values()):
            lines.append(_line([f"{row.name}, {row.unit}", *map(_cell, runs.values()), *_verdicts(row, servers, runs)]))
    return "\n".join(lines)


def _verdicts(row: Row, servers: Sequence[Server], runs: Mapping[str, Sequence[float]]) -> list[str]:
    medians = {name: statistics.median(values) for name, values in runs.items() if values}
    return [
        _said(row, judge(row, server, median=medians[server.name], peers=_peers_of(server, servers, medians)))
        if server.name in medians
        else "-"
        for server in servers
        if server.is_ours
    ]


def _peers_of(ours: Server, servers: Sequence[Server], medians: Mapping[str, float]) -> dict[str, float]:
    """Whom ours is compared with: with bfloat16 those that are not quantised, quantised with everybody."""
    return {
        peer.name: medians[peer.name]
        for peer in servers
        if peer.name in medians and not peer.is_ours and (ours.is_quantised or not peer.is_quantised)
    }


def _is_met(row: Row, goal: Goal | None, median: float, ratio: float | None) -> bool | None:
    figure = ratio if goal is not None and goal.is_ratio else median
    if goal is None or figure is None:
        return None
    return figure >= goal.bound if row.more_is_better else figure <= goal.bound


def _said(row: Row, verdict: Verdict) -> str:
    ratio = "" if verdict.ratio is None else f"{verdict.ratio:.2f} of {verdict.best_peer}"
    if verdict.goal is None:
        return ratio or "-"
    sign, unit = ">=" if row.more_is_better else "<=", "x" if verdict.goal.is_ratio else f" {row.unit}"
    met = {True: "met", False: "**missed**", None: "no peer"}[verdict.is_met]
    return f"{ratio}{'; ' if ratio else ''}{sign} {verdict.goal.bound:g}{unit}: {met}"


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return _digits(values[0])
    return f"{_digits(statistics.median(values))} ({_digits(min(values))}..{_digits(max(values))})"


def _digits(value: float) -> str:
    """Three that matter."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

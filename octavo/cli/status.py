"""`octavo status`: the services of a running server, its workers, its queue and its cache."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import httpx
from rich import box
from rich.console import Console
from rich.table import Table

from octavo.cli import readyz, runtime, scheduler_client
from octavo.cli.arguments import Parser
from octavo.cli.bench.figures import hit_rate
from octavo.cli.runtime import ServeState
from octavo.cli.scheduler_client import SchedulerState, Worker
from octavo.cli.server_address import CannotAsk, NobodyAnswers, http_headers, http_url, nobody_at

TIMEOUT_S = 3.0
MAX_COUNTS = 3  # of reasons and tenants that a column shows


def run(argv: Sequence[str]) -> int:
    """0 if the server is ready, 1 if it is not or is not there."""
    arguments = _parser().read(argv)
    serves = runtime.running(os.environ)
    url = http_url(arguments.url, os.environ if arguments.url or not serves else {"OCTAVO_URL": serves[0].http_url})
    serve = next((serve for serve in serves if serve.http_url == url), None)
    scheduler_addr = arguments.scheduler_addr or (serve.scheduler_addr if serve else None)
    try:
        ready, scheduler = asyncio.run(_ask(url, scheduler_addr))
    except CannotAsk as refused:
        if serve is not None and not arguments.json:
            _show_serve(Console(), serve)
        print(f"octavo status: {_said(refused, serve)}", file=sys.stderr)
        return 1
    if arguments.json:
        Console().print_json(data={"url": url, "ready": ready, "scheduler": asdict(scheduler) if scheduler else None})
    else:
        _show(url, ready, serve, scheduler)
    return 0 if ready["status"] == "ready" else 1


def _said(refused: CannotAsk, serve: ServeState | None) -> str:
    """Who has a running `octavo serve` need not start one: it starts again what ends."""
    if serve is not None and isinstance(refused, NobodyAnswers):
        return f"{refused.what}; octavo serve {serve.pid} runs, and may just be starting it"
    return str(refused)


async def _ask(url: str, scheduler_addr: str | None) -> tuple[dict[str, Any], SchedulerState | None]:
    ready = await _readiness(url)
    return ready, await scheduler_client.state(scheduler_addr) if scheduler_addr else None


async def _readiness(url: str) -> dict[str, Any]:
    """What the gateway says: {"status": "ready"}, or {"status": "not ready", "reason": ...}; with its load."""
    try:
        async with httpx.AsyncClient(headers=http_headers(), timeout=TIMEOUT_S, trust_env=False) as http:
            ready = await http.get(f"{url}/readyz")
            load = await http.get(f"{url}/load")
    except httpx.TransportError as refused:
        raise nobody_at(url, refused) from None
    answer: dict[str, Any] = {"status": "ready" if ready.status_code == httpx.codes.OK else "not ready"}
    if ready.status_code != httpx.codes.OK:
        answer["reason"] = readyz.reason(ready.content)
    return answer | (load.json() if load.status_code == httpx.codes.OK else {})


def _show(url: str, ready: dict[str, Any], serve: ServeState | None, scheduler: SchedulerState | None) -> None:
    console = Console()
    said = ", ".join(f"{name} {value}" for name, value in ready.items())
    console.print(f"gateway {url}: {said}", highlight=False, soft_wrap=True)
    if serve is not None:
        _show_serve(console, serve)
    if scheduler is None:
        console.print("the scheduler is not known here; name it with --scheduler-addr to see workers, queue and cache")
        return
    _show_scheduler(console, scheduler)
    if scheduler.workers:
        console.print(_workers(scheduler.workers))


def _show_serve(console: Console, serve: ServeState) -> None:
    pids = ", ".join(f"{name} {pid}" for name, pid in serve.pids.items())
    restarts = ", ".join(f"{name} {num}" for name, num in serve.num_restarts.items())
    console.print(f"octavo serve {serve.pid}, its processes: {pids}", highlight=False, soft_wrap=True)
    if restarts:
        console.print(f"times started again after an unexpected end: {restarts}", highlight=False, soft_wrap=True)


def _show_scheduler(console: Console, scheduler: SchedulerState) -> None:
    num_waiting = sum(worker.num_waiting for worker in scheduler.workers)
    words = "ready" if scheduler.is_ready else f"not ready: {scheduler.reason}"
    draining = ", draining" if scheduler.is_draining else ""
    kvcache = "answers" if scheduler.is_kvcache_connected else "does not answer"
    gateways = ", ".join(f"{name} with {num_requests} requests" for name, num_requests in scheduler.gateways) or "none"
    for line in (
        f"scheduler: {words}{draining}, up {scheduler.uptime_s:.0f} s",
        f"kvcache: {kvcache}",
        f"model: {scheduler.model or 'no worker has named one'}, {scheduler.max_model_len} tokens",
        f"gateways: {gateways}",
        f"queue: {num_waiting} at workers, {scheduler.num_unplaced} unplaced, served {scheduler.scheduling_policy}",
        *(f"worker {worker.worker_id}: {worker.stall}" for worker in scheduler.workers if worker.stall),
    ):
        console.print(line, highlight=False, soft_wrap=True)


def _workers(workers: Sequence[Worker]) -> Table:
    """A column per worker."""
    table = Table("worker", box=box.SIMPLE_HEAD)
    columns = [_figures(worker) for worker in workers]
    for worker in workers:
        table.add_column(worker.worker_id, justify="right")
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _figures(worker: Worker) -> dict[str, str]:
    rate = hit_rate(worker.num_hit_tokens, worker.num_query_tokens)
    return {
        "running / waiting": f"{worker.num_running} / {worker.num_waiting}"
        + (", drains" if worker.is_draining else ""),
        "waiting for": _counts(worker.wait_reasons),
        "waiting tenants": _counts([(name or "(none)", num) for name, num in worker.tenant_queues]),
        "tokens to compute for them": str(worker.num_waiting_tokens),
        "first token of a newcomer, s": _measured(worker.predicted_ttft_s, "at least {:.2f}"),
        "queue drains, requests/s": _measured(worker.drained_requests_per_s, "{:.2f}"),
        "full steps, tokens/s": _measured(worker.computed_tokens_per_s, "{:.0f}"),
        "blocks used": f"{worker.num_blocks - worker.num_free_blocks} of {worker.num_blocks}",
        "blocks cached, not used": str(worker.num_cached_blocks),
        "prompt tokens found in the cache": "-" if rate is None else f"{rate:.1%} of {worker.num_query_tokens}",
        "prompt tokens computed": str(worker.num_prompt_tokens),
        "tokens generated": str(worker.num_output_tokens),
        "preemptions": str(worker.num_preemptions),
        "steps": str(worker.num_steps),
        "step, mean of the last 100, ms": f"{worker.mean_step_ms:.2f}",
        "gap between steps, ms": f"{worker.mean_gap_ms:.3f}",
    }


def _counts(counts: Sequence[tuple[str, int]]) -> str:
    """The largest three; a column must not grow without bound."""
    shown = ", ".join(f"{num} {name}" for name, num in counts[:MAX_COUNTS])
    return f"{shown}, ..." if len(counts) > MAX_COUNTS else shown or "-"


def _measured(value: float | None, form: str) -> str:
    return "not measured" if value is None else form.format(value)


def _parser() -> Parser:
    parser = Parser("status", "Show services, workers, queue and cache of a running server.")
    parser.add_argument(
        "--url", help="the gateway [default: a running octavo serve, OCTAVO_URL, http://127.0.0.1:8000]"
    )
    parser.add_argument("--scheduler-addr", metavar="ADDR", help="the scheduler, as host:port or unix:/path")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser

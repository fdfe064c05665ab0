"""The server's own counters of its prefix cache, read from Prometheus's text format before and after a run."""

from dataclasses import dataclass

import httpx

TIMEOUT_S = 10.0
# Names as vLLM gives them, which we share.
QUERIES_METRIC = "vllm:prefix_cache_queries_total"
HITS_METRIC = "vllm:prefix_cache_hits_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCounters:
    """Prompt tokens looked up in the prefix cache, and found there, since the server's start."""

    num_queried: float
    num_hit: float


async def read(url: str | None) -> CacheCounters | None:
    """None if nobody answers there, or does not count."""
    if url is None:
        return None
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as http:
            answer = await http.get(url)
    except httpx.TransportError:
        return None
    queried, hit = _counter(answer.text, QUERIES_METRIC), _counter(answer.text, HITS_METRIC)
    return None if queried is None or hit is None else CacheCounters(num_queried=queried, num_hit=hit)


def _counter(exposition: str, name: str) -> float | None:
    """The sum over all labels of a counter; None if it is not there."""
    lines = (line for line in exposition.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    values = [float(line.rpartition(" ")[2]) for line in lines]
    return sum(values) if values else None

"""The line of `octavo bench` as values."""

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from octavo.cli.arguments import Parser, non_negative_int, positive_float, positive_int, positive_ints
from octavo.cli.bench.workload import Workload

PROMPTS_PER_CLIENT = 4  # of a closed loop, if no number is given
PROMPTS_OF_OPEN_LOOP = 64
GOODPUT_KINDS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one line asks for; lengths in tokens."""

    url: str | None
    target: str | None  # host:port of the gRPC API, to measure that instead of HTTP
    model: str | None
    concurrency: tuple[int, ...]
    request_rate: tuple[float, ...]  # empty: closed loop
    burstiness: float
    max_concurrency: int | None
    num_prompts: int | None
    num_warmups: int
    input_len: int
    output_len: int
    prefix_len: int
    token_ids: range | None
    goodput: dict[str, float]  # ttft, tpot or e2el -> limit in ms
    seed: int
    json: Path | None
    metrics_url: str | None  # where the server counts cache hits; None: at the HTTP server's own /metrics, if anywhere

    def workload(self, *, num_prompts: int, seed: int) -> Workload:
        """Raises ValueError if the lengths do not fit together."""
        return Workload(
            num_prompts=num_prompts,
            input_len=self.input_len,
            prefix_len=self.prefix_len,
            seed=seed,
        )


def read(argv: Sequence[str]) -> Options:
    """Exits with status 2 for a mistake."""
    values = vars(_parser().read(argv))
    values["goodput"] = dict(values["goodput"] or ())
    for name in ("concurrency", "request_rate"):  # `1,8` and `1 8` mean the same
        values[name] = tuple(chain.from_iterable(values[name]))
    if values["seed"] is None:
        values["seed"] = random.SystemRandom().randrange(1 << 31)
    return Options(**values)


def _parser() -> Parser:
    parser = Parser("bench", "Put load on a running server and print latency and throughput.")
    _add_server(parser.add_argument_group("server"))
    _add_load(parser.add_argument_group("load"))
    _add_prompts(parser.add_argument_group("prompts"))
    _add_report(parser.add_argument_group("report"))
    return parser


def _add_server(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--url", help="OpenAI-compatible server [default: OCTAVO_URL, else http://127.0.0.1:8000]")
    group.add_argument("--target", metavar="HOST:PORT", help="measure the gRPC API there instead of HTTP")
    group.add_argument("--model", help="a name the server lists [default: the first]")


def _add_load(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    at_once = "closed loop: requests open at once, one run each [default: 1,8,32]"
    per_second = "open loop instead: requests per second, sent whether or not others are answered"
    gaps = "of the open loop: 1 = Poisson, below 1 bursts, above 1 more even [default: 1]"
    count = f"requests per run [default: {PROMPTS_PER_CLIENT} per client; {PROMPTS_OF_OPEN_LOOP} in an open loop]"
    add("--concurrency", type=positive_ints, nargs="+", default=[(1, 8, 32)], metavar="N", help=at_once)
    add("--request-rate", type=_positive_floats, nargs="+", default=[], metavar="R", help=per_second)
    add("--burstiness", type=positive_float, default=1.0, help=gaps)
    add("--max-concurrency", type=positive_int, help="of the open loop: most requests open at once [default: no limit]")
    add("--num-prompts", type=positive_int, help=count)
    add("--num-warmups", type=non_negative_int, default=1, help="requests before that do not count [default: 1]")


def _add_prompts(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--input-len", type=positive_int, default=128, help="tokens of a prompt, with its shared prefix [default: 128]")
    add("--output-len", type=positive_int, default=128, help="tokens of an answer; its end is ignored [default: 128]")
    add("--prefix-len", type=non_negative_int, default=0, help="tokens that all prompts begin with [default: 0]")
    add("--token-ids", type=_token_ids, metavar="A-B", help="draw from these ids [default: those of an English text]")
    add("--seed", type=int, help="of prompts and arrivals [default: a new one, so that nothing is cached]")


def _add_report(group: "argparse._ArgumentGroup") -> None:
    limits = "count requests within these limits, as in ttft:200 tpot:30 e2el:5000"
    group.add_argument("--goodput", type=_goodput, nargs="+", metavar="KIND:MS", help=limits)
    counters = "where the server counts its cache hits [default: its own /metrics, else the usage of the answers]"
    group.add_argument("--metrics-url", metavar="URL", help=counters)
    group.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")


def _positive_floats(text: str) -> tuple[float, ...]:
    return tuple(positive_float(part) for part in text.split(","))


def _token_ids(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1)


def _goodput(text: str) -> tuple[str, float]:
    name, _, limit = text.partition(":")
    if name not in GOODPUT_KINDS:
        raise argparse.ArgumentTypeError(f"wants one of {', '.join(GOODPUT_KINDS)} and a limit, got {text!r}")
    return name, positive_float(limit)

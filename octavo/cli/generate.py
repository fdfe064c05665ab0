"""`octavo generate`: one answer, streamed over gRPC to standard output."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing

from octavo.cli.arguments import Parser, positive_int
from octavo.cli.inference_client import Ask, InferenceClient
from octavo.cli.server_address import GRPC_DEFAULT, CannotAsk


def run(argv: Sequence[str]) -> int:
    """Only the answer goes to standard output, so it can be piped; 1 if there is none."""
    arguments = _parser().read(argv)
    prompt = sys.stdin.read() if arguments.PROMPT == "-" else arguments.PROMPT
    ask = Ask(
        text=prompt if arguments.raw else None,
        chat=None if arguments.raw else prompt,
        model=arguments.model or "",
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
    )
    try:
        asyncio.run(_print_answer(arguments.target, ask))
    except CannotAsk as refused:
        print(f"octavo generate: {refused}", file=sys.stderr)
        return 1
    return 0


async def _print_answer(target: str, ask: Ask) -> None:
    async with InferenceClient(target) as client, aclosing(client.generate(ask)) as answer:
        async for event in answer:
            if isinstance(event, str):
                print(event, end="", flush=True)
    print()


def _parser() -> Parser:
    parser = Parser("generate", "Stream one answer from a running server, over gRPC.")
    parser.add_argument("PROMPT", help="what to ask; - reads it from standard input")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    parser.add_argument("--max-tokens", type=positive_int, help="longest answer [default: the rest of the context]")
    parser.add_argument("--temperature", type=float, help="0 = always the likeliest token [default: the model's]")
    parser.add_argument("--seed", type=int, help="same seed, same answer")
    parser.add_argument("--model", help="a name the server lists [default: the only one]")
    parser.add_argument(
        "--target", "--url", default=GRPC_DEFAULT, metavar="HOST:PORT", help=f"the server [default: {GRPC_DEFAULT}]"
    )
    return parser

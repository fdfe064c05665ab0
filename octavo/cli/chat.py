"""`octavo chat`: a conversation in the terminal, streamed, over the OpenAI HTTP API."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

from octavo.cli.arguments import Parser, positive_int
from octavo.cli.openai_client import Message, OpenAIClient
from octavo.cli.server_address import CannotAsk, http_headers, http_url

HELP = "/reset forgets the conversation, /exit leaves; Ctrl-C stops an answer, twice it leaves"


def run(argv: Sequence[str]) -> int:
    """Ask until the input ends, /exit, or two Ctrl-C in a row; 1 if there is no server."""
    arguments = _parser().read(argv)
    options = {
        name: value for name in ("max_tokens", "temperature", "seed") if (value := getattr(arguments, name)) is not None
    }
    with closing(OpenAIClient(http_url(arguments.url), http_headers())) as client:
        try:
            model = arguments.model or client.first_model()
        except CannotAsk as refused:
            print(f"octavo chat: {refused}", file=sys.stderr)
            return 1
        if sys.stdin.isatty():
            import readline  # noqa: F401 - gives input() its line editing and history

            print(f"{model}. {HELP}.")
        return _Conversation(client, model, arguments.system, options).hold()


class _Conversation:
    """The messages so far, and whether the last thing that happened was a Ctrl-C."""

    def __init__(self, client: OpenAIClient, model: str, system: str | None, options: dict[str, Any]) -> None:
        self._client = client
        self._model = model
        self._options = options
        self._opening: list[Message] = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._opening)
        self._is_interrupted = False

    def hold(self) -> int:
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                print()
                if self._is_interrupted:
                    return 0
                self._is_interrupted = True
                print("(Ctrl-C again or /exit leaves)")
                continue
            self._is_interrupted = False
            match line:
                case "":
                    continue
                case "/exit" | "/quit":
                    return 0
                case "/help":
                    print(HELP)
                case "/reset":
                    self._messages = list(self._opening)
                    print("(the conversation is forgotten)")
                case _:
                    self._ask(line)

    def _ask(self, question: str) -> None:
        """Print the answer as it comes. What was said until a Ctrl-C is remembered; a failed turn is not."""
        self._messages.append({"role": "user", "content": question})
        said: list[str] = []
        try:
            self._print(self._client.chat(self._model, self._messages, **self._options), said)
        except KeyboardInterrupt:
            self._is_interrupted = True
            print(" (stopped)")
        except CannotAsk as refused:
            print(f"\noctavo chat: {refused}", file=sys.stderr)
            self._messages.pop()
            return
        self._messages.append({"role": "assistant", "content": "".join(said)})

    @staticmethod
    def _print(answer: Iterable[str], said: list[str]) -> None:
        for text in answer:
            said.append(text)
            print(text, end="", flush=True)
        print()


def _parser() -> Parser:
    parser = Parser("chat", f"Talk to a running server. {HELP}.")
    parser.add_argument("--url", help="the server [default: OCTAVO_URL, else http://127.0.0.1:8000]")
    parser.add_argument("--model", help="a name the server lists [default: the first]")
    parser.add_argument("--system", help="what the model is told before the conversation")
    parser.add_argument("--max-tokens", type=positive_int, help="longest answer [default: the rest of the context]")
    parser.add_argument("--temperature", type=float, help="0 = always the likeliest token [default: the model's]")
    parser.add_argument("--seed", type=int, help="same seed, same answers")
    return parser

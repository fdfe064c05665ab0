"""The requests that the chaos load sends: a few hundred distinct ones of every kind, the same for the same seed.

Everything in a request is said: seeds of samplers, ends of sequence, limits. So its answer is one text, whatever
happens to the server while it is written. Which way a request takes and when its client loses interest are part of it.
"""

import enum
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

TOKEN_IDS = range(1000, 40_000)  # ordinary tokens of the demo model

_SUBJECTS = ("harbour", "railway", "lighthouse", "orchard", "glacier", "printing press", "violin", "beehive")
_OPENINGS = (
    "Once upon a time there was a {}",
    "The history of the {} begins",
    "def describe_{}(self):\n    ",
    "Ein kurzer Satz über: {}. Er",
    "Emoji 🙂🙃 and a {}, then",
    '{{"name": "{}", "year":',
    "1, 1, 2, 3, 5, 8, {}",
    "今日は{}についてです。",
)
_PREFIXES = tuple(
    f"You are assistant number {number} of a small town. "
    + "The first pier was made of oak and stood for a hundred years; the second was made of granite from the quarry "
    "behind the hill; the third, of concrete, was finished in the year in which the railway closed. " * 4
    for number in range(4)
)
_STOPS = ((".",), ("\n",), (" the ", " a "), (",", "and"), ("zzzz-never",))

Chat = tuple[Mapping[str, str], ...]
Prompt = str | tuple[int, ...] | Chat


class Way(enum.Enum):
    """How a request is sent."""

    HTTP_STREAM = "http-stream"  # /v1/completions with server-sent events
    HTTP_WHOLE = "http-whole"
    CHAT_STREAM = "chat-stream"  # /v1/chat/completions
    CHAT_WHOLE = "chat-whole"
    GRPC_STREAM = "grpc-stream"  # Generate
    GRPC_WHOLE = "grpc-whole"  # GenerateOnce

    @property
    def is_stream(self) -> bool:
        return self in (Way.HTTP_STREAM, Way.CHAT_STREAM, Way.GRPC_STREAM)

    @property
    def is_grpc(self) -> bool:
        return self in (Way.GRPC_STREAM, Way.GRPC_WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, and what its client does while it is answered."""

    name: str
    way: Way
    prompt: Prompt
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    ignore_eos: bool = True
    leave_after_events: int | None = None  # the client goes away after so many events with text; streams only
    leave_after_s: float | None = None  # or after so long
    deadline_s: float | None = None  # the client tells the server how long it waits

    @property
    def patient(self) -> "Request":
        """The same for a client that waits for the end: what its answer is compared with."""
        return replace(self, leave_after_events=None, leave_after_s=None, deadline_s=None)


def request_set(seed: int, num_requests: int) -> list[Request]:
    """`num_requests` distinct requests; every kind and every way is there from 66 on."""
    random_ = random.Random(seed)
    return [_request(number, random_) for number in range(num_requests)]


def _request(number: int, random_: random.Random) -> Request:
    """Ways and traits go round with coprime periods, so that every pair of them comes up."""
    ways, traits = list(Way), _TRAITS
    way = ways[number % len(ways)]
    trait = traits[number // len(ways) % len(traits)]
    plain = Request(
        name=f"{number:03d}-{way.value}-{trait.__name__.lstrip('_')}",
        way=way,
        prompt=_prompt(number, way, random_),
        max_tokens=random_.randint(16, 40),
    )
    return trait(_sampled(plain, random_) if number % 5 in (1, 3) else plain, random_)


def _prompt(number: int, way: Way, random_: random.Random) -> Prompt:
    subject = random_.choice(_SUBJECTS)
    text = f"{random_.choice(_OPENINGS).format(subject)} {number}"
    match number % 4:
        case 0:
            text = random_.choice(_PREFIXES) + text
        case 1 if way not in (Way.CHAT_STREAM, Way.CHAT_WHOLE):
            return tuple(random_.choice(TOKEN_IDS) for _ in range(random_.randint(8, 60)))
    if way in (Way.CHAT_STREAM, Way.CHAT_WHOLE):
        return ({"role": "system", "content": "You answer briefly."}, {"role": "user", "content": text})
    return text


def _sampled(request: Request, random_: random.Random) -> Request:
    temperature, top_p = random_.choice(((0.7, 1.0), (1.0, 0.9), (1.2, 0.95)))
    return replace(request, temperature=temperature, top_p=top_p, seed=random_.randrange(1 << 31))


def _plain(request: Request, random_: random.Random) -> Request:
    return request


def _ends_by_itself(request: Request, random_: random.Random) -> Request:
    return replace(request, ignore_eos=False, max_tokens=48)


def _long_prompt(request: Request, random_: random.Random) -> Request:
    """Several steps of prefill, none of it shared."""
    words = [f"{random_.choice(_SUBJECTS)} {random_.randrange(1000)}" for _ in range(random_.randint(90, 200))]
    text = f"{request.name}: " + ", ".join(words)
    is_chat = request.way in (Way.CHAT_STREAM, Way.CHAT_WHOLE)
    return replace(request, prompt=({"role": "user", "content": text},) if is_chat else text, max_tokens=16)


def _several(request: Request, random_: random.Random) -> Request:
    """Several answers; greedy ones are all the same, so most are drawn."""
    drawn = request if random_.random() < 0.2 else _sampled(request, random_)
    return replace(drawn, n=random_.randint(2, 3), max_tokens=20)


def _stopped(request: Request, random_: random.Random) -> Request:
    return replace(request, stop=random_.choice(_STOPS))


def _scored(request: Request, random_: random.Random) -> Request:
    return replace(request, top_logprobs=random_.choice((0, 2, 5)))


def _leaves(request: Request, random_: random.Random) -> Request:
    if request.way.is_stream:
        return replace(request, leave_after_events=random_.randint(1, 12))
    return replace(request, leave_after_s=random_.uniform(0.1, 3.0))


def _in_a_hurry(request: Request, random_: random.Random) -> Request:
    return replace(request, deadline_s=random_.choice((0.5, 2.0, 4.0, 30.0)))


_TRAITS: Sequence[Callable[[Request, random.Random], Request]] = (
    _plain, _scored, _several, _plain, _stopped, _leaves, _plain, _ends_by_itself, _long_prompt, _in_a_hurry, _plain,
)  # fmt: skip

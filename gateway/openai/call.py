"""One generation call of either endpoint, ready to run: its requests, and how its answer is to look."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import octavo
from gateway.core.generation import (
    ChatPrompt,
    GenerationRequest,
    ModelEntry,
    PositionLogprobs,
    Prompt,
    Stopping,
    TextPrompt,
    TokenPrompt,
)
from gateway.core.limits import InvalidParameter
from gateway.generator import Generator
from gateway.openai import conversion
from gateway.openai.answers import Choice
from gateway.openai.body import warning_headers
from gateway.openai.exchange import Exchange, priority, tenant, timeout_s
from gateway.openai.frames import Shape
from gateway.openai.json_value import Json
from gateway.openai.protocol import GenerationBody, StreamOptions
from gateway.openai.service import Service


class Form(Protocol):
    """How one endpoint writes its answers. One object per response: text offsets are counted in it."""

    id_prefix: str
    object_name: str
    shape: Shape
    max_tokens: int | None  # where the client names none; None = the rest of the context

    def choice(self, index: int, choice: Choice, *, call: "Call") -> Json:
        """An element of `choices` of a whole answer."""

    def more(self, call: "Call") -> Json:
        """Further fields of a whole answer."""

    def logprobs(self, index: int, positions: Sequence[PositionLogprobs]) -> Json:
        """`logprobs` of a choice, or of its next chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What the handlers of both endpoints make of a body."""

    form: Form
    requests: list[GenerationRequest]
    model: ModelEntry
    response_id: str
    created: int
    n: int
    has_logprobs: bool
    has_token_ids: bool
    has_metrics: bool
    includes_usage: bool  # of a stream
    continuous_usage: bool
    headers: Mapping[str, str] = field(default_factory=dict)

    def prompt_token_ids(self, prompt_index: int) -> list[int]:
        """Known only where the client asked for token ids."""
        prompt = self.requests[prompt_index].prompt
        assert isinstance(prompt, TokenPrompt), f"prompt {prompt_index} was not tokenized"
        return list(prompt.token_ids)


async def build(
    service: Service,
    body: GenerationBody,
    *,
    here: Exchange,
    form: Form,
    prompts: Sequence[Prompt],
    num_logprobs: int | None,
) -> Call:
    """The call that `body` makes, once its endpoint has said what is its own."""
    n = 1 if body.n is None else body.n
    _check_num_answers(len(prompts), n, most=service.settings.limits.max_choices)
    model = service.generator.model(body.model or "")
    options = body.stream_options or StreamOptions()
    includes_usage = bool(options.include_usage) or service.settings.enable_force_include_usage
    finals = await _final_prompts(service.generator, body, prompts=prompts)
    stopping = conversion.stopping(body, form.max_tokens)
    return Call(
        form=form,
        requests=_requests(body, finals, stopping=stopping, num_logprobs=num_logprobs, here=here),
        model=model,
        response_id=f"{form.id_prefix}{body.request_id or here.unique_id}",
        created=int(here.created_s),
        n=n,
        has_logprobs=num_logprobs is not None,
        has_token_ids=bool(body.return_token_ids),
        has_metrics=here.wants_metrics,
        includes_usage=includes_usage,
        continuous_usage=includes_usage and bool(options.continuous_usage_stats),
        headers=warning_headers(body),
    )


def _requests(
    body: GenerationBody, prompts: Sequence[Prompt], *, stopping: Stopping, num_logprobs: int | None, here: Exchange
) -> list[GenerationRequest]:
    """One request per prompt; several prompts share all but the prompt and the id."""
    first = GenerationRequest(
        prompt=prompts[0],
        model=body.model or "",
        sampling=conversion.sampling(body),
        stopping=stopping,
        num_logprobs=num_logprobs,
        n=1 if body.n is None else body.n,
        skip_special_tokens=body.skip_special_tokens is not False,
        cache_salt=body.cache_salt or "",
        priority=priority(here.headers, body.priority),
        client_request_id=body.request_id or "",
        correlation_id=here.request_id,
        tenant=tenant(here.headers),
        deadline_s=timeout_s(here.headers),
    )
    if len(prompts) == 1:
        return [first]
    return [
        replace(
            first,
            prompt=prompt,
            client_request_id=f"{body.request_id}-{index}" if body.request_id else "",
            correlation_id=f"{here.request_id}-{index}",
        )
        for index, prompt in enumerate(prompts)
    ]


def _check_num_answers(num_prompts: int, n: int, *, most: int) -> None:
    """Raise InvalidParameter when one call asks for more answers than the server gives."""
    if num_prompts * n > most:
        field = "n" if num_prompts == 1 else "prompt"
        raise InvalidParameter(field, f"at most {most} answers a request, got {num_prompts} prompts times {n}")


async def _final_prompts(generator: Generator, body: GenerationBody, *, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts as token ids where the body asks for them or for their last ones; else as they are."""
    keep = body.truncate_prompt_tokens
    if keep is not None and keep < 1:
        raise InvalidParameter("truncate_prompt_tokens", f"must be at least 1, got {keep}")
    if keep is None and not body.return_token_ids:
        return list(prompts)
    model = body.model or ""
    tokenized: list[Prompt] = []
    for prompt in prompts:
        whole = prompt if isinstance(prompt, TokenPrompt) else await _tokenized(generator, prompt, model=model)
        tokenized.append(TokenPrompt(token_ids=whole.token_ids[-keep:]) if keep else whole)
    return tokenized


async def _tokenized(generator: Generator, prompt: TextPrompt | ChatPrompt, *, model: str) -> TokenPrompt:
    return TokenPrompt(token_ids=tuple(await generator.tokenize(prompt, model=model)))


def fingerprint(model: ModelEntry) -> str:
    """`system_fingerprint`: the same as long as server version and model are."""
    identity = f"octavo {octavo.__version__}\n{model.name}\n{model.max_model_len}"
    return f"fp_{hashlib.sha256(identity.encode()).hexdigest()[:10]}"

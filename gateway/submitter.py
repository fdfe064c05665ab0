"""From a checked, tokenized request to what the scheduler gets: a submission per answer, every default resolved."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.call_record import CallRecord
from gateway.call_spans import CallSpans
from gateway.core import limits
from gateway.core.answer import Answer
from gateway.core.generation import GenerationRequest
from gateway.core.stop import StopMatcher
from gateway.core.submission import ResolvedStopping, Submission, resolve_sampling, seed_of_choice
from gateway.generation_run import GenerationRun
from gateway.request_metrics import RequestMetrics
from gateway.scheduler_session import SchedulerSession
from gateway.serving import Serving
from gateway.tokenizer import Tokenizer

DEADLINE_MARGIN_S = 0.02  # the scheduler gives up a little before the client, so that its answer arrives


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request on its way to the scheduler."""

    request: GenerationRequest
    prompt_token_ids: Sequence[int]
    record: CallRecord
    spans: CallSpans
    deadline_at_s: float | None  # monotonic


class Submitter:
    """Starts runs."""

    def __init__(
        self, *, tokenizer: Tokenizer, session: SchedulerSession, serving: Serving, metrics: RequestMetrics
    ) -> None:
        self._tokenizer = tokenizer
        self._session = session
        self._serving = serving
        self._metrics = metrics

    def start(self, job: Job) -> GenerationRun:
        """Hand every answer to the scheduler. Raises ContextLengthExceeded before the first one."""
        stopping = self._stopping(job)
        run = GenerationRun(
            job.record,
            [self._answer(job, index) for index in range(job.request.n)],
            session=self._session,
            metrics=self._metrics,
            token_bytes=self._tokenizer.token_bytes,
            trace_id=job.spans.trace_id,
        )
        asked_seed = job.request.sampling.seed
        seed = secrets.randbits(64) if asked_seed is None else asked_seed
        for index in range(job.request.n):
            run.submit(self._submission(job, stopping, seed=seed_of_choice(seed, index)))
        return run

    def _submission(self, job: Job, stopping: ResolvedStopping, *, seed: int) -> Submission:
        request = job.request
        return Submission(
            prompt_token_ids=job.prompt_token_ids,
            sampling=resolve_sampling(
                request.sampling, self._serving.profile.defaults, seed=seed, num_logprobs=request.num_logprobs
            ),
            stopping=stopping,
            client_request_id=job.record.request_id,
            tenant=request.tenant,
            priority=request.priority,
            deadline_at_s=None if job.deadline_at_s is None else job.deadline_at_s - DEADLINE_MARGIN_S,
            cache_salt=request.cache_salt,
            cache_bypass=request.cache_bypass,
            trace_context=job.spans.submitted(),
        )

    def _stopping(self, job: Job) -> ResolvedStopping:
        stopping = job.request.stopping
        max_tokens = limits.max_new_tokens(
            len(job.prompt_token_ids), requested=stopping.max_tokens, max_model_len=self._serving.max_model_len
        )
        return ResolvedStopping(
            max_tokens=max_tokens,
            min_tokens=min(stopping.min_tokens, max_tokens),
            ignore_eos=stopping.ignore_eos,
            eos_token_ids=self._eos_token_ids(),
            stop_token_ids=stopping.stop_token_ids,
        )

    def _answer(self, job: Job, index: int) -> Answer:
        request, stopping = job.request, job.request.stopping
        ends = {*stopping.stop_token_ids, *(() if stopping.ignore_eos else self._eos_token_ids())}
        return Answer(
            index,
            self._tokenizer.detokenizer(job.prompt_token_ids, skip_special_tokens=request.skip_special_tokens),
            StopMatcher(stopping.stop_sequences, include_stop=stopping.include_stop_sequence),
            hidden_ids=frozenset() if stopping.include_stop_sequence else ends,
            min_tokens=stopping.min_tokens,
        )

    def _eos_token_ids(self) -> tuple[int, ...]:
        """The model's; the tokenizer's where its configuration names none."""
        if self._serving.profile.eos_token_ids or self._tokenizer.eos_token_id is None:
            return self._serving.profile.eos_token_ids
        return (self._tokenizer.eos_token_id,)

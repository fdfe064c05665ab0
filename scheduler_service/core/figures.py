"""The running totals of one worker's scheduler, as facts for metrics and for GetState."""

from dataclasses import dataclass, field

from scheduler_service.core.plan import PoolFigures
from scheduler_service.core.request import Request
from scheduler_service.core.step_delta import Moves


@dataclass(slots=True, kw_only=True)
class Figures:
    """Totals since the worker was attached; `pool` is as of the last settled plan."""

    pool: PoolFigures = field(default_factory=PoolFigures)
    num_steps: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0  # computed, recomputation after a preemption apart
    num_output_tokens: int = 0
    num_query_tokens: int = 0  # looked up at first admissions
    num_hit_tokens: int = 0
    num_preempted_query_tokens: int = 0  # the same at admissions after a preemption
    num_preempted_hit_tokens: int = 0
    num_drafts: int = 0  # rows that carried drafts
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_per_position: list[int] = field(default_factory=list)

    def count_admission(self, request: Request, num_cached_tokens: int) -> None:
        """Once per admission, never per retry."""
        if request.identity.cache_bypass:
            return
        if request.was_admitted:
            self.num_preempted_query_tokens += request.num_known_tokens
            self.num_preempted_hit_tokens += num_cached_tokens
        else:
            self.num_query_tokens += request.num_known_tokens
            self.num_hit_tokens += num_cached_tokens

    def count_step(self, moves: Moves) -> None:
        self.num_steps += 1
        self.num_prompt_tokens += sum(
            min(num_tokens, request.num_prompt_tokens - request.num_computed_tokens)
            for request, num_tokens in zip(moves.requests, moves.num_tokens, strict=True)
            if request.num_computed_tokens < request.num_prompt_tokens and not request.num_preemptions
        )

    def count_drafts(self, num_drafts: int, num_accepted: int) -> None:
        if num_drafts == 0:
            return
        self.num_drafts += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        missing = num_drafts - len(self.num_accepted_per_position)
        self.num_accepted_per_position += [0] * missing
        for position in range(num_accepted):
            self.num_accepted_per_position[position] += 1

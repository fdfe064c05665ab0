"""How much of what was asked for the prefix cache had, counted once per admission, never per retry."""

from dataclasses import dataclass


@dataclass(slots=True)
class PrefixStatistics:
    """Tokens looked up and found. Admissions after a preemption count apart, for they find their own blocks."""

    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_preempted_query_tokens: int = 0
    num_preempted_hit_tokens: int = 0

    def count(self, num_query_tokens: int, num_hit_tokens: int, *, was_preempted: bool) -> None:
        """One admission."""
        if was_preempted:
            self.num_preempted_query_tokens += num_query_tokens
            self.num_preempted_hit_tokens += num_hit_tokens
        else:
            self.num_query_tokens += num_query_tokens
            self.num_hit_tokens += num_hit_tokens

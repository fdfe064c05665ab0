"""Whether requests can be served, and by what: the state that gateways are told, first and whenever it changes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model that the workers serve."""

    name: str
    max_model_len: int
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingState:
    """As told to gateways."""

    scheduler_incarnation: int
    is_ready: bool = False
    reason: str = ""
    model: Model | None = None
    is_draining: bool = False  # it is about to end: gateways keep what they have for the next
    is_refusing: bool = False  # it was told to take nothing new
    num_blocks: int = 0  # of all pools but their null blocks
    block_size: int = 0

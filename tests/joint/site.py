"""One worker incarnation with its scheduler, what is between the two, and what Redis has of its pool."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvcache_service.core.block_hash import Fingerprint
from kvcache_service.core.pools import PoolKey
from kvcache_service.core.restore import PoolRecord
from scheduler_service.core.plan import Limits, Pool, Step
from scheduler_service.core.policy import Policy
from scheduler_service.core.scheduler import Scheduler
from tests.joint.drafting_worker import DraftingWorker

BLOCK_SIZE = 4
MAX_MODEL_LEN = 48
SCHEDULER_INCARNATION = 1
FINGERPRINT = Fingerprint(block_size=BLOCK_SIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What stays the same for the life of a world."""

    num_blocks: int = 20
    num_sites: int = 1
    window: int = 2
    policy: Policy = Policy.FCFS
    caching: bool = True
    record_every: int = 1  # plans after which Redis has caught up
    limits: Limits = field(default_factory=Limits)


@dataclass(slots=True)
class Sent:
    """A step on its way to the worker, and the drafts of its rows by handle."""

    step: Step
    drafts: Mapping[int, Sequence[int]]


class Site:
    """One worker incarnation, its scheduler, and what is between them."""

    def __init__(self, name: str, settings: Settings, *, incarnation: int) -> None:
        self.name = name
        self.incarnation = incarnation
        self.session = 0
        pool = Pool(num_blocks=settings.num_blocks, block_size=BLOCK_SIZE, max_model_len=MAX_MODEL_LEN)
        self.core = Scheduler(pool=pool, limits=settings.limits, policy=settings.policy, window=settings.window)
        self.worker = DraftingWorker(BLOCK_SIZE)
        self.sent: deque[Sent] = deque()
        self.record: PoolRecord | None = None  # what Redis has of its pool: as it was some plans ago
        self.num_plans = 0

    @property
    def key(self) -> PoolKey:
        return PoolKey(pool_id=self.name, incarnation=self.incarnation, session=self.session)

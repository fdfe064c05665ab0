"""Plans, grants and tables between the core's values and octavo.kvcache.v1. Decides nothing."""

from collections.abc import Iterable

from octavo.columns import pack, unpack
from octavo.common.v1 import common_pb2
from octavo.kvcache.v1 import kvcache_pb2 as pb
from scheduler_service.core.grant_log import Opening
from scheduler_service.core.plan import Admission, AdmissionStatus, DeclaredTable, Grants, Identity, Plan, PoolFigures
from scheduler_service.worker_hello import Fingerprint, Hello

_STATUSES = {
    pb.ADMISSION_STATUS_ADMITTED: AdmissionStatus.ADMITTED,
    pb.ADMISSION_STATUS_REFUSED: AdmissionStatus.REFUSED,
    pb.ADMISSION_STATUS_NOT_TRIED: AdmissionStatus.NOT_TRIED,
}


def plan(plan_: Plan, hello: Hello, *, opening: int) -> pb.PlanStepRequest:
    """The wishes for the pool of an attached worker."""
    request = pb.PlanStepRequest(
        pool_id=hello.worker_id,
        incarnation=hello.incarnation,
        session=hello.session,
        step=plan_.step,
        opening=opening,
        acked_step=plan_.acked_step,
        forgotten_handles=pack(plan_.forgotten_handles),
        failed_step=plan_.failed_step,
        declares=[
            pb.Declare(
                handle=new.handle, epoch=new.epoch, token_ids=pack(new.token_ids), identity=identity(new.identity)
            )
            for new in plan_.declares
        ],
        token_budget=plan_.token_budget,
        max_admissions=plan_.max_admissions,
        long_prefill_token_threshold=plan_.long_prefill_token_threshold,
        whole_prompts_only=plan_.whole_prompts_only,
    )
    _fill_columns(request, plan_)
    return request


def _fill_columns(request: pb.PlanStepRequest, plan_: Plan) -> None:
    """The columns that are not empty; most plans have few."""
    if plan_.commits.handles:
        commits = plan_.commits
        request.commits.handles = pack(commits.handles)
        request.commits.num_acked_tokens = pack(commits.num_acked_tokens)
        request.commits.num_new_tokens = pack(commits.num_new_tokens)
        request.commits.new_token_ids = pack(commits.new_token_ids)
    if plan_.frees.handles:
        request.frees.handles = pack(plan_.frees.handles)
        request.frees.epochs = pack(plan_.frees.epochs)
    if plan_.grows.handles:
        grows = plan_.grows
        request.grows.handles = pack(grows.handles)
        request.grows.victims = pack(grows.victims)
        if any(want != 1 for want in grows.wants):
            request.grows.wants = pack(grows.wants)
    if plan_.admits.handles:
        admits = plan_.admits
        request.admits.handles = pack(admits.handles)
        request.admits.num_known_tokens = pack(admits.num_known_tokens)
        request.admits.num_watermark_blocks = pack(admits.num_watermark_blocks)


def grants(message: pb.Grants) -> Grants:
    """What a plan got."""
    return Grants(
        grow_num_tokens=unpack("grow_num_tokens", message.grow_num_tokens),
        grow_num_new_blocks=unpack("grow_num_new_blocks", message.grow_num_new_blocks),
        grow_new_block_ids=unpack("grow_new_block_ids", message.grow_new_block_ids),
        preempted_handles=unpack("preempted_handles", message.preempted_handles),
        refused_handles=unpack("refused_handles", message.refused_handles),
        admissions=[
            Admission(
                status=_STATUSES[admission.status],
                num_cached_tokens=admission.num_cached_tokens,
                num_granted_tokens=admission.num_granted_tokens,
                block_ids=unpack("block_ids", admission.block_ids),
            )
            for admission in message.admissions
        ],
        figures=figures(message.figures),
    )


def figures(message: pb.PoolFigures) -> PoolFigures:
    """How a pool is used."""
    return PoolFigures(
        num_blocks=message.num_blocks,
        num_free=message.num_free,
        num_cached=message.num_cached,
        num_held=message.num_held,
        num_held_by_pins_only=message.num_held_by_pins_only,
        num_fenced=message.num_fenced,
    )


def open_pool(
    hello: Hello, tables: Iterable[DeclaredTable], *, opening: Opening, scheduler_incarnation: int
) -> pb.OpenPoolRequest:
    """The pool of an attached worker, with the tables in use and what was given out lately."""
    return pb.OpenPoolRequest(
        pool_id=hello.worker_id,
        incarnation=hello.incarnation,
        session=hello.session,
        num_blocks=hello.num_blocks,
        fingerprint=common_pb2.Fingerprint(
            hash_scheme=hello.fingerprint.hash_scheme,
            model_digest=hello.fingerprint.model_digest,
            tokenizer_digest=hello.fingerprint.tokenizer_digest,
            block_size=hello.fingerprint.block_size,
            kv_dtype=hello.fingerprint.kv_dtype,
            kv_layout=hello.fingerprint.kv_layout,
        ),
        tables=[
            pb.DeclaredTable(
                handle=table.handle,
                epoch=table.epoch,
                token_ids=pack(table.token_ids),
                block_ids=pack(table.block_ids),
                num_acked_tokens=table.num_acked_tokens,
                num_computed_tokens=table.num_computed_tokens,
                identity=identity(table.identity),
            )
            for table in tables
        ],
        scheduler_incarnation=scheduler_incarnation,
        opening=opening.number,
        granted_after_opening=opening.granted_after.opening,
        granted_after_step=opening.granted_after.step,
        granted=[
            pb.GrantedBlocks(
                opening=granted.position.opening, step=granted.position.step, block_ids=pack(granted.block_ids)
            )
            for granted in opening.granted
        ],
    )


def fingerprint_of(response: pb.OpenPoolResponse) -> Fingerprint:
    """What the service says that it hashes a pool under."""
    theirs = response.fingerprint
    return Fingerprint(
        hash_scheme=theirs.hash_scheme,
        model_digest=theirs.model_digest,
        tokenizer_digest=theirs.tokenizer_digest,
        block_size=theirs.block_size,
        kv_dtype=theirs.kv_dtype,
        kv_layout=theirs.kv_layout,
    )


def restore_outcome(response: pb.OpenPoolResponse) -> str:
    """Whether cached prefixes came back, as logs say it: "restored", "too_old", ..."""
    return pb.RestoreOutcome.Name(response.restore_outcome).removeprefix("RESTORE_OUTCOME_").lower()


def match(prompts: Iterable[tuple[Iterable[int], Identity]]) -> pb.MatchRequest:
    """A look-up of several prompts."""
    return pb.MatchRequest(
        queries=[pb.MatchQuery(token_ids=pack(ids), identity=identity(whose)) for ids, whose in prompts]
    )


def matches(response: pb.MatchResponse) -> list[dict[str, int]]:
    """Per prompt: pool id -> cached tokens."""
    return [{pool.pool_id: pool.num_cached_tokens for pool in result.pools} for result in response.results]


def identity(identity_: Identity) -> pb.RequestIdentity:
    """What a request's blocks hash under."""
    return pb.RequestIdentity(
        request_id=identity_.request_id,
        tenant=identity_.tenant,
        cache_salt=identity_.cache_salt,
        cache_bypass=identity_.cache_bypass,
        trace_context=identity_.trace_context,
    )

"""What a plan names and what it leaves out."""

from tests.scheduler_service.core.rig import Rig, family


def decoding(num_blocks: int) -> Rig:
    """Three requests of 15 tokens, one block each; their 17th token needs another one."""
    rig = Rig(num_blocks=num_blocks, caching=False)
    for name in "abc":
        rig.submit(name, family(name, 15))
    rig.step()
    rig.step()
    return rig


def test_victims_are_named_when_blocks_may_run_short() -> None:
    rig = decoding(num_blocks=6)
    rig.step()
    assert rig.plans[-1].grows.victims == [rig.requests[name].handle for name in "cba"]
    assert rig.waiting_ids == ["c"]


def test_no_victims_are_named_while_there_are_blocks_for_everybody() -> None:
    rig = decoding(num_blocks=100)
    rig.step()
    assert rig.plans[-1].grows.handles
    assert not rig.plans[-1].grows.victims


def test_blocks_that_somebody_else_took_meanwhile_are_found_missing_and_victims_named_then() -> None:
    """As a pin does: the first plan believes the figures of the one before it, is refused, and learns."""
    rig = decoding(num_blocks=100)
    rig.kv.pool.allocate(rig.kv.pool.num_free)
    assert rig.plan() is not None
    assert not rig.plans[-1].grows.victims
    assert rig.running_ids == ["a", "b", "c"]
    assert rig.step() == {"a": 1}
    assert rig.waiting_ids == ["b", "c"]

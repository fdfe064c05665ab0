"""Scenarios 101 to 103 of docs/scenarios.md: what a grammar means to the scheduler, which never sees one."""

from scheduler_service.core.plan import Limits
from scheduler_service.core.request import Status
from tests.fakes.paged_worker import continuation
from tests.scheduler_service.core.rig import Rig, family


def test_scenario_101_while_a_grammar_compiles_others_run() -> None:
    rig = Rig()
    grammar = rig.submit("grammar", family("G", 10))
    rig.submit("other", family("O", 10))
    rig.core.set_aside("grammar", Status.WAITING_FOR_GRAMMAR)
    assert [rig.step(), rig.step()] == [{"other": 10}, {"other": 1}]
    rig.core.set_ready("grammar")
    assert rig.step() == {"other": 1, "grammar": 10}
    assert grammar.output_token_ids == continuation(family("G", 10), 1)


def test_scenario_102_a_grammar_that_does_not_compile_ends_its_request_alone() -> None:
    rig = Rig(limits=Limits(max_num_seqs=1))
    grammar = rig.submit("grammar", family("G", 10))
    rig.submit("next", family("N", 10))
    rig.core.set_aside("grammar", Status.WAITING_FOR_GRAMMAR)
    assert rig.core.end("grammar", Status.ERROR, "INVALID_GRAMMAR") is grammar
    assert (grammar.status, grammar.finish_detail) == (Status.ERROR, "INVALID_GRAMMAR")
    assert rig.step() == {"next": 10}


def test_scenario_103_a_refused_token_ends_the_request_and_its_blocks_return() -> None:
    rig = Rig(window=2)
    grammar = rig.submit("grammar", family("G", 20))
    other = rig.submit("other", family("O", 20), max_tokens=5)
    rig.plan()
    rig.plan()
    rig.result()
    assert rig.core.end("grammar", Status.ERROR, "GRAMMAR_REFUSED_TOKEN") is grammar
    settlement = rig.plan()
    assert settlement is not None
    assert settlement.sent is not None
    assert [row.request for row in settlement.sent.rows] == [other]
    assert rig.kv.figures.num_held == 2
    rig.run_to_end()
    assert (grammar.status, grammar.num_output_tokens) == (Status.ERROR, 1)
    assert other.output_token_ids == continuation(family("O", 20), 5)

"""The schedule: the same for the same seed, and nothing is left out."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from tests.chaos.campaign import targets
from tests.chaos.faults import PROCESS_KINDS, Kind, draw, draw_other, each_once

TARGETS = targets(2)


def test_a_fault_is_the_same_for_the_same_seed_and_number_without_those_before_it():
    assert [draw(TARGETS, seed=7, number=n) for n in range(20)] == [draw(TARGETS, seed=7, number=n) for n in range(20)]
    assert draw(TARGETS, seed=7, number=3) != draw(TARGETS, seed=8, number=3)


def test_each_target_meets_each_of_its_kinds_once():
    met = Counter((fault.target, fault.kind) for fault in each_once(TARGETS, seed=1, longest_s=5))
    assert set(met.values()) == {1}
    assert set(met) == set(TARGETS.pairs)


def test_every_pair_comes_up_in_a_long_schedule():
    drawn = [draw(TARGETS, seed=1, number=number) for number in range(2000)]
    assert {(fault.target, fault.kind) for fault in drawn} == set(TARGETS.pairs)
    assert {fault.duration_s for fault in drawn if fault.kind is Kind.STOP} == {1.0, 5.0, 30.0}


@pytest.mark.parametrize("number", range(50))
def test_the_second_of_two_faults_is_another_target_s(number: int):
    first = draw(TARGETS, seed=3, number=number)
    assert draw_other(TARGETS, first, seed=3, number=number).target != first.target


def test_without_connections_only_processes_are_harmed():
    processes = replace(TARGETS, links=(), message_links=())
    drawn = [draw(processes, seed=3, number=number) for number in range(500)]
    assert {(fault.target, fault.kind) for fault in drawn} == set(product(TARGETS.processes, PROCESS_KINDS))

"""Layers are built in threads, come in order, and a long load says how far it is."""

import logging
import threading

import pytest

from gpu_worker import layer_loading
from gpu_worker.errors import MissingWeights


def test_layers_come_in_order_whoever_is_ready_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    second_is_built = threading.Event()

    def build(index: int) -> int:
        if index == 0:
            assert second_is_built.wait(5)
        elif index == 1:
            second_is_built.set()
        return index

    assert list(layer_loading.in_order(build, 6)) == [0, 1, 2, 3, 4, 5]


def test_what_is_missing_in_a_layer_ends_the_load() -> None:
    def build(index: int) -> int:
        if index == 3:
            raise MissingWeights("the weights lack model.layers.3")
        return index

    with pytest.raises(MissingWeights, match=r"layers\.3"):
        list(layer_loading.in_order(build, 8))


def test_a_long_load_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(layer_loading, "PROGRESS_EVERY_S", 0.0)
    caplog.set_level(logging.INFO)
    list(layer_loading.in_order(lambda index: index, 4))
    said = [vars(record)["octavo_fields"] for record in caplog.records if record.message == "weights_loading"]
    assert [fields["percent"] for fields in said] == [25, 50, 75, 100]
    assert said[-1] == {"percent": 100, "layers": "4/4", "left_s": 0}


def test_a_short_load_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    list(layer_loading.in_order(lambda index: index, 4))
    assert not caplog.records

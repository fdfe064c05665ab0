"""The soak test itself: what it calls growth, and a short run of it over real processes."""

from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.soaking import tiny_model
from benchmarks.soaking.samples import Life, Sample, growth


def life(*rss_bytes: int, num_done: int = 0) -> Life:
    """A sample each 100 requests."""
    samples = [
        Sample(num_done=num_done + 100 * number, rss_bytes=rss, num_files=8, num_threads=4)
        for number, rss in enumerate(rss_bytes)
    ]
    return Life(1, samples)


def test_memory_that_rises_and_falls_has_not_grown():
    found = growth("kvcache", life(*[100, 110, 105] * 10), since=0, warm_up=0)
    assert found is not None
    assert found.share == 0


def test_memory_that_creeps_up_has_grown():
    found = growth("kvcache", life(*range(1000, 1300)), since=0, warm_up=0)
    assert found is not None
    assert found.share == pytest.approx(0.19, abs=0.01)
    assert found.bytes_per_request == pytest.approx(0.01, rel=0.1)


def test_what_a_process_takes_while_it_warms_up_does_not_count():
    found = growth("worker-0", life(*range(0, 1000, 100), *[1000] * 30, num_done=5000), since=2000, warm_up=1000)
    assert found is not None
    assert found.share == 0


def test_a_process_that_started_too_late_is_not_judged():
    assert growth("gateway", life(100, 200, 300, num_done=9000), since=5000, warm_up=1000) is None


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_nothing_is_left_after_hundreds_of_requests_and_the_death_of_every_process(tmp_path: Path):
    model = tmp_path / "model"
    model.mkdir()
    tiny_model.write(model)
    short = soak.Soak(num_requests=600, num_kills=1, seed=3)
    verdict = await soak.run(short, tmp_path, [str(model), *soak.FLAGS])
    assert not verdict.failures, "\n".join(verdict.lines)

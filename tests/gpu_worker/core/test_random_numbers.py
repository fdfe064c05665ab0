"""The draws are those of the definition, in any language, and look independent along seeds and positions."""

import numpy as np

from gpu_worker.core.random_numbers import uniform

MASK = 2**64 - 1


def by_the_definition(seed: int, position: int) -> float:
    """The docstring's arithmetic, in Python's own integers."""

    def mix(z: int) -> int:
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
        return z ^ z >> 31

    gamma = 0x9E3779B97F4A7C15
    stream = mix((seed + gamma) & MASK)
    return (mix((stream + (position + 1) * gamma) & MASK) >> 11) / 2**53


def draws(seeds: list[int], positions: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return uniform(np.array(seeds, dtype=np.uint64), np.array(positions, dtype=np.uint64))


def test_the_numbers_are_those_of_the_definition() -> None:
    seeds, positions = [0, 1, 2, 12345, 2**63, MASK], [0, 1, 7, 4095, 10**6, 2**31]
    assert draws(seeds, positions).tolist() == [by_the_definition(s, p) for s, p in zip(seeds, positions, strict=True)]


def test_the_numbers_never_change() -> None:
    assert draws([42, 42, 43], [0, 1, 0]).tolist() == FIXED


def test_a_number_does_not_depend_on_its_neighbours() -> None:
    together = draws([1, 2, 3], [10, 20, 30])
    assert [draws([s], [p])[0] for s, p in ((1, 10), (2, 20), (3, 30))] == together.tolist()


def test_positions_of_a_seed_and_seeds_at_a_position_are_uniform_and_uncorrelated() -> None:
    for numbers in (draws([7] * 100_000, list(range(100_000))), draws(list(range(100_000)), [5] * 100_000)):
        counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
        chi_square = ((counts - 1000) ** 2 / 1000).sum()
        assert 50 < chi_square < 160  # 99 degrees of freedom
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.015


FIXED = [0.34329192209867343, 0.9557467261317436, 0.8437555350907389]

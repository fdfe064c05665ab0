"""Random numbers as a function of (seed, position): the same in every batch, on every worker, after every restart.

Definition, all arithmetic modulo 2^64, `mix` being the finaliser of SplitMix64:

    mix(z):  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;  z = (z ^ z >> 27) * 0x94D049BB133111EB;  z ^ z >> 31
    stream = mix(seed + GAMMA)
    draw   = mix(stream + (position + 1) * GAMMA)          GAMMA = 0x9E3779B97F4A7C15
    number = (draw >> 11) / 2^53                           in [0, 1)

So a seed picks a SplitMix64 stream at a place that neighbouring seeds do not share, and the position of the token in
its sequence (prompt included, from 0) counts within it. One number draws one token.
"""

import numpy as np
import numpy.typing as npt

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)


def uniform(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each pair of seed and position."""
    streams = _mix(seeds + _GAMMA)
    draws = _mix(streams + (positions + np.uint64(1)) * _GAMMA)
    return (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _FACTOR_1
    z = (z ^ (z >> np.uint64(27))) * _FACTOR_2
    return z ^ (z >> np.uint64(31))

"""How often each token occurs in one request: what penalties need, kept up to date token by token."""

import numpy as np
import numpy.typing as npt


class TokenCounts:
    """The distinct tokens of a request and how often each was generated (0 = in the prompt only)."""

    __slots__ = ("_counts", "_ids", "_rows")

    def __init__(self, prompt_token_ids: npt.NDArray[np.int32], output_token_ids: npt.NDArray[np.int32]) -> None:
        distinct = np.unique(np.concatenate((prompt_token_ids, output_token_ids)))
        self._rows = {token_id: row for row, token_id in enumerate(distinct.tolist())}
        self._ids = distinct.astype(np.int64)
        self._counts = np.zeros(len(distinct), dtype=np.float32)
        np.add.at(self._counts, np.searchsorted(distinct, output_token_ids), 1.0)

    def add(self, token_id: int) -> None:
        """One more generated token."""
        row = self._rows.get(token_id)
        if row is None:
            row = self._rows[token_id] = len(self._rows)
            if row == len(self._ids):
                self._ids = np.resize(self._ids, 2 * row + 16)
                self._counts = np.resize(self._counts, 2 * row + 16)
            self._ids[row] = token_id
            self._counts[row] = 0.0
        self._counts[row] += 1.0

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """Every token of prompt and output, once."""
        return self._ids[: len(self._rows)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """How often each of `token_ids` was generated."""
        return self._counts[: len(self._rows)]

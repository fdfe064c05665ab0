"""From logits to token ids: bias, penalties and masks, then temperature, cuts and one random number a row.

The order is vLLM's: logprobs of the model's own distribution; logit_bias; repetition, frequency and presence
penalties; ending tokens masked until min_tokens; then argmax, or temperature, min_p, top_k, top_p. Cuts look at the
most likely candidates only and widen the view when those do not reach; the whole vocabulary is never sorted unless
a cut keeps nearly all of it. A row's token does not depend on the other rows of the batch.

Shapes: S rows that sample, R of them at random, V vocabulary, K candidates.
"""

# ruff: noqa: N803, N806 - tensors carry the letters of their shape

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from gpu_worker.core import random_numbers
from gpu_worker.core.batch_state import BatchState, Indices, Request
from gpu_worker.core.step import PositionLogprobs, Sampling, TokenLogprob

NUM_CANDIDATES = 64  # first look at the most likely tokens
WIDENING = 8  # each further look is this much wider, until the row's cut lies within it
GREEDY_BELOW = 1e-5  # temperatures below are 0

_RUN = 256  # tokens whose probabilities are added up before any of them is looked at
_TINY = np.finfo(np.float64).tiny
_BELOW_ONE = 1.0 - 2.0**-53

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What the rows drew."""

    token_ids: Indices  # [S]
    logprobs: tuple[PositionLogprobs, ...]  # of the rows that asked, in order


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One row that is not simply the most likely token."""

    index: int
    request: Request
    num_tokens: int  # known before this one: the position of the token to draw


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """How much of a distribution a row keeps; every cut keeps the most likely tokens down to some rank."""

    top_k: int  # 0 = all
    top_p: float
    min_p: float

    @classmethod
    def of(cls, sampling: Sampling, *, vocab_size: int) -> "_Cut":
        top_k = sampling.top_k if 0 < sampling.top_k < vocab_size else 0
        return cls(top_k=top_k, top_p=max(sampling.top_p, 0.0), min_p=min(sampling.min_p, 1.0))

    @property
    def is_none(self) -> bool:
        return not self.top_k and self.top_p >= 1 and self.min_p <= 0


def sample(logits_SV: torch.Tensor, state: BatchState, slots: Indices) -> Sampled:
    """Draw one token per row. `logits_SV` is consumed; `slots` are those of the rows in `state`."""
    logits_SV = logits_SV.float()
    if state.is_plain[slots].all():
        return Sampled(token_ids=_most_likely(logits_SV), logprobs=())
    rows = [
        _Row(index=index, request=state.request(slot), num_tokens=int(state.num_tokens[slot]))
        for index, slot in enumerate(slots.tolist())
        if not state.is_plain[slot]
    ]
    asking = [row for row in rows if row.request.sampling.num_logprobs is not None]
    logprobs_AV = logits_SV[[row.index for row in asking]].log_softmax(-1) if asking else None
    for row in rows:
        _adjust(logits_SV[row.index], row)
    token_ids = _most_likely(logits_SV)
    drawing = [row for row in rows if row.request.sampling.temperature >= GREEDY_BELOW]
    if drawing:
        indices = [row.index for row in drawing]
        token_ids[indices] = _draw(logits_SV[indices], drawing)
    logprobs = () if logprobs_AV is None else _logprobs(logprobs_AV, asking, token_ids)
    return Sampled(token_ids=token_ids, logprobs=logprobs)


def _most_likely(logits_SV: torch.Tensor) -> Indices:
    """The first of the largest; numpy finds it ten times faster than torch does."""
    token_ids: Indices = logits_SV.numpy().argmax(-1)
    return token_ids


def _adjust(logits_V: torch.Tensor, row: _Row) -> None:
    """Bias, penalties and mask, in place; touches only the tokens concerned."""
    request, sampling = row.request, row.request.sampling
    if sampling.logit_bias:
        biased = torch.tensor(list(sampling.logit_bias), dtype=torch.int64)
        logits_V[biased] += torch.tensor(list(sampling.logit_bias.values()))
    if request.counts is not None:
        seen = torch.from_numpy(request.counts.token_ids)
        counts = torch.from_numpy(request.counts.counts)
        values = logits_V[seen]
        penalty = sampling.repetition_penalty
        values = torch.where(values > 0, values / penalty, values * penalty)
        values -= sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)
        logits_V[seen] = values
    if row.num_tokens - request.num_prompt_tokens < sampling.min_tokens and sampling.ending_token_ids:
        logits_V[list(sampling.ending_token_ids)] = -torch.inf


def _draw(logits_RV: torch.Tensor, rows: Sequence[_Row]) -> Indices:
    """One token per row, by inverting the row's distribution function at its random number."""
    samplings = [row.request.sampling for row in rows]
    temperatures = torch.tensor([sampling.temperature for sampling in samplings])
    weights_RV = (logits_RV / temperatures[:, None]).softmax(-1)
    seeds = np.array([sampling.seed for sampling in samplings], dtype=np.uint64)
    numbers = random_numbers.uniform(seeds, np.array([row.num_tokens for row in rows], dtype=np.uint64))
    cuts = [_Cut.of(sampling, vocab_size=weights_RV.shape[1]) for sampling in samplings]
    token_ids = np.zeros(len(rows), dtype=np.int64)
    whole = [i for i, cut in enumerate(cuts) if cut.is_none]
    if whole:
        token_ids[whole] = _draw_from_all(weights_RV[whole], numbers[whole])
    undecided, width = [i for i, cut in enumerate(cuts) if not cut.is_none], NUM_CANDIDATES
    while undecided:
        drawn, is_decided = _draw_from_top(
            weights_RV[undecided], width, [cuts[i] for i in undecided], numbers[undecided]
        )
        token_ids[undecided] = drawn
        undecided = [i for i, decided in zip(undecided, is_decided.tolist(), strict=True) if not decided]
        width *= WIDENING
    return token_ids


def _draw_from_all(weights_RV: torch.Tensor, numbers: Floats) -> Indices:
    """No cut: find the run of tokens the number falls into, then the token in the run."""
    runs = F.pad(weights_RV, (0, -weights_RV.shape[1] % _RUN)).unflatten(-1, (-1, _RUN))
    run_indices, rests = _invert(runs.sum(-1).double().numpy(), numbers)
    within = runs[torch.arange(len(runs)), torch.from_numpy(run_indices)].double().numpy()
    return run_indices * _RUN + _invert(within, rests)[0]


def _draw_from_top(
    weights_RV: torch.Tensor, width: int, cuts: Sequence[_Cut], numbers: Floats
) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """One token per row among the `width` most likely, and whether it counts: the row's cut may lie beyond them."""
    vocab_size = weights_RV.shape[1]
    top_RK, ids_RK = weights_RV.topk(min(width, vocab_size), sorted=True)
    weights_RK = top_RK.double().numpy()
    sums_RK = weights_RK.cumsum(-1)
    is_whole = width >= vocab_size
    num_kept = np.array(
        [
            _num_kept(weights, sums, cut, is_whole=is_whole)
            for weights, sums, cut in zip(weights_RK, sums_RK, cuts, strict=True)
        ]
    )
    weights_RK[np.arange(weights_RK.shape[1]) >= num_kept[:, None]] = 0.0
    drawn, _ = _invert(weights_RK, numbers)
    token_ids: Indices = ids_RK.numpy()[np.arange(len(drawn)), drawn]
    return token_ids, num_kept > 0


def _num_kept(weights_K: Floats, sums_K: Floats, cut: _Cut, *, is_whole: bool) -> int:
    """How many of the K candidates survive the row's cuts; 0 if that cannot be told without the others.

    The probabilities of the whole vocabulary sum to 1. Each cut keeps a beginning of the sorted list:

        |---------- min_p and top_k keep `limit` ---------|....... rest of the vocabulary
        |---- top_p of their sum keeps num_kept ----|
    """
    num_candidates = len(weights_K)
    limit = cut.top_k or num_candidates
    is_decided = is_whole or 0 < cut.top_k <= num_candidates
    if cut.min_p > 0:
        num_likely = int(np.searchsorted(-weights_K, -cut.min_p * weights_K[0], side="right"))
        is_decided = is_decided or num_likely < num_candidates
        limit = min(limit, num_likely)
    limit = min(limit, num_candidates)
    if not is_decided and (cut.top_k or cut.min_p > 0):
        return 0
    mass = float(sums_K[limit - 1]) if is_decided else 1.0
    num_kept = int(np.searchsorted(sums_K[:limit], cut.top_p * mass)) + 1
    if num_kept > limit:
        return limit if is_decided else 0
    return num_kept


def _invert(weights: Floats, numbers: Floats) -> tuple[Indices, Floats]:
    """Per row, the index whose share of the row's sum holds the number, and how far into the share it lies."""
    sums = weights.cumsum(-1)
    targets = numbers * sums[:, -1]
    indices = np.minimum((sums <= targets[:, None]).sum(-1), weights.shape[1] - 1)
    at = np.arange(len(weights)), indices
    rests = 1.0 - (sums[at] - targets) / np.maximum(weights[at], _TINY)
    return indices, rests.clip(0.0, _BELOW_ONE)


def _logprobs(logprobs_AV: torch.Tensor, rows: Sequence[_Row], token_ids: Indices) -> tuple[PositionLogprobs, ...]:
    """Of the model's own distribution, for the rows that asked."""
    wanted = [row.request.sampling.num_logprobs or 0 for row in rows]
    values, ids = logprobs_AV.topk(min(max(wanted), logprobs_AV.shape[1]))
    positions = []
    for at, (row, num_top) in enumerate(zip(rows, wanted, strict=True)):
        token_id = int(token_ids[row.index])
        top = zip(ids[at, :num_top].tolist(), values[at, :num_top].tolist(), strict=True)
        positions.append(
            PositionLogprobs(
                sampled=TokenLogprob(token_id=token_id, logprob=float(logprobs_AV[at, token_id])),
                top=tuple(TokenLogprob(token_id=top_id, logprob=logprob) for top_id, logprob in top),
            )
        )
    return tuple(positions)

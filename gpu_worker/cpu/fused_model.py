"""A model whose whole forward pass is one call of the C++ kernels, over K/V memory in their layout.

Shapes: T tokens, S rows that sample, V vocabulary.
"""

from collections.abc import Sequence
from ctypes import byref

import numpy as np
import numpy.typing as npt
import torch

from gpu_worker.core import work_list
from gpu_worker.core.input_batch import InputBatch
from gpu_worker.core.thread_policy import StepThreads
from gpu_worker.core.work_list import WorkList
from gpu_worker.cpu import library
from gpu_worker.cpu.library import Library
from gpu_worker.cpu.packed_weight import INPUTS_MULTIPLE
from gpu_worker.cpu.weights import CpuLayer, CpuWeights
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.interface import Forward

HEAD_DIM_MULTIPLE = 16
BLOCK_SIZE_MULTIPLE = 16


def misfit(config: ModelConfig, *, block_size: int) -> str | None:
    """Why the kernels cannot run a model; None if they can."""
    if block_size % BLOCK_SIZE_MULTIPLE:
        return f"block_size is {block_size}, not a multiple of {BLOCK_SIZE_MULTIPLE}"
    if config.head_dim % HEAD_DIM_MULTIPLE:
        return f"head_dim is {config.head_dim}, not a multiple of {HEAD_DIM_MULTIPLE}"
    inputs = (config.hidden_size, config.intermediate_size, config.num_attention_heads * config.head_dim)
    if any(size % INPUTS_MULTIPLE for size in inputs):
        return f"products have {inputs} inputs, not all multiples of {INPUTS_MULTIPLE}"
    return None


class FusedModel:
    """Weights, K/V memory, threads. One step at a time."""

    def __init__(
        self,
        kernels: Library,
        config: ModelConfig,
        weights: CpuWeights,
        *,
        kv: npt.NDArray[np.uint8],  # [blocks, bytes of a block]
        block_size: int,
        num_threads: int,
    ) -> None:
        assert (reason := misfit(config, block_size=block_size)) is None, reason
        self._kernels = kernels
        self._vocab_size = config.vocab_size
        self._num_heads, self._num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._windows = tuple(sorted(set(config.windows)))
        self._threads = StepThreads(num_threads)
        self._model = _model(config, weights, block_size=block_size, windows=self._windows)
        self._kept = (weights, kv)  # the kernels hold their addresses
        self._logits = np.empty((0, config.vocab_size), dtype=np.float32)
        self._runner = kernels.c.octavo_runner_new(byref(self._model), kv.ctypes.data, num_threads)

    def __del__(self) -> None:
        if runner := getattr(self, "_runner", None):
            self._kernels.c.octavo_runner_free(runner)

    def prepare(self, batch: InputBatch) -> Forward:
        """Plan the step; the forward pass then gives float32 logits [S, V], good until the next one."""
        threads = self._threads.of_step(batch.num_tokens)
        num_threads = threads.num_threads
        plans = self._plans(batch, num_threads=num_threads)
        logits = self._logits_of(len(batch.sampled_token_indices))
        arrays = _flat(batch)
        step = _step(batch, arrays, plans, num_threads=num_threads)
        step.logits = logits.ctypes.data

        def forward(_kept: object = (arrays, plans)) -> torch.Tensor:
            report = library.StepReport()
            self._kernels.c.octavo_step(self._runner, byref(step), byref(report))
            threads.observe(busy_ns=report.busy_ns, wait_ns=report.wait_ns)
            return torch.from_numpy(logits)

        return forward

    def _plans(self, batch: InputBatch, *, num_threads: int) -> list[WorkList]:
        heads = work_list.Heads(num_heads=self._num_heads, num_kv_heads=self._num_kv_heads, num_workers=num_threads)
        starts, lengths = batch.query_starts.astype(np.int32), batch.sequence_lengths.astype(np.int32)
        return [work_list.plan(starts, lengths, heads=heads, window=window) for window in self._windows]

    def _logits_of(self, num_sampled: int) -> npt.NDArray[np.float32]:
        if num_sampled > len(self._logits):
            self._logits = np.empty((num_sampled, self._vocab_size), dtype=np.float32)
        return self._logits[:num_sampled]


def _flat(batch: InputBatch) -> npt.NDArray[np.int32]:
    """What the kernels read of a batch, one array after the other."""
    parts = (
        batch.token_ids,
        batch.positions,
        batch.slot_mapping,
        batch.sampled_token_indices,
        batch.block_tables.reshape(-1),
    )
    return np.concatenate(parts, dtype=np.int32, casting="same_kind")


def _step(
    batch: InputBatch, arrays: npt.NDArray[np.int32], plans: Sequence[WorkList], *, num_threads: int
) -> library.Step:
    num_tokens, num_sampled = batch.num_tokens, len(batch.sampled_token_indices)
    address, token_bytes = arrays.ctypes.data, 4 * num_tokens
    return library.Step(
        num_tokens=num_tokens,
        num_sampled=num_sampled,
        num_threads=num_threads,
        block_table_stride=batch.block_tables.shape[1],
        token_ids=address,
        positions=address + token_bytes,
        slots=address + 2 * token_bytes,
        sampled_tokens=address + 3 * token_bytes,
        block_tables=address + 3 * token_bytes + 4 * num_sampled,
        work_lists=(library.WorkList * len(plans))(*map(library.WorkList.of, plans)),
    )


def _model(config: ModelConfig, weights: CpuWeights, *, block_size: int, windows: tuple[int, ...]) -> library.Model:
    """The struct that points to all weights."""
    layers = [
        _layer(layer, work_list=windows.index(window))
        for layer, window in zip(weights.layers, config.windows, strict=True)
    ]
    return library.Model(
        attention=library.AttentionShape(
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            block_size=block_size,
            num_layers=config.num_hidden_layers,
            scale=config.attention_scale,
            soft_cap=config.attention_soft_cap or 0.0,
        ),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        activation=library.SILU if config.activation == "silu" else library.GELU_TANH,
        norm_epsilon=config.rms_norm_eps,
        embedding_scale=config.embedding_scale,
        logit_soft_cap=config.logit_soft_cap or 0.0,
        embedding=weights.embedding.as_struct(),
        head=weights.head.as_struct(),
        final_norm=weights.final_norm.ctypes.data,
        layers=(library.Layer * len(layers))(*layers),
    )


def _layer(layer: CpuLayer, *, work_list: int) -> library.Layer:
    assert layer.gate.format == layer.up.format, "gate and up are multiplied together"
    return library.Layer(
        input_norm=layer.input_norm.ctypes.data,
        query_norm=_address(layer.query_norm),
        key_norm=_address(layer.key_norm),
        post_attention_norm=_address(layer.post_attention_norm),
        mlp_norm=layer.mlp_norm.ctypes.data,
        post_mlp_norm=_address(layer.post_mlp_norm),
        query=layer.query.as_struct(),
        key=layer.key.as_struct(),
        value=layer.value.as_struct(),
        output=layer.output.as_struct(),
        gate=layer.gate.as_struct(),
        up=layer.up.as_struct(),
        down=layer.down.as_struct(),
        rotations=layer.rotations.ctypes.data,
        work_list=work_list,
    )


def _address(values: npt.NDArray[np.float32] | None) -> int | None:
    return None if values is None else values.ctypes.data

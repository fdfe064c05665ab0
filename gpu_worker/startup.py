"""From settings to a runner that is ready: chooses numerics, threads and who computes, has the model loaded, warms up,
and says what really runs.
"""

import sys
from dataclasses import dataclass

import torch

from gpu_worker import identity, model_loading, numerics
from gpu_worker.config import WorkerConfig
from gpu_worker.core.batch_state import BatchState
from gpu_worker.cpu import fused_model, library
from gpu_worker.cpu.library import Library
from gpu_worker.errors import UnsupportedModel
from gpu_worker.identity import Fingerprint, Identity
from gpu_worker.model_loading import LoadedModel, Order
from gpu_worker.model_runner import ModelRunner
from gpu_worker.models.config import ModelConfig, read_model_config
from gpu_worker.numerics import Circumstances
from gpu_worker.startup_phases import Phases
from gpu_worker.stored_model import StoredModel, open_source
from gpu_worker.usable_cores import usable_cores
from gpu_worker.weight_source import weight_files
from octavo import logs
from octavo.model_files import ModelFiles

SWITCH_INTERVAL_S = 0.0005  # how long the compute thread may keep the thread that does the I/O from running
MAX_THREADS = 16  # unless --num-threads asks for more: by then the memory is what limits

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A worker that can take steps."""

    runner: ModelRunner
    identity: Identity


def start(config: WorkerConfig, files: ModelFiles, phases: Phases) -> Ready:
    """Everything between knowing the files and taking the first step.

    Raises UnsupportedModel, MissingWeights, UnreadableWeights or NotEnoughMemory, with what to do in the message.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    order = _order(config, files)
    loaded = model_loading.load(order, phases)
    state = BatchState(
        block_size=config.kv_memory.block_size,
        num_blocks=loaded.num_blocks,
        max_model_len=order.max_model_len,
        vocab_size=order.stored.config.vocab_size,
    )
    runner = ModelRunner(loaded.model, state, max_num_batched_tokens=config.compute.max_num_batched_tokens)
    with phases.phase("warmup"):
        runner.warm_up()
    about = _identity(config, files, order, loaded)
    _say(about, order, requested_dtype=config.compute.dtype)
    return Ready(runner=runner, identity=about)


def _order(config: WorkerConfig, files: ModelFiles) -> Order:
    """What runs, and who computes it."""
    model_config = read_model_config(files.config_dir / "config.json")
    max_model_len = _max_model_len(config.compute.max_model_len, model_config)
    stored = StoredModel(open_source(files.weights, files.weights_format), model_config)
    kernels = library.load()
    chosen = numerics.choose(config.compute.dtype, _circumstances(stored, kernels, config.kv_memory.block_size))
    if chosen.torch_because is not None:
        kernels = None
    return Order(
        stored=stored,
        numerics=chosen,
        kernels=kernels,
        memory=config.kv_memory,
        max_model_len=max_model_len,
        num_threads=_num_threads(config.compute.num_threads, has_kernels=kernels is not None),
    )


def _circumstances(stored: StoredModel, kernels: Library | None, block_size: int) -> Circumstances:
    misfit = fused_model.misfit(stored.config, block_size=block_size)
    return Circumstances(
        is_quantised=stored.is_quantised,
        kernels_refuse=misfit if kernels is not None else numerics.NO_LIBRARY,
        multiplies_bf16=torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported(),  # noqa: SLF001
    )


def _num_threads(asked: int | None, *, has_kernels: bool) -> int:
    """As many as there are cores, at most MAX_THREADS.

    Torch gets one less, which is for the other processes: beside one busy process on two cores, a decode step takes
    50 ms with one thread of torch and 170 to 900 with two. The kernels watch their neighbours themselves.
    """
    return asked or max(1, min(usable_cores(), MAX_THREADS) - (0 if has_kernels else 1))


def _max_model_len(asked: int | None, model: ModelConfig) -> int:
    if asked is None:
        return model.max_position_embeddings
    if asked > model.max_position_embeddings:
        raise UnsupportedModel(
            f"--max-model-len is {asked}; the model was made for {model.max_position_embeddings} "
            "positions (max_position_embeddings)"
        )
    return asked


def _identity(config: WorkerConfig, files: ModelFiles, order: Order, loaded: LoadedModel) -> Identity:
    config_json, chosen = files.config_dir / "config.json", order.numerics
    return Identity(
        worker_id=config.worker_id,
        model_name=files.name,
        fingerprint=Fingerprint(
            hash_scheme=identity.HASH_SCHEME,
            model_digest=identity.model_digest(config_json, weight_files(files.weights), dtype=chosen.dtype),
            tokenizer_digest=files.tokenizer_digest,
            block_size=config.kv_memory.block_size,
            kv_dtype=chosen.kv_dtype,
            kv_layout=loaded.kv_layout,
        ),
        max_model_len=order.max_model_len,
        vocab_size=order.stored.config.vocab_size,
        num_blocks=loaded.num_blocks,
        max_num_batched_tokens=config.compute.max_num_batched_tokens,
        device=config.compute.device,
        dtype=chosen.dtype,
        attention_backend=loaded.attention,
        weight_bytes=loaded.weight_bytes,
        kv_cache_bytes=loaded.kv_cache_bytes,
    )


def _say(about: Identity, order: Order, *, requested_dtype: str) -> None:
    """What really runs, and how much fits."""
    num_tokens = (about.num_blocks - 1) * about.fingerprint.block_size
    _log.info(
        "model_loaded",
        model=about.model_name,
        dtype=about.dtype,
        requested_dtype=requested_dtype,
        attention=about.attention_backend,
        torch_because=order.numerics.torch_because,
        num_threads=order.num_threads,
        weight_mib=about.weight_bytes >> 20,
        kv_mib=about.kv_cache_bytes >> 20,
        kv_tokens=num_tokens,
        max_model_len=about.max_model_len,
        num_sequences_of_full_length=round(num_tokens / about.max_model_len, 1),
    )

"""From settings to a runner that is ready: loads the weights, allocates the K/V memory, warms up, and says how long
each phase took. The one place where the choices of type, threads and back end are made.
"""

import os
import sys
from dataclasses import dataclass
from typing import Literal

import psutil  # type: ignore[import-untyped]
import torch

from gpu_worker import identity, kv_cache, linear, weights
from gpu_worker.attention.batched import BatchedAttention
from gpu_worker.config import KVMemory, WorkerConfig
from gpu_worker.core.batch_state import BatchState
from gpu_worker.errors import UnsupportedModel
from gpu_worker.identity import Fingerprint, Identity
from gpu_worker.model_runner import ModelRunner
from gpu_worker.models import llama_config
from gpu_worker.models.llama import Llama
from gpu_worker.models.llama_config import LlamaConfig
from gpu_worker.startup_phases import Phases
from gpu_worker.weight_source import GGUFFile, SafetensorsFolder, WeightSource, weight_files
from octavo import logs
from octavo.model_files import ModelFiles

SWITCH_INTERVAL_S = 0.0005  # how long the compute thread may keep the thread that does the I/O from running

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
    compute, block_size = config.compute, config.kv_memory.block_size
    torch.set_num_threads(compute.num_threads or _num_threads())
    model_config = llama_config.read(files.config_dir / "config.json")
    max_model_len = _max_model_len(compute.max_model_len, model_config)
    dtype = _dtype(compute.dtype)
    with phases.phase("load_weights"):
        loaded = weights.load(_source(files), model_config, dtype=dtype)
        model = Llama(model_config, loaded, max_model_len=max_model_len)
    with phases.phase("allocate_kv"):
        shape = kv_cache.shape_of(model_config, block_size=block_size, dtype=dtype)
        kv = kv_cache.allocate(shape, _num_blocks(config.kv_memory, shape, max_model_len))
    state = BatchState(
        block_size=block_size,
        num_blocks=kv.shape[0],
        max_model_len=max_model_len,
        vocab_size=model_config.vocab_size,
    )
    attention = BatchedAttention(kv, model_config.num_attention_heads)
    runner = ModelRunner(model, attention, state, max_num_batched_tokens=compute.max_num_batched_tokens)
    with phases.phase("warmup"):
        runner.warm_up()
    about = Identity(
        worker_id=config.worker_id,
        model_name=files.name,
        fingerprint=_fingerprint(files, dtype, block_size),
        max_model_len=max_model_len,
        vocab_size=model_config.vocab_size,
        num_blocks=kv.shape[0],
        max_num_batched_tokens=compute.max_num_batched_tokens,
        device=compute.device,
        dtype=_name(dtype),
        attention_backend=attention.name,
        weight_bytes=loaded.num_bytes,
        kv_cache_bytes=kv.nbytes,
    )
    _say(about, dtype, requested_dtype=compute.dtype)
    return Ready(runner=runner, identity=about)


def _num_threads() -> int:
    """All cores but one, which is for the other processes: threads of one product wait for the slowest of them.

    Beside one busy process on two cores, a decode step takes 50 ms with one thread and 170 to 900 with two; on an idle
    machine two are 10 to 40 percent faster than one.
    """
    usable = len(os.sched_getaffinity(0))
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable) - 1)


def _source(files: ModelFiles) -> WeightSource:
    match files.weights_format:
        case "gguf":
            return GGUFFile(files.weights)
        case "safetensors":
            return SafetensorsFolder(files.weights)


def _max_model_len(asked: int | None, model: LlamaConfig) -> int:
    if asked is None:
        return model.max_position_embeddings
    if asked > model.max_position_embeddings:
        raise UnsupportedModel(
            f"--max-model-len is {asked}; the model was made for {model.max_position_embeddings} "
            "positions (max_position_embeddings)"
        )
    return asked


def _dtype(asked: Literal["auto", "bfloat16", "float32"]) -> torch.dtype:
    """auto is bfloat16 where the CPU multiplies it in hardware: elsewhere it would be slower than float32."""
    match asked:
        case "bfloat16":
            return torch.bfloat16
        case "float32":
            return torch.float32
        case "auto":
            has_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # noqa: SLF001
            return torch.bfloat16 if has_bf16 else torch.float32


def _num_blocks(memory: KVMemory, shape: kv_cache.KVShape, max_model_len: int) -> int:
    available = kv_cache.available_bytes()
    if memory.num_blocks is not None:
        kv_cache.check_num_blocks(shape, memory.num_blocks, available_bytes=available)
        return memory.num_blocks
    return kv_cache.num_blocks_that_fit(
        shape, available_bytes=available, utilization=memory.memory_utilization, max_model_len=max_model_len
    )


def _fingerprint(files: ModelFiles, dtype: torch.dtype, block_size: int) -> Fingerprint:
    return Fingerprint(
        hash_scheme=identity.HASH_SCHEME,
        model_digest=identity.model_digest(files.config_dir / "config.json", weight_files(files.weights)),
        tokenizer_digest=files.tokenizer_digest,
        block_size=block_size,
        kv_dtype=_name(dtype),
        kv_layout=kv_cache.KV_LAYOUT,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _say(about: Identity, dtype: torch.dtype, *, requested_dtype: str) -> None:
    """What really runs, and how much fits."""
    num_tokens = (about.num_blocks - 1) * about.fingerprint.block_size
    _log.info(
        "model_loaded",
        model=about.model_name,
        dtype=about.dtype,
        requested_dtype=requested_dtype,
        linear="onednn_packed" if linear.is_packed(dtype) else "torch",
        attention=about.attention_backend,
        num_threads=torch.get_num_threads(),
        weight_mib=about.weight_bytes >> 20,
        kv_mib=about.kv_cache_bytes >> 20,
        kv_tokens=num_tokens,
        max_model_len=about.max_model_len,
        num_sequences_of_full_length=round(num_tokens / about.max_model_len, 1),
    )

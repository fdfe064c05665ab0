"""The C++ kernels in Python: finds and loads the shared library, and mirrors the structs of `src/octavo_cpu.h`.

Knows no tensors: memory is passed by address. Every call gives the interpreter lock away while it runs.
"""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import ClassVar

from gpu_worker.core import work_list
from octavo import logs

PATH = Path(__file__).with_name("liboctavo_cpu.so")
ABI = 1  # of octavo_cpu.h

BF16, Q8, Q4 = 0, 1, 2  # OctavoFormat
SILU, GELU_TANH = 0, 1  # OctavoActivation

_log = logs.get(__name__)


class Weight(Structure):
    """A packed matrix."""

    _fields_: ClassVar = [
        ("format", c_int32),
        ("num_outputs", c_int32),
        ("num_inputs", c_int32),
        ("reserved", c_int32),
        ("tiles", c_void_p),
        ("bias", c_void_p),
    ]


class WorkList(Structure):
    """What attention computes for the layers of one window."""

    _fields_: ClassVar = [
        ("items", c_void_p),
        ("reductions", c_void_p),
        ("num_items", c_int32),
        ("num_reductions", c_int32),
        ("num_partials", c_int32),
        ("window", c_int32),
    ]

    @classmethod
    def of(cls, plan: work_list.WorkList) -> "WorkList":
        """A view of a plan, which must outlive it."""
        return cls(
            items=plan.items.ctypes.data,
            reductions=plan.reductions.ctypes.data,
            num_items=len(plan.items),
            num_reductions=len(plan.reductions),
            num_partials=plan.num_partials,
            window=plan.window,
        )


class AttentionShape(Structure):
    """Heads, and the layout of the K/V memory."""

    _fields_: ClassVar = [
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("num_layers", c_int32),
        ("scale", c_float),
        ("soft_cap", c_float),
    ]


class Layer(Structure):
    """Weights of one layer."""

    _fields_: ClassVar = [
        ("input_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("post_attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("post_mlp_norm", c_void_p),
        ("query", Weight),
        ("key", Weight),
        ("value", Weight),
        ("output", Weight),
        ("gate", Weight),
        ("up", Weight),
        ("down", Weight),
        ("rotations", c_void_p),
        ("work_list", c_int32),
        ("reserved", c_int32),
    ]


class Model(Structure):
    """A whole model."""

    _fields_: ClassVar = [
        ("attention", AttentionShape),
        ("hidden_size", c_int32),
        ("intermediate_size", c_int32),
        ("vocab_size", c_int32),
        ("activation", c_int32),
        ("norm_epsilon", c_float),
        ("embedding_scale", c_float),
        ("logit_soft_cap", c_float),
        ("reserved", c_int32),
        ("embedding", Weight),
        ("head", Weight),
        ("final_norm", c_void_p),
        ("layers", POINTER(Layer)),
    ]


class Step(Structure):
    """One forward pass."""

    _fields_: ClassVar = [
        ("num_tokens", c_int32),
        ("num_sampled", c_int32),
        ("num_threads", c_int32),
        ("block_table_stride", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("block_tables", c_void_p),
        ("work_lists", POINTER(WorkList)),
        ("sampled_tokens", c_void_p),
        ("logits", c_void_p),
    ]


class StepReport(Structure):
    """Where a step's time went."""

    _fields_: ClassVar = [("busy_ns", c_int64), ("wait_ns", c_int64)]


_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "octavo_abi": (c_int32, ()),
    "octavo_isa": (c_char_p, ()),
    "octavo_use_isa": (c_int32, (c_char_p,)),
    "octavo_packed_bytes": (c_int64, (c_int32, c_int32, c_int32)),
    "octavo_pack": (c_int32, (POINTER(Weight), c_void_p, c_int32, c_int32, c_int32, c_void_p, c_void_p)),
    "octavo_pool_new": (c_void_p, (c_int32,)),
    "octavo_pool_free": (None, (c_void_p,)),
    "octavo_linear": (None, (c_void_p, POINTER(Weight), c_void_p, c_int32, c_void_p)),
    "octavo_unpack_row": (None, (POINTER(Weight), c_int32, c_void_p)),
    "octavo_write_kv": (
        None,
        (POINTER(AttentionShape), c_void_p, c_int32, c_int32, c_void_p, c_void_p, c_void_p, c_int64),
    ),
    "octavo_attend": (
        None,
        (
            c_void_p, POINTER(AttentionShape), c_void_p, c_int32, POINTER(WorkList), c_void_p, c_int32, c_void_p,
            c_int64, c_void_p,
        ),
    ),
    "octavo_runner_new": (c_void_p, (POINTER(Model), c_void_p, c_int32)),
    "octavo_runner_free": (None, (c_void_p,)),
    "octavo_step": (None, (c_void_p, POINTER(Step), POINTER(StepReport))),
}  # fmt: skip


class LibraryMissing(Exception):
    """The library cannot be used here; the message says why."""


class Library:
    """The functions of octavo_cpu.h as attributes of `c`, and which kernels they use."""

    def __init__(self, c: ctypes.CDLL) -> None:
        self.c = c
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(c, name)
            function.restype, function.argtypes = result, list(arguments)

    @property
    def isa(self) -> str:
        name: bytes = self.c.octavo_isa()
        return name.decode()

    def use_isa(self, name: str) -> bool:
        """Use these kernels from now on; false if this machine or this build lacks them."""
        return bool(self.c.octavo_use_isa(name.encode()) == 0)


def load(path: Path = PATH) -> Library | None:
    """The library, or None with the reason in the log: without it torch computes everything."""
    try:
        return opened(path)
    except LibraryMissing as missing:
        _log.warning("cpu_kernels_missing", reason=str(missing))
        return None


def opened(path: Path = PATH) -> Library:
    """The library. Raises LibraryMissing."""
    if not path.exists():
        raise LibraryMissing(f"{path.name} is not there: no compiler was found when octavo was installed")
    try:
        c = ctypes.CDLL(str(path))
        if (abi := int(c.octavo_abi())) != ABI:
            raise LibraryMissing(f"{path.name} has interface {abi}, this version of octavo needs {ABI}: build it again")
        return Library(c)
    except (OSError, AttributeError) as broken:
        raise LibraryMissing(f"{path.name} cannot be loaded: {broken}") from None

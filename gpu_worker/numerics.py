"""Decides in which numbers a model is computed, and whether the C++ kernels or torch do it. Pure."""

from dataclasses import dataclass
from typing import Literal

from gpu_worker.errors import UnsupportedModel

AskedDtype = Literal["auto", "stored", "bfloat16", "float32"]
Dtype = Literal["stored", "bfloat16", "float32"]

NO_LIBRARY = "the C++ library is missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the choice depends on beside what was asked."""

    is_quantised: bool  # the model file
    kernels_refuse: str | None  # why the C++ kernels cannot run this model here; None if they can
    multiplies_bf16: bool  # the CPU, in hardware: torch is faster with it than with float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """`stored`: weights as a quantised file has them, activations rounded to int8, K/V in bfloat16."""

    dtype: Dtype
    torch_because: str | None  # None: the C++ kernels compute

    @property
    def kv_dtype(self) -> Literal["bfloat16", "float32"]:
        return "float32" if self.dtype == "float32" else "bfloat16"


def choose(asked: AskedDtype, there: Circumstances) -> Numerics:
    """What was asked, or for `auto` the fastest that is there.

    Raises UnsupportedModel if what was asked cannot be done.
    """
    match asked:
        case "stored":
            if reason := _not_as_stored(there):
                raise UnsupportedModel(f"--dtype stored cannot be: {reason}; use auto or bfloat16")
            return Numerics(dtype="stored", torch_because=None)
        case "bfloat16":
            return Numerics(dtype="bfloat16", torch_because=there.kernels_refuse)
        case "float32":
            return Numerics(dtype="float32", torch_because="float32 was asked for")
        case "auto" if there.kernels_refuse is None:
            return Numerics(dtype="stored" if there.is_quantised else "bfloat16", torch_because=None)
        case "auto":
            dtype: Dtype = "bfloat16" if there.multiplies_bf16 else "float32"
            return Numerics(dtype=dtype, torch_because=there.kernels_refuse)


def _not_as_stored(there: Circumstances) -> str | None:
    if not there.is_quantised:
        return "the weights of this model are not quantised"
    return there.kernels_refuse

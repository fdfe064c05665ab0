"""Octavo's own kernels for a CPU: a C++ library with a C interface, called through ctypes.

- `src/octavo_cpu.h` is the interface; `src/` says which file owns what. `library` loads it, or says why it cannot.
- `packed_weight` keeps a matrix in tiles, in bfloat16 or as a quantised file has it.
- `fused_model` runs a step of a whole model in one call.
"""

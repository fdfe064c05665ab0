"""Attention over paged K/V. Every back end stores K/V itself and gives what `reference` gives.

`reference` is the plain torch oracle, one row at a time in float32; `batched` is for torch on a CPU: decode rows
together, chunks one by one, with ordinary operations; `cpu` calls the C++ kernels.
"""

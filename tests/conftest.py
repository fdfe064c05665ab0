"""Brings up to date what is made of other sources before any test is collected: generated code and the CPU kernels."""

from contextlib import suppress

from tools import build_cpu, genproto

genproto.generate()
with suppress(build_cpu.NoCompiler):  # whoever needs the kernels says so
    build_cpu.build()

"""Compiles protos/ and, for a wheel and where there is a compiler, the CPU kernels, before setuptools looks for files.

Everything else is in pyproject.toml. A wheel with the kernels is of one platform, one without them of any.
"""

import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tools.build_cpu import NoCompiler, build
from tools.genproto import generate

COMMANDS_WITHOUT_CODE = {"sdist", "egg_info", "dist_info"}


def kernels_are_built() -> bool:
    if not COMMANDS_WITHOUT_CODE.isdisjoint(sys.argv):
        return False
    try:
        build()
    except NoCompiler as reason:
        print(f"octavo is installed without its CPU kernels: {reason}", file=sys.stderr)
        return False
    return True


class WithKernels(Distribution):
    """A distribution of one platform, though no part of it is an extension of Python."""

    def has_ext_modules(self) -> bool:
        return True


class AnyPythonWheel(bdist_wheel):
    """The kernels are called through ctypes, so that one wheel serves every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


generate()
setup(distclass=WithKernels if kernels_are_built() else Distribution, cmdclass={"bdist_wheel": AnyPythonWheel})

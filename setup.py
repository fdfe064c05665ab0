"""Compiles protos/ before setuptools looks for packages; everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tools.genproto import generate

generate()
setup()

"""Prints the requirements that the named extras of pyproject.toml add, or the common ones when none is named.

Lets an image install them in a layer of their own, which code changes leave alone.
"""

import sys
import tomllib
from pathlib import Path


def main(extras: list[str]) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    added = [requirement for extra in extras for requirement in project["optional-dependencies"][extra]]
    print("\n".join(added if extras else project["dependencies"]))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Writes the Python code of protos/ into octavo/<area>/v1. The only producer of generated code.

`python -m tools.genproto` does nothing when a stamp says that the code is fresh; `--force` writes it anyway.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("grpcio-tools", "protobuf")


def generate(root: Path = ROOT, *, force: bool = False) -> bool:
    """Bring the generated code of `root` up to date; true if anything was written.

    Safe to call from several processes at once: one writes, the others wait and find it fresh.
    """
    protos = sorted((root / "protos").rglob("*.proto"))
    if not protos:
        return False
    stamp = root / "octavo" / ".genproto.stamp"
    with _lock(root / "octavo" / ".genproto.lock"):
        digest = _digest(root, protos)
        if not force and _is_fresh(root, stamp, digest, protos):
            return False
        with tempfile.TemporaryDirectory() as output:
            _compile(root, protos, Path(output))
            _replace(root, Path(output), protos)
        stamp.write_text(digest + "\n", encoding="utf-8")
    return True


def _digest(root: Path, protos: Iterable[Path]) -> str:
    """The identity of what the generated code depends on: every path and byte, and the compiler's version."""
    digest = hashlib.sha256(" ".join(version(tool) for tool in TOOLS).encode())
    for proto in protos:
        digest.update(f"\0{proto.relative_to(root)}\0".encode())
        digest.update(proto.read_bytes())
    return digest.hexdigest()


def _is_fresh(root: Path, stamp: Path, digest: str, protos: Iterable[Path]) -> bool:
    if not stamp.exists() or stamp.read_text(encoding="utf-8").strip() != digest:
        return False
    return all(output.exists() for proto in protos for output in _outputs(root, proto))


def _outputs(root: Path, proto: Path) -> Iterator[Path]:
    stem = root / proto.relative_to(root / "protos").with_suffix("")
    for suffix in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py"):
        yield stem.with_name(stem.name + suffix)


def _compile(root: Path, protos: Iterable[Path], output: Path) -> None:
    include = root / "protos"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{include}"]
    command += [f"--{kind}_out={output}" for kind in ("python", "pyi", "grpc_python")]
    command += [str(proto.relative_to(include)) for proto in protos]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"protoc failed on {include}:\n{done.stderr.rstrip()}")


def _replace(root: Path, output: Path, protos: Iterable[Path]) -> None:
    """Move every new file into place in one rename each, then drop what no proto produces any more."""
    expected = {path for proto in protos for path in _outputs(root, proto)}
    for folder in {path.parent for path in expected}:
        folder.mkdir(parents=True, exist_ok=True)
        _make_packages(folder, root / "octavo")
    for path in output.rglob("*.py*"):
        target = root / path.relative_to(output)
        staged = target.with_name(f".{target.name}.new")
        shutil.copyfile(path, staged)
        os.replace(staged, target)
    for path in (root / "octavo").glob("*/v*/*_pb2*"):
        if path not in expected:
            path.unlink()


def _make_packages(folder: Path, top: Path) -> None:
    """Give `folder` and its parents up to `top` an __init__.py; `top` itself is written by hand."""
    while folder != top:
        init = folder / "__init__.py"
        if not init.exists():
            init.write_text('"""Generated from protos/ by tools/genproto.py."""\n', encoding="utf-8")
        folder = folder.parent


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--force", action="store_true", help="write the code even if it is fresh")
    wrote = generate(force=parser.parse_args().force)
    print("protos/ compiled" if wrote else "generated code is fresh")


if __name__ == "__main__":
    main()

"""What is published: an sdist, of which a wheel with the CPU kernels is made; without a compiler, one without them."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "gpu_worker/cpu/liboctavo_cpu.so"

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """The output of a command that must succeed."""
    environ = {name: value for name, value in os.environ.items() if name != "CXX"} | variables
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from what git would commit, so that nothing that lies about here can help."""
    checkout, folder = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("sdist")
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines():
        if (ROOT / name).exists():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name)
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=checkout)
    (made,) = folder.iterdir()
    return made


def wheel_of(sdist: Path, folder: Path, **variables: str) -> Path:
    run(
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, sdist),
        cwd=folder,
        **variables,
    )
    (made,) = folder.glob("*.whl")
    return made


def installed(wheel: Path, folder: Path) -> Path:
    target = ("--target", folder)
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", *target, wheel, cwd=wheel.parent)
    return folder


def test_the_sdist_has_sources_and_nothing_that_is_made_of_them(sdist: Path):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"protos/octavo/worker/v1/worker.proto", "gpu_worker/cpu/src/octavo_cpu.h", "tools/build_cpu.py"} <= names
    assert not [name for name in names if name.endswith(("_pb2.py", ".so"))]


def test_a_wheel_of_this_platform_has_the_kernels_and_runs_them(sdist: Path, tmp_path: Path):
    wheel = wheel_of(sdist, tmp_path)
    assert "-py3-none-linux_" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert LIBRARY in names
    assert not [name for name in names if name.endswith((".cpp", ".h"))]
    site = installed(wheel, tmp_path / "site")
    isa = run(sys.executable, "-m", "gpu_worker.cpu", cwd=tmp_path, PYTHONPATH=str(site)).strip()
    assert isa in {"avx512", "avx2", "generic"}


def test_without_a_compiler_the_wheel_is_of_any_platform_and_says_what_it_lacks(sdist: Path, tmp_path: Path):
    no_programs = tmp_path / "bin"
    no_programs.mkdir()
    wheel = wheel_of(sdist, tmp_path, PATH=str(no_programs))
    assert wheel.name.endswith("-py3-none-any.whl")
    assert LIBRARY not in zipfile.ZipFile(wheel).namelist()
    site = installed(wheel, tmp_path / "site")
    asked = subprocess.run(
        [sys.executable, "-m", "gpu_worker.cpu"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == "liboctavo_cpu.so is not there: no compiler was found when octavo was installed\n"

"""The checks of `octavo doctor`: each looks at one thing and returns what it found. Nothing is started or changed."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from octavo import model_files
from octavo.cli import ports, redis_server, runtime
from octavo.cli.ports import Endpoint
from octavo.cli.runtime import ServeState

MIN_PYTHON = (3, 11)
MIN_MEMORY_GIB = 2.0  # the demo model with a small K/V pool; larger models say what they need when they start
REDIS_VARIABLE = "OCTAVO_KVCACHE_REDIS_URL"
# Instruction sets that make the CPU worker faster.
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16")
PORTS = (
    Endpoint(host="127.0.0.1", port=8000, flag="--port"),
    Endpoint(host="127.0.0.1", port=50051, flag="--grpc-port"),
)


class KernelsMissing(Exception):
    """The CPU worker has no kernels here; the message says why."""


class Verdict(Enum):
    """What a finding means for a start."""

    OK = "ok"
    ADVICE = "advice"  # it will run, but slower or not with every default
    MISSING = "missing"  # it will not run


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    verdict: Verdict
    found: str
    to_do: str = ""


def all_findings(environ: Mapping[str, str], *, model: str | None) -> list[Finding]:
    """Everything, in the order in which it matters."""
    return [
        python(sys.version_info[:2]),
        package("grpcio", "pip install -e '.[all]'", is_essential=True),
        package("torch", "pip install -e '.[all]'; only the worker needs it", is_essential=True),
        redis(environ, redis_server.find),
        model_present(model),
        memory(Path("/proc/meminfo")),
        cpu(Path("/proc/cpuinfo")),
        kernels(kernels_in_use),
        *(port(endpoint, runtime.running(environ)) for endpoint in PORTS),
    ]


def python(version: tuple[int, ...]) -> Finding:
    found = f"{'.'.join(map(str, version))} at {sys.executable}"
    if version < MIN_PYTHON:
        to_do = f"install Python {'.'.join(map(str, MIN_PYTHON))} or later, and make the virtual environment anew"
        return Finding(subject="Python", verdict=Verdict.MISSING, found=found, to_do=to_do)
    return Finding(subject="Python", verdict=Verdict.OK, found=found)


def package(name: str, to_do: str, *, is_essential: bool) -> Finding:
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        verdict = Verdict.MISSING if is_essential else Verdict.ADVICE
        return Finding(subject=name, verdict=verdict, found="not installed", to_do=to_do)
    return Finding(subject=name, verdict=Verdict.OK, found=found)


def redis(environ: Mapping[str, str], find: Callable[[], Path]) -> Finding:
    """A URL counts as found: whether it answers is for the KV cache service to say, again and again."""
    if url := environ.get(REDIS_VARIABLE):
        return Finding(subject="Redis", verdict=Verdict.OK, found=f"{REDIS_VARIABLE} names {url.rpartition('@')[2]}")
    try:
        return Finding(subject="Redis", verdict=Verdict.OK, found=str(find()))
    except redis_server.RedisNotFound as missing:
        return Finding(subject="Redis", verdict=Verdict.MISSING, found="none", to_do=str(missing))


def model_present(model: str | None) -> Finding:
    name = model or "the demo model"
    try:
        files = model_files.resolve(model, allow_fetch=False)
    except model_files.ModelFilesError as absent:
        return Finding(subject="model", verdict=Verdict.ADVICE, found=f"{name} is not here", to_do=str(absent))
    return Finding(subject="model", verdict=Verdict.OK, found=f"{files.name} at {files.weights}")


def memory(meminfo: Path) -> Finding:
    """What the kernel says new programs may take without swapping."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available, total = (int(fields[name].split()[0]) / 2**20 for name in ("MemAvailable", "MemTotal"))
    found = f"{available:.1f} of {total:.1f} GiB available"
    if available < MIN_MEMORY_GIB:
        to_do = f"free some: the demo model needs about {MIN_MEMORY_GIB:.0f} GiB; larger ones need more"
        return Finding(subject="memory", verdict=Verdict.MISSING, found=found, to_do=to_do)
    return Finding(subject="memory", verdict=Verdict.OK, found=found)


def cpu(cpuinfo: Path) -> Finding:
    num_cores = len(os.sched_getaffinity(0))
    flags: set[str] = set()
    if cpuinfo.exists():
        lines = (line for line in cpuinfo.read_text().splitlines() if line.startswith(("flags", "Features")))
        flags = set(next(lines, ":").partition(":")[2].split())
    features = [name for name in CPU_FEATURES if name in flags]
    found = f"{num_cores} cores, {platform.machine()}, {' '.join(features) or 'no vector extensions known here'}"
    return Finding(subject="CPU", verdict=Verdict.OK, found=found)


def kernels(in_use: Callable[[], str]) -> Finding:
    try:
        found = f"{in_use()} (those of the CPU worker, in C++)"
    except KernelsMissing as missing:
        to_do = "apt-get install g++, then make setup (or pip install again): torch alone is several times slower"
        return Finding(subject="CPU kernels", verdict=Verdict.ADVICE, found=f"none: {missing}", to_do=to_do)
    return Finding(subject="CPU kernels", verdict=Verdict.OK, found=found)


def kernels_in_use() -> str:
    """The instruction set whose kernels a worker would use here. Raises KernelsMissing."""
    asked = subprocess.run([sys.executable, "-m", "gpu_worker.cpu"], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise KernelsMissing(asked.stderr.strip().rpartition("\n")[2])
    return asked.stdout.strip()


def port(endpoint: Endpoint, serves: Sequence[ServeState]) -> Finding:
    for serve in serves:
        if str(endpoint.port) in (address.rpartition(":")[2] for address in (serve.http_url, serve.grpc_addr)):
            found = f"your octavo serve (process {serve.pid}) answers there"
            return Finding(subject=f"port {endpoint.port}", verdict=Verdict.OK, found=found)
    if problem := ports.problem(endpoint):
        return Finding(subject=f"port {endpoint.port}", verdict=Verdict.ADVICE, found="taken", to_do=problem)
    return Finding(subject=f"port {endpoint.port}", verdict=Verdict.OK, found="free")

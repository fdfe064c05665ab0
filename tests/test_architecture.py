"""The architecture as tests: who may import what, and how big things may get, checked with `ast`."""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ("gateway", "scheduler_service", "kvcache_service", "gpu_worker")
FOLDERS = (*SERVICES, "octavo", "tests", "tools", "benchmarks")

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 400
JUNK_DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc"}

# What a core may not have, though it is in the standard library: it waits, looks around or makes something up.
IMPURE = {
    "asyncio", "ctypes", "logging", "multiprocessing", "os", "secrets", "socket", "subprocess", "threading", "time",
    "uuid",
}  # fmt: skip

# Library -> the only places (files or folders) that may import it.
HOMES = {
    "ctypes": ("gpu_worker/cpu/", "gpu_worker/attention/cpu.py", "octavo/port_sharing.py", "octavo/cli/leash.py"),
    "redis": ("kvcache_service/redis_client.py", "octavo/cli/"),
    "torch": ("gpu_worker/",),
    "triton": ("gpu_worker/",),
    "transformers": ("gateway/tokenizer.py",),
    "fastapi": ("gateway/openai/", "gateway/http", "gateway/__main__.py"),
    "starlette": ("gateway/openai/", "gateway/http", "gateway/__main__.py"),
    "uvicorn": ("gateway/openai/", "gateway/http", "gateway/__main__.py"),
    "pydantic": ("gateway/openai/", "gateway/http", "gateway/__main__.py"),
}
# Files of a service that speak protobuf: their names say so.
WIRE_FILES = ("servicer.py", "wire.py", "_link.py", "_session.py", "_client.py", "__main__.py")


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file of ours."""

    path: str  # relative to the repository, with slashes
    source: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.path)

    @property
    def package(self) -> str:
        return self.path.split("/")[0]

    @property
    def is_core(self) -> bool:
        return self.package in SERVICES and self.path.split("/")[1] == "core"

    @property
    def imports(self) -> Iterator[str]:
        """Every dotted name that the file imports, at the top or inside a function."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}:{node.lineno} has a relative import"
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    @property
    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


Rule = Callable[[Module], Iterator[str]]


def services_meet_on_the_wire(module: Module) -> Iterator[str]:
    for name in module.imports:
        package = name.split(".")[0]
        if package not in SERVICES or package == module.package or module.package not in (*SERVICES, "octavo"):
            continue
        if module.path.startswith("octavo/cli/") and name.split(".")[1:2] == ["config"]:
            continue
        yield f"imports {name}"


def cores_are_pure(module: Module) -> Iterator[str]:
    if not module.is_core:
        return
    allowed = {"numpy"} if module.package == "gpu_worker" else set()
    for name in module.imports:
        top = name.split(".")[0]
        is_own = name.startswith(f"{module.package}.core")
        is_pure = top in sys.stdlib_module_names and top not in IMPURE and (top != "random" or name == "random.Random")
        if not (is_own or is_pure or top in allowed):
            yield f"imports {name}"


def cores_never_wait(module: Module) -> Iterator[str]:
    if module.is_core:
        yield from (f"{f.name} is async" for f in module.functions if isinstance(f, ast.AsyncFunctionDef))


def libraries_stay_at_home(module: Module) -> Iterator[str]:
    if module.package not in (*SERVICES, "octavo"):
        return
    for name in module.imports:
        homes = HOMES.get(name.split(".")[0])
        if homes and not module.path.startswith(homes):
            yield f"imports {name}, which belongs in {', '.join(homes)}"


def generated_code_stays_at_the_wire(module: Module) -> Iterator[str]:
    if module.package not in (*SERVICES, "octavo") or module.path.startswith("octavo/cli/"):
        return
    for name in module.imports:
        parts = name.split(".")
        if parts[0] == "octavo" and "v1" in parts and not module.path.endswith(WIRE_FILES):
            yield f"imports {name}; only {', '.join(WIRE_FILES)} may"


def modules_say_what_they_own(module: Module) -> Iterator[str]:
    if not ast.get_docstring(module.tree) and module.source.strip():
        yield "has no module docstring"


def functions_are_short(module: Module) -> Iterator[str]:
    for function in module.functions:
        num_lines = (function.end_lineno or 0) - function.lineno + 1
        if num_lines > MAX_FUNCTION_LINES:
            yield f"{function.name} has {num_lines} lines"


def files_are_short(module: Module) -> Iterator[str]:
    num_lines = module.source.count("\n")
    if num_lines > MAX_FILE_LINES:
        yield f"has {num_lines} lines"


def there_are_no_junk_drawers(module: Module) -> Iterator[str]:
    path = PurePosixPath(module.path)
    yield from (f"{part} is a junk drawer" for part in (*path.parts[:-1], path.stem) if part in JUNK_DRAWERS)


RULES: tuple[Rule, ...] = (
    services_meet_on_the_wire,
    cores_are_pure,
    cores_never_wait,
    libraries_stay_at_home,
    generated_code_stays_at_the_wire,
    modules_say_what_they_own,
    functions_are_short,
    files_are_short,
    there_are_no_junk_drawers,
)


def modules() -> list[Module]:
    """Every Python file of the repository that a person wrote."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    relative = [path.relative_to(ROOT).as_posix() for path in paths]
    return [Module(path, (ROOT / path).read_text(encoding="utf-8")) for path in relative if not is_generated(path)]


def is_generated(path: str) -> bool:
    parts = path.split("/")
    areas = {folder.parent.name for folder in (ROOT / "octavo").glob("*/v1")}
    return len(parts) > 1 and parts[0] == "octavo" and parts[1] in areas


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
def test_every_module_obeys(rule: Rule):
    broken = [f"{module.path} {violation}" for module in modules() for violation in rule(module)]
    assert not broken, "\n".join(["", *broken])


@pytest.mark.parametrize("service", SERVICES)
def test_the_rules_see_each_service_and_its_core(service: str):
    assert (ROOT / service).is_dir(), f"{service} is not there"
    seen = [module for module in modules() if module.package == service]
    assert any(module.is_core for module in seen), f"{service} has no core"
    assert any(not module.is_core for module in seen), f"{service} is nothing but a core"


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (services_meet_on_the_wire, "gateway/a.py", "from kvcache_service.core import block"),
        (services_meet_on_the_wire, "octavo/server.py", "import gateway.config"),
        (services_meet_on_the_wire, "octavo/cli/serve.py", "from gateway import tokenizer"),
        (cores_are_pure, "gpu_worker/core/step.py", "import torch"),
        (cores_are_pure, "kvcache_service/core/block.py", "import numpy"),
        (cores_are_pure, "kvcache_service/core/block.py", "def f():\n    import asyncio"),
        (cores_are_pure, "kvcache_service/core/block.py", "from kvcache_service import wire"),
        (cores_are_pure, "scheduler_service/core/policy.py", "import random"),
        (cores_never_wait, "scheduler_service/core/policy.py", "async def choose(): ..."),
        (libraries_stay_at_home, "kvcache_service/servicer.py", "import redis.asyncio"),
        (libraries_stay_at_home, "gpu_worker/model_runner.py", "from ctypes import c_int"),
        (libraries_stay_at_home, "octavo/model_files/gguf.py", "import torch"),
        (libraries_stay_at_home, "gateway/limits.py", "from pydantic import BaseModel"),
        (generated_code_stays_at_the_wire, "gateway/tokenizer.py", "from octavo.inference.v1 import inference_pb2"),
        (modules_say_what_they_own, "gateway/a.py", "x = 1"),
        (functions_are_short, "gateway/a.py", "def f():\n" + "    x = 1\n" * 60),
        (files_are_short, "gateway/a.py", "x = 1\n" * 401),
        (there_are_no_junk_drawers, "gateway/utils.py", ""),
        (there_are_no_junk_drawers, "gateway/common/a.py", ""),
    ],
)
def test_each_rule_notices_when_it_is_broken(rule: Rule, path: str, source: str):
    assert list(rule(Module(path, source)))


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (services_meet_on_the_wire, "octavo/cli/serve_flags.py", "from kvcache_service.config import KVCacheConfig"),
        (services_meet_on_the_wire, "tests/integration/test_a.py", "from kvcache_service.core import block"),
        (cores_are_pure, "gpu_worker/core/step.py", "import numpy as np\nfrom random import Random"),
        (cores_are_pure, "gateway/core/stop.py", "from collections import deque\nfrom gateway.core import limits"),
        (libraries_stay_at_home, "gateway/http_server.py", "import uvicorn"),
        (generated_code_stays_at_the_wire, "gateway/scheduler_session.py", "from octavo.scheduler.v1 import x_pb2"),
    ],
)
def test_each_rule_lets_through_what_is_right(rule: Rule, path: str, source: str):
    assert not list(rule(Module(path, source)))

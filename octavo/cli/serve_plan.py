"""Decides what `octavo serve` starts: which processes, at which addresses, with which settings. Starts nothing.

A setting that a person gave, by flag or variable, is never overruled; what was left open is chosen so that the
processes find each other and share the machine.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from gateway.config import GatewayConfig
from gpu_worker.config import WorkerConfig
from kvcache_service.config import KVCacheConfig
from octavo import config, environment
from octavo.cli import redis_server
from octavo.cli.child import Program
from octavo.cli.commands import PACKAGES
from octavo.cli.ports import Endpoint
from octavo.cli.serve_config import ServeConfig
from octavo.cli.serve_flags import CONFIGS, TRACES_VARIABLE, Line
from octavo.config_values import BadValue
from scheduler_service.config import SchedulerConfig

REDIS, GATEWAY = "redis", "gateway"
PER_WORKER = ("worker_id", "listen_addr", "metrics_port")  # settings that two workers must not have in common
Variables = dict[str, str]
LOGS = {"log_format": "json"}
Given = Mapping[str, tuple[object, config.Origin]]  # setting -> (value, "flag" or "environment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every service's configuration as far as people have said it."""

    serve: ServeConfig
    gateway: GatewayConfig
    scheduler: SchedulerConfig
    kvcache: KVCacheConfig
    worker: WorkerConfig
    line: Line
    given: Mapping[str, Given]  # by service

    def is_given(self, service: str, name: str) -> bool:
        return name in self.given[service]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to start, in the order in which it is drained, and where it will answer."""

    programs: tuple[Program, ...]
    ready_addrs: Mapping[str, str]  # name -> gRPC address that reports its health; the gateway and Redis are not in it
    http_url: str
    http_addr: tuple[str, int]
    grpc_addr: str
    endpoints: tuple[Endpoint, ...]  # TCP addresses that must be free
    redis_socket: Path | None  # None: the Redis of a URL, started by somebody else
    shared: tuple[Endpoint, ...]  # those of them on which a new gateway can listen beside the one that it replaces


def load(line: Line, environ: Mapping[str, str]) -> Settings:
    """Fill and validate every service's configuration; exits with status 2 for any mistake in any of them."""
    _refuse_unknown_variables(environ)
    loaded: dict[str, Any] = {
        service: config.load(cls, service.upper(), line.argv[service], environ, program="octavo serve")
        for service, cls in CONFIGS.items()
    }
    given = {service: config.non_defaults(loaded[service]) for service in CONFIGS}
    settings = Settings(line=line, given=given, **loaded)
    if mistake := _contradiction(settings):
        _exit(mistake)
    return settings


def make(settings: Settings, folder: Path, environ: Mapping[str, str]) -> Plan:
    """Raises RedisNotFound if an embedded Redis is needed and there is none."""
    variables, redis_program = _variables(settings, folder)
    inherited = dict(environ)
    if settings.line.traces_endpoint:
        inherited[TRACES_VARIABLE] = settings.line.traces_endpoint
    programs = [
        _program(name, inherited, settings.line.variables[_service(name)], chosen) for name, chosen in variables.items()
    ]
    if redis_program is not None:
        programs.append(Program(name=REDIS, command=redis_program, environ=dict(environ)))
    network = settings.gateway.network
    host, port, grpc_port = network.host, network.port, network.grpc_port
    public = (
        Endpoint(host=host, port=port, flag="--port"),
        Endpoint(host=host, port=grpc_port, flag="--grpc-port"),
    )
    return Plan(
        programs=tuple(programs),
        ready_addrs=_ready_addrs(settings, variables),
        http_url=f"http://{_reachable(host)}:{port}",
        http_addr=(_reachable(host), port),
        grpc_addr=f"{_reachable(host)}:{grpc_port}",
        endpoints=(*public, *_internal_endpoints(settings, variables)),
        redis_socket=folder / redis_server.SOCKET_NAME if redis_program is not None else None,
        shared=public if network.reuse_port or not settings.is_given(GATEWAY, "reuse_port") else (),
    )


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    """Those without a service in their name, compared with the settings of all services."""
    known = [setting for service, cls in CONFIGS.items() for setting in config.fields(cls, service.upper())]
    try:
        environment.refuse_unknown(known, environ)
    except BadValue as mistake:
        _exit(str(mistake))


def _exit(mistake: str) -> NoReturn:
    print(f"octavo serve: {mistake}", file=sys.stderr)
    raise SystemExit(2)


def _contradiction(settings: Settings) -> str | None:
    """What no single service can see; None if all is well."""
    if 0 in (settings.gateway.network.port, settings.gateway.network.grpc_port):
        return "--port and --grpc-port must be known in advance; 0 is for a gateway on its own"
    shared = [name for name in PER_WORKER if settings.is_given("worker", name)]
    if settings.serve.num_workers > 1 and shared:
        return f"{settings.serve.num_workers} workers cannot share one {shared[0]}; leave it out and each gets its own"
    return None


def _variables(settings: Settings, folder: Path) -> tuple[dict[str, Variables], tuple[str, ...] | None]:
    """Process -> the variables that fill what was left open, in the order of draining; and Redis's command."""
    redis_program = None
    kvcache: Variables = {}
    if not settings.is_given("kvcache", "redis_url"):
        redis_program = redis_server.command(redis_server.find(), folder)
        kvcache["redis_url"] = redis_server.url(folder)
    first_port = settings.serve.metrics_port
    internal = {
        GATEWAY: {"scheduler_addr": _addr(settings, "scheduler", folder), "reuse_port": "true"},
        "scheduler": {
            "listen_addr": _addr(settings, "scheduler", folder),
            "kvcache_addr": _addr(settings, "kvcache", folder),
            "metrics_port": str(first_port),
        },
        **{f"worker-{i}": _worker(settings, folder, i) for i in range(settings.serve.num_workers)},
        "kvcache": kvcache
        | {"listen_addr": _addr(settings, "kvcache", folder), "metrics_port": str(first_port and first_port + 1)},
    }
    named = {name: _named(settings, name, chosen) for name, chosen in internal.items()}
    return named, redis_program


def _worker(settings: Settings, folder: Path, index: int) -> Variables:
    """Several workers get an equal share of cores and memory each."""
    num_workers = settings.serve.num_workers
    first_port = settings.serve.metrics_port
    chosen = {
        "listen_addr": f"unix:{folder / f'worker-{index}.sock'}",
        "scheduler_addr": _addr(settings, "scheduler", folder),
        "worker_id": f"worker-{index}",
        "metrics_port": str(first_port and first_port + 2 + index),
    }
    if num_workers > 1:
        num_cores = len(os.sched_getaffinity(0))
        chosen["num_threads"] = str(max(1, num_cores // num_workers))
        chosen["memory_utilization"] = f"{settings.worker.kv_memory.memory_utilization / num_workers:.4f}"
    return chosen


def _named(settings: Settings, name: str, chosen: Variables) -> Variables:
    """The variables of `chosen`, without those that a person set; logs are always JSON, so that they can be shown."""
    service = _service(name)
    left_open = {field: text for field, text in chosen.items() if not settings.is_given(service, field)}
    return {f"OCTAVO_{service.upper()}_{field.upper()}": text for field, text in (left_open | LOGS).items()}


def _addr(settings: Settings, service: str, folder: Path) -> str:
    """Where a service listens: as told, else on a socket in `folder`."""
    if settings.is_given(service, "listen_addr"):
        return cast(str, settings.given[service]["listen_addr"][0])
    return f"unix:{folder / f'{service}.sock'}"


def _reachable(host: str) -> str:
    """An address of this machine for "every interface"."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host, host)


def _ready_addrs(settings: Settings, variables: Mapping[str, Variables]) -> dict[str, str]:
    addrs = {}
    for name, chosen in variables.items():
        service = _service(name)
        if service != "gateway":
            told = getattr(settings, service).listen_addr
            addrs[name] = chosen.get(f"OCTAVO_{service.upper()}_LISTEN_ADDR", told)
    return addrs


def _internal_endpoints(settings: Settings, variables: Mapping[str, Variables]) -> list[Endpoint]:
    """TCP addresses of the services behind the gateway: their metrics, and gRPC where it is not a Unix socket."""
    endpoints = []
    for name, chosen in variables.items():
        service = _service(name)
        if service == "gateway":
            continue
        told = getattr(settings, service)
        metrics_port = int(chosen.get(f"OCTAVO_{service.upper()}_METRICS_PORT", told.metrics_port))
        if metrics_port:
            flag = f"--metrics-port or --{service}-metrics-port (0 = off)"
            endpoints.append(Endpoint(host="0.0.0.0", port=metrics_port, flag=flag))
        addr = chosen.get(f"OCTAVO_{service.upper()}_LISTEN_ADDR", told.listen_addr)
        if not addr.startswith("unix:"):
            host, _, port = addr.rpartition(":")
            endpoints.append(Endpoint(host=host.strip("[]"), port=int(port), flag=f"--{service}-listen-addr"))
    return endpoints


def _program(name: str, environ: Mapping[str, str], *overlays: Variables) -> Program:
    """Settings travel as variables: arguments of a process can be read by everybody on the machine.

    -P: nothing is imported from the folder that this was started in, which may hold a checkout named `octavo`.
    """
    merged = dict(environ)
    for overlay in overlays:
        merged |= overlay
    return Program(name=name, command=(sys.executable, "-P", "-m", PACKAGES[_service(name)]), environ=merged)


def _service(name: str) -> str:
    """The service of a process: "worker" of "worker-0"."""
    return name.partition("-")[0]

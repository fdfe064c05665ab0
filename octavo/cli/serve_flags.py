"""Sorts the line of `octavo serve` by service: every setting of every service is a flag here.

Knows how flags are spelled and whom they are for; what they mean and whether a value fits is each service's business.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from gateway.config import GatewayConfig
from gpu_worker.config import WorkerConfig
from kvcache_service.config import KVCacheConfig
from octavo import config
from octavo.cli.serve_config import ServeConfig
from octavo.config_fields import Field
from octavo.flags import metavar, nearest, off
from scheduler_service.config import SchedulerConfig

CONFIGS: dict[str, type] = {
    "serve": ServeConfig,
    "gateway": GatewayConfig,
    "scheduler": SchedulerConfig,
    "kvcache": KVCacheConfig,
    "worker": WorkerConfig,
}
# Flags of `vllm serve` whose meaning a setting of ours has under another name.
ALIASES = {
    "--gpu-memory-utilization": "--memory-utilization",
    "--num-gpu-blocks-override": "--num-blocks",
    "--shutdown-timeout": "--drain-timeout-s",
}
# Settings that mean the same wherever they appear, so that one flag goes to every service that has them.
SHARED = {"model", "log_level", "drain_timeout_s", "max_num_batched_tokens"}
# What `octavo serve` chooses for settings that are left out, instead of the services' own defaults.
CHOSEN = {
    "scheduler_addr": "a Unix socket",
    "kvcache_addr": "a Unix socket",
    "listen_addr": "a Unix socket",
    "redis_url": "a Redis of its own, on a Unix socket",
    "worker_id": "worker-0, worker-1 and so on",
    "reuse_port": "on, off by --no-...",
}
# vLLM's flag -> the variable of OpenTelemetry that says the same.
TRACES_FLAG = "--otlp-traces-endpoint"
TRACES_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@dataclass(slots=True, kw_only=True)
class Line:
    """What one line asks for."""

    model: str | None = None
    traces_endpoint: str | None = None
    argv: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in CONFIGS})  # by service
    variables: dict[str, dict[str, str]] = field(default_factory=lambda: {name: {} for name in CONFIGS})  # the same

    def add(self, service: str, setting: Field, text: str) -> None:
        """Note a setting of a service: as the flag that a mistake names, and as the variable it is started with."""
        if setting.value_type is bool:
            self.argv[service].append(setting.flag if text == "true" else off(setting.flag))
        else:
            self.argv[service].append(f"{setting.flag}={text}")
        self.variables[service][f"OCTAVO_{service.upper()}_{setting.name.upper()}"] = text


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One spelling, and the settings it fills."""

    spelling: str
    targets: tuple[tuple[str, Field], ...]  # (service, its setting)
    is_short: bool  # without the service's name in front

    @property
    def setting(self) -> Field:
        return self.targets[0][1]


def all_flags() -> list[Flag]:
    """`--<service>-<setting>` for every setting, and `--<setting>` where that names one thing only."""
    known = {service: config.fields(cls, service.upper()) for service, cls in CONFIGS.items()}
    short: dict[str, list[tuple[str, Field]]] = {}
    flags = []
    for service, settings in known.items():
        for setting in settings:
            if setting.name == "log_format" and service != "serve":
                continue  # the services write JSON here; how it is shown is for serve to say
            short.setdefault(setting.name, []).append((service, setting))
            if service != "serve":
                spelling = f"--{service}-{setting.flag.removeprefix('--')}"
                flags.append(Flag(spelling=spelling, targets=((service, setting),), is_short=False))
    for name, targets in short.items():
        own = [target for target in targets if target[0] == "serve"]
        chosen = tuple(own or targets)
        if len(chosen) == 1 or name in SHARED:
            flags.append(Flag(spelling=chosen[0][1].flag, targets=chosen, is_short=True))
    return _without_twins(flags)


def parse(argv: Sequence[str]) -> Line:
    """Sort a line by service. Exits with status 2 and the nearest flag for one that nobody knows."""
    flags = all_flags()
    parser = _Parser(flags)
    parsed, rest = parser.parse_known_args(list(argv))
    if rest:
        parser.error(_unknown(rest[0], flags))
    line = Line(model=parsed.MODEL, traces_endpoint=parsed.traces_endpoint)
    for flag in flags:
        if given := getattr(parsed, _dest(flag)):
            for service, setting in flag.targets:
                line.add(service, setting, _text(setting, given))
    if line.model is not None:
        for service in ("gateway", "worker"):
            (setting,) = (setting for setting in config.fields(CONFIGS[service]) if setting.name == "model")
            line.add(service, setting, line.model)
    return line


def _without_twins(flags: Iterable[Flag]) -> list[Flag]:
    """The gateway's `port` and a service's `gateway_port` would be spelled alike; the one of the service wins."""
    by_spelling: dict[str, Flag] = {}
    for flag in flags:
        by_spelling.setdefault(flag.spelling, flag)
    return list(by_spelling.values())


def _text(setting: Field, given: list[Any]) -> str:
    """What was given for a setting: everything for a list, else the last."""
    return ",".join(item for items in given for item in items) if setting.is_many else str(given[-1])


def _unknown(argument: str, flags: Sequence[Flag]) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}; the model comes first, everything else is a flag, see --help"
    spelling = argument.partition("=")[0]
    ambiguous = [flag.spelling for flag in flags if not flag.is_short and flag.setting.flag == spelling]
    if ambiguous:
        return f"{spelling} is a setting of more than one service; say {' or '.join(ambiguous)}"
    known = [*(flag.spelling for flag in flags), *ALIASES, TRACES_FLAG]
    return f"unknown flag {spelling}{nearest(spelling, known) or '; see --help'}"


def _dest(flag: Flag) -> str:
    return flag.spelling.removeprefix("--").replace("-", "_") + "__flag"


class _Parser(argparse.ArgumentParser):
    def __init__(self, flags: Sequence[Flag]) -> None:
        super().__init__(
            prog="octavo serve",
            usage="octavo serve [MODEL] [--flags]",
            allow_abbrev=False,
            description="Start everything on this machine. Settings: flags, then OCTAVO_ variables, then defaults.",
            epilog="Every setting can also be written with its service in front, as in --worker-metrics-port.",
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
        )
        self.add_argument(
            "MODEL", nargs="?", help="a Hugging Face folder, a GGUF file or a hub id; the demo model if left out"
        )
        self.add_argument(
            TRACES_FLAG,
            dest="traces_endpoint",
            metavar="URL",
            help=f"send spans there by OTLP/gRPC [{TRACES_VARIABLE}]",
        )
        groups = {service: self.add_argument_group(service) for service in CONFIGS}
        for flag in flags:
            _add(groups[flag.targets[0][0]], flag)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message.removeprefix('argument ')}", file=sys.stderr)
        raise SystemExit(2)


def _add(group: "argparse._ArgumentGroup", flag: Flag) -> None:
    setting = flag.setting
    text = _help(flag) if flag.is_short else argparse.SUPPRESS
    spellings = [flag.spelling, *(alias for alias, ours in ALIASES.items() if ours == flag.spelling)]
    if setting.value_type is bool:
        offs = [off(spelling) for spelling in spellings]
        group.add_argument(*spellings, dest=_dest(flag), action="append_const", const="true", help=text)
        group.add_argument(*offs, dest=_dest(flag), action="append_const", const="false", help=argparse.SUPPRESS)
    elif setting.is_many:
        group.add_argument(*spellings, dest=_dest(flag), action="append", nargs="+", metavar="A", help=text)
    else:
        group.add_argument(*spellings, dest=_dest(flag), action="append", metavar=metavar(setting), help=text)


def _help(flag: Flag) -> str:
    """The setting's text and default; where the services' own defaults differ, each of them."""
    defaults = {service: CHOSEN.get(setting.name) or _default(setting) for service, setting in flag.targets}
    default = next(iter(defaults.values()))
    if len(set(defaults.values())) > 1:
        default = ", ".join(f"{text} of the {service}" for service, text in defaults.items())
    both = f"; for {', '.join(defaults)}" if len(defaults) > 1 else ""
    return f"{flag.setting.help} [default: {default}; {flag.setting.env_var}{both}]".replace("%", "%%")


def _default(setting: Field) -> str:
    match setting.default:
        case bool(is_on):
            return "on, off by --no-..." if is_on else "off"
        case None | () | "":
            return "none"
        case value:
            return "required" if setting.is_required else str(setting.shown(value))

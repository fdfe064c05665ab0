"""Reads the OCTAVO_ variables of one service and refuses those that nobody knows.

Knows which prefixes other processes use and what Kubernetes injects; leaves values as text.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from octavo.config_fields import SHARED_VARIABLES, Field
from octavo.config_values import BadValue
from octavo.flags import MIN_LIKENESS

# Package -> prefix of its variables.
SERVICES = {
    "gateway": "GATEWAY",
    "scheduler_service": "SCHEDULER",
    "kvcache_service": "KVCACHE",
    "gpu_worker": "WORKER",
}
# Prefixes checked by the program that owns them, and left alone by all others.
_OWNED_PREFIXES = (*SERVICES.values(), "SERVE", "CLI", "BENCH", "TEST")
_SERVICE_PART = re.compile(f"^OCTAVO_({'|'.join((*SERVICES.values(), 'SERVE'))})_|^OCTAVO_")
# Variables of the command line's clients.
_OTHER_VARIABLES = ("OCTAVO_API_KEY", "OCTAVO_URL")

# Kubernetes gives every pod variables for each Service of its namespace, so a Service named "octavo-gateway" makes
# OCTAVO_GATEWAY_PORT=tcp://10.0.0.1:8000 and more. https://kubernetes.io/docs/concepts/services-networking/service
_KUBERNETES_NAME = re.compile(
    r"^OCTAVO_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$"
)
_KUBERNETES_URL = re.compile(r"^(tcp|udp|sctp)://")


def read(prefix: str, known: Sequence[Field], environ: Mapping[str, str]) -> dict[str, str]:
    """Setting name -> text. An empty variable counts as unset; raises BadValue for an unknown one."""
    by_variable = {field.env_var: field.name for field in known}
    by_variable |= {f"OCTAVO_{prefix}_{field.name.upper()}": field.name for field in known}
    found: dict[str, str] = {}
    for variable in sorted(name for name in environ if name.startswith("OCTAVO_")):
        value = environ[variable]
        if _is_from_kubernetes(variable, value, is_known=variable in by_variable):
            continue
        if variable in by_variable:
            if value:  # OCTAVO_<PREFIX>_MODEL sorts before or after OCTAVO_MODEL; the more specific one wins
                found[by_variable[variable]] = environ.get(f"OCTAVO_{prefix}_{by_variable[variable].upper()}") or value
        elif not _is_left_to_others(variable, prefix):
            raise BadValue(f"unknown variable {variable}{_nearest(variable, by_variable) or _suggestion(prefix)}")
    return found


def refuse_unknown(known: Sequence[Field], environ: Mapping[str, str]) -> None:
    """Raise BadValue for a variable that names no service, comparing it with `known`, the settings of all of them."""
    by_variable = {field.env_var for field in known}
    for variable in sorted(name for name in environ if name.startswith("OCTAVO_")):
        is_known = variable in by_variable or _is_left_to_others(variable, "")
        if not is_known and not _is_from_kubernetes(variable, environ[variable], is_known=False):
            raise BadValue(f"unknown variable {variable}{_nearest(variable, by_variable) or _suggestion('<SERVICE>')}")


def prefix_of(cls: type) -> str:
    """The prefix of the service whose package defines `cls`."""
    package = cls.__module__.split(".")[0]
    return SERVICES.get(package, package.upper())


def _is_from_kubernetes(variable: str, value: str, *, is_known: bool) -> bool:
    if _KUBERNETES_URL.match(value) and variable.endswith("_PORT"):
        return True
    return not is_known and _KUBERNETES_NAME.match(variable) is not None


def _is_left_to_others(variable: str, prefix: str) -> bool:
    if variable in SHARED_VARIABLES.values() or variable in _OTHER_VARIABLES:
        return True
    return any(variable.startswith(f"OCTAVO_{other}_") for other in _OWNED_PREFIXES if other != prefix)


def _nearest(variable: str, known: Iterable[str]) -> str:
    """'; did you mean X?'. Compared without what all have in common, and with settings whose service was left out."""
    words: dict[str, str] = {}
    for name in known:
        words.setdefault(_SERVICE_PART.sub("", name), name)
    words |= {name.removeprefix("OCTAVO_"): name for name in known}
    word = variable.removeprefix("OCTAVO_")
    found = difflib.get_close_matches(word, words, n=1, cutoff=MIN_LIKENESS)
    return f"; did you mean {words[found[0]]}?" if found else ""


def _suggestion(prefix: str) -> str:
    return f"; this service reads OCTAVO_{prefix}_<FIELD>, see --help"

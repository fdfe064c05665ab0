"""The private folder of one `octavo serve`: its sockets, and a file that tells `octavo status` where they are.

Knows the file system only. A folder whose owner is dead is removed by the next start.
"""

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

STATE_NAME = "serve.json"
CONTROL_NAME = "control.sock"
MAX_SOCKET_PATH = 107  # bytes, the kernel's limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeState:
    """What other commands need to know of a running `octavo serve`."""

    pid: int
    http_url: str
    grpc_addr: str
    scheduler_addr: str
    kvcache_addr: str
    control_socket: str  # where it takes orders
    pids: Mapping[str, int] = field(default_factory=dict)
    num_restarts: Mapping[str, int] = field(default_factory=dict)  # after ends that nobody asked for


@contextmanager
def folder(environ: Mapping[str, str]) -> Iterator[Path]:
    """A new folder that only this user can enter; removed with all it holds when the block ends."""
    base = _made(_base(environ))
    _sweep(base)
    path = Path(tempfile.mkdtemp(prefix=f"serve-{os.getpid()}-", dir=base))  # mode 0700
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def write_state(path: Path, state: ServeState) -> None:
    """Tell others, in one rename."""
    staged = path / f".{STATE_NAME}"
    staged.write_text(json.dumps(asdict(state), indent=2), encoding="utf-8")
    staged.rename(path / STATE_NAME)


def running(environ: Mapping[str, str]) -> list[ServeState]:
    """Every `octavo serve` of this user that is alive, newest first."""
    own = [file for file in _base(environ).glob(f"serve-*/{STATE_NAME}") if file.stat().st_uid == os.getuid()]
    newest_first = sorted(own, key=lambda file: file.stat().st_mtime, reverse=True)
    states = [ServeState(**json.loads(file.read_text(encoding="utf-8"))) for file in newest_first]
    return [state for state in states if _is_alive(state.pid)]


def _base(environ: Mapping[str, str]) -> Path:
    """$XDG_RUNTIME_DIR/octavo; a folder of this user's own in /tmp if there is none, or its path is too long."""
    named = environ.get("XDG_RUNTIME_DIR", "")
    base = Path(named) / "octavo"
    if not named or len(os.fsencode(base)) + len("/serve-1234567-abcdefgh/scheduler.sock") > MAX_SOCKET_PATH:
        base = Path("/tmp") / f"octavo-{os.getuid()}"
    return base


def _made(base: Path) -> Path:
    """The folder exists and nobody else can enter it, or the process ends."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SystemExit(f"{base} must be a folder that only you can enter; remove it, or set XDG_RUNTIME_DIR")
    return base


def _sweep(base: Path) -> None:
    """Remove what a killed `octavo serve` could not."""
    for path in base.glob("serve-*-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

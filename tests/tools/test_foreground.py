"""A program under make that handles Ctrl-C itself: make must end as it does."""

import os
import pty
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DRAINS = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(%d))
print("up", flush=True)
signal.pause()
"""


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (3, 2)])
def test_ctrl_c_reaches_the_program_and_make_keeps_its_status(status: int, expected: int, tmp_path: Path):
    (tmp_path / "drains.py").write_text(DRAINS % status)
    tool = ROOT / "tools" / "foreground.py"
    (tmp_path / "Makefile").write_text(f"all:\n\t@exec {sys.executable} {tool} {sys.executable} drains.py\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("make", ["make", "-C", str(tmp_path)])
    seen = b""
    while b"up" not in seen:
        seen += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    _, ended = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(ended) == expected

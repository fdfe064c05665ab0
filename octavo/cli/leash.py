"""Replaces itself by another program that the kernel kills as soon as the parent is gone, however it went.

Run by path with the standard library only: `python leash.py PARENT_PID PROGRAM [ARGUMENT...]`. The request to be killed
survives exec. (A hook between fork and exec would do the same, but is unsafe in a process that has threads.)
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def main() -> None:
    parent_pid, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:  # it died before the request was made
        raise SystemExit(1)
    try:
        os.execvp(program[0], program)
    except OSError as refused:
        raise SystemExit(f"cannot start {program[0]}: {refused.strerror}") from None


if __name__ == "__main__":
    main()

"""Replaces itself by a program that has the terminal to itself: `python tools/foreground.py PROGRAM [ARGUMENT...]`.

make ends with a failure when Ctrl-C reaches it, even if the program it runs drains and succeeds. In a process group of
its own, and in the terminal's foreground, the program alone gets the Ctrl-C, and make sees its exit status.
"""

import os
import signal
import sys

TERMINAL = 0  # standard input


def main() -> None:
    program = sys.argv[1:]
    if os.isatty(TERMINAL) and os.tcgetpgrp(TERMINAL) == os.getpgrp():
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # or the next call but one would stop us
        os.setpgid(0, 0)
        os.tcsetpgrp(TERMINAL, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # Ctrl-Z would stop the program without its shell noticing
    os.execvp(program[0], program)


if __name__ == "__main__":
    main()

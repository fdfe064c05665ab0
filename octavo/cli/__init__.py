"""The command line: one program with a sub-command per thing a person wants to do.

`commands` chooses the sub-command, each module beside it is one, and `serve` is the only one that starts processes.
Everything heavy is imported by the command that needs it, so that `octavo --version` answers at once.
"""

from octavo.cli.commands import main

__all__ = ["main"]

"""The command line: one program with a sub-command per thing a person wants to do.

`commands` chooses the sub-command. `pull`, `chat`, `generate`, `status`, `doctor` and the package `bench` are one each;
`serve` is the only one that starts processes:

- `serve_flags` sorts the line by service (`serve_config` has what is no service's), `serve_plan` decides what to start,
  `supervisor` keeps it running: each service is a `kept_service`, started again as `restarts` says, its process a
  `child` on a `leash`. `serve_ready` waits for it, `log_view` and `line_writer` show its output, `runtime` is its
  private folder.
- `restart` gives its order over the `control` socket of a running serve, where `rolling_restart` carries it out.
- `ports` and `redis_server` say what this machine has; `doctor_checks` asks them, too.
- `inference_client`, `openai_client`, `scheduler_client` and `readyz` talk to a running server, `server_address` says
  where it is, `arguments` parses the lines of those who do.

Everything heavy is imported by the command that needs it, so that `octavo --version` answers at once.
"""

from octavo.cli.commands import main

__all__ = ["main"]

"""`octavo serve`: everything on this machine, from one line to one "ready" line, and down again in order."""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import octavo
from octavo import model_files
from octavo.cli import control, line_writer, ports, runtime, serve_flags, serve_plan, serve_ready
from octavo.cli.kept_service import Reports, Service
from octavo.cli.line_writer import PutLine
from octavo.cli.log_view import LogView
from octavo.cli.redis_server import RedisNotFound
from octavo.cli.rolling_restart import RollingRestart
from octavo.cli.serve_plan import Plan, Settings
from octavo.cli.serve_ready import Phases
from octavo.cli.supervisor import Supervisor

STOP_GRACE_S = 5.0  # beyond the gateway's own limit, for the services behind it to stop


@dataclass(frozen=True, slots=True)
class _Output:
    """Where everything that is said goes: nobody who reads it, or does not, holds up the services."""

    view: LogView  # the log, to standard error
    tell: PutLine  # what the person who started it waits for, to standard output


def run(argv: Sequence[str]) -> int:
    """Check everything that can be checked first; then start, say when ready, and wait for a signal."""
    settings = serve_plan.load(serve_flags.parse(argv), os.environ)
    phases = Phases()
    with runtime.folder(os.environ) as folder, ExitStack() as exits:
        try:
            plan = serve_plan.make(settings, folder, os.environ)
        except RedisNotFound as missing:
            return _refuse(str(missing))
        problems = [problem for endpoint in plan.endpoints if (problem := ports.problem(endpoint))]
        if not problems:  # gateways share their ports, so those of a second server would not find them taken
            exits.enter_context(ports.held(plan.shared))
        try:
            files = model_files.resolve(settings.gateway.model, allow_fetch=not problems)
        except model_files.NotHere:
            return _refuse(*problems)  # it is fetched by a start that can succeed
        except model_files.ModelFilesError as missing:
            return _refuse(*problems, str(missing))
        if problems:
            return _refuse(*problems)
        phases.done("model")
        with line_writer.writing(sys.stdout) as tell, line_writer.writing(sys.stderr) as log:
            tell(banner(settings, files))
            output = _Output(LogView(settings.serve.log_format, log), tell)
            return asyncio.run(_supervise(settings, plan, folder, output, phases))


async def _supervise(settings: Settings, plan: Plan, folder: Path, output: _Output, phases: Phases) -> int:
    view = output.view

    def show(name: str, text: str) -> None:
        if name != serve_plan.REDIS:  # its advice is for those who run it for keeps; its last lines are told if it ends
            view.line(name, text)

    def note() -> None:
        try:
            runtime.write_state(folder, _state(plan, folder, supervisor))
        except OSError as refused:  # other commands do not learn of the change; what runs goes on
            view.say("serve", f"cannot write {folder / runtime.STATE_NAME}: {refused.strerror}")

    async def beside() -> None:
        restart = RollingRestart(supervisor, lambda: serve_ready.wait(plan, Phases(), view.say))
        async with control.listening(folder / runtime.CONTROL_NAME, restart):
            note()
            await serve_ready.wait(plan, phases, view.say)
            output.tell(ready_line(plan, phases))
            await asyncio.Event().wait()

    limit_s = settings.gateway.process.drain_timeout_s + STOP_GRACE_S
    reports = Reports(line=show, say=view.say, changed=note)
    supervisor = Supervisor(_services(plan), drain_limit_s=limit_s, reports=reports)
    return await supervisor.run(beside)


def _services(plan: Plan) -> list[Service]:
    return [
        Service(
            program=program,
            ready=partial(serve_ready.process, plan, program.name),
            takes_over=program.name == serve_plan.GATEWAY and bool(plan.shared),
        )
        for program in plan.programs
    ]


def banner(settings: Settings, files: model_files.ModelFiles) -> str:
    """Version, model, and every setting that is not a default, with where it came from."""
    workers = f"{settings.serve.num_workers} worker{'s' if settings.serve.num_workers > 1 else ''}"
    model = f"{files.name} ({files.weights_format}, {files.weights})"
    lines = [f"octavo {octavo.__version__}  {model}  {workers} on {settings.worker.compute.device}"]
    owners: dict[tuple[str, str, str], list[str]] = {}
    for service, given in settings.given.items():
        for name, (value, origin) in given.items():
            if service == "serve" or name not in serve_plan.LOGS:
                owners.setdefault((name, str(value), origin), []).append(service)
    lines += [
        f"  {name} = {value}  ({', '.join(services)}; {origin})" for (name, value, origin), services in owners.items()
    ]
    return "\n".join(lines)


def ready_line(plan: Plan, phases: Phases) -> str:
    """The one line that says where and how soon."""
    took = ", ".join(
        f"{name} {seconds:.1f}" for name, seconds in sorted(phases.seconds.items(), key=lambda item: item[1])
    )
    return f"ready after {phases.elapsed_s:.1f} s ({took}): HTTP {plan.http_url}/v1  gRPC {plan.grpc_addr}"


def _state(plan: Plan, folder: Path, supervisor: Supervisor) -> runtime.ServeState:
    return runtime.ServeState(
        pid=os.getpid(),
        http_url=plan.http_url,
        grpc_addr=plan.grpc_addr,
        scheduler_addr=plan.ready_addrs["scheduler"],
        kvcache_addr=plan.ready_addrs["kvcache"],
        control_socket=str(folder / runtime.CONTROL_NAME),
        pids=supervisor.pids,
        num_restarts=supervisor.num_restarts,
    )


def _refuse(*problems: str) -> int:
    for problem in problems:
        print(f"octavo serve: {problem}", file=sys.stderr)
    return 1

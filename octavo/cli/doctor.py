"""`octavo doctor`: what this machine has of what Octavo needs, and what to do about the rest."""

import os
from collections.abc import Sequence

from rich.console import Console

from octavo.cli import doctor_checks
from octavo.cli.arguments import Parser
from octavo.cli.doctor_checks import Finding, Verdict

_COLOURS = {Verdict.OK: "green", Verdict.ADVICE: "yellow", Verdict.MISSING: "red"}


def run(argv: Sequence[str]) -> int:
    """0 if Octavo can run here, 1 if something essential is missing."""
    arguments = _parser().read(argv)
    findings = doctor_checks.all_findings(os.environ, model=arguments.MODEL)
    console = Console()
    for finding in findings:
        console.print(_line(finding), highlight=False, soft_wrap=True)
    missing = [finding.subject for finding in findings if finding.verdict is Verdict.MISSING]
    console.print(f"missing: {', '.join(missing)}" if missing else "everything essential is here", highlight=False)
    return 1 if missing else 0


def _line(finding: Finding) -> str:
    colour = _COLOURS[finding.verdict]
    advice = f"\n{'':22}-> {finding.to_do}" if finding.to_do else ""
    return f"[{colour}]{finding.verdict.value:8}[/] {finding.subject:12} {finding.found}{advice}"


def _parser() -> Parser:
    parser = Parser("doctor", "Check what this machine needs to run Octavo. Starts and changes nothing.")
    parser.add_argument("MODEL", nargs="?", help="also check that this model is here; the demo model if left out")
    return parser

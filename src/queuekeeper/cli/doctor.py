"""``queuekeeper doctor``: whether servers and machine are fit for the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuekeeper.cli import context
from queuekeeper.cli.command import OnServers
from queuekeeper.cli.output import Shown, cell, screen, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from queuekeeper.doctor import Examination, Finding

_STYLES = {"ok": "green", "unknown": "dim", "warning": "yellow", "failed": "bold red"}


def doctor(call: OnServers) -> Shown:
    """Examine servers and machine, and say what to do.

    It changes nothing. The exit code is 1 when something has failed; a warning is a risk that you may want to take.

    Example: `queuekeeper doctor --redis-url rediss://user:password@redis.example:6380`
    """
    from queuekeeper.doctor import Examination, examine_machine, examine_postgres, examine_redis
    from queuekeeper.embedded.examination import examine_airflow, examine_java

    settings = context.settings()
    findings: list[Finding] = []
    with screen(stderr=True).status("Examining"):
        findings += _server("PostgreSQL", context.postgres_address, call.postgres_url, examine_postgres)
        findings += _server("Redis", context.redis_address, call.redis_url, examine_redis)
        findings += examine_machine(settings)
        findings += examine_java(settings)
        findings += examine_airflow(settings)
    examination = Examination(findings=tuple(findings))
    return Shown(examination, lambda: _pretty(examination), failed=None if examination.fit else "")


def _server(
    name: str,
    address: Callable[[str | None], str],
    url: str | None,
    examine: Callable[[str], list[Finding]],
) -> list[Finding]:
    from queuekeeper.doctor.findings import Notes
    from queuekeeper.errors import RefusedError

    try:
        return examine(address(url))
    except RefusedError as error:
        notes = Notes(name)
        notes.unreachable(error)
        return notes.findings


def _pretty(examination: Examination) -> Iterator[Any]:
    from queuekeeper.doctor import State

    for subject in dict.fromkeys(finding.subject for finding in examination.findings):
        rows = [
            (cell(finding.state, style=_STYLES[finding.state]), finding.check, finding.found, finding.remedy or None)
            for finding in examination.findings
            if finding.subject == subject
        ]
        yield table(subject, ("state", "check", "found", "what to do"), rows)
    counts = ", ".join(f"{examination.count(state):,} {state}" for state in State)
    yield f"\n{counts}."

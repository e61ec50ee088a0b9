"""``queuekeeper doctor``: how servers and machine are, for a person."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from queuekeeper.cli import context
from queuekeeper.cli.command import OnServers
from queuekeeper.cli.output import Shown, cell, copied, screen, table
from queuekeeper.errors import MissingExtra, RefusedError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from queuekeeper.config import Settings
    from queuekeeper.doctor import Examination, Finding

_STYLES = {"ok": "green", "unknown": "dim", "warning": "yellow", "failed": "bold red"}


def doctor(call: OnServers) -> Shown:
    """Examine servers and machine, and say what to do.

    It changes nothing. The exit code is 1 when something has failed; a warning is a risk that you may want to take.

    Example: `queuekeeper doctor --redis-url rediss://user:password@redis.example:6380`
    """
    from queuekeeper.doctor import Examination, examine_java, examine_machine, examine_postgres, examine_redis

    settings = context.settings()
    examinations = (
        _server("PostgreSQL", context.postgres_address, call.postgres_url, examine_postgres),
        _server("Redis", context.redis_address, call.redis_url, examine_redis),
        partial(examine_machine, settings),
        partial(examine_java, settings),
        partial(_private_airflow, settings),
    )
    # None waits for another one: a server that does not answer is waited for while the others are examined.
    with screen(stderr=True).status("Examining"):
        asked = [_begun(examine) for examine in examinations]
        examination = Examination(findings=tuple(finding for each in asked for finding in each.result()))
    return Shown(examination, lambda: _pretty(examination), failed=None if examination.fit else "")


def _begun(examine: Callable[[], list[Finding]]) -> Future[list[Finding]]:
    """Begin to examine in a thread that ends with this process: Ctrl-C does not wait for a server."""
    from concurrent.futures import Future
    from threading import Thread

    found: Future[list[Finding]] = Future()

    def tell() -> None:
        try:
            found.set_result(examine())
        except BaseException as error:
            found.set_exception(error)

    Thread(target=tell, daemon=True).start()
    return found


def _private_airflow(settings: Settings) -> list[Finding]:
    try:
        from queuekeeper.embedded.examination import examine_airflow
    except MissingExtra as missing:
        from queuekeeper.doctor.findings import Notes, State

        notes = Notes("Airflow")
        notes.add("private Airflow", State.UNKNOWN, "private servers are not installed", str(missing))
        return notes.findings
    return examine_airflow(settings)


def _server(
    name: str,
    address: Callable[[str | None], str],
    url: str | None,
    examine: Callable[[str], list[Finding]],
) -> Callable[[], list[Finding]]:
    """Return what examines a server, or says that it cannot be."""
    from queuekeeper.doctor.findings import Notes

    def refused(error: RefusedError) -> list[Finding]:
        notes = Notes(name)
        notes.unreachable(error)
        return notes.findings

    def examined(place: str) -> list[Finding]:
        try:
            return examine(place)
        except RefusedError as error:
            return refused(error)

    try:
        # Who calls the command knows where the server is.
        return partial(examined, address(url))
    except RefusedError as error:
        return partial(refused, error)


def _pretty(examination: Examination) -> Iterator[Any]:
    from queuekeeper.doctor import State

    for subject in dict.fromkeys(finding.subject for finding in examination.findings):
        rows = [
            (cell(finding.state, style=_STYLES[finding.state]), finding.check, finding.found, finding.remedy or None)
            for finding in examination.findings
            if finding.subject == subject
        ]
        yield table(subject, ("state", "check", "found", "what to do"), rows)
        commands = dict.fromkeys(each.command for each in examination.findings if each.subject == subject)
        yield from (copied(f"  {command}") for command in commands if command)
    counts = ", ".join(f"{examination.count(state):,} {state}" for state in State)
    yield f"\n{counts}."

"""``queuekeeper up``, ``status`` and ``down``: the private servers; ``doctor`` and ``metrics``: how any servers are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper.cli import context
from queuekeeper.cli.command import Call, OnServers, Plain
from queuekeeper.cli.output import Shown, cell, screen, table
from queuekeeper.errors import MissingExtra, RefusedError, UsageError

if TYPE_CHECKING:
    from queuekeeper.config import Settings
    from queuekeeper.doctor import Examination, Finding
    from queuekeeper.embedded import Status

_STYLES = {
    "running": "green", "stopped": "dim", "external": "cyan",
    "ok": "green", "unknown": "dim", "warning": "yellow", "failed": "bold red",
}  # fmt: skip


def up(call: Plain, *, airflow: bool = False) -> Shown:
    """Start private servers on free loopback ports. What runs already is left as it is.

    Example: `queuekeeper up --airflow`

    :param airflow: Also start Airflow.
    """
    from queuekeeper import embedded

    settings = context.settings()
    console = screen(stderr=True)
    with console.status("Starting servers") as spinner:

        def report(words: str) -> None:
            if console.is_terminal:
                spinner.update(words)
            else:
                console.print(words)

        status = embedded.up(settings, airflow=airflow, report=report)

    def pretty() -> Iterator[Any]:
        yield from _servers(status)
        if airflow:
            server = embedded.airflow_server(settings)
            passwords, user = server.directory / "passwords.json", server.user().name
            yield ""
            yield cell(f"Sign in to Airflow at {server.url} as {user}; the password is in {passwords}")

    return Shown(status, pretty)


def status(call: Plain, *, passwords: bool = False) -> Shown:
    """Tell how the servers stand, without starting or asking any.

    Example: `queuekeeper status --json`

    :param passwords: Print the addresses of PostgreSQL and Redis with their passwords.
    """
    from queuekeeper import embedded

    settings = context.settings()
    if passwords:
        found_urls = embedded.addresses_with_passwords(settings)
        return Shown(found_urls, lambda: _addresses(found_urls))
    found = embedded.status(settings)
    return Shown(found, lambda: _servers(found))


def down(call: Plain) -> Shown:
    """Stop the private servers; their data stay.

    Example: `queuekeeper down`
    """
    from queuekeeper import embedded

    stopped = embedded.down(context.settings())

    names = ", ".join(stopped.names)
    words = f"Stopped {names}. Data stay in {stopped.home}." if names else "Nothing was running."
    return Shown(stopped, lambda: [cell(words)])


def _servers(status: Status) -> Iterator[Any]:
    rows = [
        (
            server.name,
            cell(server.state, style=_STYLES.get(server.state, "")),
            server.url,
            server.version,
            # Below the folder that the title names: the whole path would squeeze the address.
            None if server.log_path is None else server.log_path.relative_to(status.home.absolute()),
        )
        for server in status.servers
    ]
    yield table(f"Servers in {status.home}", ("server", "state", "address", "version", "log"), rows)
    if any(server.state == "stopped" for server in status.servers[:2]):
        yield "\nStart them by: queuekeeper up"
    if any(server.is_running for server in status.servers[:2]):
        yield "\nAddresses with their passwords: queuekeeper status --passwords"


def _addresses(urls: dict[str, str]) -> Iterator[Any]:
    yield from map(cell, urls.values())
    if not urls:
        yield "No private server is running. Start them by: queuekeeper up"


def doctor(call: OnServers) -> Shown:
    """Examine servers and machine, and say what to do.

    It changes nothing. The exit code is 1 when something has failed; a warning is a risk that you may want to take.

    Example: `queuekeeper doctor --redis-url rediss://user:password@redis.example:6380`
    """
    from queuekeeper.doctor import Examination, examine_java, examine_machine, examine_postgres, examine_redis

    settings = context.settings()
    findings: list[Finding] = []
    with screen(stderr=True).status("Examining"):
        findings += _server("PostgreSQL", context.postgres_address, call.postgres_url, examine_postgres)
        findings += _server("Redis", context.redis_address, call.redis_url, examine_redis)
        findings += examine_machine(settings)
        findings += examine_java(settings)
        findings += _private_airflow(settings)
    examination = Examination(findings=tuple(findings))
    return Shown(examination, lambda: _pretty(examination), failed=None if examination.fit else "")


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
) -> list[Finding]:
    from queuekeeper.doctor.findings import Notes

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


class OnStores(Call):
    """A call of a command that asks both stores, and writes what programs read."""

    takes = ("postgres_url", "redis_url")


def metrics(call: OnStores, *, output: Annotated[Path | None, typer.Option("--output", "-o")] = None) -> None:
    """Print figures for Prometheus.

    Nothing is scanned: figures of queues are those of the last profile or judgement. For a server that is down
    `queuekeeper_up` is 0, and the exit code is 1.

    Example: `queuekeeper metrics --output /var/lib/node_exporter/queuekeeper.prom`

    :param output: File to write, for node_exporter's textfile collector. Without it, stdout.
    """
    from queuekeeper.metrics import gather
    from queuekeeper.places import write_whole

    source, target = context.postgres_address(call.postgres_url), context.redis_address(call.redis_url)
    gathered = gather(postgres_url=source, redis_url=target)
    if output is None:
        sys.stdout.write(gathered.text)
    else:
        if not output.parent.is_dir():
            raise UsageError(f"{output.parent} is no folder: name one that is there")
        try:
            write_whole(output, gathered.text.encode())
        except OSError as error:
            raise RefusedError(f"cannot write {output}: {error.strerror}") from error
    for failure in gathered.failures:
        screen(stderr=True).print(context.redact(failure), soft_wrap=True)
    if gathered.failures:
        raise typer.Exit(1)

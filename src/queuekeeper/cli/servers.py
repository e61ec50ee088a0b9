"""``queuekeeper up``, ``status`` and ``down``: the private servers."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from queuekeeper.cli import context
from queuekeeper.cli.output import cell, screen, show, table

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.embedded import Status

_STYLES = {"running": "green", "stopped": "dim", "external": "cyan"}


def up(
    *,
    airflow: Annotated[bool, typer.Option("--airflow", help="Also start Airflow.")] = False,
    as_json: context.AsJson = False,
) -> None:
    """Start private servers on free loopback ports. What runs already is left as it is.

    Example: `queuekeeper up --airflow`
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
    show(status, as_json=as_json, pretty=lambda out: _servers(out, status))
    if airflow and not as_json:
        server = embedded.airflow_server(settings)
        passwords = server.directory / "passwords.json"
        screen().print(
            f"\nSign in to Airflow at {server.url} as {server.user().name}; the password is in {passwords}",
            soft_wrap=True,
        )


def status(
    *,
    passwords: Annotated[
        bool, typer.Option("--passwords", help="Print the addresses of PostgreSQL and Redis with their passwords.")
    ] = False,
    as_json: context.AsJson = False,
) -> None:
    """Tell how the servers stand, without starting or asking any.

    Example: `queuekeeper status --json`
    """
    from queuekeeper import embedded

    settings = context.settings()
    if passwords:
        found_urls = embedded.addresses_with_passwords(settings)
        show(found_urls, as_json=as_json, pretty=lambda out: _addresses(out, found_urls))
        return
    found = embedded.status(settings)
    show(found, as_json=as_json, pretty=lambda out: _servers(out, found))


def down(*, as_json: context.AsJson = False) -> None:
    """Stop the private servers; their data stay.

    Example: `queuekeeper down`
    """
    from queuekeeper import embedded

    stopped = embedded.down(context.settings())

    def pretty(out: Console) -> None:
        names = ", ".join(stopped.names)
        out.print(f"Stopped {names}. Data stay in {stopped.home}." if names else "Nothing was running.", soft_wrap=True)

    show(stopped, as_json=as_json, pretty=pretty)


def _servers(out: Console, status: Status) -> None:
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
    out.print(table(f"Servers in {status.home}", ("server", "state", "address", "version", "log"), rows))
    if any(server.state == "stopped" for server in status.servers[:2]):
        out.print("\nStart them by: queuekeeper up")
    if any(server.state == "running" for server in status.servers[:2]):
        out.print("\nAddresses with their passwords: queuekeeper status --passwords")


def _addresses(out: Console, urls: dict[str, str]) -> None:
    for url in urls.values():
        out.print(url, soft_wrap=True, markup=False, highlight=False)
    if not urls:
        out.print("No private server is running. Start them by: queuekeeper up")

"""``queuekeeper up``, ``status`` and ``down``: the private servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper.cli import context
from queuekeeper.cli.command import Plain
from queuekeeper.cli.output import Columns, Shown, cell, copied, listing, screen

if TYPE_CHECKING:
    from queuekeeper.config import Settings
    from queuekeeper.embedded import Status

ShowUrls = Annotated[
    bool,
    typer.Option(
        "--show-urls", "--passwords", help="Print the addresses of PostgreSQL and Redis with their passwords."
    ),
]

_STYLES = {"running": "green", "stopped": "dim", "external": "cyan"}


def up(call: Plain, *, airflow: bool = False, show_urls: ShowUrls = False) -> Shown:
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
    if show_urls:
        return _addresses(settings)

    def pretty() -> Iterator[Any]:
        yield from _servers(status)
        if airflow:
            server = embedded.private_airflow(settings)
            passwords, user = server.directory / "passwords.json", server.user().name
            yield ""
            yield cell(f"Sign in to Airflow at {server.overview_url} as {user}; the password is in {passwords}")

    return Shown(status, pretty)


def status(call: Plain, *, show_urls: ShowUrls = False) -> Shown:
    """Show which servers run, without starting or asking any.

    Example: `queuekeeper status --json`
    """
    from queuekeeper import embedded

    settings = context.settings()
    if show_urls:
        return _addresses(settings)
    found = embedded.status(settings)
    return Shown(found, lambda: _servers(found))


def down(call: Plain) -> Shown:
    """Stop the private servers; their data stay.

    Example: `queuekeeper down`
    """
    from queuekeeper import embedded

    stopped = embedded.down(context.settings())

    names = ", ".join(stopped.names)
    words = f"Stopped {names}. Data stay in {stopped.home}." if names else f"Nothing was running in {stopped.home}."
    return Shown(stopped, lambda: [cell(words)])


def _servers(status: Status) -> Iterator[Any]:
    columns: Columns = {
        "server": "name", "state": lambda each: cell(each.state, style=_STYLES.get(each.state, "")), "address": "url",
        "version": "version", "log": lambda each: each.log_path and each.log_path.relative_to(status.home.absolute()),
    }  # fmt: skip
    yield listing(f"Servers in {status.home}", status.servers, columns)
    if any(server.state == "stopped" for server in status.servers[:2]):
        yield "\nStart them by: queuekeeper up"
    if any(server.is_running for server in status.servers[:2]):
        yield "\nAddresses with their passwords: queuekeeper up --show-urls"


def _addresses(settings: Settings) -> Shown:
    from queuekeeper.embedded import addresses_with_passwords

    urls = addresses_with_passwords(settings)
    nothing = "No private server is running. Start them by: queuekeeper up"
    return Shown(urls, lambda: map(copied, urls.values()) if urls else [nothing])


def demo() -> None:
    """Show a day of the product in Airflow.

    It uses private servers of its own, takes about four minutes, and leaves its pages up until Ctrl-C. What it has made
    stays for `queuekeeper up --airflow`.

    DEMO_APPROVE=ui waits for your approval in Airflow. DEMO_EXIT=1 ends when all is shown. DEMO_MESSAGES=200000 moves
    more messages than the 20,000 of the sample.

    Example: `DEMO_EXIT=1 queuekeeper demo`
    """
    from queuekeeper.demo.installed import demand_installed

    demand_installed()
    from queuekeeper.demo.program import main

    raise typer.Exit(main())

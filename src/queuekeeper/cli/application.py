"""Puts the commands together and starts them."""

from __future__ import annotations

from typing import Annotated

import typer

from queuekeeper import __version__
from queuekeeper.cli import (
    access,
    audit,
    cleanup,
    compacted,
    compacted_mqtt,
    event_schema,
    explain,
    fanout,
    jobs,
    migrate,
    online,
    partitions,
    quality,
    repair,
    servers,
    sessions,
    work,
)
from queuekeeper.cli.command import CONFIRMS, command
from queuekeeper.cli.context import CommandGroup, begin
from queuekeeper.cli.options import JobCommand

EPILOG = """
Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 the plan is stale, 4 refused.

Servers are found in this order: --postgres-url and --redis-url, QUEUEKEEPER_POSTGRES_URL and QUEUEKEEPER_REDIS_URL,
the private servers that `queuekeeper up` started.
"""

REPAIR_ALL = """Set right what is wrong in fan-out queues.

What ran out, drifted or was left; then it looks again. Asks before anything changes. Exit code 1 when it was
stopped or a queue cannot be repaired; --go-on goes on.

Example: `queuekeeper fanout repair-all --dry-run`
"""

app = typer.Typer(
    name="queuekeeper",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help wraps an address that a frame would cut off, and comes in half the time.
    rich_markup_mode=None,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        print(f"queuekeeper {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Move, maintain and prove message queues that live in Redis and PostgreSQL."""
    begin(debug=debug)


command(app)(servers.up)
command(app)(servers.status)
command(app)(servers.down)
command(app)(servers.doctor)
command(app)(servers.metrics)
command(app)(explain.explain)
command(app, also=CONFIRMS)(sessions.sample)
app.add_typer(migrate.app, name="migrate")
app.add_typer(online.app, name="online")
app.add_typer(sessions.app, name="sessions")
app.add_typer(quality.app, name="quality")
app.add_typer(cleanup.app, name="cleanup")
app.add_typer(repair.app, name="repair")
app.add_typer(partitions.app, name="partitions")
app.add_typer(event_schema.app, name="events")
command(event_schema.app, "work")(work.events_work)
app.add_typer(compacted_mqtt.app, name="compacted")
command(compacted_mqtt.app, "work")(work.compacted_work)
app.add_typer(fanout.app, name="fanout")
command(fanout.app, "work")(work.fanout_work)
fanout.app.command("repair-all", cls=JobCommand)(jobs.command_of("fanout_repair", REPAIR_ALL, argument="queues"))
_CONTROLS = ("status", "pause", "resume", "throttle")
jobs.add_aliases(compacted.app, "compacted_queue_gc", {f"gc-{name}": name for name in _CONTROLS})
jobs.add_aliases(fanout.app, "fanout_repair", {f"repair-{name}": name for name in _CONTROLS})
app.add_typer(jobs.app, name="run")
app.add_typer(audit.database, name="database")
app.add_typer(access.app, name="acl")
app.add_typer(audit.app, name="audit")


def main() -> None:
    """Run the command line."""
    app()

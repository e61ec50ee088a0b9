"""Puts the commands together and starts them."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from queuekeeper import __version__
from queuekeeper.cli import doctor, explain, metrics, sample, servers
from queuekeeper.cli.command import CONFIRMS, command
from queuekeeper.cli.context import NO_ROOM, CommandGroup, begin, tell, unforeseen
from queuekeeper.cli.here import show_next_steps

_STREAMS = {"stdin": "r", "stdout": "w", "stderr": "w"}
"""Standard streams in the order of their numbers, with the modes in which they are opened."""

EPILOG = """
Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 the plan is stale, 4 refused.

Servers are found in this order: --postgres-url and --redis-url, QUEUEKEEPER_POSTGRES_URL and QUEUEKEEPER_REDIS_URL,
the private servers that `queuekeeper up` started.
"""

app = typer.Typer(
    name="queuekeeper",
    cls=CommandGroup,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def later(place: str, words: str) -> typer.Typer:
    """Return a group of commands whose file is imported when one of them is called, or asked for.

    :param place: of the group, such as ``queuekeeper.cli.audit:app``.
    :param words: say what it is for.
    """
    module, _, name = place.partition(":")

    class Group(TyperGroup):
        loaded: Any = None

        @property
        def commands(self) -> Any:
            """The commands by name."""
            if self.loaded is None:
                self.loaded = get_group(getattr(import_module(module), name))
            return self.loaded.commands

        @commands.setter
        def commands(self, none_yet: Any) -> None:
            """Leave the commands where they are."""

    return typer.Typer(cls=Group, no_args_is_help=True, help=words)


def _version(value: bool) -> None:
    if value:
        print(f"queuekeeper {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Move, maintain and prove message queues that live in Redis and PostgreSQL.

    Without a command: what to do next in this place.
    """
    begin(debug=debug)
    if context.invoked_subcommand is None:
        show_next_steps()


command(app)(servers.up)
command(app)(servers.status)
command(app)(servers.down)
app.command()(servers.demo)
command(app)(doctor.doctor)
command(app)(metrics.metrics)
command(app)(explain.explain)
command(app, also=CONFIRMS, more=sample.ASKED)(sample.sample)
for _name, _place, _words in (
    ("migrate", "migrate:app", "Move sessions to Redis: plan, copy, verify, report."),
    ("online", "online:app", "Move sessions while devices are connected."),
    ("sessions", "session_quarantine:app", "Look at DEVICE sessions, move one by a file, end one."),
    ("quality", "quality:app", "Check queues for faults, and say what repairs them."),
    ("cleanup", "cleanup:app", "Remove from Redis what has expired, while brokers use it."),
    ("repair", "repair:app", "Mend one kind of fault in sessions that Redis holds."),
    ("partitions", "partitions:app", "Keep partitions ahead of data, and retire old ones."),
    ("events", "event_schema:app", "Publish, dispatch and follow events in PostgreSQL."),
    ("compacted", "compacted_mqtt:app", "Keep the newest value of each key, for one consumer."),
    ("fanout", "fanout:app", "Publish once for many consumers: fan-out queues in Redis."),
    ("run", "runs:app", "Start, list, steer and undo runs of all jobs."),
    ("database", "database:app", "Keep the control schema `queuekeeper` in PostgreSQL."),
    ("acl", "access:app", "Print users and roles with only the rights that jobs need."),
    ("audit", "audit:app", "Read who approved, changed or looked at what."),
):
    app.add_typer(later(f"queuekeeper.cli.{_place}", _words), name=_name)


def main() -> None:
    """Run the command line."""
    _open_closed_streams()
    # A terminal of another encoding than UTF-8 shows what it cannot write as an escape, and ends no command.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Where it is installed, as beside Airflow, redis-py would load it at each start, though nobody here measures by it.
    # Handlers of a user's own program, which `work` runs, may measure by it.
    if "work" not in sys.argv:
        sys.modules.setdefault("opentelemetry.sdk.metrics", None)  # type: ignore[arg-type]
    try:
        app()
    except SystemExit as end:
        try:
            sys.stdout.flush()
        except OSError as error:
            # Python would try once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if error.errno in NO_ROOM and not end.code:
                tell(unforeseen(error))
            sys.exit(1)
        raise


def _open_closed_streams() -> None:
    """Let what goes to a closed standard stream go nowhere: else a connection to a server would be given its number."""
    while (number := os.open(os.devnull, os.O_RDWR)) < len(_STREAMS):
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in _STREAMS.items():
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - to the end

"""``queuekeeper`` alone: how things stand in this place, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queuekeeper.cli import context
from queuekeeper.cli.output import copied, print_parts, screen
from queuekeeper.clock import system_clock
from queuekeeper.errors import MissingExtra, RefusedError, ServerUnavailable

if TYPE_CHECKING:
    from queuekeeper.postgres import Connection
    from queuekeeper.redis_client import RedisClient

_EXPORTS = {
    "postgres": "export QUEUEKEEPER_POSTGRES_URL=postgresql://user:password@host:5432/database",
    "redis": "export QUEUEKEEPER_REDIS_URL=redis://user:password@host:6379",
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """What somebody may do next.

    :param why: sentence without its full stop.
    :param commands: command lines that can be pasted.
    """

    why: str
    commands: tuple[str, ...]


def show_next_steps() -> None:
    """Print how the servers of this place stand, and what to do next."""
    steps = list(_steps())

    def lines() -> Iterator[Any]:
        for step in steps:
            yield f"{step.why[:1].upper()}{step.why[1:]}:"
            yield from (copied(f"  {command}", style="bold") for command in step.commands)
            yield ""
        yield "All commands: queuekeeper --help"

    print_parts(screen(), lines())


def _steps() -> Iterator[Step]:
    """Return what to do next, the most urgent first."""
    try:
        source, target = context.postgres_address(None), context.redis_address(None)
    except RefusedError as error:
        yield from _first_steps(error)
        return
    client = None
    with ExitStack() as opened:
        try:
            client = opened.enter_context(context.redis_connection(target))
        except RefusedError as error:
            yield _refused(error)
        try:
            yield from _next_steps(opened.enter_context(context.postgres_connection(source)), client)
        except RefusedError as error:
            yield _refused(error)


def _refused(error: RefusedError) -> Step:
    return Step(why=str(error).removesuffix("."), commands=("queuekeeper doctor",))


def _first_steps(error: RefusedError) -> Iterator[Step]:
    """Return what to do where a server is not known."""
    known = context.settings()
    try:
        from queuekeeper.embedded import status
    except MissingExtra:
        yield Step(why=str(error), commands=("queuekeeper doctor",))
        return
    missing = [server for server in status(known).servers[:2] if server.state == "stopped"]
    one = {"postgres": "PostgreSQL", "redis": "Redis"}[missing[0].name] if len(missing) == 1 else ""
    if any(server.log_path is not None for server in missing):
        stopped = f"private {one} in {known.home} is" if one else f"private servers in {known.home} are"
        yield Step(why=f"The {stopped} stopped", commands=("queuekeeper up",))
        return
    why = f"No {one} is named, and no private one runs" if one else "There are no servers here"
    yield Step(why=f"{why}. To try Queuekeeper, start private ones", commands=("queuekeeper up",))
    yield Step(
        why="To use servers of your own, name them in the environment and have them examined",
        commands=(*(_EXPORTS[server.name] for server in missing), "queuekeeper doctor"),
    )


def _next_steps(connection: Connection, client: RedisClient | None) -> Iterator[Step]:
    """Return what to do where PostgreSQL answers.

    :param client: none where Redis does not answer.
    """
    from queuekeeper.attention import find_matters
    from queuekeeper.jobs.store import Runs
    from queuekeeper.migration.ledger.ledger import MIGRATIONS
    from queuekeeper.postgres import address
    from queuekeeper.quality.judge.store import QualityStore
    from queuekeeper.redis_client import count_keys
    from queuekeeper.schema_migrations import schema_version

    if schema_version(connection) is None:
        yield Step(
            why=f"PostgreSQL at {address(connection)} has no control schema `queuekeeper`",
            commands=("queuekeeper database migrate",),
        )
        return
    for matter in find_matters(connection, now_ms=system_clock()):
        yield Step(why=f"{matter.about} {matter.words}", commands=matter.commands)
    if client is None:
        return
    has_source = _has_source(connection)
    try:
        has_keys = count_keys(client) > 0
    except ServerUnavailable:
        raise
    except RefusedError as error:
        # Without the right to count keys there may be some.
        has_keys = True
        yield _refused(error)
    if not has_source and not has_keys:
        yield Step(
            why="Neither store has any queue. Fill PostgreSQL with made-up sessions", commands=("queuekeeper sample",)
        )
        return
    if has_source and Runs(connection).latest_id(*MIGRATIONS) is None:
        yield Step(
            why="PostgreSQL has sessions that no plan has counted. A plan writes nothing to Redis",
            commands=("queuekeeper migrate plan",),
        )
    runs = QualityStore(connection).runs(limit=1, finished=True)
    checked = "have not been checked yet"
    if runs:
        checked = f"were last checked on {runs[0].started_at:%Y-%m-%d %H:%M} UTC: {runs[0].verdict}"
    yield Step(why=f"The queues {checked}", commands=("queuekeeper quality run",))


def _has_source(connection: Connection) -> bool:
    """Return whether there are messages of sessions that this user may read."""
    from queuekeeper.postgres import translated_errors
    from queuekeeper.sql_statements import statement

    with translated_errors(connection):
        tables = {name: readable for name, _, readable, *_ in connection.execute(statement("sessions/source_tables"))}
        if not tables.get("device_publish_msg"):
            return False
        row = connection.execute(statement("sessions/has_messages")).fetchone()
    return row is not None and bool(row[0])

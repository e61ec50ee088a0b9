"""``queuekeeper`` alone: how things stand in this place, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queuekeeper.cli import context
from queuekeeper.cli.output import cell, print_parts, screen
from queuekeeper.clock import system_clock
from queuekeeper.errors import MissingExtra, RefusedError, ServerUnavailable

if TYPE_CHECKING:
    from queuekeeper.postgres import Connection
    from queuekeeper.redis_client import RedisClient


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
            yield f"{step.why}:"
            yield from (cell(f"  {command}", style="bold") for command in step.commands)
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
    from queuekeeper.postgres import connect
    from queuekeeper.redis_client import connect as connect_redis

    with ExitStack() as opened:
        try:
            connection = opened.enter_context(connect(source, autocommit=True))
            client = opened.enter_context(connect_redis(target))
            yield from _next_steps(connection, client)
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
    if any(server.log_path is not None for server in status(known).servers[:2]):
        yield Step(why=f"The private servers in {known.home} are stopped", commands=("queuekeeper up",))
        return
    yield Step(why="There are no servers here. To try Queuekeeper, start private ones", commands=("queuekeeper up",))
    yield Step(
        why="To use servers of your own, name them in the environment and have them examined",
        commands=(
            "export QUEUEKEEPER_POSTGRES_URL=postgresql://user:password@host:5432/database",
            "export QUEUEKEEPER_REDIS_URL=redis://user:password@host:6379",
            "queuekeeper doctor",
        ),
    )


def _next_steps(connection: Connection, client: RedisClient) -> Iterator[Step]:
    """Return what to do where both servers answer."""
    from queuekeeper.attention import find_matters
    from queuekeeper.jobs.store import Runs
    from queuekeeper.migration.ledger.ledger import MIGRATIONS
    from queuekeeper.postgres import address, schema_version
    from queuekeeper.quality.judge.store import QualityStore
    from queuekeeper.redis_client import count_keys

    if schema_version(connection) is None:
        yield Step(
            why=f"PostgreSQL at {address(connection)} has no control schema `queuekeeper`",
            commands=("queuekeeper database migrate",),
        )
        return
    now_ms = system_clock()
    for matter in find_matters(connection, now_ms=now_ms):
        yield Step(why=f"{matter.about} {matter.words}", commands=(matter.command,))
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
    if runs:
        day = f"{runs[0].started_at:%Y-%m-%d %H:%M} UTC"
        yield Step(
            why=f"The queues were last checked on {day}: {runs[0].verdict}", commands=("queuekeeper quality run",)
        )
    else:
        yield Step(why="The queues have not been checked yet", commands=("queuekeeper quality run",))


def _has_source(connection: Connection) -> bool:
    """Return whether there are messages of sessions that this user may read."""
    from queuekeeper.postgres import statement, translated_errors

    with translated_errors(connection):
        tables = {name: readable for name, _, readable, *_ in connection.execute(statement("sessions/source_tables"))}
        if not tables.get("device_publish_msg"):
            return False
        row = connection.execute(statement("sessions/has_messages")).fetchone()
    return row is not None and bool(row[0])

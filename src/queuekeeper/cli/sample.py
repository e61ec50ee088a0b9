"""``queuekeeper sample``: fill a database with sessions that are made up."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from queuekeeper.cli import context
from queuekeeper.cli.command import OnPostgres
from queuekeeper.cli.output import Shown, parts, screen
from queuekeeper.clock import system_clock

if TYPE_CHECKING:
    from queuekeeper.postgres import Connection


class OnSource(OnPostgres):
    """A call that fills a source database: as a whole, or not at all."""

    @cached_property
    def connection(self) -> Connection:
        """Connection whose changes count once the command has ended."""
        return self.opened.enter_context(context.postgres_connection(self.postgres_url, autocommit=False))


def sample(
    call: OnSource,
    *,
    messages: int = 200_000,
    sessions: int = 20_000,
    seed: int = 1,
    long_queues: int = 3,
    long_queue_messages: int = 12_000,
    hostile: bool = False,
    replace: bool = False,
) -> Shown:
    """Fill a source database with realistic sessions. Tables of TBMQ 1.4 are made where they are missing.

    Example: `queuekeeper sample --messages 1000000 --sessions 50000 --hostile`

    :param messages: Number of healthy messages. --hostile adds more rows.
    :param sessions: Number of healthy sessions. A fifth of them have no messages.
    :param seed: Seed of the random numbers. The same seed makes the same rows.
    :param long_queues: Number of sessions with a very long queue.
    :param long_queue_messages: Number of messages in each very long queue.
    :param hostile: Add bad rows of every kind that old databases hold.
    :param replace: Empty the tables first. Without it, tables with rows are refused.
    """
    from queuekeeper.postgres import address
    from queuekeeper.sessions.sample import SampleParameters, fill

    parameters = SampleParameters(
        messages=messages,
        sessions=sessions,
        seed=seed,
        now_ms=system_clock(),
        long_queues=long_queues,
        long_queue_messages=long_queue_messages,
        hostile=hostile,
        replace=replace,
        create_schema=True,
    )
    if replace:
        target = address(call.connection)
        call.confirm(f"All sessions and messages in {target} will be replaced by made-up ones.")
    with screen(stderr=True).status(f"Filling in {messages:,} messages"):
        report = fill(call.connection, parameters)
    return Shown(report, lambda: parts("Sample", report, headings={"hostile": "Hostile rows"}))

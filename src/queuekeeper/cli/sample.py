"""``queuekeeper sample``: fill a database with sessions that are made up."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from queuekeeper.cli import context
from queuekeeper.cli.command import OnPostgres, options
from queuekeeper.cli.output import Shown, parts, screen
from queuekeeper.clock import system_clock
from queuekeeper.sessions.sample_parameters import SampleParameters
from queuekeeper.wording import number_of

if TYPE_CHECKING:
    from queuekeeper.postgres import Connection

ASKED = options(
    SampleParameters, "messages", "sessions", "seed", "long_queues", "long_queue_messages", "hostile", "replace"
)


class OnSource(OnPostgres):
    """A call that fills a source database: as a whole, or not at all."""

    @cached_property
    def connection(self) -> Connection:
        """Connection whose changes count once the command has ended."""
        return self.opened.enter_context(context.postgres_connection(self.postgres_url, autocommit=False))


def sample(call: OnSource, **given: Any) -> Shown:
    """Fill a source database with realistic sessions. Tables of TBMQ 1.4 are made where they are missing.

    Example: `queuekeeper sample --messages 1000000 --sessions 50000 --hostile`
    """
    from queuekeeper.postgres import address
    from queuekeeper.sessions.sample import fill

    parameters = SampleParameters(**given, now_ms=system_clock(), create_schema=True)
    if parameters.replace:
        target = address(call.connection)
        call.confirm(f"All sessions and messages in {target} will be replaced by made-up ones.")
    with screen(stderr=True).status(f"Filling in {number_of(parameters.messages, 'message')}"):
        report = fill(call.connection, parameters)
    return Shown(report, lambda: parts("Sample", report, headings={"hostile": "Hostile rows"}))

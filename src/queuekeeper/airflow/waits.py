"""Lets a task wait without a worker: it looks, parks in the triggerer, and looks again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger

from queuekeeper.airflow.supervised import SupervisedOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

LOOK_S = 60
"""How often a task that waits looks again."""


class LooksAgain(SupervisedOperator):
    """A task whose ``execute`` may be called again and again until what it waits for has come.

    What it has to know from one look to the next is in the database, so a look may be on any worker.
    """

    looks_again = False
    """Whether this is not the first look."""

    waits_since_ms: int | None = None
    """Since when it has waited, where the look before has said so."""

    def park(self, *, at_most_s: float = LOOK_S, since_ms: int | None = None) -> NoReturn:
        """End this look; the triggerer asks for the next one.

        :param at_most_s: how long to wait at most.
        :param since_ms: what the next look finds as ``waits_since_ms``; Airflow keeps it, for one try of the task.
        """
        self.defer(
            trigger=TimeDeltaTrigger(timedelta(seconds=min(LOOK_S, at_most_s))),
            method_name="look_again",
            kwargs=None if since_ms is None else {"since_ms": since_ms},
        )

    def look_again(self, context: Context, event: Any = None, since_ms: int | None = None) -> Any:
        """Go on when the triggerer says that it is time to.

        :param event: the instant; the database knows better how long it has been.
        :param since_ms: what the look before has left.
        """
        self.looks_again, self.waits_since_ms = True, since_ms
        return self.execute(context)

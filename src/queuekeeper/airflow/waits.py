"""Lets a task wait without a worker: it looks, parks in the triggerer, and looks again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import BaseOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

LOOK_S = 60
"""How often a task that waits looks again."""


class LooksAgain(BaseOperator):
    """A task whose ``execute`` may be called again and again until what it waits for has come.

    What it has to know from one look to the next is in the database, so a look may be on any worker.
    """

    looks_again = False
    """Whether this is not the first look."""

    def park(self, *, at_most_s: float = LOOK_S) -> NoReturn:
        """End this look; the triggerer asks for the next one.

        :param at_most_s: how long to wait at most.
        """
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=min(LOOK_S, at_most_s))), method_name="look_again")

    def look_again(self, context: Context, event: Any = None) -> Any:
        """Go on when the triggerer says that it is time to.

        :param event: the instant; the database knows better how long it has been.
        """
        self.looks_again = True
        return self.execute(context)

"""Lets a task wait without a worker slot: it checks, defers to the triggerer, and checks again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger

from queuekeeper.airflow.supervised import SupervisedOperator
from queuekeeper.jobs.pace import RunPaused

if TYPE_CHECKING:
    from airflow.sdk import Context

LOOK_S = 60
"""Seconds between two checks of a waiting task."""

ENDED = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})
"""States of a task that does nothing any more."""


def count_tasks(
    context: Context,
    *task_ids: str,
    states: Iterable[str],
    run_ids: list[str] | None = None,
    map_index: int | None = None,
) -> int:
    """Return how many of these tasks of the DAG are in one of the states.

    :param run_ids: runs to look at; ``None`` means all.
    :param map_index: index of the mapped tasks to look at; ``None`` means all.
    """
    count: int = context["ti"].get_ti_count(
        context["dag_run"].dag_id,
        map_index=map_index,
        task_ids=list(task_ids),
        run_ids=run_ids,
        states=sorted(states),
    )
    return count


class LooksAgain(SupervisedOperator):
    """A task whose ``execute`` is called repeatedly until the condition that it waits for holds.

    The database holds the state between two checks, so any worker can run the next one.
    """

    looks_again = False
    """Whether this is not the first check."""

    waits_since_ms: int | None = None
    """Start of the wait in milliseconds, if the check before has passed it on."""

    def park(self, *, at_most_s: float = LOOK_S, since_ms: int | None = None) -> NoReturn:
        """End this check and defer; the triggerer starts the next one.

        :param at_most_s: longest time until the next check, in seconds.
        :param since_ms: value of ``waits_since_ms`` in the next check; Airflow keeps it for one try of the task.
        """
        self.defer(
            trigger=TimeDeltaTrigger(timedelta(seconds=min(LOOK_S, at_most_s))),
            method_name="look_again",
            kwargs=None if since_ms is None else {"since_ms": since_ms},
        )

    def look_again(self, context: Context, event: Any = None, since_ms: int | None = None) -> Any:
        """Resume when the triggerer starts the next check.

        :param event: instant of the trigger, which is not used: the database has the state.
        :param since_ms: value that the check before has passed on.
        """
        self.looks_again, self.waits_since_ms = True, since_ms
        return self.execute(context)


class PausableOperator(LooksAgain):
    """A task that gives its worker slot back while its run is paused; the triggerer resumes it each minute to check."""

    @abstractmethod
    def work(self, context: Context) -> Any:
        """Do the task's work; it must be safe to call again after an interruption.

        :raises RunPaused: when the run is paused.
        """

    def execute(self, context: Context) -> Any:
        """Return the result of the work."""
        try:
            return self.work(context)
        except RunPaused as paused:
            self.log.info("%s: this task gives its worker slot back, and checks again in a minute", paused)
            self.park()

"""Decides whether whoever depends on the quality of the queues may go on; judging single runs is ``run``'s."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from queuekeeper.quality.store import QualityStore, Verdict

MEMORY = timedelta(days=2)
"""How long a failure is remembered that nobody has looked at again: fast runs come round to every cohort in a day."""

_RUNS = 1_000


@dataclass(frozen=True, kw_only=True)
class StandingFailure:
    """A failed run, some of whose cohorts no later run has read.

    :param cohorts: how many of them, over all stores.
    """

    quality_run_id: str
    started_at: datetime
    cohorts: int


def standing_failures(store: QualityStore, *, now: datetime) -> tuple[StandingFailure, ...]:
    """Return the failures that still stand, the latest first.

    A fast run reads one turn of the cohorts. That the next turn passes says nothing about the one that failed.
    """
    recent = [run for run in store.runs(limit=_RUNS, finished=True) if now - run.started_at <= MEMORY]
    profiles = {
        profile.profile_id: profile
        for profile in store.profiles(list(dict.fromkeys(name for run in recent for name in run.profile_ids)))
    }
    seen: set[tuple[str, int, int]] = set()
    standing = []
    for run in recent:
        read = {
            (profile.store, profile.cohort_count, cohort)
            for profile in (profiles[name] for name in run.profile_ids)
            for cohort in profile.cohorts
        }
        unread = read - seen
        if run.verdict is Verdict.FAILED and unread:
            standing.append(
                StandingFailure(quality_run_id=run.quality_run_id, started_at=run.started_at, cohorts=len(unread))
            )
        seen |= read
    return tuple(standing)

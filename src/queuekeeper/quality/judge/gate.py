"""Decides whether work that depends on the quality of the queues may go on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from queuekeeper.quality.judge.store import Profile, QualityRun, QualityStore, Verdict

MEMORY = timedelta(days=2)
"""How long a failure counts that no run has checked again: in a day, fast runs read every cohort."""

_RUNS = 1_000


@dataclass(frozen=True, kw_only=True)
class StandingFailure:
    """A failed run with cohorts that no later run has read again as thoroughly.

    :param cohorts: number of these cohorts, over all stores.
    """

    quality_run_id: str
    started_at: datetime
    cohorts: int


@dataclass(frozen=True, kw_only=True)
class _Depth:
    """How thoroughly a run checked the cohorts that it read."""

    suites: frozenset[str]
    contents: bool
    sample_percent: int

    def covers(self, other: _Depth) -> bool:
        """Return whether a run of this depth finds all that a run of the other depth finds."""
        return (
            self.suites >= other.suites
            and self.contents >= other.contents
            and self.sample_percent >= other.sample_percent
        )


def _depth(run: QualityRun, profile: Profile) -> _Depth:
    return _Depth(suites=frozenset(run.suites), contents=profile.contents, sample_percent=profile.sample_percent)


def standing_failures(store: QualityStore, *, now: datetime) -> tuple[StandingFailure, ...]:
    """Return the failures that no later run has cleared, the latest first.

    A fast run reads one turn of the cohorts, so the next turn that passes does not clear the turn that failed. Nor does
    a run on another server, without contents, by fewer suites or of a smaller sample.
    """
    recent = [run for run in store.runs(limit=_RUNS, finished=True) if now - run.started_at <= MEMORY]
    profiles = {
        profile.profile_id: profile
        for profile in store.profiles(list(dict.fromkeys(name for run in recent for name in run.profile_ids)))
    }
    seen: dict[tuple[str, str, int, int], list[_Depth]] = {}
    standing = []
    for run in recent:
        read = [
            ((profile.store, profile.target, profile.cohort_count, cohort), _depth(run, profile))
            for profile in (profiles[name] for name in run.profile_ids)
            for cohort in profile.cohorts
        ]
        unread = sum(not any(later.covers(depth) for later in seen.get(cohort, ())) for cohort, depth in read)
        if run.verdict is Verdict.FAILED and unread:
            standing.append(
                StandingFailure(quality_run_id=run.quality_run_id, started_at=run.started_at, cohorts=unread)
            )
        for cohort, depth in read:
            known = seen.setdefault(cohort, [])
            if not any(each.covers(depth) for each in known):
                known.append(depth)
    return tuple(standing)

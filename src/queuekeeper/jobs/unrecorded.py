"""The record of one run in the memory of this process, where there is no control database."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from queuekeeper import audit
from queuekeeper.clock import Bucket, OwnBucket
from queuekeeper.errors import UsageError
from queuekeeper.jobs.store import MaintenanceRun, MaintenanceRuns, RunControl, RunState, ShardProgress


class UnrecordedRuns(MaintenanceRuns):
    """One run in the memory of this process, where there is no control database.

    Other processes cannot pause or throttle the run, and it cannot be continued once this process has ended. Only the
    stores keep two such runs from working at the same time.
    """

    def __init__(self) -> None:
        self._run: MaintenanceRun | None = None
        self._progress: dict[str, ShardProgress] = {}
        self._states: dict[str, RunState] = {}
        self._bucket = OwnBucket()

    def _begin(self, **values: Any) -> None:
        now = datetime.now(UTC)
        self._run = MaintenanceRun(
            **json.loads(json.dumps(values)), state=RunState.PLANNED, report=None, approved_by=None, approved_at=None,
            paused=False, created_at=now, updated_at=now,
        )  # fmt: skip

    def load(self, run_id: str) -> MaintenanceRun:
        """Return the run.

        :raises UsageError: when another run is named.
        """
        if self._run is None or self._run.maintenance_run_id != run_id:
            raise UsageError(
                f"nothing is known of run {run_id!r} without PostgreSQL: name the database that has its record by "
                "--postgres-url, or plan again"
            )
        return self._run

    def note_answer(self, run_id: str, answer: audit.Answer) -> None:
        """Record nothing, since there is no audit."""

    def set_approved(self, run_id: str, answer: audit.Answer) -> None:
        """Set the run's state to approved."""
        agreed_at = answer.at or datetime.now(UTC)
        self._run = replace(self.load(run_id), approved_by=answer.actor, approved_at=agreed_at)

    def set_state(self, run_id: str, state: RunState) -> None:
        """Move the run to another state."""
        self._run = replace(self.load(run_id), state=state)

    def set_share_state(self, run_id: str, share: str, state: RunState, *, shares: Collection[str]) -> None:
        """Keep the state of a share, and move the run to the state that follows."""
        self._states[share] = state
        self._follow(run_id, self._states, shares)

    def save_report(self, run_id: str, report: Mapping[str, Any], **_: Any) -> None:
        """Keep the report of the run."""
        self._run = replace(self.load(run_id), report=dict(report))

    def control(self, run_id: str) -> RunControl:
        """Return the throttle with which the run began; nobody can change it."""
        return RunControl(paused=False, operations_per_s=self.load(run_id).throttle_operations_per_s)

    def save_progress(self, run_id: str, progress: ShardProgress) -> None:
        """Keep the progress of the run in one shard."""
        self._progress[progress.shard] = replace(progress, updated_at=datetime.now(UTC))

    def progress(self, run_id: str) -> list[ShardProgress]:
        """Return the progress of the run in each shard that has begun."""
        return [self._progress[shard] for shard in sorted(self._progress)]

    def bucket(self, run_id: str) -> Bucket:
        """Return what holds this process to the throttle of the run."""
        return self._bucket

    @contextmanager
    def shard_lock(self, run_id: str, shard: str) -> Iterator[None]:
        """Hold nothing, since no other process knows the run."""
        yield

"""Procrastinate: jobs in a table, handled in an event loop; a task that its user adds retries those of dead workers."""

from __future__ import annotations

from typing import Any

import procrastinate
from peer_workers import work

_stalled_s = work.LEASE_MS / 1e3 if work.IS_KILLED else 30.0
app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=work.URL),
    worker_defaults={
        "concurrency": work.AT_ONCE,
        "stalled_worker_timeout": _stalled_s,
        "update_heartbeat_interval": _stalled_s / 3,
    },
)


handle = app.task(work.handle_async, name="handle", retry=procrastinate.RetryStrategy(max_attempts=work.TRIES))


async def retry_stalled_jobs(timestamp: int) -> None:
    """Retry the jobs of workers that are dead, as the manual does."""
    del timestamp
    manager: Any = app.job_manager
    for job in await manager.get_stalled_jobs(seconds_since_heartbeat=_stalled_s):
        await manager.retry_job(job)


_stalled = app.task(retry_stalled_jobs, name="retry_stalled_jobs", queueing_lock="retry_stalled_jobs")
app.periodic(cron="* * * * * */2" if work.IS_KILLED else "*/10 * * * *")(_stalled)


async def make_tables() -> None:
    """Apply the schema."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def publish(pages: list[list[str]]) -> None:
    """Defer one job, or many by one call."""
    async with app.open_async():
        for page in pages:
            if len(page) == 1:
                await handle.defer_async(body=page[0])
            else:
                await handle.batch_defer_async(*[{"body": body} for body in page])

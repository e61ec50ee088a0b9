"""Arq: jobs in a sorted set, handled in an event loop."""

from __future__ import annotations

from typing import Any, ClassVar

import arq
from arq.connections import RedisSettings
from arq.worker import func
from peer_workers import work


async def publish(pages: list[list[str]]) -> None:
    """Enqueue each job by its own call; there is no other."""
    pool = await arq.create_pool(RedisSettings.from_dsn(work.URL))
    for page in pages:
        for body in page:
            await pool.enqueue_job("handle", body)
    await pool.aclose()


async def handle(_: dict[str, Any], body: str) -> None:
    """Handle a job; only ``Retry`` is tried again."""
    try:
        await work.handle_async(body)
    except RuntimeError as failed:
        raise arq.Retry(defer=0.1) from failed


class Settings:
    """A worker's; the key of a job in progress lives ten seconds longer than its time limit."""

    functions: ClassVar = [func(handle, name="handle")]
    redis_settings = RedisSettings.from_dsn(work.URL)
    max_jobs = work.AT_ONCE
    max_tries = work.TRIES
    keep_result = 0
    poll_delay = 0.01
    job_timeout = 1 if work.IS_KILLED else 300

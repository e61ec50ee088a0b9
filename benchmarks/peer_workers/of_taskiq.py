"""Taskiq by a Redis stream."""

from __future__ import annotations

from typing import Any

from peer_workers import work
from taskiq import SimpleRetryMiddleware
from taskiq_redis import RedisStreamBroker

_soon: dict[str, Any] = {"idle_timeout": work.LEASE_MS, "unacknowledged_lock_timeout": 3.0, "xread_block": 1_000}
broker = RedisStreamBroker(work.URL, consumer_id="0", **(_soon if work.IS_KILLED else {})).with_middlewares(
    SimpleRetryMiddleware(default_retry_count=work.TRIES, default_retry_label=True)
)
handle = broker.register_task(work.handle_async, task_name="handle")


async def publish(pages: list[list[str]]) -> None:
    """Send each task by its own call; there is no other."""
    await broker.startup()
    for page in pages:
        for body in page:
            await handle.kiq(body)
    await broker.shutdown()

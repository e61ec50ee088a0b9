"""BullMQ's package for Python."""

from __future__ import annotations

import asyncio
from typing import Any

from bullmq import Queue, Worker
from peer_workers import work

_options = {"attempts": work.TRIES, "removeOnComplete": True}


async def publish(pages: list[list[str]]) -> None:
    """Add one job, or many by one pipeline."""
    queue = Queue(work.QUEUE, {"connection": work.URL})
    for page in pages:
        if len(page) == 1:
            await queue.add("handle", {"body": page[0]}, _options)
        else:
            await queue.addBulk([{"name": "handle", "data": {"body": body}, "opts": _options} for body in page])
    await queue.close()


async def handle(job: Any, _: str) -> None:
    """Handle a job."""
    await work.handle_async(job.data["body"])


async def _work() -> None:
    options: dict[str, Any] = {"connection": work.URL, "concurrency": work.AT_ONCE, "maxStalledCount": 3}
    if work.IS_KILLED:
        options |= {"lockDuration": work.LEASE_MS, "stalledInterval": 1_000}
    worker = Worker(work.QUEUE, handle, options)
    await asyncio.Event().wait()
    del worker


if __name__ == "__main__":
    asyncio.run(_work())

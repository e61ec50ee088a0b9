"""RQ: one job at a time, in a process of its own unless the worker is simple."""

from __future__ import annotations

import rq
from peer_workers import work
from redis import Redis


def publish(pages: list[list[str]]) -> None:
    """Enqueue one job, or many by one pipeline."""
    queue = rq.Queue(work.QUEUE, connection=Redis.from_url(work.URL))
    limit = 1 if work.IS_KILLED else 180
    # With 0, a job that comes again after a kill ends in an error of RQ 3.0.0 when it has succeeded, and is repeated.
    options = {"result_ttl": 10 if work.IS_KILLED else 0, "retry": rq.Retry(max=work.TRIES)}
    for page in pages:
        if len(page) == 1:
            queue.enqueue(work.handle, page[0], job_timeout=limit, **options)
        else:
            queue.enqueue_many([rq.Queue.prepare_data(work.handle, (body,), timeout=limit, **options) for body in page])

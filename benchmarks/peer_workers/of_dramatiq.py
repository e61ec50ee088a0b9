"""Dramatiq by its Redis broker."""

from __future__ import annotations

from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from peer_workers import work

# Whatever calls next looks for workers that are dead; by default, one call in a thousand does.
_soon: dict[str, Any] = {"heartbeat_timeout": work.LEASE_MS, "maintenance_chance": 1_000_000}
dramatiq.set_broker(RedisBroker(url=work.URL, **(_soon if work.IS_KILLED else {})))
handle = dramatiq.actor(work.handle, actor_name="handle", max_retries=work.TRIES, min_backoff=100)


def publish(pages: list[list[str]]) -> None:
    """Send each message by its own call; there is no other."""
    for page in pages:
        for body in page:
            handle.send(body)

"""Celery by its Redis transport: tasks are acknowledged when they begin, or when they have ended."""

from __future__ import annotations

import os

import celery
from peer_workers import work

app = celery.Celery("peers", broker=work.URL)
app.conf.task_ignore_result = True
app.conf.task_acks_late = os.environ.get("PEERS_ACKS_LATE") == "1"
app.conf.broker_connection_retry_on_startup = True
if work.IS_KILLED:
    app.conf.broker_transport_options = {
        "visibility_timeout": work.LEASE_MS / 1e3,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
handle = app.task(
    work.handle,
    name="handle",
    autoretry_for=(RuntimeError,),
    max_retries=work.TRIES,
    default_retry_delay=0.1,
)


def publish(pages: list[list[str]]) -> None:
    """Send each task by its own call; there is no other."""
    for page in pages:
        for body in page:
            handle.delay(body)

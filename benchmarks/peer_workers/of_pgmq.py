"""Pgmq, with the SQL that its package for Python brings; it has no worker, so this is the loop that its users write."""

from __future__ import annotations

import os

from peer_workers import work
from pgmq import PGMQueue
from pgmq.install import get_embedded_install_sql, install_pgmq_sql

PAGE = int(os.environ.get("PEERS_PAGE", "1000"))
_lease_s = work.LEASE_MS // 1_000 if work.IS_KILLED else 30


def _connected() -> PGMQueue:
    return PGMQueue(conn_string=work.URL, init_extension=False)


def make_tables() -> None:
    """Install the functions and create the queue."""
    install_pgmq_sql(get_embedded_install_sql(), dsn=work.URL)
    queues = _connected()
    queues.create_queue(work.QUEUE)
    queues.close()


def publish(pages: list[list[str]]) -> None:
    """Send one message, or many by one call."""
    queues = _connected()
    for page in pages:
        if len(page) == 1:
            queues.send(work.QUEUE, {"body": page[0]})
        else:
            queues.send_batch(work.QUEUE, [{"body": body} for body in page])
    queues.close()


def _work() -> None:
    queues = _connected()
    while True:
        done: list[int] = []
        for message in queues.read_with_poll(work.QUEUE, vt=_lease_s, qty=PAGE):
            try:
                work.handle(message.message["body"])
            except RuntimeError:
                queues.set_vt(work.QUEUE, message.msg_id, 1)
            else:
                done.append(message.msg_id)
        if done:
            queues.delete_batch(work.QUEUE, done)


if __name__ == "__main__":
    _work()

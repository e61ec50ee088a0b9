"""Measure the event broker beside the queues on PostgreSQL that people use, and kill the workers of all of them.

``python benchmarks/event_peers.py --rounds 2``

The work, the kills and the figures are those of ``peers.py``, on a private PostgreSQL that flushes every commit; each
measurement has a database of its own. Of the broker, publishing lasts until the dispatcher has dispatched everything,
and ``client`` is processor time of the dispatcher, too. It runs all the time and is not killed.

PGMB has no line: its package is in no registry but GitHub's.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import bench
import peers
from online import family_cpu_s
from peers import Peer
from rich.console import Console

from queuekeeper.embedded import PostgresServer
from queuekeeper.postgres import connect

DATABASE = "peers"
OURS = Peer(
    name="queuekeeper", module="our_events", worker="queuekeeper events work peer_workers.our_events:app",
    beside="queuekeeper events dispatch", batches=True, needs_tables=True, url_variable="QUEUEKEEPER_POSTGRES_URL",
)  # fmt: skip
PGMQ = Peer(
    name="pgmq", module="of_pgmq", pinned="pgmq", worker="{python} -m peer_workers.of_pgmq", batches=True,
    needs_tables=True,
)  # fmt: skip
PEERS = [
    OURS,
    replace(OURS, name="queuekeeper, by 8", variables={"PEERS_PAGE": "8"}),
    PGMQ,
    replace(PGMQ, name="pgmq, by 8", variables={"PEERS_PAGE": "8"}),
    Peer(
        name="procrastinate", module="of_procrastinate", pinned="procrastinate", batches=True, needs_tables=True,
        worker="{python} -m procrastinate --app peer_workers.of_procrastinate.app worker --delete-jobs successful",
        quiet_s=15.0,
    ),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stand:
    """The server, with one database."""

    server: PostgresServer

    @property
    def url(self) -> str:
        """Address of the database."""
        return self.server.create_database(DATABASE)

    def empty(self) -> None:
        """Give every measurement a new database, and the server nothing to write of an earlier one."""
        self.server.drop_database(DATABASE)
        with connect(self.server.create_database(DATABASE), autocommit=True) as connection:
            connection.execute("CHECKPOINT")

    def server_cpu_s(self) -> float:
        """Return the processor time that the server and its sessions have used."""
        assert self.server.pid is not None
        return family_cpu_s(self.server.pid)


def run(arguments: Namespace, console: Console) -> dict[str, Any]:
    """Measure everything and return the result."""
    with bench.private_folder() as home, bench.private_postgres(home) as server:
        with connect(server.url) as connection:
            machine = bench.facts(connection)
        return {"machine": machine, **peers.compared(PEERS, Stand(server=server), arguments, console)}


def main(words: Sequence[str] | None = None) -> int:
    """Compare the event broker with other queues."""
    return peers.finish(peers.options(__doc__, PEERS), words, run)


if __name__ == "__main__":
    sys.exit(main())

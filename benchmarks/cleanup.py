"""How fast a cleanup looks and cleans, and what the server's other clients notice of it.

``python benchmarks/cleanup.py --messages 1000000 --sessions 100000 --dead 0.3`` fills a private server as TBMQ would,
plans, cleans and plans again, and prints a table. A probe sends PING meanwhile; what it waits is compared with an idle
server's. Rates are of this machine and of what else it does: compare runs on one machine only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event as EventType
from pathlib import Path
from typing import Any

import bench

from queuekeeper import postgres, schema_migrations
from queuekeeper.clock import system_clock
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.maintenance.cleanup.expired_references import Cleanup
from queuekeeper.maintenance.cleanup.model import CleanupParameters
from queuekeeper.redis_client import connect

PAGE = 2_000
PAYLOAD_BYTES = 256


def fill(client: Any, *, messages: int, sessions: int, dead: float) -> None:
    """Store sessions of equal length, the first share of whose messages has expired."""
    per_session = max(1, messages // sessions)
    gone = round(per_session * dead)
    now_ms = system_clock()
    pipeline = client.pipeline(transaction=False)
    for session in range(sessions):
        client_id = f"device-{session}"
        keys = session_keys(client_id)
        text = (
            f'{{"clientId":"{client_id}","topicName":"t","time":{now_ms},"qos":1,"packetId":1,"packetType":"PUBLISH",'
            f'"payload":"{"A" * PAYLOAD_BYTES}","retained":false}}'
        )
        names = [payload_key(client_id, packet_id) for packet_id in range(1, per_session + 1)]
        pipeline.zadd(keys.messages, {name: score for score, name in enumerate(names, start=1)})
        pipeline.set(keys.last_packet_id, per_session)
        for name in names[gone:]:
            pipeline.set(name, text, ex=604_800)
        if len(pipeline) > PAGE:
            pipeline.execute()
    pipeline.execute()


def probe(url: str, stop: EventType, waits: Connection) -> None:
    """Say when ready, send PING until told to stop, then say how long each took, in milliseconds."""
    found: list[float] = []
    with connect(url) as client:
        client.ping()
        waits.send(found)
        while not stop.wait(0.002):
            started = time.perf_counter()
            client.ping()
            found.append(1_000 * (time.perf_counter() - started))
    waits.send(found)


@contextmanager
def probed(url: str) -> Iterator[list[float]]:
    """Let another process, which shares nothing with the cleanup but the server, measure while the block runs."""
    context = get_context("spawn")
    stop = context.Event()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=probe, args=(url, stop, sender))
    process.start()
    waits: list[float] = receiver.recv()
    try:
        yield waits
    finally:
        stop.set()
        waits += receiver.recv()
        process.join()


def percentile(waits: list[float], share: float) -> float:
    """Return the wait that this share of all does not exceed."""
    return sorted(waits)[min(len(waits) - 1, int(share * len(waits)))]


def told(name: str, seconds: float, looked_at: int, waits: list[float]) -> None:
    """Print one line of the table."""
    print(
        f"{name:<6} {seconds:7.1f} s {looked_at / seconds:9,.0f} keys and references/s, "
        f"PING p50 {percentile(waits, 0.5):5.2f} ms, p99 {percentile(waits, 0.99):5.2f} ms"
    )


def measure(arguments: argparse.Namespace, home: Path) -> None:
    """Fill, plan, clean, plan again, and print what each took."""
    with (
        bench.private_postgres(home, durable=False) as database,
        bench.private_redis(home, arguments.server) as server,
    ):
        url = database.create_database("benchmark")
        with connect(server.url) as client, postgres.connect(url, autocommit=True) as connection:
            schema_migrations.migrate(connection)
            runs = MaintenanceRuns(connection)
            fill(client, messages=arguments.messages, sessions=arguments.sessions, dead=arguments.dead)
            engine = Engine(job=Cleanup, client=client, undo_directory=home / "undo", say=lambda _: None)
            with probed(server.url) as idle:
                time.sleep(5)
            told("idle", 5, 0, idle)
            with probed(server.url) as waits:
                plan = engine.plan(CleanupParameters())
            looked_at = plan.counts.keys + plan.counts.references
            told("plan", plan.seconds, looked_at, waits)
            run_id = engine.save(runs, plan).maintenance_run_id
            runs.approve(run_id, "benchmark")
            with probed(server.url) as waits:
                report = engine.apply(runs, run_id, plan.share_names()[0])
            told("apply", report.seconds, looked_at, waits)
            outcome = engine.report(runs, run_id, dry_run=False)
            print(f"{report.counts.removed:,} removed, {report.counts.repaired:,} repaired, clean: {outcome.clean}")


def main() -> None:
    """Read arguments and measure."""
    parser = bench.options(__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--sessions", type=int, default=20_000)
    parser.add_argument("--dead", type=float, default=0.3, help="share of the references whose message is gone")
    bench.add_server(parser)
    with bench.private_folder() as home:
        measure(parser.parse_args(), home)


if __name__ == "__main__":
    main()

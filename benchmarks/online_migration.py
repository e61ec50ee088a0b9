"""What a migration costs while devices are connected: how long a client is fenced, what its callers and Redis notice.

``python benchmarks/online_migration.py --clients 5000 --messages 10 --rate 300`` fills a private PostgreSQL, and leads
all clients to Redis and back under a load, then to Redis for good. ``--from-store tbmq --layout packed`` begins in that
layout of Redis and leads to the other one in the same way. The load is a process of its own that calls a router
at the rate that was asked for: one message is saved for a client by chance, or what waits for it is fetched and
confirmed. Another process keeps the mirror up to date, and a probe sends PING to Redis every 2 ms. A line of the table
is one step; the first is the load alone, on the source, and the last the load alone, on the target without a mirror.
Rates are of this machine and of what else it does. A call of the load that takes 3 s or longer, or a fence of 1.5 s, is
too long: then it says so at the end and exits with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event as EventType
from pathlib import Path
from typing import Any

import bench

from queuekeeper import assets, postgres, redis_async, schema_migrations
from queuekeeper.clock import system_clock
from queuekeeper.errors import QueuekeeperError
from queuekeeper.keyspace import client_slot, cohorts
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CohortPlan, MigrationPlan, PlanState, code_version
from queuekeeper.migration.ledger.parameters import MigrationParameters, Mode, Source
from queuekeeper.migration.online.driver import OnlineDriver
from queuekeeper.migration.online.reports import MirrorReport, StepReport
from queuekeeper.redis_client import connect
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.router import AsyncSessionRouter

PLAN_ID = "b" * 16
COHORTS = 8
PAYLOAD = b"x" * 256
PER_SAVE = 500
PROBE_PAUSE_S = 0.002
LONGEST_CALL_MS = 3_000.0
"""TBMQ 1.x gives a batch up after about as long."""

LONGEST_FENCE_MS = 1_500.0
"""The longest lease, plus what two busy cores add before its end is noticed."""

PATIENCE_S = 120.0
"""A call waits so long for a session that moves: the figures say how long it was, and a busy machine ends no run."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of the load.

    :param at_s: when it was made, by a clock that all processes share.
    """

    at_s: float
    kind: str
    ms: float


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How long some calls took, by their number."""

    calls: int  # of all processes
    p50_ms: float
    p99_ms: float
    longest_ms: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """What was measured during one step.

    :param clients_per_s: clients that were worked on.
    :param fenced_p50_ms: how long a client was fenced; none where none was.
    :param router: calls of the load.
    :param ping: answers of Redis.
    :param lag_s: most that the mirror was behind.
    """

    step: str
    seconds: float
    clients_per_s: float | None
    fenced_p50_ms: float | None
    fenced_p99_ms: float | None
    fenced_longest_ms: float | None
    router: Waits
    ping: Waits
    lag_s: float


def names(count: int) -> list[str]:
    """Return the ids of all clients."""
    return [f"meter-{number}" for number in range(count)]


def batch(client_id: str, count: int) -> SessionSave:
    """Return messages for a client."""
    now_ms = system_clock()
    message = NewMessage(topic="plant/line/7", payload=PAYLOAD, qos=1, time_ms=now_ms)
    return SessionSave(client_id=client_id, messages=(message,) * count)


def fill(url: str, redis_url: str, home: Layout | None, clients: Sequence[str], *, messages: int) -> None:
    """Store messages for all clients in the source.

    :param home: layout in Redis where they are; none for PostgreSQL.
    """
    with postgres.connect(url, autocommit=True) as connection, connect(redis_url) as client:
        connection.execute(assets.read("sql", "sessions/vendor_schema.sql").encode())
        schema_migrations.migrate(connection)
        store: Any = PostgresSessionStore(connection) if home is None else RedisSessionStore(client, layout=home)
        for begin in range(0, len(clients), PER_SAVE):
            for report in store.save_messages([batch(each, messages) for each in clients[begin : begin + PER_SAVE]]):
                if report.error is not None:
                    raise report.error
        connection.execute("ANALYZE")


def plan(url: str, clients: Sequence[str], parameters: MigrationParameters) -> None:
    """Store a plan of all clients, as a person would have approved it."""
    slots = [client_slot(each) for each in clients]
    planned = tuple(
        CohortPlan(**asdict(each), sessions=sum(each.slot_first <= slot <= each.slot_last for slot in slots))
        for each in cohorts(count=COHORTS, shards=[(0, 16_383, "redis")])
    )
    with postgres.connect(url, autocommit=True) as connection:
        MigrationLedger(connection).save_plan(
            MigrationPlan(
                plan_id=PLAN_ID,
                parameters=parameters,
                source_fingerprint="benchmark",
                code_version=code_version(),
                as_of_ms=system_clock(),
                cohorts=planned,
                chosen=tuple(range(COHORTS)),
                state=PlanState.APPROVED,
            ),
            run_id=None,
        )


# Processes.


async def load(
    postgres_url: str,
    redis_url: str,
    home: Layout | None,
    clients: Sequence[str],
    rate: float,
    stop: EventType,
    out: Connection,
) -> None:
    """Call a router at a rate until told to stop, then say how long each call took."""
    dice = random.Random(1)
    found: list[Call] = []

    async def call(router: AsyncSessionRouter, due_s: float, client_id: str, kind: str) -> None:
        if kind == "save":
            (report,) = await router.save_messages([batch(client_id, 1)])
            if report.error is not None:
                raise report.error
        else:
            page = await router.fetch_pending(client_id, limit=20)
            if page.messages:
                await router.ack(
                    client_id, [Ack(packet_id=each.packet_id, serial=each.serial) for each in page.messages]
                )
        # From when it was due: a call that waits for others has waited.
        found.append(Call(at_s=due_s, kind=kind, ms=1_000 * (time.monotonic() - due_s)))

    async with (
        await redis_async.connect(redis_url) as caller,
        AsyncSessionRouter(caller, postgres_url, connections=8, patience_s=PATIENCE_S, home=home) as router,
        asyncio.TaskGroup() as group,
    ):
        out.send("ready")
        due_s = time.monotonic()
        while not stop.is_set():
            due_s += 1 / rate
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            # As much is confirmed as saved: what waits does not grow.
            kind = "confirm" if dice.random() < 0.1 else "save"
            group.create_task(call(router, due_s, dice.choice(clients), kind))
    out.send([(each.at_s, each.kind, each.ms) for each in found])


def probe(url: str, stop: EventType, out: Connection) -> None:
    """Send PING until told to stop, then say how long each took."""
    found: list[tuple[float, str, float]] = []
    with connect(url) as client:
        client.ping()
        out.send("ready")
        while not stop.wait(PROBE_PAUSE_S):
            begun_s = time.monotonic()
            client.ping()
            found.append((begun_s, "ping", 1_000 * (time.monotonic() - begun_s)))
    out.send(found)


def follow(postgres_url: str, redis_url: str, movers: int, stop: EventType, out: Connection) -> None:
    """Keep the mirror up to date until told to stop, then say how far it was behind after each pass."""
    driver = OnlineDriver(
        postgres_url=postgres_url, redis_url=redis_url, plan_id=PLAN_ID, actor="benchmark", count=movers, tell=_silent
    )
    found: list[tuple[float, str, float]] = []
    out.send("ready")
    while not stop.wait(0.2):
        begun_s = time.monotonic()
        found.append((begun_s, "mirror", 1_000 * driver.mirror().lag_s))
    out.send(found)


def _silent(_: str) -> None:
    """Say nothing."""


def _whole(function: Callable[..., Coroutine[Any, Any, None] | None], *words: Any) -> None:
    """Call a function, which may be a coroutine function."""
    working = function(*words)
    if working is not None:
        asyncio.run(working)


@contextmanager
def beside(function: Callable[..., Coroutine[Any, Any, None] | None], *words: Any) -> Iterator[list[Call]]:
    """Let another process measure while the block runs; its calls are there afterwards."""
    context = get_context("spawn")
    stop = context.Event()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_whole, args=(function, *words, stop, sender), daemon=True)
    process.start()
    sender.close()
    found: list[Call] = []
    try:
        receiver.recv()
        yield found
    finally:
        stop.set()
        try:
            found += (Call(at_s=at_s, kind=kind, ms=ms) for at_s, kind, ms in receiver.recv())
        except EOFError:
            raise SystemExit("a process of the benchmark has failed: see above") from None
        process.join()


# Measuring.


def waits(calls: Sequence[Call], begun_s: float, ended_s: float) -> Waits:
    """Sum up the calls of a time."""
    found = sorted(each.ms for each in calls if begun_s <= each.at_s < ended_s)
    if not found:
        return Waits(calls=0, p50_ms=0.0, p99_ms=0.0, longest_ms=0.0)
    return Waits(
        calls=len(found),
        p50_ms=round(found[len(found) // 2], 3),
        p99_ms=round(found[min(len(found) - 1, int(0.99 * len(found)))], 3),
        longest_ms=round(found[-1], 3),
    )


def measure(arguments: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Lead all clients to the target and back, and there for good, under load."""
    steps: list[tuple[str, float, float, StepReport | MirrorReport | None]] = []
    with (
        bench.private_postgres(home) as database,
        bench.private_redis(home, arguments.server, {"appendfsync": arguments.fsync}) as server,
    ):
        url = database.create_database("benchmark")
        clients = names(arguments.clients)
        parameters = MigrationParameters(
            from_store=arguments.from_store, layout=arguments.layout, cohort_count=COHORTS, mode=Mode.ONLINE
        )
        layout = Layout(parameters.from_store.value) if parameters.inside_redis else None
        source, target = ("PostgreSQL", "Redis") if layout is None else (str(layout), str(arguments.layout))
        fill(url, server.url, layout, clients, messages=arguments.messages)
        plan(url, clients, parameters)
        driver = OnlineDriver(
            postgres_url=url,
            redis_url=server.url,
            plan_id=PLAN_ID,
            actor="benchmark",
            lease_ms=arguments.lease_ms,
            count=arguments.movers,
            tell=lambda line: print(line, flush=True) if "held back" in line else None,
        )

        def step(name: str, work: Callable[[], Any]) -> None:
            begun_s = time.monotonic()
            report = work()
            steps.append((name, begun_s, time.monotonic(), report))
            print(f"{name}: {time.monotonic() - begun_s:.1f} s", flush=True)

        def wait() -> None:
            time.sleep(arguments.seconds)

        with (
            beside(load, url, server.url, layout, clients, arguments.rate) as calls,
            beside(probe, server.url) as pings,
            beside(follow, url, server.url, arguments.movers) as lags,
        ):
            time.sleep(1)
            step(f"load on {source} alone", wait)
            step("arm", driver.arm)
            step("catch up", driver.catch_up)
            step("verify", driver.verify)
            step("cut over", driver.cut_over)
            step(f"on {target}, mirrored", wait)
            step("roll back", driver.roll_back)
            step("catch up again", driver.catch_up)
            step("verify again", driver.verify)
            step("cut over again", driver.cut_over)
            step("soak", lambda: driver.soak(minutes=1 / 60))
            step("commit", driver.commit)
            step(f"load on {target} alone", wait)
        lines = [_line(name, begun_s, ended_s, report, calls, pings, lags) for name, begun_s, ended_s, report in steps]
        with postgres.connect(url) as connection, server.client() as client:
            machine = bench.facts(connection, client)
    return {
        "machine": machine,
        "parameters": {
            name: getattr(arguments, name)
            for name in (
                "from_store",
                "layout",
                "clients",
                "messages",
                "rate",
                "movers",
                "lease_ms",
                "seconds",
                "fsync",
            )
        },
        "steps": [asdict(line) for line in lines],
    }


def _line(
    name: str,
    begun_s: float,
    ended_s: float,
    report: StepReport | MirrorReport | None,
    calls: Sequence[Call],
    pings: Sequence[Call],
    lags: Sequence[Call],
) -> Line:
    moved = report if isinstance(report, StepReport) else None
    return Line(
        step=name,
        seconds=round(ended_s - begun_s, 2),
        clients_per_s=None if moved is None or name in ("arm", "commit") else round(moved.clients / moved.seconds, 1),
        fenced_p50_ms=None if moved is None else _rounded(moved.fenced_p50_ms),
        fenced_p99_ms=None if moved is None else _rounded(moved.fenced_p99_ms),
        fenced_longest_ms=None if moved is None else _rounded(moved.fenced_longest_ms),
        router=waits(calls, begun_s, ended_s),
        ping=waits(pings, begun_s, ended_s),
        lag_s=round(waits(lags, begun_s, ended_s).longest_ms / 1_000, 2),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def too_long(lines: Sequence[dict[str, Any]], *, call_ms: float, fence_ms: float) -> list[str]:
    """Say which steps had a call or a fence that was too long."""
    found: list[str] = []
    for line in lines:
        for what, took_ms, most_ms in (
            ("call", line["router"]["longest_ms"], call_ms),
            ("fence", line["fenced_longest_ms"], fence_ms),
        ):
            if took_ms is not None and took_ms >= most_ms:
                found.append(f"{line['step']}: the longest {what} took {took_ms:,.0f} ms, not less than {most_ms:,.0f}")
    return found


def show(result: dict[str, Any]) -> None:
    """Print the table of docs/performance.md."""
    heads = ["step", "s", "clients/s", "fenced p50 / p99 / longest, ms", "calls p50 / p99 / longest, ms"]
    heads += ["PING p50 / p99, ms", "mirror behind, s"]
    print(f"| {' | '.join(heads)} |")
    print("|" + " --- |" * len(heads))
    for line in result["steps"]:
        router, ping = line["router"], line["ping"]
        fenced = (
            ""
            if line["fenced_p50_ms"] is None
            else f"{line['fenced_p50_ms']} / {line['fenced_p99_ms']} / {line['fenced_longest_ms']}"
        )
        rate = "" if line["clients_per_s"] is None else f"{line['clients_per_s']:,.0f}"
        print(
            f"| {line['step']} | {line['seconds']:.1f} | {rate} | {fenced} | "
            f"{router['p50_ms']:.1f} / {router['p99_ms']:.1f} / {router['longest_ms']:.0f} | "
            f"{ping['p50_ms']:.2f} / {ping['p99_ms']:.2f} | {line['lag_s'] or ''} |"
        )


def main() -> None:
    """Read arguments and measure."""
    parser = bench.options(__doc__)
    parser.add_argument("--from-store", type=Source, choices=list(Source), default=Source.POSTGRES)
    parser.add_argument("--layout", type=Layout, choices=list(Layout), default=Layout.TBMQ)
    parser.add_argument("--clients", type=int, default=5_000)
    parser.add_argument("--messages", type=int, default=10, help="that wait for each client at the beginning")
    parser.add_argument("--rate", type=float, default=200.0, help="calls of the load per second")
    parser.add_argument("--movers", type=int, default=8)
    parser.add_argument("--lease-ms", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each step in which nothing moves")
    parser.add_argument("--fsync", choices=["always", "everysec"], default="everysec", help="of Redis's file")
    parser.add_argument("--longest-call-ms", type=float, default=LONGEST_CALL_MS, help="a call as long is too long")
    parser.add_argument("--longest-fence-ms", type=float, default=LONGEST_FENCE_MS, help="a fence as long is too long")
    bench.add_server(parser)
    parser.add_argument(
        "--json", type=Path, nargs="?", const=bench.RESULTS / "online-migration.json", help="write them down"
    )
    arguments = parser.parse_args()
    for name in ("clients", "messages", "rate", "movers", "seconds", "longest_call_ms", "longest_fence_ms"):
        if not getattr(arguments, name) > 0:
            parser.error(f"--{name.replace('_', '-')} is {getattr(arguments, name)}: it must be more than 0")
    try:
        with bench.private_folder() as home:
            result = measure(arguments, home)
    except QueuekeeperError as error:
        raise SystemExit(f"error: {error}") from error
    show(result)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    found = too_long(result["steps"], call_ms=arguments.longest_call_ms, fence_ms=arguments.longest_fence_ms)
    if found:
        raise SystemExit("too long:\n" + "\n".join(found))


if __name__ == "__main__":
    main()

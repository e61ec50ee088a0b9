"""Measure what grows around the event broker: what is stored beside a poll and a read, and what vacuum cannot remove.

``python benchmarks/event_growth.py --held-s 600``

Everything happens on a private server and in one run, each way in a database of its own that has just been made.

beside           ten events are published, dispatched and read by the one group that wants them, again and again: with
                 nothing else there, beside events that are scheduled for later, beside partitions, beside groups, and
                 beside subscriptions of a hundred conditions, whose groups want other events
held snapshot    a producer at a steady rate and one consumer, while another transaction holds a snapshot from before
                 the first event: nothing that is deleted or updated can be removed. Beside it the queue whose rows are
                 deleted under FOR UPDATE SKIP LOCKED. What arrives, after how long, and how many dead rows there are,
                 over time
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from threading import Event, Thread
from typing import Any

import bench
from events import (
    PATIENCE_S,
    QUEUE,
    Stand,
    Task,
    at_once,
    delivery,
    make_partitions,
    poll,
    private_server,
    publish,
    schedule,
)
from online import median, quantile
from rich.console import Console
from rich.table import Table

from queuekeeper.errors import QueuekeeperError
from queuekeeper.postgres import Connection, connect

EVENTS_PER_POLL = 10
CONDITIONS = 100
_WANTED = "e.topic = 'wanted'"
_SIZES = """
SELECT sum(n_dead_tup)::bigint, sum(pg_total_relation_size(relid))::bigint FROM pg_stat_user_tables
"""


# --- beside what is stored ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How long each step took, in ms, the shortest first."""

    poll_ms: list[float]
    read_ms: list[float]


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What is stored beside the one group that wants events.

    :param scheduled: events for next month.
    :param partitions: of the log.
    :param groups: that want other events, with a subscription each; all of one condition.
    :param subscriptions: of one more group, which want other events, of :data:`CONDITIONS` conditions.
    """

    scheduled: int = 0
    partitions: int = 0
    groups: int = 0
    subscriptions: int = 0


def measure_beside(stand: Stand, *, beside: Beside, polls: int) -> Steps:
    """Publish, poll and read again and again."""
    with stand.database() as url, connect(url, autocommit=True) as connection:
        store(connection, beside)
        connection.execute("INSERT INTO pgmb.subscription_groups (id) VALUES ('wants')")
        connection.execute("INSERT INTO pgmb.subscriptions (group_id, conditions_sql) VALUES ('wants', %s)", (_WANTED,))
        connection.execute("ANALYZE")
        polled_ms: list[float] = []
        read_ms: list[float] = []
        for number in range(polls + 20):
            publish(connection, ["1"] * EVENTS_PER_POLL, "wanted")
            with timed_ms(polled_ms):
                poll(connection)
            with timed_ms(read_ms):
                found = connection.execute(
                    "SELECT next_cursor FROM pgmb.read_next_events('wants', NULL, 100)", prepare=True
                ).fetchall()
                connection.execute("SELECT pgmb.set_group_cursor('wants', %s, false)", (found[-1][0],), prepare=True)
            if len(found) != EVENTS_PER_POLL:
                raise QueuekeeperError(f"{len(found)} of {EVENTS_PER_POLL} events were read by poll {number}")
        # The first ones fill caches.
        return Steps(poll_ms=sorted(polled_ms[20:]), read_ms=sorted(read_ms[20:]))


def store(connection: Connection, beside: Beside) -> None:
    """Fill a database."""
    if beside.partitions:
        make_partitions(connection, beside.partitions)
    if beside.scheduled:
        schedule(connection, beside.scheduled)
    by_params = "s.params @> jsonb_build_object('topic', e.topic)"
    groups = [f"group-{number}" for number in range(beside.groups)]
    subscriptions: list[tuple[str, str, dict[str, str | int]]] = [
        (group, by_params, {"topic": group}) for group in groups
    ]
    if beside.subscriptions:
        groups.append("many")
        subscriptions += [
            ("many", f"s.params @> jsonb_build_object('topic', e.topic, 'kind', {n % CONDITIONS})",
             {"topic": f"topic-{n}", "kind": n % CONDITIONS})
            for n in range(beside.subscriptions)
        ]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO pgmb.subscription_groups (id) VALUES (%s)", [(group,) for group in groups])
        cursor.executemany(
            "INSERT INTO pgmb.subscriptions (group_id, conditions_sql, params) VALUES (%s, %s, %s)",
            [(group, text, json.dumps(params)) for group, text, params in subscriptions],
        )


@contextmanager
def timed_ms(found: list[float]) -> Iterator[None]:
    """Add how long a block took."""
    began = time.perf_counter()
    yield
    found.append(1e3 * (time.perf_counter() - began))


# --- a held snapshot ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Slice:
    """What happened in a tenth of the time.

    :param until_s: since the beginning.
    :param events: that arrived.
    :param dead_rows: in all tables at the end, as the server counts them.
    """

    until_s: float
    events: int
    p50_ms: float | None
    p99_ms: float | None
    dead_rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Held:
    """A run beside a held snapshot."""

    slices: list[Slice]
    missing: int
    server_cpu_s: float


def measure_held(stand: Stand, *, system: str, per_s: int, held_s: int, payload_bytes: int) -> Held:
    """Publish at a steady rate while a transaction holds a snapshot."""
    events = per_s * held_s
    with stand.database() as url:
        with connect(url, autocommit=True) as connection:
            delivery(system, 1).prepare(connection, 1)
        roles = ["produce", "consume"] + ([] if system == QUEUE else ["dispatch"])
        tasks = [
            Task(
                role=role, system=system, url=url, consumers=1, consumer=0, events=events, payload_bytes=payload_bytes,
                batch=max(1, per_s // 100), chunk=1_000, per_s=per_s,
            )
            for role in roles
        ]  # fmt: skip
        with connect(url) as holder, sampled(url, every_s=held_s / 10) as sizes:
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT 1")
            before_s = stand.cpu_s()
            _, [part] = at_once(tasks, within_s=PATIENCE_S + 3 * held_s)
            used_s = stand.cpu_s() - before_s
    return Held(
        slices=cut(list(zip(part.instants, part.waits_ms, strict=True)), sizes, held_s=held_s),
        missing=events - len(set(part.numbers)),
        server_cpu_s=used_s,
    )


Sizes = list[tuple[float, int, int]]
"""Instant by the machine's steady clock, dead rows and bytes of all tables."""


@contextmanager
def sampled(url: str, *, every_s: float) -> Iterator[Sizes]:
    """Look at the tables again and again until the block ends, and once more then."""
    found: Sizes = []
    stop = Event()

    def look() -> None:
        with connect(url, autocommit=True) as connection:
            while True:
                [[dead, size]] = connection.execute(_SIZES).fetchall()
                found.append((time.monotonic(), dead, size))
                if stop.wait(every_s / 10):
                    return

    thread = Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def cut(arrivals: Sequence[tuple[float, float]], sizes: Sizes, *, held_s: int) -> list[Slice]:
    """Cut a run into tenths of its time; what came later belongs to the last one."""
    began = min(at - wait_ms / 1e3 for at, wait_ms in arrivals)
    width = held_s / 10
    slices: list[Slice] = []
    for number in range(10):
        since, until = began + number * width, began + (number + 1) * width
        ends = float("inf") if number == 9 else until
        waits_ms = sorted(wait_ms for at, wait_ms in arrivals if since <= at < ends)
        seen = [size for size in sizes if size[0] <= ends] or sizes[:1]
        slices.append(
            Slice(
                until_s=round(until - began, 1),
                events=len(waits_ms),
                p50_ms=quantile(waits_ms, 0.50) if waits_ms else None,
                p99_ms=quantile(waits_ms, 0.99) if waits_ms else None,
                dead_rows=seen[-1][1],
                bytes=seen[-1][2],
            )
        )
    return slices


# --- the result ------------------------------------------------------------------------------------------------


def ways(arguments: argparse.Namespace) -> dict[str, Callable[[Stand], Any]]:
    """Return what is measured, by name."""
    scheduled, partitions = arguments.waiting, arguments.partitions
    groups, subscriptions = arguments.groups, arguments.subscriptions
    beside = {
        "nothing": Beside(),
        f"{scheduled:,} scheduled": Beside(scheduled=scheduled),
        f"{partitions:,} partitions": Beside(partitions=partitions),
        f"{groups:,} groups": Beside(groups=groups),
        f"{CONDITIONS:,} conditions": Beside(subscriptions=CONDITIONS),
        f"{subscriptions:,} subscriptions of {CONDITIONS:,} conditions": Beside(subscriptions=subscriptions),
        "all of it": Beside(scheduled=scheduled, partitions=partitions, groups=groups, subscriptions=subscriptions),
    }
    found: dict[str, Callable[[Stand], Any]] = {
        f"beside {name}": partial(measure_beside, beside=each, polls=arguments.polls) for name, each in beside.items()
    }
    for system in ("broker", QUEUE):
        found[f"held snapshot, {system}"] = partial(
            measure_held, system=system, per_s=arguments.per_s, held_s=arguments.held_s,
            payload_bytes=arguments.payload_bytes,
        )  # fmt: skip
    return found


def told(sample: Steps | Held) -> str:
    """Say what was found, in a line."""
    if isinstance(sample, Steps):
        polled_ms, read_ms = quantile(sample.poll_ms, 0.5), quantile(sample.read_ms, 0.5)
        return f"a poll {polled_ms or 0:.2f} ms, a read {read_ms or 0:.2f} ms"
    last = sample.slices[-1]
    return f"{last.p50_ms or 0:.1f} ms at the end, {last.dead_rows:,} dead rows"


def summary(rounds: dict[str, list[Any]]) -> dict[str, Any]:
    """Return medians over the rounds of steps, and the first round of what goes on over time."""
    lines: dict[str, Any] = {}
    for name, samples in rounds.items():
        if isinstance(samples[0], Steps):
            lines[name] = {
                f"{step}_p{percent}_ms": median(
                    [quantile(getattr(each, f"{step}_ms"), percent / 100) for each in samples], 3
                )
                for step in ("poll", "read")
                for percent in (50, 99)
            }
        else:
            lines[name] = asdict(samples[0]) | {"missing": sum(sample.missing for sample in samples)}
    return lines


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the figures."""
    steps = Table("beside", "poll p50 ms", "p99", "read p50 ms", "p99", title="What is stored", title_justify="left")
    for name, line in result["summary"].items():
        if "slices" not in line:
            figures = (line[key] for key in ("poll_p50_ms", "poll_p99_ms", "read_p50_ms", "read_p99_ms"))
            steps.add_row(name.removeprefix("beside "), *(f"{figure:.2f}" for figure in figures))
    console.print(steps)
    held = Table("until s", "events", "p50 ms", "p99 ms", "dead rows", "MB", title_justify="left")
    for name, line in result["summary"].items():
        if "slices" in line:
            held.add_section()
            held.add_row(name)
            for each in line["slices"]:
                waits = ("" if each[key] is None else f"{each[key]:.1f}" for key in ("p50_ms", "p99_ms"))
                held.add_row(
                    f"{each['until_s']:,.0f}", f"{each['events']:,}", *waits, f"{each['dead_rows']:,}",
                    f"{each['bytes'] / 1e6:,.1f}",
                )  # fmt: skip
    console.print(held)


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure everything and return the result."""
    with private_server(durable=not arguments.not_durable) as server:
        with connect(server.url) as connection:
            about = bench.facts(connection)
        stand = Stand(server=server, events=1)
        table = {name: way for name, way in ways(arguments).items() if re.search(arguments.only, name)}
        rounds = bench.in_turns(
            {name: partial(way, stand) for name, way in table.items()},
            rounds=arguments.rounds,
            console=console,
            told=told,
        )
        return {
            "machine": about,
            "durable": not arguments.not_durable,
            "rounds": bench.in_words(rounds),
            "summary": summary(rounds),
        }


def fault(result: dict[str, Any]) -> str:
    """Name what lost an event."""
    wrong = [name for name, line in result["summary"].items() if line.get("missing")]
    return f"events were lost: {', '.join(wrong)}" if wrong else ""


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write the result. Exit code 1 when an event was lost."""
    parser = bench.options(__doc__, rounds=1)
    parser.add_argument("--polls", type=int, default=200, help="of each way beside something")
    parser.add_argument("--waiting", type=int, default=1_000_000, help="events scheduled for later")
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--subscriptions", type=int, default=10_000, help=f"of {CONDITIONS} conditions")
    parser.add_argument("--held-s", type=int, default=60, help="seconds for which a snapshot is held")
    parser.add_argument("--per-s", type=int, default=2_000, help="events per second meanwhile")
    parser.add_argument("--payload-bytes", type=int, default=256)
    parser.add_argument("--not-durable", action="store_true", help="let PostgreSQL leave out fsync")
    bench.add_only(parser)
    bench.add_json(parser)
    arguments = parser.parse_args(words)
    bench.refuse_less_than_one(
        parser, arguments.rounds, arguments.polls, arguments.waiting, arguments.partitions, arguments.groups,
        arguments.subscriptions, arguments.held_s, arguments.per_s, arguments.payload_bytes,
    )  # fmt: skip
    path = arguments.json or bench.RESULTS / "event-growth.json"
    return bench.finish(partial(run, arguments), show, path=path, width=100, fault=fault)


if __name__ == "__main__":
    sys.exit(main())

"""A rate that tasks share through the database: it holds whoever comes, goes or is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuekeeper.clock import OwnBucket, Pace
from queuekeeper.errors import ServerUnavailable
from queuekeeper.jobs.shared_bucket import SharedBucket
from queuekeeper.postgres import Connection

pytestmark = pytest.mark.sql

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def schema(control_schema: None) -> None:
    """Every test has the bucket's table."""


@settings(max_examples=50, derandomize=True, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    takes=st.lists(
        st.tuples(st.integers(-200, 3_000), st.integers(0, 500), st.sampled_from([1, 100, 5_000])), max_size=12
    )
)
def test_bucket_in_the_database_counts_as_one_in_memory_does(
    connection: Connection, takes: list[tuple[int, int, int]]
) -> None:
    connection.execute("TRUNCATE queuekeeper.rate_buckets")
    now_s = 0.0
    own, shared = OwnBucket(lambda: now_s), SharedBucket(connection, "plan-a")
    at_ms, latest_ms = 0, -1_000_000
    for later_ms, amount, rate in takes:
        at_ms += later_ms
        # Time that goes back releases nothing, and is not counted twice.
        latest_ms = max(latest_ms, at_ms)
        now_s = latest_ms / 1_000
        debt = shared.take(amount, rate=rate, at=BEGIN + timedelta(milliseconds=at_ms))
        assert debt == pytest.approx(own.take(amount, rate=rate), abs=1e-6 * rate)


def test_tasks_that_come_and_go_hold_a_rate_together(connect: Callable[[], Connection]) -> None:
    rate, tasks, begun = 4_000, 12, threading.Barrier(4)
    done = [0] * tasks
    connections = [connect() for _ in range(tasks)]

    def work(number: int, seconds: float) -> None:
        pace = Pace(lambda: rate, SharedBucket(connections[number], "plan-a"))
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            pace(16)
            done[number] += 16

    def worker(first: int) -> None:
        begun.wait()
        # Each thread is three tasks, one after the other, of different lives.
        for number, seconds in ((first, 0.3 + first / 10), (first + 4, 0.5), (first + 8, 0.9 - first / 10)):
            work(number, seconds)

    threads = [threading.Thread(target=worker, args=(first,)) for first in range(4)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.monotonic() - started

    assert all(done)
    # What was taken ahead, and the last chunk of each that is at work.
    assert sum(done) <= rate * took_s * 1.05 + 4 * 16


def test_killed_task_leaves_the_whole_rate_to_the_others(connect: Callable[[], Connection]) -> None:
    one, victim = connect(), connect()
    at = BEGIN
    assert SharedBucket(victim, "plan-a").take(500, rate=500, at=at) == 500
    one.execute("SELECT pg_terminate_backend(%s, 60000)", (victim.info.backend_pid,))
    with pytest.raises(ServerUnavailable):
        SharedBucket(victim, "plan-a").take(500, rate=500, at=at)
    # The second that the killed one has taken, then one's own; of another plan nothing counts.
    assert SharedBucket(one, "plan-a").take(500, rate=500, at=at) == 1_000
    assert SharedBucket(one, "plan-a").take(500, rate=500, at=at + timedelta(seconds=2)) == 500
    assert SharedBucket(one, "plan-b").take(500, rate=500, at=at) == 500


def test_bucket_that_nobody_has_asked_for_a_day_is_forgotten_unless_it_is_held(
    connect: Callable[[], Connection],
) -> None:
    one, other = connect(), connect()
    for run_id in ("idle", "held"):
        SharedBucket(one, run_id).take(1, rate=1, at=BEGIN)
    with suppress(psycopg.Rollback), other.transaction():
        SharedBucket(other, "held").take(1, rate=1, at=BEGIN)
        SharedBucket(one, "plan-a").take(1, rate=1)
        assert one.execute("SELECT run_id FROM queuekeeper.rate_buckets ORDER BY 1").fetchall() == [
            ("held",),
            ("plan-a",),
        ]

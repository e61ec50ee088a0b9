"""Maintenance of partitions beside open transactions: nobody waits long, and what is interrupted goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import psycopg
import pytest

from queuekeeper.errors import MaintenanceRunning, RefusedError, ServerUnavailable
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.maintenance.partitions.apply import apply_plan
from queuekeeper.maintenance.partitions.coverage import coverage
from queuekeeper.maintenance.partitions.findings import FindingKind
from queuekeeper.maintenance.partitions.model import (
    ApplyReport,
    PartitionPlan,
    RetiredState,
    StepKind,
    StepState,
)
from queuekeeper.maintenance.partitions.plan import plan_creation, plan_drop, plan_reattachment, plan_retirement
from queuekeeper.maintenance.partitions.retired import retired_partitions
from queuekeeper.maintenance.partitions.runs import carry_out, save_run
from queuekeeper.postgres import Connection
from tests.patience import PATIENCE_S
from tests.postgres_roles import new_role
from tests.sql.test_partitions import DAY_MS, NOW, POLICY, bounds, create, days, insert, retire, table

pytestmark = [pytest.mark.sql, pytest.mark.slow]

__all__ = ["table"]

LATER = NOW + 11 * DAY_MS
SHORT = replace(POLICY, lock_timeout_ms=100, deadline_s=3)
PATIENT = replace(POLICY, deadline_s=round(PATIENCE_S))
Connect = Callable[[], Connection]


@contextmanager
def beside(connection: Connection, plan: PartitionPlan, **options: Any) -> Iterator[Future[ApplyReport]]:
    """Apply a plan in a thread of its own while the block runs."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(apply_plan, connection, plan=plan, now_ms=LATER, random=Random(1), **options)


class Tries:
    """The tries of one apply that goes on, by its clock, until a test ends it.

    :ivar lock_timeouts: how long the tries have let a statement wait for a lock.
    """

    def __init__(self, connection: Connection) -> None:
        self.failed = threading.Event()
        self.lock_timeouts: set[str] = set()
        self._connection = connection
        self._now_s = 0.0
        self._give_up_at_s = time.monotonic() + PATIENCE_S

    def monotonic(self) -> float:
        """Return the instant, which stands still until the end, or until the test hangs."""
        return self._now_s if time.monotonic() < self._give_up_at_s else PATIENCE_S

    def pause(self, _: float) -> None:
        """Note that a try has failed."""
        (lock_timeout,) = self._connection.execute("SHOW lock_timeout").fetchone() or ("",)
        self.lock_timeouts.add(lock_timeout)
        self.failed.set()

    def end(self) -> None:
        """Let the time be up."""
        self._now_s = float(SHORT.deadline_s)


def wait_for_lock(watcher: Connection, pid: int, work: Future[Any]) -> None:
    """Wait until a session waits for somebody."""
    while watcher.execute("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone() != ("Lock",):
        assert not work.done()


def test_creation_waits_for_nobody_and_nobody_for_it(table: Connection, connect: Connect) -> None:
    create(table, SHORT)
    writer, reader, publisher = connect(), connect(), connect()
    with writer.transaction(), reader.transaction():
        insert(writer, "2026-11-21 01:00:00")
        reader.execute("SELECT count(*) FROM readings").fetchone()
        plan = plan_creation(table, policy=SHORT, now_ms=NOW + DAY_MS)
        assert plan.blockers == ()
        report = apply_plan(table, plan=plan, now_ms=NOW)
        publisher.execute("SET lock_timeout = '100ms'")
        insert(publisher, "2026-11-25 01:00:00")

    assert report.done
    assert [each.attempts for each in report.outcomes] == [1]


def test_creation_with_a_default_gives_way_and_tries_again(table: Connection, connect: Connect) -> None:
    """The attach has to look into DEFAULT: readers may have it, and none of them waits longer than the lock timeout."""
    table.execute("CREATE TABLE readings_default PARTITION OF readings DEFAULT")
    reader, publisher = connect(), connect()
    with reader.transaction():
        reader.execute("SELECT count(*) FROM readings").fetchone()
        plan = plan_creation(table, policy=SHORT, now_ms=NOW)
        assert {each.pid for each in plan.blockers} == {reader.info.backend_pid}
        tries = Tries(table)
        with beside(table, plan, sleep=tries.pause, monotonic=tries.monotonic) as work:
            assert tries.failed.wait(PATIENCE_S)
            publisher.execute(f"SET lock_timeout = '{PATIENCE_S} s'")
            insert(publisher, "2026-11-21 01:00:00")
            tries.end()
            report = work.result()

    assert {each.state for each in report.outcomes} == {StepState.BLOCKED}
    assert reader.info.backend_pid in {each.pid for outcome in report.outcomes for each in outcome.blockers}
    assert "held a lock for all of 3 s; repeat it" in report.outcomes[0].words
    assert tries.lock_timeouts == {"100ms"}


def test_retirement_is_not_begun_beside_a_long_transaction(table: Connection, connect: Connect) -> None:
    create(table)
    create(table, now_ms=LATER)
    reader, publisher = connect(), connect()
    plan = plan_retirement(table, policy=SHORT, now_ms=LATER)
    with reader.transaction():
        reader.execute("SELECT count(*), pg_sleep(2.1) FROM readings").fetchone()
        report = apply_plan(table, plan=plan, now_ms=LATER, random=Random(1))
        insert(publisher, "2026-12-02 01:00:00", "2026-11-21 01:00:00")

        (outcome,) = report.outcomes
        assert outcome.state is StepState.BLOCKED
        assert [each.pid for each in outcome.blockers] == [reader.info.backend_pid]
        assert coverage(table, policy=SHORT, now_ms=LATER).pending_detaches == ()
    assert apply_plan(table, plan=plan, now_ms=LATER).done


def test_readers_and_writers_go_on_while_a_detach_waits(table: Connection, connect: Connect) -> None:
    create(table)
    create(table, now_ms=LATER)
    reader, publisher, watcher = connect(), connect(), connect()
    plan = plan_retirement(table, policy=PATIENT, now_ms=LATER)
    with reader.transaction():
        reader.execute("SELECT count(*) FROM readings").fetchone()
        with beside(table, plan) as work:
            wait_for_lock(watcher, table.info.backend_pid, work)
            publisher.execute("SET lock_timeout = '200ms'")
            for second in range(20):
                insert(publisher, f"2026-12-02 01:00:{second:02d}")
                assert publisher.execute("SELECT count(*) FROM readings").fetchone() == (second + 1,)
            reader.execute("COMMIT")
            assert work.result().done
            reader.execute("BEGIN")


@pytest.fixture
def interrupted(table: Connection, connect: Connect) -> Connection:
    """A table with a detach that a lock timeout has cut off."""
    create(table)
    insert(table, "2026-11-21 01:00:00")
    create(table, now_ms=LATER)
    reader, other = connect(), connect()
    with reader.transaction():
        reader.execute("SELECT count(*) FROM readings").fetchone()
        other.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("ALTER TABLE readings DETACH PARTITION readings_p20261121 CONCURRENTLY")
    return table


def test_interrupted_detach_is_ended_by_the_next_retirement(interrupted: Connection) -> None:
    seen = coverage(interrupted, policy=POLICY, now_ms=LATER)
    assert seen.pending_detaches == ("public.readings_p20261121",)
    assert [each.kind for each in seen.findings] == [FindingKind.PENDING_DETACH]
    plan = plan_retirement(interrupted, policy=POLICY, now_ms=LATER)

    assert plan.steps[0].statements[1].sql.endswith("FINALIZE")
    assert apply_plan(interrupted, plan=plan, now_ms=LATER).done
    assert interrupted.execute("SELECT count(*) FROM queuekeeper_retired.readings_p20261121").fetchone() == (1,)


def test_interrupted_detach_of_a_needed_partition_is_put_right_by_creation(interrupted: Connection) -> None:
    assert interrupted.execute("SELECT count(*) FROM readings").fetchone() == (0,)
    longer = replace(POLICY, retention="30 days")
    held = plan_retirement(interrupted, policy=longer, now_ms=LATER)
    assert held.empty
    plan = plan_creation(interrupted, policy=longer, now_ms=LATER)

    assert [each.kind for each in plan.steps] == [StepKind.FINALIZE]
    assert apply_plan(interrupted, plan=plan, now_ms=LATER).done
    insert(interrupted, "2026-11-21 02:00:00")
    assert interrupted.execute("SELECT count(*) FROM readings").fetchone() == (2,)


def test_interrupted_detach_of_what_a_consumer_needs_is_put_right_by_creation(interrupted: Connection) -> None:
    interrupted.execute("CREATE TABLE cursors (at timestamptz)")
    interrupted.execute("INSERT INTO cursors VALUES ('2026-11-21 00:30+00')")
    later = LATER + 2 * DAY_MS
    for query in ("SELECT min(at) FROM cursors", "SELECT nonsense"):
        guarded = replace(POLICY, lowest_needed_sql=query)
        finalized = [
            each.relation_name
            for each in plan_creation(interrupted, policy=guarded, now_ms=later).steps
            if each.kind is StepKind.FINALIZE
        ]
        assert finalized == ["readings_p20261121"]
    guarded = replace(POLICY, lowest_needed_sql="SELECT min(at) FROM cursors WHERE at < '2026-11-21'")
    assert plan_retirement(interrupted, policy=guarded, now_ms=later).steps[0].relation_name == "readings_p20261121"
    guarded = replace(POLICY, lowest_needed_sql="SELECT min(at) FROM cursors")
    assert plan_retirement(interrupted, policy=guarded, now_ms=later).empty
    create(interrupted, guarded, now_ms=later)

    assert interrupted.execute("SELECT count(*) FROM readings").fetchone() == (1,)
    # No other partition is held up any more.
    interrupted.execute("DELETE FROM cursors")
    retire(interrupted, guarded, now_ms=later)
    assert len(retired_partitions(interrupted)) == 3


def die_while_detaching(table: Connection, connect: Connect) -> None:
    """Leave a detach that was recorded and not ended."""
    reader, victim, watcher = connect(), connect(), connect()
    plan = plan_retirement(table, policy=POLICY, now_ms=LATER)
    with reader.transaction():
        reader.execute("SELECT count(*) FROM readings").fetchone()
        with beside(victim, plan) as work:
            wait_for_lock(watcher, victim.info.backend_pid, work)
            watcher.execute("SELECT pg_terminate_backend(%s, 5000)", [victim.info.backend_pid])
            with pytest.raises(ServerUnavailable, match="broke the connection"):
                work.result()


def test_process_that_dies_while_it_detaches_is_gone_on_with(table: Connection, connect: Connect) -> None:
    create(table)
    create(table, now_ms=LATER)
    die_while_detaching(table, connect)
    assert retired_partitions(table)[0].state is RetiredState.DETACHING

    much_later = LATER + 20 * DAY_MS
    create(table, now_ms=much_later)
    retire(table, now_ms=much_later)
    first, *_ = retired_partitions(table)
    assert first.state is RetiredState.QUARANTINED
    # Its days begin when it comes to the quarantine, not when that was first tried.
    assert plan_drop(table, policy=replace(POLICY, archive=False), now_ms=much_later + 6 * DAY_MS).empty


def test_partition_that_was_detached_before_an_interruption_is_moved_on(table: Connection, connect: Connect) -> None:
    create(table)
    create(table, now_ms=LATER)
    die_while_detaching(table, connect)
    table.execute("ALTER TABLE readings DETACH PARTITION readings_p20261121 FINALIZE")
    table.execute("ALTER TABLE readings_p20261121 RENAME TO older")
    again = plan_retirement(table, policy=POLICY, now_ms=LATER)

    assert [each.kind for each in again.steps] == [StepKind.QUARANTINE]
    assert apply_plan(table, plan=again, now_ms=LATER).done
    assert plan_retirement(table, policy=POLICY, now_ms=LATER).empty
    assert [each.partition_name for each in retired_partitions(table)] == ["older"]


def test_two_processes_do_not_maintain_one_table(table: Connection, connect: Connect) -> None:
    plan = plan_creation(table, policy=POLICY, now_ms=NOW)
    other = connect()
    met: list[str] = []

    def meanwhile(_: str) -> None:
        with pytest.raises(MaintenanceRunning) as caught:
            apply_plan(other, plan=plan, now_ms=NOW)
        met.append(str(caught.value))

    assert apply_plan(table, plan=plan, now_ms=NOW, say=meanwhile).done
    assert set(met) == {"another process maintains the partitions of public.readings: let it finish"}
    assert {each.state for each in apply_plan(other, plan=plan, now_ms=NOW).outcomes} == {StepState.ALREADY}
    assert table.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


def test_partition_made_by_others_since_the_plan_is_seen(table: Connection) -> None:
    plan = plan_creation(table, policy=POLICY, now_ms=NOW)
    table.execute("CREATE TABLE theirs PARTITION OF readings FOR VALUES FROM ('2026-11-21 12:00') TO ('2026-11-22')")
    report = apply_plan(table, plan=plan, now_ms=NOW)

    assert report.stale
    assert [each.state for each in report.outcomes] == [StepState.STALE, *[StepState.DONE] * 3]
    assert "public.theirs covers keys of it; make a new plan" in report.outcomes[0].words
    create(table)
    assert not coverage(table, policy=POLICY, now_ms=NOW).findings


def test_partition_replaced_under_its_name_is_not_retired(table: Connection) -> None:
    create(table)
    create(table, now_ms=LATER)
    plan = plan_retirement(table, policy=POLICY, now_ms=LATER)
    table.execute("DROP TABLE readings_p20261121")
    table.execute(
        "CREATE TABLE readings_p20261121 PARTITION OF readings FOR VALUES FROM ('2026-11-01') TO ('2026-11-22')"
    )
    report = apply_plan(table, plan=plan, now_ms=LATER)

    assert [each.state for each in report.outcomes] == [StepState.STALE]
    assert retired_partitions(table) == []


# --- DEFAULT ------------------------------------------------------------------------------------------------------


@pytest.fixture
def spilled(table: Connection) -> Connection:
    """A table whose rows of two days lie in DEFAULT."""
    table.execute("CREATE TABLE readings_default PARTITION OF readings DEFAULT")
    table.execute(
        "INSERT INTO readings (at, value) SELECT TIMESTAMPTZ '2026-11-20 12:00+00' + n * interval '3 s', n "
        "FROM generate_series(1, 28000) AS n"
    )
    return table


def total(connection: Connection) -> tuple[Any, ...]:
    return connection.execute("SELECT count(*), count(DISTINCT id), sum(value), sum(doubled) FROM readings").fetchall()[
        0
    ]


def test_drain_keeps_up_with_those_who_change_rows(spilled: Connection, connect: Connect) -> None:
    """Every row is seen at every moment, and whatever is changed before, while and after it is copied arrives."""
    writer = connect()
    changes = 0
    expected = total(spilled)

    def change(line: str) -> None:
        nonlocal changes, expected
        assert total(writer) == expected
        if "copied" not in line:
            return
        for value in (1, 14_000, 28_000):
            writer.execute("UPDATE readings SET value = -value WHERE abs(value) = %s", [value])
        writer.execute("UPDATE readings SET at = at + interval '1 day' WHERE value = 2")
        writer.execute("DELETE FROM readings WHERE value BETWEEN %s AND %s", [100 + changes * 10, 109 + changes * 10])
        writer.execute("INSERT INTO readings (at, value) VALUES ('2026-11-20 13:00+00', 1000000)")
        changes += 1
        expected = total(writer)

    plan = plan_creation(spilled, policy=POLICY, now_ms=NOW)
    report = apply_plan(spilled, plan=plan, now_ms=NOW, say=change)

    assert report.done, report
    assert changes > 0
    assert total(spilled) == expected
    assert spilled.execute("SELECT count(*) FROM ONLY readings_default_2").fetchone() == (0,)
    assert not coverage(spilled, policy=POLICY, now_ms=NOW).default_rows
    assert spilled.execute("SELECT count(*) FROM pg_trigger WHERE tgname = 'queuekeeper_drain'").fetchone() == (0,)


def test_drain_holds_to_the_throttle_of_its_run(spilled: Connection) -> None:
    runs = MaintenanceRuns(spilled)
    plan = plan_creation(spilled, policy=POLICY, now_ms=NOW)
    run_id = save_run(runs, plan)
    runs.set_throttle(run_id, 14_000)
    began = time.monotonic()

    report = carry_out(spilled, plan, run_id=run_id)

    # Half a second's worth is free.
    assert time.monotonic() - began > 1.4
    assert report.done, report
    assert sum(each.rows or 0 for each in report.outcomes) >= 28_000


def test_drain_waits_for_its_moment_and_copies_once(spilled: Connection, connect: Connect) -> None:
    reader, publisher = connect(), connect()
    plan = plan_creation(spilled, policy=replace(PATIENT, lock_timeout_ms=100), now_ms=NOW)
    steps = tuple(each for each in plan.steps if each.kind is StepKind.DRAIN)
    tried = threading.Event()
    copies: list[str] = []
    with reader.transaction():
        reader.execute("SELECT count(*) FROM readings").fetchone()
        with beside(
            spilled,
            replace(plan, steps=steps),
            say=lambda line: copies.append(line) if "copied" in line else None,
            sleep=lambda seconds: tried.set(),
        ) as work:
            assert tried.wait(PATIENCE_S)
            publisher.execute(f"SET lock_timeout = '{PATIENCE_S} s'")
            insert(publisher, "2026-11-20 13:00:00")
            reader.execute("COMMIT")
            report = work.result()
            reader.execute("BEGIN")

    assert report.done, report
    assert total(spilled)[0] == 28_001
    copied = [each for each in copies if each.endswith("blocks")]
    assert len(copied) == len(set(copied)) > 1


def test_a_drain_copies_fewer_blocks_at_once_while_postgresql_is_slow(
    spilled: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuekeeper.jobs.pace.SLOW_S", -1.0)
    monkeypatch.setattr("queuekeeper.maintenance.partitions.drain._COPIED_BLOCKS", 16)
    said: list[str] = []
    before = total(spilled)

    assert apply_plan(spilled, plan=plan_creation(spilled, policy=POLICY, now_ms=NOW), now_ms=NOW, say=said.append).done

    copied = [line.split(" rows copied, ")[1] for line in said if " rows copied, " in line]
    ends = [int(each.split(" of ")[0].replace(",", "")) for each in copied]
    assert [end - first for first, end in pairwise([0, *ends])][:4] == [16, 16, 16, 8]
    assert total(spilled) == before


def test_rows_are_in_sight_all_the_while(spilled: Connection, connect: Connect) -> None:
    reader = connect()
    plan = plan_creation(spilled, policy=POLICY, now_ms=NOW)
    seen = set()
    with beside(spilled, plan) as work:
        while not work.done():
            seen.add(total(reader))
        assert work.result().done

    assert seen == {total(reader)}


def test_killed_drain_leaves_nothing_that_stops_the_next(spilled: Connection, connect: Connect) -> None:
    victim = connect()
    plan = plan_creation(spilled, policy=POLICY, now_ms=NOW)
    before = total(spilled)

    def kill(line: str) -> None:
        if "rows copied" in line:
            spilled.execute("SELECT pg_terminate_backend(%s, 5000)", [victim.info.backend_pid])

    with pytest.raises(ServerUnavailable):
        apply_plan(victim, plan=plan, now_ms=NOW, say=kill)
    insert(spilled, "2026-11-20 13:00:00")
    create(spilled)

    assert total(spilled)[0] == before[0] + 1
    assert spilled.execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'queuekeeper_drain%'").fetchone() == (
        0,
    )


def test_what_a_killed_drain_left_is_removed_when_default_is_empty(spilled: Connection, connect: Connect) -> None:
    victim = connect()
    plan = plan_creation(spilled, policy=POLICY, now_ms=NOW)

    def kill(line: str) -> None:
        if "rows copied" in line:
            spilled.execute("SELECT pg_terminate_backend(%s, 5000)", [victim.info.backend_pid])

    with pytest.raises(ServerUnavailable):
        apply_plan(victim, plan=plan, now_ms=NOW, say=kill)
    spilled.execute("DELETE FROM readings")
    seen = coverage(spilled, policy=POLICY, now_ms=NOW)
    assert [each.subject for each in seen.findings if each.kind is FindingKind.DRAIN_LEFT] == [
        "public.readings_default"
    ]
    create(spilled)

    assert not coverage(spilled, policy=POLICY, now_ms=NOW).findings
    assert spilled.execute("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'queuekeeper_drain%'").fetchone() == (0,)
    assert spilled.execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'queuekeeper_drain%'").fetchone() == (
        0,
    )
    assert plan_creation(spilled, policy=POLICY, now_ms=NOW).empty


def once_copied(act: Callable[[], None]) -> Callable[[str], None]:
    """Act when the first rows have been copied."""
    done: list[str] = []

    def say(line: str) -> None:
        if "rows copied" in line and not done:
            done.append(line)
            act()

    return say


def test_truncate_is_refused_while_rows_are_copied(spilled: Connection, connect: Connect) -> None:
    other = connect()
    before = total(spilled)

    def truncate() -> None:
        with pytest.raises(psycopg.errors.ObjectInUse, match="are being moved to partitions of their own") as caught:
            other.execute("TRUNCATE readings")
        assert "Let the drain finish" in (caught.value.diag.message_hint or "")

    plan = plan_creation(spilled, policy=POLICY, now_ms=NOW)
    assert apply_plan(spilled, plan=plan, now_ms=NOW, say=once_copied(truncate)).done
    assert total(spilled) == before
    other.execute("TRUNCATE readings")
    assert total(spilled)[0] == 0


def test_rows_that_move_ahead_of_the_copy_are_copied_once(spilled: Connection, connect: Connect) -> None:
    other = connect()
    spilled.execute("DELETE FROM readings WHERE value > 14000 AND value % 2 = 0")
    spilled.execute("VACUUM readings_default")
    expected = total(spilled)

    def move() -> None:
        # Their new versions go to the room that others have left, in blocks that are still to be copied.
        other.execute("UPDATE readings SET value = value WHERE value <= 5000")

    plan = plan_creation(spilled, policy=POLICY, now_ms=NOW)
    report = apply_plan(spilled, plan=plan, now_ms=NOW, say=once_copied(move))

    assert report.done, report
    assert total(spilled) == expected


def test_columns_that_a_primary_key_includes_may_be_null(table: Connection, connect: Connect) -> None:
    table.execute(
        "CREATE TABLE log (id bigint, at timestamptz NOT NULL, note text, PRIMARY KEY (id, at) INCLUDE (note)) "
        "PARTITION BY RANGE (at)"
    )
    table.execute("CREATE TABLE log_default PARTITION OF log DEFAULT")
    table.execute("INSERT INTO log SELECT n, timestamptz '2026-11-20 00:00+00' FROM generate_series(1, 20000) AS n")
    other = connect()

    def change() -> None:
        other.execute("DELETE FROM log WHERE id <= 10")
        other.execute("INSERT INTO log VALUES (99999, '2026-11-20 05:00+00', NULL)")

    plan = plan_creation(table, policy=replace(POLICY, table="public.log"), now_ms=NOW)
    report = apply_plan(table, plan=plan, now_ms=NOW, say=once_copied(change))

    assert report.done, report
    assert table.execute("SELECT count(*), min(id), max(id) FROM log").fetchone() == (19_991, 11, 99_999)


def test_copy_that_missed_a_change_is_not_put_in_place(spilled: Connection, connect: Connect) -> None:
    other = connect()

    def change_unnoticed() -> None:
        other.execute("ALTER TABLE readings_default DISABLE TRIGGER queuekeeper_drain")
        other.execute("DELETE FROM readings WHERE value <= 10")

    plan = plan_creation(spilled, policy=POLICY, now_ms=NOW)
    report = apply_plan(spilled, plan=plan, now_ms=NOW, say=once_copied(change_unnoticed))

    assert report.outcomes[-1].state is StepState.FAILED
    assert "the copy would differ by +10 rows" in report.outcomes[-1].words
    assert spilled.execute("SELECT count(*) FROM readings_default").fetchone() == (27_990,)
    create(spilled)
    assert total(spilled)[0] == 27_990


def test_rows_that_a_policy_hides_are_not_lost(spilled: Connection) -> None:
    with new_role(spilled, "tenant") as role:
        spilled.execute(f"GRANT CREATE ON DATABASE {spilled.info.dbname} TO {role}")
        spilled.execute(f"GRANT CREATE, USAGE ON SCHEMA public, queuekeeper TO {role}")
        spilled.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA queuekeeper TO {role}")
        spilled.execute(f"ALTER TABLE readings OWNER TO {role}")
        spilled.execute(f"ALTER TABLE readings_default OWNER TO {role}")
        spilled.execute("ALTER TABLE readings_default ENABLE ROW LEVEL SECURITY")
        spilled.execute("ALTER TABLE readings_default FORCE ROW LEVEL SECURITY")
        spilled.execute("CREATE POLICY odd ON readings_default USING (value % 2 = 1)")
        spilled.execute(f"SET ROLE {role}")
        with pytest.raises(RefusedError, match="would be affected by row-level security policy"):
            plan_creation(spilled, policy=POLICY, now_ms=NOW)
        assert spilled.execute("SHOW row_security").fetchone() == ("on",)
    assert total(spilled)[0] == 28_000


def test_rows_that_cannot_leave_default_do_not_hold_up_the_present(table: Connection) -> None:
    table.execute("CREATE TABLE log (at timestamptz NOT NULL) PARTITION BY RANGE (at)")
    table.execute("CREATE TABLE log_default PARTITION OF log DEFAULT")
    table.execute(
        "INSERT INTO log SELECT timestamptz '2026-01-01 00:00+00' + n * interval '1 day' FROM generate_series(0, 60) n"
    )
    policy = replace(POLICY, table="public.log", at_most=20)
    create(table, policy)

    assert set(days("11-21", "11-22", "11-23", "11-24", "11-25")) <= set(bounds(table, "log"))
    assert coverage(table, policy=policy, now_ms=NOW).head_room_met


def test_rows_that_reach_default_after_the_plan_stop_their_partition_only(table: Connection) -> None:
    table.execute("CREATE TABLE readings_default PARTITION OF readings DEFAULT")
    plan = plan_creation(table, policy=POLICY, now_ms=NOW)
    insert(table, "2026-11-22 13:00:00")
    report = apply_plan(table, plan=plan, now_ms=NOW)

    assert [each.state for each in report.outcomes] == [StepState.DONE, StepState.STALE, StepState.DONE, StepState.DONE]
    assert "default partition" in report.outcomes[1].words
    create(table)
    assert days("11-22", "11-23")[0] in bounds(table)


def test_default_forbids_a_concurrent_detach_unless_a_blocking_one_is_allowed(
    table: Connection, connect: Connect
) -> None:
    table.execute("CREATE TABLE readings_default PARTITION OF readings DEFAULT")
    create(table)
    create(table, now_ms=LATER)
    held = plan_retirement(table, policy=POLICY, now_ms=LATER)
    assert held.empty
    assert "is a DEFAULT partition, so DETACH ... CONCURRENTLY is refused" in held.held[0].reason
    allowed = replace(SHORT, blocking_detach=True)
    plan = plan_retirement(table, policy=allowed, now_ms=LATER)
    assert any(
        lock.mode == "ACCESS EXCLUSIVE" and lock.relation == "public.readings" and lock.blocks == "readers and writers"
        for each in plan.steps[0].statements
        for lock in each.locks
    )
    reader, publisher = connect(), connect()
    tries = Tries(table)
    with reader.transaction():
        reader.execute("SELECT count(*) FROM readings").fetchone()
        with beside(table, plan, sleep=tries.pause, monotonic=tries.monotonic) as work:
            assert tries.failed.wait(PATIENCE_S)
            publisher.execute(f"SET lock_timeout = '{PATIENCE_S} s'")
            insert(publisher, "2026-12-02 13:00:00")
            reader.execute("COMMIT")
            report = work.result()
            reader.execute("BEGIN")
    assert report.outcomes[0].state is StepState.DONE
    assert tries.lock_timeouts == {"100ms"}
    retire(table, allowed, now_ms=LATER)
    (record,) = retired_partitions(table)
    undo = plan_reattachment(table, policy=allowed, retired_id=record.retired_id, now_ms=LATER)
    assert apply_plan(table, plan=undo, now_ms=LATER).done


# --- weeks ----------------------------------------------------------------------------------------------------------


def test_weeks_go_by_and_no_insert_ever_fails(table: Connection, connect: Connect) -> None:
    """Publishers insert all the while; steps change, maintenance fails to run for days, and comes back."""
    publisher = connect()
    policy = replace(
        POLICY, step="6 hours", ahead="4 days", retention="5 days", archive=False, deadline_s=round(PATIENCE_S)
    )
    stop = threading.Event()
    clock_ms = [NOW]
    create(table, policy)

    def publish() -> int:
        sent = 0
        while not stop.is_set():
            publisher.execute(
                "INSERT INTO readings (at, value) SELECT to_timestamp(%s / 1000.0) + n * interval '1 min', n "
                "FROM generate_series(0, 19) AS n",
                [clock_ms[0]],
            )
            sent += 20
        return sent

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(publish)
        try:
            for day in range(21):
                clock_ms[0] = NOW + day * DAY_MS
                # A day less than what is premade: at its very end an insert is as early as the next creation.
                if day in {5, 6}:
                    continue
                step = ("6 hours", "1 day", "1 hour", "1 week")[day // 6]
                now_policy = replace(policy, step=step)
                create(table, now_policy, now_ms=clock_ms[0])
                retire(table, now_policy, now_ms=clock_ms[0])
        finally:
            stop.set()
        sent = work.result()

    seen = coverage(table, policy=replace(policy, step="1 week"), now_ms=clock_ms[0])
    assert not seen.findings
    kept = table.execute("SELECT count(*) FROM readings").fetchone()
    away = [
        table.execute(f"SELECT count(*) FROM queuekeeper_retired.{each.partition_name}".encode()).fetchone()
        for each in retired_partitions(table)
    ]
    assert sum(row[0] for row in [kept, *away] if row) == sent
    assert len(away) > 10

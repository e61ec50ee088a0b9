"""Defects of PGMB and of partition managers: what each does to tables, beside what ours do given the same events."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg

from queuekeeper.clock import system_clock
from queuekeeper.maintenance.partitions.apply import apply_plan
from queuekeeper.maintenance.partitions.plan import plan_creation
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.postgres import Connection, connect
from tests.event_clock import move_clock
from tests.golden_defects.defect import Defect, found_in

EVENTS = "events"
PARTITIONS = "partitions"
DISPATCHING = "dispatching"
"""Name of the broker's own row in findings."""

POISON = "100 / (e.payload ->> 'value')::int > 1"
"""Passes while no value is 0."""


def condition_key(condition: str) -> str:
    """Return the name of a condition in findings."""
    return str(UUID(hashlib.md5(condition.encode(), usedforsecurity=False).hexdigest()))


@dataclass(kw_only=True)
class EventStage:
    """A database with an event broker and with tables that a partition manager keeps.

    :param connection: one that commits by itself.
    :param is_ours: whether ours do the work, or steps that retell what others do.
    :param crash: kills the server, starts it again and answers a new connection.
    """

    url: str
    connection: Connection
    is_ours: bool
    crash: Callable[[], Connection]

    def subscribe(self, group: str, condition: str = "TRUE") -> None:
        """Make a group with one subscription."""
        self.connection.execute("INSERT INTO pgmb.subscription_groups (id) VALUES (%s)", (group,))
        self.connection.execute(
            "INSERT INTO pgmb.subscriptions (group_id, conditions_sql) VALUES (%s, %s)", (group, condition)
        )

    def publish(self, *values: int) -> None:
        """Publish an event for each value."""
        rows = [f'{{"value": {value}}}' for value in values]
        self.connection.execute(
            "SELECT count(*) FROM pgmb.publish(%s::text[], %s::jsonb[], NULL::jsonb[])", (["golden"] * len(rows), rows)
        )

    def poll(self) -> None:
        """Dispatch what waits."""
        self.connection.execute("SELECT pgmb.poll_for_events()")

    def values(self, group: str) -> list[int]:
        """Return what waits for a group."""
        found = self.connection.execute(
            "SELECT (payload ->> 'value')::int FROM pgmb.read_next_events(%s, NULL, 100, peek => true)", (group,)
        )
        return [value for (value,) in found]

    def make_table(self, name: str, *, default: bool, last_day: int) -> None:
        """Make a table by days, from the day before yesterday on, and give it a policy."""
        days = "\n".join(
            f"CREATE TABLE public.{name}_{day + 2} PARTITION OF public.{name} FOR VALUES"
            f" FROM ('{self._midnight(day)}') TO ('{self._midnight(day + 1)}');"
            for day in range(-2, last_day + 1)
        )
        self.connection.execute(
            f"CREATE TABLE public.{name} (at timestamptz PRIMARY KEY, n int) PARTITION BY RANGE (at); {days}".encode()
        )
        if default:
            self.connection.execute(f"CREATE TABLE public.{name}_default PARTITION OF public.{name} DEFAULT".encode())
        save_policy(self.connection, self._policy(name))

    def maintain(self, name: str) -> None:
        """Let our library create partitions, finish what was interrupted and drain DEFAULT; others do none of it."""
        if self.is_ours:
            plan = plan_creation(self.connection, policy=self._policy(name), now_ms=system_clock())
            report = apply_plan(self.connection, plan=plan, now_ms=system_clock())
            assert report.done, report

    def interrupt_detach(self, name: str) -> None:
        """Begin a DETACH ... CONCURRENTLY of the oldest partition that gives up waiting for a reader."""
        with connect(self.url, autocommit=True) as reader, reader.transaction():
            reader.execute(f"SELECT FROM public.{name}".encode())
            self.connection.execute("SET lock_timeout = '300ms'")
            with suppress(psycopg.errors.LockNotAvailable):
                self.connection.execute(
                    f"ALTER TABLE public.{name} DETACH PARTITION public.{name}_0 CONCURRENTLY".encode()
                )
            self.connection.execute("RESET lock_timeout")

    @staticmethod
    def _policy(name: str) -> PartitionPolicy:
        return PartitionPolicy(table=f"public.{name}", step="1 day", ahead="3 days")

    @staticmethod
    def _midnight(day: int) -> datetime:
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return today + timedelta(days=day)


def waiting_list_is_lost(stage: EventStage) -> None:
    stage.subscribe("plain")
    stage.publish(1, 2, 3)
    stage.connection = stage.crash()
    if not stage.is_ours:
        # The list of what waits is UNLOGGED: after a crash it is empty, so nothing is left to be found by a poll.
        stage.connection.execute("UPDATE pgmb.dispatch_state SET dispatched = pg_current_snapshot()")
    stage.poll()


def retention_passes_a_consumer(stage: EventStage) -> None:
    stage.subscribe("lags")
    stage.publish(4)
    stage.poll()
    waits = "true" if stage.is_ours else "false"
    stage.connection.execute("UPDATE pgmb.config SET value = %s WHERE id = 'retention_waits_for_consumers'", (waits,))
    move_clock(stage.connection, timedelta(hours=6))
    stage.connection.execute("CALL pgmb.maintain_events_table()")


def condition_stops_every_group(stage: EventStage) -> None:
    stage.subscribe("sound")
    stage.subscribe("poisoned", POISON)
    stage.publish(5, 0)
    if stage.is_ours:
        stage.poll()
    else:
        # One statement for all conditions: it fails at every poll, for everybody, and nothing is noted.
        stage.connection.execute("UPDATE pgmb.dispatch_state SET polled_at = now() - interval '10 minutes'")


def partitions_run_out(stage: EventStage) -> None:
    stage.make_table("runs_out", default=False, last_day=0)
    stage.maintain("runs_out")


def rows_wait_in_default(stage: EventStage) -> None:
    # Partitions are made ahead of the data and not of the clock: after a quiet time rows find none.
    stage.make_table("kept_by_partman", default=True, last_day=-1)
    stage.connection.execute("INSERT INTO public.kept_by_partman VALUES (now(), 1)")
    stage.maintain("kept_by_partman")


def detach_is_never_finished(stage: EventStage) -> None:
    stage.make_table("half_detached", default=False, last_day=9)
    stage.interrupt_detach("half_detached")
    stage.maintain("half_detached")


PGMB = "`pgmb.sql`, PGMB 0.2.22"
SAME = "test_same_events_leave_no_trace_in_our_broker_and_our_tables"
KILLED = "test_killed_server_loses_nothing_that_was_acknowledged"
POISONED = condition_key(POISON)

DEFECTS: tuple[Defect[EventStage], ...] = (
    Defect(
        id="waiting-list-is-lost",
        title="Events that were committed are never dispatched after a crash: the list of what waits is UNLOGGED",
        published=PGMB,
        trace="stored events that no poll finds and that were never dispatched",
        act=waiting_list_is_lost,
        clients=(DISPATCHING,),
        finds=found_in(EVENTS, DISPATCHING, "Q31"),
        ours=(KILLED, SAME),
    ),
    Defect(
        id="retention-passes-a-consumer",
        title="Retention drops partitions that a consumer has not read",
        published=PGMB,
        trace="a cursor before the oldest partition",
        act=retention_passes_a_consumer,
        clients=("lags",),
        finds=found_in(EVENTS, "lags", "Q30"),
        ours=(SAME,),
    ),
    Defect(
        id="condition-stops-every-group",
        title="One condition that fails on data stops the polling of every group",
        published=PGMB,
        trace="polls that end in an error; a condition that cannot be evaluated",
        act=condition_stops_every_group,
        clients=(DISPATCHING, POISONED),
        finds=found_in(EVENTS, DISPATCHING, "Q32") | found_in(EVENTS, POISONED, "Q32"),
        # It alone is set aside, and somebody has to mend it.
        remains=found_in(EVENTS, POISONED, "Q32"),
        ours=("test_every_matching_event_is_delivered_in_order_whatever_happens", SAME),
    ),
    Defect(
        id="partitions-run-out",
        title="Inserts fail when maintenance was out for longer than partitions were made ahead",
        published=f"{PGMB}; pgpartman/pg_partman#421",
        trace="partitions that end soon",
        act=partitions_run_out,
        clients=("public.runs_out",),
        finds=found_in(PARTITIONS, "public.runs_out", "Q27"),
        ours=(SAME,),
    ),
    Defect(
        id="rows-wait-in-default",
        title="Rows in the default partition keep the partition that they belong to from being made, and any from "
        "being detached without blocking",
        published="PostgreSQL's DETACH PARTITION; pgpartman/pg_partman#677 and #860",
        trace="rows in DEFAULT",
        act=rows_wait_in_default,
        clients=("public.kept_by_partman",),
        finds=found_in(PARTITIONS, "public.kept_by_partman", "Q27", "Q28"),
        ours=(SAME,),
    ),
    Defect(
        id="detach-is-never-finished",
        title="A concurrent detachment that gave up leaves a range without inserts, and refuses every other one",
        published="PostgreSQL's DETACH PARTITION CONCURRENTLY; gitlab-org/gitlab!252867",
        trace="a partition that waits for the end of its detachment",
        act=detach_is_never_finished,
        clients=("public.half_detached",),
        finds=found_in(PARTITIONS, "public.half_detached", "Q29"),
        ours=(SAME,),
    ),
)

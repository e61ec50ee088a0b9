"""Partitions of the broker's tables: made ahead, never in a publisher's way, and kept while anybody needs them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from queuekeeper import postgres
from queuekeeper.embedded import PostgresServer
from queuekeeper.events import schema
from queuekeeper.postgres import Connection
from tests.event_samples import delivered, dispatch_in_the_future, poll, publish, value
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.sql

Connect = Callable[[], Connection]

TABLES = ("pgmb.events", "pgmb.dispatches", "pgmb.subscription_events")
MAINTAIN = "CALL pgmb.maintain_events_table(%s)"


@pytest.fixture
def postgres_url(broker_url: str) -> str:
    """Every test has a broker of its own."""
    return broker_url


def set_config(connection: Connection, name: str, text: str) -> None:
    connection.execute("UPDATE pgmb.config SET value = %s WHERE id = %s::pgmb.config_type", (text, name))


def bounds(connection: Connection, table: str = "pgmb.events") -> list[tuple[datetime, datetime | None]]:
    return connection.execute(
        "SELECT pgmb.extract_date_from_event_id(lower_bound), pgmb.extract_date_from_event_id(upper_bound) "
        "FROM pgmb.partition_bounds(%s::regclass)",
        (table,),
    ).fetchall()


def assert_whole(connection: Connection) -> None:
    """There is neither gap nor overlap, and an end there is none."""
    for table in TABLES:
        found = bounds(connection, table)
        assert found[-1][1] is None
        assert [upper for _, upper in found[:-1]] == [lower for lower, _ in found[1:]]
        attached = value(connection, "SELECT count(*) FROM pg_inherits WHERE inhparent = %s::regclass", table)
        assert attached == len(found)


def maintain(connection: Connection, at: datetime | None = None) -> None:
    connection.execute(MAINTAIN, (at or datetime.now(UTC),))


def names(connection: Connection) -> set[str]:
    return {
        name for (name,) in connection.execute("SELECT relname FROM pg_class WHERE relnamespace = 'pgmb'::regnamespace")
    }


def start_in_the_past(connection: Connection, how_long: str) -> None:
    """Make the tables' coverage end in the past, as when maintenance was out since then."""
    connection.execute(
        "DO $$ DECLARE tbl text; part regclass; BEGIN "
        "FOREACH tbl IN ARRAY ARRAY['pgmb.events', 'pgmb.dispatches', 'pgmb.subscription_events'] LOOP "
        "FOR part IN SELECT partition FROM pgmb.partition_bounds(tbl::regclass) LOOP "
        "EXECUTE format('DROP TABLE %s', part); END LOOP; "
        f"PERFORM pgmb.extend_partitions(tbl::regclass, now() - interval '{how_long}'); END LOOP; END $$"
    )


def test_a_new_installation_covers_now_and_the_head_room(
    postgres_server: PostgresServer, request: pytest.FixtureRequest
) -> None:
    """Not a copy of the template: that one may be of the half hour before."""
    name = f"new_installation_{os.getpid()}"
    with postgres.connect(postgres_server.create_database(name, template="template0"), autocommit=True) as new:
        request.addfinalizer(lambda: postgres_server.drop_database(name))
        now = datetime.now(UTC)
        schema.install(new)

        assert_whole(new)
        found_by_table = [bounds(new, table) for table in TABLES]
    for found in found_by_table:
        assert found[0][0] <= now - timedelta(minutes=25)
        assert found[-1][0] >= now + timedelta(hours=3)


def test_maintenance_is_repeatable_and_goes_on_with_time(broker: Connection) -> None:
    now = datetime.now(UTC)
    maintain(broker, now)
    before = bounds(broker)
    maintain(broker, now)
    assert bounds(broker) == before

    maintain(broker, now + timedelta(minutes=30))

    # The oldest may be due for its end by then: the template of this database may be of the half hour before.
    assert len({upper for _, upper in bounds(broker)} - {upper for _, upper in before}) == 1
    assert_whole(broker)


@pytest.mark.parametrize("zones", [("UTC", "Asia/Tokyo", "America/New_York"), ("Asia/Kolkata", "UTC", "Pacific/Apia")])
def test_time_zones_of_sessions_do_not_matter(broker: Connection, zones: tuple[str, ...]) -> None:
    """Also over the hour that comes twice in New York."""
    base = datetime(2026, 11, 1, 3, 0, tzinfo=UTC)
    set_config(broker, "drop_expired_partitions", "false")
    start = datetime.now(UTC)
    published = publish(broker, 1)
    for step in range(24):
        broker.execute("SELECT set_config('TimeZone', %s, FALSE)", (zones[step % len(zones)],))
        maintain(broker, start + timedelta(minutes=30 * step))
        maintain(broker, base + timedelta(minutes=30 * step))
        published += publish(broker, step)
    broker.execute("SET TimeZone TO 'UTC'")
    poll(broker)

    assert_whole(broker)
    assert all(lower.minute in (0, 30) for lower, _ in bounds(broker))
    assert delivered(broker, "all") == published
    assert len(names(broker)) == len({name.lower() for name in names(broker)})


@pytest.mark.parametrize("days", [("2026-10-31", "2026-11-02"), ("2027-03-13", "2027-03-15")])
def test_daylight_saving_makes_neither_hole_nor_clash(broker: Connection, days: tuple[str, str]) -> None:
    set_config(broker, "drop_expired_partitions", "false")
    broker.execute("SET TimeZone TO 'America/New_York'")
    set_config(broker, "partition_interval", "1 hour")
    now, (first, last) = datetime.now(UTC), (datetime.fromisoformat(day).replace(tzinfo=UTC) for day in days)
    step = now
    while step < now + (last - first):
        maintain(broker, step)
        step += timedelta(hours=1)
    broker.execute("SET TimeZone TO 'UTC'")

    assert_whole(broker)


def test_another_interval_leaves_what_is_there_and_neither_gap_nor_overlap(broker: Connection) -> None:
    """The original drops the partition in use, and with it whatever is in it."""
    published = publish(broker, *range(1000))
    now = datetime.now(UTC)
    for interval, future in [
        ("1 minute", "3 hours"), ("1 day", "2 days"), ("6 hours", "3 days"), ("1 minute", "30 hours"),
        ("2 days", "4 days"),
    ]:  # fmt: skip
        set_config(broker, "partition_interval", "1 day")
        set_config(broker, "future_intervals_to_create", future)
        set_config(broker, "partition_interval", interval)
        maintain(broker, now)
        published += publish(broker, interval)
        assert_whole(broker)
    poll(broker)

    assert delivered(broker, "all") == published


@pytest.mark.slow
def test_hundreds_of_partitions_come_in_portions(broker: Connection) -> None:
    set_config(broker, "partition_interval", "1 minute")
    set_config(broker, "future_intervals_to_create", "8 hours")

    maintain(broker)

    assert len(bounds(broker)) > 250
    assert_whole(broker)


@pytest.mark.parametrize(
    ("setting", "text", "words"),
    [
        ("partition_interval", "7 hours", "must divide a day"),
        ("partition_interval", "36 hours", "must divide a day"),
        ("partition_interval", "1 month", "months differ in length"),
        ("partition_interval", "30 seconds", "1 minute or more"),
        ("partition_interval", "-1 day", "1 minute or more"),
        ("partition_interval", "soon", "does not read as one"),
        ("partition_retention_period", "-1 hour", "must not be negative"),
        ("partition_retention_period", "36500 days", "reaches back before 1970"),
        ("future_intervals_to_create", "0", "1 minute or more"),
        ("future_intervals_to_create", "100 days", "at most 2000"),
        ("poll_chunk_size", "0", "from 1 to 1000000"),
        ("poll_chunk_size", "many", "does not read as one"),
        ("maintenance_lock_timeout", "0", "from 1ms to 1min"),
        ("maintenance_attempts", "0", "from 1 to 10000"),
        ("drop_expired_partitions", "perhaps", "true or false"),
        ("use_pg_cron", "true", "let queuekeeper events dispatch"),
    ],
)
def test_settings_that_could_not_work_are_refused(broker: Connection, setting: str, text: str, words: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=words):
        set_config(broker, setting, text)


@pytest.mark.parametrize("text", ["1 second", "00:00:01", "1", "1s"])
def test_patience_may_be_written_as_any_interval(broker: Connection, text: str) -> None:
    set_config(broker, "maintenance_lock_timeout", text)
    with broker.transaction():
        value(broker, "SELECT pgmb.maintain_step('guard', 'pgmb.events', now())")
        assert value(broker, "SHOW lock_timeout") == "1s"
        broker.execute("SET LOCAL lock_timeout TO '7s'")
        broker.execute("SELECT pgmb.maintain_append_only_table('pgmb.events')")
        assert value(broker, "SHOW lock_timeout") == "7s"
    maintain(broker)
    assert_whole(broker)


def test_setting_by_which_retention_goes_cannot_be_removed(broker: Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="setting retention_waits_for_consumers cannot be"):
        broker.execute("DELETE FROM pgmb.config WHERE id = 'retention_waits_for_consumers'")


def test_no_instant_is_too_early_for_an_id(broker: Connection) -> None:
    assert value(broker, "SELECT pgmb.create_event_id('1066-10-14', 7)") == "pm" + "0" * 21 + "7"
    assert value(broker, "SELECT pgmb.create_event_id('-infinity', 0)") == "pm" + "0" * 22


def test_the_longest_retention_keeps_everything(broker: Connection) -> None:
    start_in_the_past(broker, "5 hours")
    maintain_without_dropping(broker)
    published = publish(broker, 1)
    poll(broker)
    broker.execute("DELETE FROM pgmb.subscriptions")
    covered = bounds(broker, "pgmb.dispatches")
    set_config(broker, "partition_retention_period", "20000 days")

    maintain(broker)
    broker.execute("SELECT pgmb.drop_expired_partition('pgmb.dispatches', '1980-01-01')")

    assert bounds(broker, "pgmb.dispatches")[0] == covered[0]
    assert value(broker, "SELECT min(id) FROM pgmb.events") == published[0]


@pytest.mark.parametrize("function", ["extend_partitions", "drop_expired_partition"])
def test_only_the_brokers_tables_are_maintained(broker: Connection, function: str) -> None:
    broker.execute("CREATE TABLE mine (id pgmb.event_id) PARTITION BY RANGE (id)")
    broker.execute("CREATE TABLE mine_old PARTITION OF mine FOR VALUES FROM ('pm0') TO ('pm1')")

    for table in ("mine", "pgmb.subscriptions"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="is not one of the broker's"):
            broker.execute(f"SELECT pgmb.{function}('{table}')".encode())
    assert value(broker, "SELECT to_regclass('mine_old') IS NOT NULL")


@pytest.mark.parametrize("ahead", ["4 hours", "400 days"])
def test_dispatches_ahead_of_the_clock_do_not_block_maintenance(broker: Connection, ahead: str) -> None:
    """The clock was ahead when a dispatch was made, and went back."""
    dispatch_in_the_future(broker, ahead)
    published = publish(broker, 2)
    poll(broker)

    maintain(broker, datetime.now(UTC) + timedelta(minutes=50))
    published += publish(broker, 3)
    poll(broker)
    maintain(broker, datetime.now(UTC) + timedelta(hours=2))

    assert_whole(broker)
    assert delivered(broker, "all")[1:] == published


def test_a_table_of_a_strangers_that_has_a_partitions_name_is_left_alone(broker: Connection) -> None:
    upper = bounds(broker)[-1][0]
    stranger = f"events_{upper:%Y%m%d%H%M}"
    broker.execute(f"CREATE TABLE pgmb.{stranger} (note text); INSERT INTO pgmb.{stranger} VALUES ('mine')".encode())

    maintain(broker, datetime.now(UTC) + timedelta(hours=1))
    maintain(broker, datetime.now(UTC) + timedelta(days=3))

    assert value(broker, f"SELECT note FROM pgmb.{stranger}") == "mine"
    assert_whole(broker)


def test_a_gap_that_somebody_made_stops_nothing(broker: Connection) -> None:
    third = value(broker, "SELECT partition FROM pgmb.partition_bounds('pgmb.events') OFFSET 3 LIMIT 1")
    broker.execute(f"DROP TABLE {third}".encode())

    later = datetime.now(UTC) + timedelta(hours=1)
    maintain(broker, later)

    assert bounds(broker)[-1][0] > later + timedelta(hours=3)
    assert bounds(broker)[-1][1] is None


def test_inserts_go_on_when_maintenance_does_not(broker: Connection) -> None:
    """A month without it; then everything is in its place again, and nothing was lost or held up."""
    start_in_the_past(broker, "30 days")
    published = publish(broker, *range(500))
    poll(broker)
    ahead = value(
        broker,
        "INSERT INTO pgmb.events (id, topic, payload) "
        "VALUES (pgmb.create_event_id(now() + interval '1 year', 1), 'topic', '1') RETURNING id",
    )
    published += publish(broker, *range(500))
    assert value(broker, "SELECT overflow_in_use FROM pgmb.dispatch_status()")

    maintain(broker)

    assert_whole(broker)
    assert not value(broker, "SELECT overflow_in_use FROM pgmb.dispatch_status()")
    assert value(broker, "SELECT count(*) FROM pgmb.events_overflow") == 0
    assert value(broker, "SELECT id FROM pgmb.scheduled_events") == ahead
    published += publish(broker, "after")
    poll(broker)
    assert delivered(broker, "all") == published
    left = "SELECT count(*) FROM pg_constraint WHERE conname = 'guard'"
    assert value(broker, left) + value(broker, left.replace("constraint", "trigger").replace("conname", "tgname")) == 0


def test_an_overflow_with_rows_becomes_a_partition_without_being_searched(broker: Connection) -> None:
    """Others wait for the search otherwise, however many rows a month has brought."""
    start_in_the_past(broker, "30 days")
    publish(broker, *range(100))
    said: list[str] = []
    broker.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
    broker.execute("SET client_min_messages TO debug1")

    maintain(broker)

    implied = [line for line in said if 'partition constraint for table "events_overflow" is implied' in line]
    assert len(implied) == 1


def test_rows_of_the_future_do_not_fail_while_the_overflow_is_prepared(broker: Connection, connect: Connect) -> None:
    start_in_the_past(broker, "30 days")
    published = publish(broker, 1)
    publisher = connect()
    assert value(broker, "SELECT pgmb.guard_overflow()")

    publisher.execute(
        "INSERT INTO pgmb.events (id, topic, payload) "
        "VALUES (pgmb.create_event_id(now() + interval '1 year', 1), 'topic', '1')"
    )
    published += publish(publisher, 2)
    broker.execute("SELECT pgmb.validate_overflow()")
    maintain(broker)
    poll(broker)

    assert value(broker, "SELECT count(*) FROM pgmb.scheduled_events") == 1
    assert delivered(broker, "all") == published
    assert_whole(broker)


def test_publishing_goes_on_in_order_when_maintenance_never_came_back(broker: Connection) -> None:
    """It has guarded the overflow and then stopped; by now time has passed the bound that it had set."""
    start_in_the_past(broker, "30 days")
    published = publish(broker, 1)
    broker.execute("SELECT pgmb.guard_overflow(); SELECT pgmb.validate_overflow()")
    (definition,) = broker.execute(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'guard'"
    ).fetchall()[0]
    stop = definition.rpartition("pm")[2][:22]
    passed = value(broker, "SELECT pgmb.create_event_id(clock_timestamp() + interval '1 microsecond', 0)")[2:]
    broker.execute("ALTER TABLE pgmb.events_overflow DROP CONSTRAINT guard")
    broker.execute(f"ALTER TABLE pgmb.events_overflow ADD CONSTRAINT guard {definition.replace(stop, passed)}".encode())
    broker.execute(
        "CREATE OR REPLACE TRIGGER guard BEFORE INSERT ON pgmb.events_overflow "
        f"FOR EACH ROW EXECUTE FUNCTION pgmb.divert_future_events('pm{passed}')".encode()
    )

    for number in range(3):
        more = publish(broker, number, number)
        assert len(more) == 2
        published += more
    poll(broker)
    assert delivered(broker, "all") == published == sorted(set(published))
    assert value(broker, "SELECT count(*) FROM pgmb.scheduled_events") == 0

    maintain(broker)
    published += publish(broker, "after")
    poll(broker)
    assert delivered(broker, "all") == published
    assert_whole(broker)


@pytest.mark.slow
def test_a_week_of_maintenance_with_inserts_all_the_while(broker: Connection) -> None:
    set_config(broker, "partition_interval", "6 hours")
    set_config(broker, "future_intervals_to_create", "1 day")
    now = datetime.now(UTC)
    published: list[str] = []
    for hour in range(0, 7 * 24, 6):
        published += publish(broker, hour)
        maintain(broker, now + timedelta(hours=hour))
        published += publish(broker, hour)
        poll(broker)

    assert_whole(broker)
    assert delivered(broker, "all") == published


def test_read_partitions_are_dropped_when_they_are_old(broker: Connection) -> None:
    start_in_the_past(broker, "5 hours")
    maintain_without_dropping(broker)
    assert len(bounds(broker)) > 12

    maintain(broker)

    for table in TABLES:
        oldest = bounds(broker, table)[0][1]
        assert oldest is not None
        assert oldest > datetime.now(UTC) - timedelta(minutes=61)
    assert_whole(broker)


@pytest.fixture
def old(broker: Connection) -> Connection:
    """A broker whose partitions before today's are all over, with an event that is old by its id."""
    start_in_the_past(broker, "5 hours")
    broker.execute("SELECT pgmb.set_group_cursor('group', pgmb.create_event_id(now() - interval '1 day', 0), TRUE)")
    broker.execute(
        "INSERT INTO pgmb.events (id, topic, payload) "
        "VALUES (pgmb.create_event_id(now() - interval '5 hours', 1), 'topic', '1')"
    )
    maintain_without_dropping(broker)
    return broker


def maintain_without_dropping(connection: Connection) -> None:
    set_config(connection, "drop_expired_partitions", "false")
    maintain(connection)
    set_config(connection, "drop_expired_partitions", "true")


def stored(connection: Connection) -> int:
    return int(value(connection, "SELECT count(*) FROM pgmb.events"))


def test_what_was_not_dispatched_is_kept(old: Connection) -> None:
    maintain(old)

    assert stored(old) == 1
    assert poll(old) == 1


def test_what_a_group_has_not_read_is_kept_until_it_has(old: Connection) -> None:
    poll(old)
    maintain(old)
    assert stored(old) == 1

    cursor = value(old, "SELECT next_cursor FROM pgmb.read_next_events('group')")
    old.execute("SELECT pgmb.set_group_cursor('group', %s, TRUE)", (cursor,))
    maintain(old)

    assert stored(old) == 0


def test_a_group_in_the_middle_of_a_dispatch_keeps_the_rest_of_it(old: Connection) -> None:
    publish(old, 2)
    poll(old)
    assert value(old, "SELECT count(*) FROM pgmb.dispatches") == 1
    cursor = value(old, "SELECT next_cursor FROM pgmb.read_next_events('group', chunk_size => 1)")
    old.execute("SELECT pgmb.set_group_cursor('group', %s, TRUE)", (cursor,))

    maintain(old)

    assert stored(old) == 2


def test_what_is_to_be_dispatched_again_is_kept(old: Connection) -> None:
    poll(old)
    old.execute("DELETE FROM pgmb.subscriptions")
    old.execute("SELECT pgmb.reenqueue_events(ARRAY(SELECT id FROM pgmb.events))")

    maintain(old)

    assert stored(old) == 1


def test_groups_without_a_live_subscription_hold_nothing(old: Connection) -> None:
    poll(old)
    old.execute("UPDATE pgmb.subscriptions SET expiry_interval = '1 hour', last_active_at = now() - interval '2 hours'")

    maintain(old)

    assert stored(old) == 0


def test_an_operator_may_drop_what_was_not_read_and_its_group_goes_on(old: Connection) -> None:
    poll(old)
    set_config(old, "retention_waits_for_consumers", "false")

    maintain(old)

    assert stored(old) == 0
    published = publish(old, "later")
    poll(old)
    assert delivered(old, "all") == published


def test_dropping_can_be_left_to_others(old: Connection) -> None:
    poll(old)
    old.execute("DELETE FROM pgmb.subscriptions")
    maintain_without_dropping(old)

    assert stored(old) == 1
    assert value(old, "SELECT pgmb.retention_limit() > max(id) FROM pgmb.events")


def test_what_commits_while_its_partition_is_about_to_go_is_kept(old: Connection, connect: Connect) -> None:
    poll(old)
    old.execute("DELETE FROM pgmb.subscriptions")
    late = connect()
    late.execute("BEGIN")
    late.execute(
        "INSERT INTO pgmb.events (id, topic, payload) "
        "VALUES (pgmb.create_event_id(now() - interval '5 hours', 2), 'topic', '2')"
    )
    maintenance = threading.Thread(target=maintain, args=(old,))
    maintenance.start()
    wait_for_lock(late, old.info.backend_pid)
    late.execute("COMMIT")
    maintenance.join()

    assert stored(late) == 2


# Its snapshot is older than the lock for which it waits.
def test_partitions_are_not_dropped_at_an_isolation_level_that_shows_nothing_new(old: Connection) -> None:
    poll(old)
    old.execute("DELETE FROM pgmb.subscriptions")
    old.execute("SET default_transaction_isolation TO 'repeatable read'")
    with pytest.raises(
        psycopg.errors.ObjectNotInPrerequisiteState, match="does not work at isolation level repeatable read"
    ):
        maintain(old)
    assert stored(old) == 1
    assert_whole(old)


def wait_for_lock(connection: Connection, pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not value(connection, "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %s AND NOT granted)", pid):
        assert time.monotonic() < deadline


# The original's maintenance waits for an open publisher, and all publishers wait behind it.
def test_publishers_do_not_wait_for_maintenance_that_waits_for_one_of_them(
    broker: Connection, connect: Connect
) -> None:
    set_config(broker, "maintenance_lock_timeout", "200ms")
    set_config(broker, "maintenance_attempts", "1000")
    holder, publisher = connect(), connect()
    holder.execute("BEGIN")
    publish(holder, "long")
    later = datetime.now(UTC) + timedelta(hours=1)
    maintenance = threading.Thread(target=maintain, args=(broker, later))
    maintenance.start()
    wait_for_lock(holder, broker.info.backend_pid)
    # More than one round of the lock's patience, less than a publisher would notice.
    publisher.execute("SET statement_timeout TO '30s'")
    for number in range(20):
        publish(publisher, number)
    assert maintenance.is_alive()

    holder.execute("COMMIT")
    maintenance.join(PATIENCE_S)

    assert not maintenance.is_alive()
    assert bounds(holder)[-1][0] >= later + timedelta(hours=3)
    assert stored(holder) == 21


def test_maintenance_that_cannot_get_through_says_who_is_in_its_way_and_does_the_rest(
    broker: Connection, connect: Connect
) -> None:
    set_config(broker, "maintenance_lock_timeout", "20ms")
    set_config(broker, "maintenance_attempts", "3")
    before = bounds(broker)
    holder = connect()
    holder.execute("BEGIN")
    publish(holder, "long")

    with pytest.raises(psycopg.errors.LockNotAvailable, match=f"extend pgmb.events .*pid {holder.info.backend_pid}"):
        maintain(broker, datetime.now(UTC) + timedelta(hours=1))

    assert bounds(broker) == before
    assert len(bounds(broker, "pgmb.dispatches")) > len(before)
    holder.execute("COMMIT")
    maintain(broker, datetime.now(UTC) + timedelta(hours=1))
    assert_whole(broker)


def test_everything_at_once(broker: Connection, connect: Connect) -> None:
    """Publishing, polling, expiring and maintaining, the latter twice: one partition more, no error."""
    now = datetime.now(UTC)
    maintain(broker, now)
    before = {upper for _, upper in bounds(broker)}
    later = now + timedelta(minutes=30)
    failures: list[BaseException] = []

    def run(work: Callable[[Connection], Any], connection: Connection) -> None:
        try:
            work(connection)
        except psycopg.Error as error:
            failures.append(error)

    works: list[Callable[[Connection], Any]] = [
        lambda connection: [publish(connection, number) for number in range(50)],
        lambda connection: [poll(connection) for _ in range(20)],
        lambda connection: connection.execute("SELECT pgmb.expire_subscriptions()"),
        lambda connection: maintain(connection, later),
        lambda connection: maintain(connection, later),
    ]
    threads = [threading.Thread(target=run, args=(work, connect())) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    poll(broker)

    assert failures == []
    # An old one may be due for its end by then: the template of this database may be of the half hour before.
    assert len({upper for _, upper in bounds(broker)} - before) == 1
    assert len(delivered(broker, "all")) == 50


def test_new_partitions_have_what_the_table_has(broker: Connection) -> None:
    maintain(broker, datetime.now(UTC) + timedelta(days=1))

    shapes = broker.execute(
        "SELECT count(DISTINCT s.shape) FROM pg_inherits AS i CROSS JOIN LATERAL ("
        "SELECT string_agg(regexp_replace(indexdef, 'events_\\w+', '', 'g'), ';' ORDER BY indexdef) AS shape "
        "FROM pg_indexes AS x INNER JOIN pg_class AS c ON c.relname = x.tablename WHERE c.oid = i.inhrelid"
        ") AS s WHERE i.inhparent = 'pgmb.events'::regclass"
    ).fetchall()

    assert shapes == [(1,)]
    assert value(broker, "SELECT bool_and(reloptions IS NULL) FROM pg_class WHERE relname LIKE 'events_2%'")


# What PGMB has under the same names.


@pytest.fixture
def own_table(connection: Connection) -> Connection:
    """Connection to a broker, and a table of somebody's own that is partitioned by ids of events."""
    connection.execute(
        "CREATE TABLE public.notes (id pgmb.event_id PRIMARY KEY, body text DEFAULT 'empty') PARTITION BY RANGE (id)"
    )
    return connection


MAINTAIN_OWN = "SELECT pgmb.maintain_time_partitions_using_event_id('public.notes', %s, %s, %s, current_ts => %s)"
HOUR = timedelta(hours=1)
NOON = datetime(2026, 3, 4, 12, 20, tzinfo=UTC)


def test_the_current_partition_is_told_by_its_bounds(broker: Connection) -> None:
    for shift in (timedelta(0), HOUR, timedelta(days=400)):
        at = datetime.now(UTC) + shift
        current = value(broker, "SELECT pgmb.get_current_partition('pgmb.events', %s)::text", at)
        lower, upper = next(
            (lower, upper) for lower, upper in bounds(broker) if lower <= at and (upper is None or at < upper)
        )
        name = value(broker, "SELECT pgmb.get_time_partition_name('pgmb.events', %s)", lower)
        assert current == ("pgmb.events_overflow" if upper is None else name)
    assert value(broker, "SELECT pgmb.get_current_partition('pgmb.events', '1999-01-01')") is None


def test_names_of_partitions_do_not_hang_on_the_time_zone(broker: Connection) -> None:
    for zone in ("UTC", "Asia/Tokyo"):
        broker.execute(f"SET timezone TO '{zone}'".encode())
        name = value(broker, "SELECT pgmb.get_time_partition_name('pgmb.events', '2026-11-24 09:30:00+00')")
        assert name == "pgmb.events_202611240930"


def test_stretches_without_a_gap_are_one(own_table: Connection) -> None:
    for at in (NOON, NOON + 5 * HOUR):
        own_table.execute(MAINTAIN_OWN, (HOUR, HOUR, 24 * HOUR, at))

    stretches = own_table.execute(
        "SELECT pgmb.extract_date_from_event_id(lower_bound), pgmb.extract_date_from_event_id(upper_bound), "
        "cardinality(partition_ids) FROM pgmb.get_partitions_and_bounds('public.notes')"
    ).fetchall()
    noon = NOON.replace(minute=0)
    assert stretches == [(noon, noon + 2 * HOUR, 2), (noon + 5 * HOUR, noon + 7 * HOUR, 2)]
    ((upper, number),) = own_table.execute(
        "SELECT upper_bound, cardinality(partition_ids) FROM pgmb.get_partitions_and_bounds('pgmb.events')"
    ).fetchall()
    assert (upper, number) == (None, len(bounds(own_table)))


def test_a_table_of_ones_own_is_extended_around_what_exists_and_loses_what_is_old(own_table: Connection) -> None:
    own_table.execute("SET timezone TO 'Asia/Tokyo'")
    own_table.execute(MAINTAIN_OWN, (HOUR, 2 * HOUR, HOUR, NOON))
    own_table.execute("CREATE TABLE public.notes_202603041400_2 (id int)")
    own_table.execute(MAINTAIN_OWN, (timedelta(minutes=90), 3 * HOUR, HOUR, NOON + HOUR))

    noon = NOON.replace(minute=0)
    found = bounds(own_table, "public.notes")
    assert found == [
        *[(noon + number * HOUR, noon + (number + 1) * HOUR) for number in range(3)],
        (noon + 3 * HOUR, noon + 4.5 * HOUR),
    ]
    own_table.execute("INSERT INTO public.notes (id) VALUES (pgmb.create_event_id(%s, 1))", (NOON,))
    assert value(own_table, "SELECT body FROM public.notes") == "empty"
    own_table.execute(MAINTAIN_OWN, (HOUR, HOUR, HOUR, NOON + 3 * HOUR))
    assert bounds(own_table, "public.notes")[0][0] == noon + 2 * HOUR
    assert value(own_table, "SELECT count(*) FROM public.notes") == 0
    assert value(own_table, "SELECT to_regclass('public.notes_202603041400_2') IS NOT NULL")


def test_additional_statements_are_for_new_partitions_alone(own_table: Connection) -> None:
    more = MAINTAIN_OWN.replace(", current_ts", ", 'ALTER TABLE $1 SET (fillfactor = 70)', current_ts")
    own_table.execute(MAINTAIN_OWN, (HOUR, HOUR, HOUR, NOON))
    own_table.execute(more, (HOUR, 2 * HOUR, HOUR, NOON))

    options = own_table.execute(
        "SELECT c.reloptions FROM pgmb.partition_bounds('public.notes') AS b "
        "INNER JOIN pg_class AS c ON c.oid = b.partition ORDER BY b.lower_bound"
    ).fetchall()
    assert options == [(None,), (None,), (["fillfactor=70"],)]


@pytest.mark.parametrize(("width", "ahead"), [(timedelta(seconds=59), HOUR), (HOUR, HOUR / 2), (HOUR, 2_001 * HOUR)])
def test_intervals_that_make_no_partitions_are_refused(
    own_table: Connection, width: timedelta, ahead: timedelta
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="do not go together"):
        own_table.execute(MAINTAIN_OWN, (width, ahead, HOUR, NOON))
    assert bounds(own_table, "public.notes") == []


def test_append_only_tables_are_maintained_as_the_settings_say(broker: Connection) -> None:
    published = publish(broker, 1)
    poll(broker)
    later = datetime.now(UTC) + timedelta(days=1)

    for table in ("pgmb.events", "pgmb.subscription_events"):
        broker.execute("SELECT pgmb.maintain_append_only_table(%s, %s)", (table, later))

    assert_whole(broker)
    assert all(bounds(broker, table)[-1][0] > later + 3 * HOUR for table in TABLES)
    assert delivered(broker, "all") == published


def test_append_only_tables_lose_what_is_read_and_old(old: Connection) -> None:
    for table in ("pgmb.events", "pgmb.subscription_events"):
        old.execute("SELECT pgmb.maintain_append_only_table(%s)", (table,))
    assert stored(old) == 1
    poll(old)
    old.execute("UPDATE pgmb.subscription_groups SET last_read_event_id = pgmb.create_group_cursor()")
    for table in ("pgmb.subscription_events", "pgmb.events"):
        old.execute("SELECT pgmb.maintain_append_only_table(%s)", (table,))
    assert stored(old) == 0
    assert value(old, "SHOW lock_timeout") == "0"


def test_intervals_of_a_callers_own_hold_for_the_brokers_tables_and_nothing_unread_goes(broker: Connection) -> None:
    published = publish(broker, 1)
    poll(broker)
    later = datetime.now(UTC) + timedelta(days=1)

    broker.execute(
        "SELECT pgmb.maintain_time_partitions_using_event_id('pgmb.events', %s, %s, %s, current_ts => %s)",
        (2 * HOUR, 4 * HOUR, HOUR, later),
    )

    assert_whole(broker)
    lower, upper = bounds(broker)[-2]
    assert upper is not None
    assert upper - lower == 2 * HOUR
    assert delivered(broker, "all") == published


def test_preparing_a_poll_judges_conditions_and_changes_nothing(broker: Connection) -> None:
    broker.execute("SELECT pgmb.prepare_poll_for_events_fn('{}'), pgmb.prepare_poll_for_events_fn('{TRUE}')")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r'condition "e.nothing = 1" is refused: '):
        broker.execute("SELECT pgmb.prepare_poll_for_events_fn(ARRAY['TRUE', 'e.nothing = 1'])")
    published = publish(broker, 1)
    poll(broker)
    assert delivered(broker, "all") == published

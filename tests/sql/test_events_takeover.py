"""An installed PGMB becomes ours in place: with everything it holds, or not at all and with words that say why."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import LiteralString

import psycopg
import pytest

from queuekeeper import postgres, sql_statements
from queuekeeper.errors import CheckFailed, RefusedError
from queuekeeper.events import schema, takeover
from queuekeeper.events.takeover import SET_ASIDE, TakeoverReport, take_over
from queuekeeper.postgres import Connection
from tests.event_samples import delivered, poll, publish, subscribe, value
from tests.original_pgmb import SETTINGS, OriginalPgmb
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.sql

TOPICAL = "e.topic = s.params->>'topic'"


@pytest.fixture
def original(connection: Connection) -> OriginalPgmb:
    return OriginalPgmb(connection)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a takeover wait for locks however busy this machine is."""
    monkeypatch.setattr(takeover, "LOCK_TIMEOUT", "10min")


def ledger(report: TakeoverReport) -> dict[str, tuple[int, dict[str, int]]]:
    assert all(line.unaccounted == 0 for line in report.lines)
    return {line.subject: (line.seen, dict(line.fates)) for line in report.lines}


def is_untouched(connection: Connection) -> bool:
    """Tell whether PGMB is where it was, and nothing of ours beside it."""
    return bool(
        value(
            connection,
            f"SELECT to_regclass('pgmb.unread_events') IS NOT NULL AND to_regclass('pgmb.migrations') IS NULL "
            f"AND to_regnamespace('{SET_ASIDE}') IS NULL AND to_regclass('pgmb.dispatches') IS NULL",
        )
    )


def test_every_event_reaches_whom_it_would_have_reached_and_nobody_twice(
    connection: Connection, original: OriginalPgmb
) -> None:
    hour_ago = original.now() - timedelta(hours=1)
    subscribe(connection, "all", group="first")
    subscribe(connection, "some", condition=TOPICAL, params={"topic": "a"}, group="first")
    subscribe(connection, "others", group="second")
    connection.execute(
        "UPDATE pgmb.subscription_groups SET last_read_event_id = pgmb.create_event_id(%s, 0)", (hour_ago,)
    )
    old = original.publish(1, 2, topic="a", at=hour_ago)
    original.dispatch({"all": old, "some": old, "others": old}, at=hour_ago + timedelta(seconds=1))
    read_in_part = original.publish(3, 4, 5, topic="b")
    original.dispatch({"all": read_in_part, "others": read_in_part})
    original.read("first", 2 + 2 + 1)
    nobodys = original.publish(6, topic="b")
    original.forget(*nobodys)
    waiting = original.publish(7, 8, topic="a")
    directed = original.publish(9, topic="a", subscription="others")
    later = original.publish(10, topic="a", at=original.now() + timedelta(hours=1))

    planned = take_over(connection, dry_run=True)
    assert is_untouched(connection)
    done = take_over(connection)

    assert (
        ledger(done)
        == ledger(planned)
        == {
            "events": (10, {"dispatched before": 6, "to be dispatched": 3, "scheduled": 1}),
            "unread events": (4, {"to be dispatched": 3, "scheduled": 1}),
            "subscriptions": (3, {"taken over": 3}),
            "groups": (2, {"taken over": 2}),
            "deliveries": (12, {"read before": 5, "unread": 7}),
            "settings": (8, {"taken over": 6, "left: ours": 2}),
            "watched tables": (0, {}),
        }
    )
    assert (planned.unmatched, planned.to_stop, planned.dry_run) == (1, (), True)
    assert (done.unmatched, done.set_aside, done.dry_run) == (1, SET_ASIDE, False)
    assert delivered(connection, "all", group="first") == read_in_part[1:]
    assert delivered(connection, "some", group="first") == []
    assert delivered(connection, "others", group="second") == old + read_in_part
    assert poll(connection) == 2 + 2 + 2 + 1
    assert delivered(connection, "all", group="first") == read_in_part[1:] + waiting
    assert delivered(connection, "some", group="first") == waiting
    assert delivered(connection, "others", group="second") == old + read_in_part + waiting + directed
    assert connection.execute("SELECT id, due_at > now() FROM pgmb.scheduled_events").fetchall() == [(later[0], True)]
    connection.execute("UPDATE pgmb.scheduled_events SET due_at = now()")
    new = publish(connection, 11, topic="b")
    poll(connection)
    assert delivered(connection, "all", group="first") == [*read_in_part[1:], *waiting, *later, *new]


def test_what_was_delivered_before_can_be_replayed(connection: Connection, original: OriginalPgmb) -> None:
    subscribe(connection, "all")
    first, second = original.publish(1, 2), original.publish(3, 4)
    original.dispatch({"all": first})
    original.dispatch({"all": second})
    original.read("group", 3)

    take_over(connection)

    replay = "SELECT id FROM pgmb.replay_events('group', 'all', %s, 100)"
    assert [row[0] for row in connection.execute(replay, (first[0],))] == [first[1], *second]
    assert delivered(connection, "all") == second[1:]


def test_partitions_of_the_past_expire_one_by_one(connection: Connection, original: OriginalPgmb) -> None:
    subscribe(connection, "all")
    for number in range(4):
        at = original.now() - timedelta(minutes=30 * number)
        original.dispatch({"all": original.publish(number, at=at)}, at=at)

    take_over(connection)

    assert value(connection, "SELECT count(*) FROM pgmb.events") == 4
    past = "SELECT count(*) FROM pgmb.partition_bounds('pgmb.{}') WHERE upper_bound < pgmb.create_event_id(now(), 0)"
    before = [value(connection, past.format(table)) for table in ("events", "dispatches", "subscription_events")]
    assert all(number >= 3 for number in before)
    connection.execute("UPDATE pgmb.subscription_groups SET last_read_event_id = pgmb.create_event_id(now(), 0)")
    connection.execute("CALL pgmb.maintain_events_table(now() + interval '1 hour')")
    for table, number in zip(("events", "dispatches", "subscription_events"), before, strict=True):
        assert value(connection, past.format(table)) < number


def test_settings_watched_tables_and_a_serialiser_of_ones_own_go_on_working(
    connection: Connection, original: OriginalPgmb
) -> None:
    connection.execute("UPDATE pgmb.config SET value = '2 hours' WHERE id = 'partition_interval'")
    connection.execute("UPDATE pgmb.config SET value = '2 days' WHERE id = 'future_intervals_to_create'")
    connection.execute("UPDATE pgmb.config SET value = '77' WHERE id = 'poll_chunk_size'")
    connection.execute("CREATE TABLE public.letters (id int, secret text); CREATE TABLE public.quiet (id int)")
    for table in ("letters", "quiet"):
        connection.execute(
            f"CREATE TRIGGER post_insert_event AFTER INSERT ON public.{table} REFERENCING NEW TABLE AS new "
            "FOR EACH STATEMENT EXECUTE FUNCTION pgmb.push_table_event()".encode()
        )
    connection.execute("ALTER TABLE public.quiet DISABLE TRIGGER post_insert_event")
    connection.execute(
        "CREATE OR REPLACE FUNCTION pgmb.serialise_record_for_event(tabl oid, op text, record record, "
        "OUT serialised jsonb, OUT emit boolean) LANGUAGE plpgsql IMMUTABLE STRICT AS "
        "$$ BEGIN serialised := to_jsonb(record) - 'secret'; emit := TRUE; END $$"
    )

    report = ledger(take_over(connection))

    assert report["watched tables"] == (2, {"taken over": 2})
    connection.execute("INSERT INTO public.letters VALUES (1, 'hush'); INSERT INTO public.quiet VALUES (1)")
    assert connection.execute("SELECT topic, payload FROM pgmb.events").fetchall() == [
        ("public.letters.insert", {"id": 1})
    ]
    settings: dict[str, str] = dict(connection.execute("SELECT id::text, value FROM pgmb.config").fetchall())
    changed = {"partition_interval": "2 hours", "future_intervals_to_create": "2 days", "poll_chunk_size": "77"}
    assert settings.items() >= (SETTINGS | changed).items()
    assert (schema.dispatch_status(connection).head_room_s or 0) > 47 * 3600


def test_a_trigger_that_partitions_have_from_their_table_is_taken_over_once(
    connection: Connection, original: OriginalPgmb
) -> None:
    connection.execute(
        "CREATE TABLE public.letters (id int) PARTITION BY RANGE (id); "
        "CREATE TABLE public.first PARTITION OF public.letters FOR VALUES FROM (0) TO (10); "
        "CREATE TRIGGER note AFTER INSERT ON public.letters FOR EACH ROW EXECUTE FUNCTION pgmb.push_table_event()"
    )
    planned, done = (ledger(take_over(connection, dry_run=dry_run)) for dry_run in (True, False))
    assert planned["watched tables"] == done["watched tables"] == (1, {"taken over": 1})


def test_events_that_a_crash_has_taken_off_the_list_are_dispatched_when_asked_for(
    connection: Connection, original: OriginalPgmb
) -> None:
    subscribe(connection, "topical", condition=TOPICAL, params={"topic": "a"})
    seen = original.publish(1, topic="a")
    original.dispatch({"topical": seen})
    lost = original.publish(2, topic="a")
    scheduled = original.publish(3, topic="a", at=original.now() + timedelta(hours=1))
    original.forget(*lost, *scheduled)

    assert take_over(connection, dry_run=True).unmatched == 1
    report = take_over(connection, redispatch_unmatched=True)

    assert ledger(report)["events"] == (3, {"dispatched before": 1, "to be dispatched": 1, "scheduled": 1})
    poll(connection)
    assert delivered(connection, "topical") == seen + lost


def test_what_nobody_would_have_got_is_counted_and_left(connection: Connection, original: OriginalPgmb) -> None:
    subscribe(connection, "all")
    subscribe(connection, "gone", group="gone")
    here, away = original.publish(1), original.publish(2)
    original.dispatch({"all": here + away + here, "gone": here})
    connection.execute("DELETE FROM pgmb.subscriptions WHERE id = 'gone'")
    connection.execute("DELETE FROM pgmb.events WHERE id = %s", away)
    connection.execute("INSERT INTO pgmb.subscription_events (id) VALUES (pgmb.create_event_id(now(), 1))")
    connection.execute("INSERT INTO pgmb.unread_events VALUES (%s)", away)

    report = ledger(take_over(connection))

    assert report["deliveries"] == (
        5,
        {
            "unread": 1,
            "left: repeated": 1,
            "left: event gone": 1,
            "left: subscription or group gone": 1,
            "left: incomplete": 1,
        },
    )
    assert report["unread events"] == (1, {"left: event gone": 1})
    assert delivered(connection, "all") == here


def test_a_group_without_a_cursor_gets_all_that_was_dispatched_to_it(
    connection: Connection, original: OriginalPgmb
) -> None:
    subscribe(connection, "all")
    published = original.publish(1, 2)
    original.dispatch({"all": published})
    connection.execute("UPDATE pgmb.subscription_groups SET last_read_event_id = NULL")

    take_over(connection)

    assert delivered(connection, "all") == published


def test_a_dry_run_waits_for_nobody_and_keeps_nobody_waiting(
    connection: Connection, connect: Callable[[], Connection], original: OriginalPgmb
) -> None:
    publisher = connect()
    with publisher.transaction():
        publisher.execute("INSERT INTO pgmb.events (topic, payload) VALUES ('a', '1')")
        report = take_over(connection, dry_run=True)
    assert ledger(report)["events"] == (0, {})
    assert ledger(take_over(connection, dry_run=True))["events"] == (1, {"to be dispatched": 1})
    assert is_untouched(connection)


def test_a_publisher_that_waits_meanwhile_publishes_into_ours(
    connection: Connection, connect: Callable[[], Connection], original: OriginalPgmb, patience: None
) -> None:
    subscribe(connection, "all")
    early, late, watch = connect(), connect(), connect()
    insert = "INSERT INTO pgmb.events (topic, payload) VALUES ('a', %s::jsonb) RETURNING id"
    late.execute(insert, ("0",))

    def waits(pid: int) -> None:
        while not value(watch, "SELECT cardinality(pg_blocking_pids(%s)) > 0", pid):
            pass

    with ThreadPoolExecutor(2) as pool:
        with early.transaction():
            early.execute(insert, ("1",))
            taking = pool.submit(take_over, connection)
            waits(connection.info.backend_pid)
            publishing = pool.submit(lambda: late.execute(insert, ("2",)).fetchone())
            waits(late.info.backend_pid)
        assert ledger(taking.result(PATIENCE_S))["events"] == (2, {"to be dispatched": 2})
        publishing.result(PATIENCE_S)

    assert poll(connection) == 3
    payloads = connection.execute("SELECT payload FROM pgmb.read_next_events('group', peek => TRUE)").fetchall()
    assert payloads == [(0,), (1,), (2,)]


def test_a_takeover_that_is_killed_changes_nothing_and_is_repeated(
    connection: Connection, connect: Callable[[], Connection], original: OriginalPgmb, patience: None
) -> None:
    connection.execute("CREATE TABLE public.letters (id int)")
    connection.execute(
        "CREATE TRIGGER post_insert_event AFTER INSERT ON public.letters REFERENCING NEW TABLE AS new "
        "FOR EACH STATEMENT EXECUTE FUNCTION pgmb.push_table_event()"
    )
    original.publish(1, 2)
    taker, holder = connect(), connect()
    pid = taker.info.backend_pid
    with ThreadPoolExecutor(1) as pool, holder.transaction():
        holder.execute("SELECT count(*) FROM public.letters")
        taking = pool.submit(take_over, taker)
        # It has copied everything by then, and waits for a table that PGMB watches.
        while not value(connection, "SELECT cardinality(pg_blocking_pids(%s)) > 0", pid):
            pass
        connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
        with pytest.raises(RefusedError, match="broke the connection"):
            taking.result(PATIENCE_S)

    assert is_untouched(connection)
    assert ledger(take_over(connection))["events"] == (2, {"to be dispatched": 2})


@pytest.mark.parametrize(("lost", "words"), [("copy_matches", "deliveries [+]2"), ("copy_events", "events [+]1")])
def test_a_row_that_is_unaccounted_for_stops_everything(
    connection: Connection, original: OriginalPgmb, monkeypatch: pytest.MonkeyPatch, lost: str, words: str
) -> None:
    subscribe(connection, "all")
    original.dispatch({"all": original.publish(1, 2)})
    original.publish(3)
    done = sql_statements.statement

    def loses(name: str) -> LiteralString:
        """Return a statement of the takeover; one of them is made to lose rows."""
        text = done(name)
        if name != f"events/takeover/{lost}":
            return text
        return f"{text} LIMIT 0" if lost == "copy_matches" else f"{text} AND e.payload <> '2'"

    monkeypatch.setattr(takeover, "statement", loses)
    with pytest.raises(CheckFailed, match=rf"rows of PGMB are unaccounted for \(.*{words}.*\): nothing was changed"):
        take_over(connection)
    assert is_untouched(connection)


def test_a_session_that_keeps_the_tables_is_named(
    connection: Connection,
    connect: Callable[[], Connection],
    original: OriginalPgmb,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(takeover, "LOCK_TIMEOUT", "100ms")
    holder = connect()
    with holder.transaction():
        holder.execute("SELECT count(*) FROM pgmb.subscriptions")
        with pytest.raises(
            RefusedError, match=rf"in use for longer than 100ms: end the .* of pid {holder.info.backend_pid} "
        ):
            take_over(connection)
    assert is_untouched(connection)


@pytest.mark.parametrize(
    ("preparation", "words"),
    [
        ("DROP SCHEMA pgmb CASCADE", "there is no PGMB at .*: install the event broker without --from-pgmb"),
        ("CREATE TABLE pgmb.migrations (version int)", "is Queuekeeper's already: there is nothing to take over"),
        (
            "CREATE TABLE pgmb.queues (a int); CREATE TABLE pgmb.exchanges (a int)",
            "is a PGMB before 0.2, with queues and exchanges: upgrade it",
        ),
        (
            "ALTER TABLE pgmb.events ADD COLUMN priority int",
            r"is no PGMB 0\.2\.0 to 0\.2\.22: its tables events are missing or",
        ),
        ("DROP TABLE pgmb.unread_events", "its tables unread_events are missing or have other columns"),
        ("CREATE TABLE pgmb.notes (a int)", "table pgmb.notes in schema pgmb is not PGMB's: move it to another schema"),
        (
            "CREATE FUNCTION pgmb.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            r"function pgmb.mine\(\) in schema pgmb is not",
        ),
        (
            "CREATE VIEW public.seen AS SELECT * FROM pgmb.events",
            "used from outside by column id of view seen, .*view seen: drop that, and create it",
        ),
        (
            """CREATE FUNCTION public.mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
            CREATE TRIGGER mine BEFORE INSERT ON pgmb.events FOR EACH ROW EXECUTE FUNCTION public.mine()""",
            "as it is: trigger mine on table pgmb.events is not PGMB's, and would stay with [^;]* anew afterwards$",
        ),
        (
            "CREATE PUBLICATION news FOR TABLE pgmb.events",
            "publication of table pgmb.events in publication news is not PGMB's, and would stay with the tables",
        ),
        (
            "CREATE PUBLICATION news FOR TABLES IN SCHEMA pgmb",
            "publication of schema pgmb in publication news is not PGMB's, and would stay with the tables",
        ),
        (
            "CREATE POLICY own ON pgmb.subscriptions USING (group_id = current_user)",
            "policy own on table pgmb.subscriptions is not PGMB's, and would stay with the tables",
        ),
        (
            f"CREATE SCHEMA {SET_ASIDE}",
            "there is a schema pgmb_original at .*: rename it, or drop it if an earlier takeover left it",
        ),
        ("UPDATE pgmb.config SET value = 'true' WHERE id = 'use_pg_cron'", "is at work; stop first: pg_cron's jobs"),
        (
            "UPDATE pgmb.config SET value = '7 minutes' WHERE id = 'partition_interval'",
            "setting partition_interval cannot be 7 minutes: it must divide a day.*; change it in pgmb.config first",
        ),
        (
            """INSERT INTO pgmb.subscription_groups (id) VALUES ('a');
            INSERT INTO pgmb.subscriptions (id, group_id, conditions_sql)
            VALUES ('x', 'a', '(SELECT count(*) FROM pg_user) > 0'), ('y', 'a', 'e.nothing')""",
            r"subscriptions with the condition '\(SELECT .*'e.nothing'.*correct or delete them in pgmb.subscriptions",
        ),
        (
            """CREATE TABLE pgmb.rest PARTITION OF pgmb.events FOR VALUES FROM ('z') TO (MAXVALUE);
            INSERT INTO pgmb.events (id, topic, payload) VALUES ('zebra', 'a', '1')""",
            "events has 1 ids that hold no instant, such as 'zebra': delete those rows",
        ),
    ],
)
def test_what_cannot_be_taken_over_is_refused_and_left_as_it_was(
    connection: Connection, original: OriginalPgmb, preparation: str, words: str
) -> None:
    connection.execute(preparation.encode())
    before = connection.execute("SELECT oid FROM pg_class ORDER BY oid").fetchall()

    with pytest.raises(RefusedError, match=words):
        take_over(connection)

    assert connection.execute("SELECT oid FROM pg_class ORDER BY oid").fetchall() == before


def test_a_condition_that_takes_for_ever_is_named_and_keeps_publishers_waiting_no_longer(
    connection: Connection, original: OriginalPgmb, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = ", ".join(f"jsonb_array_elements(e.payload->'numbers') AS n{number}" for number in range(5))
    subscribe(connection, "slow", condition=f"(SELECT count(*) FROM {pairs}) > 0")
    original.publish({"numbers": list(range(1_000))})
    monkeypatch.setattr(takeover, "TRIAL_TIMEOUT_S", 0.5)

    with pytest.raises(
        RefusedError, match=r"condition .\(SELECT .*: canceling statement due to statement timeout; correct"
    ):
        take_over(connection)
    assert is_untouched(connection)


@pytest.mark.parametrize("at_work", ["SELECT pgmb.poll_for_events()", "group lock"])
def test_clients_at_work_are_to_be_stopped(
    connection: Connection, connect: Callable[[], Connection], original: OriginalPgmb, at_work: str
) -> None:
    subscribe(connection, "all", group="first")
    client = connect()
    pid = client.info.backend_pid
    if at_work == "group lock":
        at_work = "SELECT pg_advisory_lock(hashtext('pgmb.read_next_events.' || 'first'))"
    client.execute(at_work.encode())

    assert [name.partition(" (")[0] for name in take_over(connection, dry_run=True).to_stop] == [f"pid {pid}"]
    with pytest.raises(RefusedError, match=rf"is at work; stop first: pid {pid} \(queuekeeper, user \w+\), which"):
        take_over(connection)
    assert is_untouched(connection)
    client.close()
    while value(connection, "SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid):
        pass
    assert take_over(connection).to_stop == ()


def test_the_owner_takes_over_and_nobody_else(
    connection: Connection, postgres_url: str, original: OriginalPgmb
) -> None:
    database = connection.info.dbname
    connection.execute(
        f"CREATE ROLE newcomer LOGIN PASSWORD 'a'; GRANT CREATE ON DATABASE {database} TO newcomer".encode()
    )
    connection.execute("GRANT USAGE ON SCHEMA pgmb TO newcomer; GRANT SELECT ON ALL TABLES IN SCHEMA pgmb TO newcomer")
    address = f"postgresql://newcomer:a@{connection.info.host}:{connection.info.port}/{database}"
    try:
        with (
            postgres.connect(address, autocommit=True) as other,
            pytest.raises(RefusedError, match=r"schema pgmb belongs to \w+: connect as its owner; table pgmb"),
        ):
            take_over(other)
        assert is_untouched(connection)
        (role,) = take_over(connection).roles
        assert role.startswith("newcomer (config: select, ")
    finally:
        connection.execute("DROP OWNED BY newcomer; DROP ROLE newcomer")


def test_the_way_back_is_open_and_the_role_of_conditions_reads_nothing_of_it(
    connection: Connection, original: OriginalPgmb
) -> None:
    subscribe(connection, "all")
    original.publish(1)
    take_over(connection)

    with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
        connection.execute(f"SET LOCAL ROLE pgmb_reader; SELECT * FROM {SET_ASIDE}.events".encode())
    schema.uninstall(connection)
    connection.execute(f"ALTER SCHEMA {SET_ASIDE} RENAME TO pgmb".encode())
    assert is_untouched(connection)
    assert value(connection, "SELECT count(*) FROM pgmb.unread_events") == 1

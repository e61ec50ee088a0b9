"""The event broker's schema: installed whole or not at all, upgraded in place, removed without a trace outside."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuekeeper import assets
from queuekeeper.errors import RefusedError
from queuekeeper.events import schema
from queuekeeper.events.broker import EventBroker
from queuekeeper.events.model import Interest, NewEvent
from queuekeeper.postgres import Connection
from tests.event_samples import delivered, poll, publish, subscribe, value

pytestmark = pytest.mark.sql

EVENTS = assets.directory("sql") / "events"


def catalog(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Return what was installed, without the partitions, whose bounds depend on the hour."""
    queries = {
        "columns": "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, "
        "a.attstorage::text, pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute AS a "
        "INNER JOIN pg_class AS c ON c.oid = a.attrelid "
        "LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum "
        "WHERE c.relnamespace = 'pgmb'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition "
        "AND a.attnum > 0 ORDER BY 1, a.attnum",
        "functions": "SELECT oid::regprocedure::text, pg_get_functiondef(oid), proowner::regrole::text, "
        "regexp_replace(proacl::text, 'test_.*?=', '', 'g') "
        "FROM pg_proc WHERE pronamespace = 'pgmb'::regnamespace ORDER BY 1",
        "triggers": "SELECT t.tgname, pg_get_triggerdef(t.oid) FROM pg_trigger AS t INNER JOIN pg_class AS c "
        "ON c.oid = t.tgrelid WHERE c.relnamespace = 'pgmb'::regnamespace AND NOT t.tgisinternal ORDER BY 1",
        "settings": "SELECT id::text, value FROM pgmb.config ORDER BY 1",
        "ledger": "SELECT version, name, checksum FROM pgmb.migrations ORDER BY 1",
    }
    return {name: connection.execute(query.encode()).fetchall() for name, query in queries.items()}


def test_a_new_installation_works_at_once(connection: Connection) -> None:
    assert schema.status(connection) == schema.SchemaStatus(installed=False, version=None, pending=())

    assert schema.install(connection) == schema.InstallReport(created=True, applied=(), version=0)

    assert schema.status(connection) == schema.SchemaStatus(installed=True, version=0, pending=())
    subscribe(connection, "all")
    published = publish(connection, 1)
    assert poll(connection) == 1
    assert delivered(connection, "all") == published


def test_a_second_installation_keeps_everything_and_brings_the_functions_up_to_date(connection: Connection) -> None:
    schema.install(connection)
    subscribe(connection, "all")
    published = publish(connection, 1)
    connection.execute("UPDATE pgmb.config SET value = '77' WHERE id = 'poll_chunk_size'")
    before = catalog(connection)
    connection.execute(
        "CREATE OR REPLACE FUNCTION pgmb.create_random_bigint() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'"
    )
    connection.execute("DROP FUNCTION pgmb.read_events")

    assert schema.install(connection) == schema.InstallReport(created=False, applied=(), version=0)

    assert catalog(connection) == before
    poll(connection)
    assert delivered(connection, "all") == published


def test_the_script_for_psql_installs_the_same(connection: Connection, connect: Callable[[], Connection]) -> None:
    schema.install(connection)
    installed = catalog(connection)
    schema.uninstall(connection)

    connect().execute(schema.script().encode())

    assert catalog(connection) == installed
    assert schema.install(connection).created is False


def test_the_script_holds_every_file_once() -> None:
    script = schema.script()
    files = [path for path in EVENTS.rglob("*.sql") if path.parent.name not in ("queries", "migrations", "takeover")]

    assert len(files) > 60
    assert [path.name for path in files if script.count(path.read_text("utf-8").strip().rstrip(";")) != 1] == []


def test_the_script_has_nothing_that_is_younger_than_postgresql_15() -> None:
    script = re.sub(r"--.*", "", schema.script())

    assert re.findall(r"\b0x[0-9a-f]+\b", script) == []
    assert re.findall(r"\b(?:any_value|json_table|uuidv7|array_sort|merge_action)\b", script, re.IGNORECASE) == []


def test_two_installations_at_once_do_no_harm(connection: Connection, connect: Callable[[], Connection]) -> None:
    connections = [connect() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        reports = list(pool.map(schema.install, connections))

    assert sorted(report.created for report in reports) == [False, False, True]


def test_removal_takes_everything_even_triggers_on_tables_elsewhere(connection: Connection) -> None:
    schema.install(connection)
    connection.execute('CREATE TABLE "odd name" (id int); SELECT pgmb.push_table_mutations(\'"odd name"\')')

    assert schema.uninstall(connection) is True

    assert value(connection, "SELECT to_regnamespace('pgmb') IS NULL")
    connection.execute('INSERT INTO "odd name" VALUES (1)')
    assert schema.uninstall(connection) is False
    assert schema.install(connection).created


def test_removal_that_would_destroy_something_elsewhere_is_refused_with_its_names(connection: Connection) -> None:
    """A partition that retention has moved out of the schema keeps its type of ids, and so would lose its ids."""
    schema.install(connection)
    ((partition, old_id),) = connection.execute(
        "SELECT partition::text, lower_bound FROM pgmb.partition_bounds('pgmb.events') LIMIT 1"
    ).fetchall()
    connection.execute("INSERT INTO pgmb.events (id, topic, payload) VALUES (%s, 'topic', '1')", (old_id,))
    for command in (
        "CREATE TABLE mine (number int, last_seen pgmb.event_id)",
        "CREATE INDEX mine_index ON mine (number)",
        "CREATE VIEW counted AS SELECT count(*) FROM pgmb.events",
        "CREATE VIEW doubled AS SELECT 2 * count FROM counted",
        "CREATE TABLE child (group_id varchar(48) REFERENCES pgmb.subscription_groups (id))",
        "CREATE FUNCTION mine_of(seen pgmb.event_id) RETURNS int LANGUAGE sql RETURN 1",
        "CREATE TABLE watched (id int)",
        "SELECT pgmb.push_table_mutations('watched')",
        f"ALTER TABLE pgmb.events DETACH PARTITION {partition}",
        f"CREATE SCHEMA retired; ALTER TABLE {partition} SET SCHEMA retired",
    ):
        connection.execute(command.encode())

    with pytest.raises(RefusedError, match="nothing was removed") as refused:
        schema.uninstall(connection)

    for name in (
        "column last_seen of table mine",
        "view counted",
        "on table child",
        "function mine_of(pgmb.event_id)",
        f"column id of table retired.{partition.removeprefix('pgmb.')}",
    ):
        assert name in str(refused.value)
    assert "watched" not in str(refused.value)
    assert "index" not in str(refused.value)
    assert "doubled" not in str(refused.value)
    assert schema.status(connection).installed
    assert value(connection, f"SELECT id FROM retired.{partition.removeprefix('pgmb.')}") == old_id
    connection.execute("INSERT INTO watched VALUES (1)")

    connection.execute(
        "DROP TABLE mine, child; DROP VIEW counted CASCADE; DROP FUNCTION mine_of; DROP SCHEMA retired CASCADE"
    )
    assert schema.uninstall(connection) is True


def test_a_schema_of_somebody_elses_is_left_alone(connection: Connection) -> None:
    connection.execute("CREATE SCHEMA pgmb; CREATE TABLE pgmb.events (id text)")

    for action in (schema.install, schema.uninstall, schema.status):
        with pytest.raises(RefusedError, match="was not installed by Queuekeeper: it is left alone"):
            action(connection)


def test_a_failing_installation_leaves_nothing_behind(connection: Connection, tmp_path: Path) -> None:
    schema.install(connection)
    (tmp_path / "0001_good.sql").write_text("CREATE TABLE pgmb.good (id int);")
    (tmp_path / "0002_bad.sql").write_text("CREATE TABLE pgmb.bad (id int); SELECT 1 / 0;")

    with pytest.raises(psycopg.errors.DivisionByZero):
        schema.install(connection, directory=tmp_path)

    assert value(connection, "SELECT to_regclass('pgmb.good') IS NULL")
    assert schema.status(connection).version == 0


def test_migrations_are_applied_once_and_never_changed(connection: Connection, tmp_path: Path) -> None:
    schema.install(connection)
    first = tmp_path / "0001_more.sql"
    first.write_text("CREATE TABLE pgmb.more (id int);\n-- 100 % more\n")
    assert schema.status(connection, directory=tmp_path).pending == (first.name,)

    assert schema.install(connection, directory=tmp_path).applied == (first.name,)
    assert schema.install(connection, directory=tmp_path).applied == ()
    assert schema.status(connection, directory=tmp_path).version == 1

    with pytest.raises(RefusedError, match=r"at version 1, newer than .*\(0\): upgrade Queuekeeper"):
        schema.install(connection)
    first.write_text("CREATE TABLE pgmb.other (id int);")
    with pytest.raises(RefusedError, match=r"0001_more\.sql of schema pgmb differs .* restore the file"):
        schema.install(connection, directory=tmp_path)


def test_a_new_installation_knows_the_migrations_that_its_tables_contain(
    connection: Connection, tmp_path: Path
) -> None:
    (tmp_path / "0001_more.sql").write_text("SELECT 1 / 0;")

    assert schema.install(connection, directory=tmp_path) == schema.InstallReport(created=True, applied=(), version=1)


def test_who_may_not_create_is_told_so(connection: Connection) -> None:
    connection.execute("CREATE ROLE nobody_special")
    connection.execute("SET ROLE nobody_special")
    try:
        with pytest.raises(RefusedError, match="permission denied for database"):
            schema.install(connection)
    finally:
        connection.execute("RESET ROLE; DROP ROLE nobody_special")


def test_an_owner_who_is_no_superuser_but_may_create_roles_installs_and_upgrades(connection: Connection) -> None:
    database = value(connection, "SELECT current_database()")
    there = value(connection, "SELECT count(*) FROM pg_roles WHERE rolname = 'pgmb_reader'")
    if there:
        connection.execute("ALTER ROLE pgmb_reader RENAME TO pgmb_reader_of_others")
    connection.execute(f"CREATE ROLE plain CREATEROLE; ALTER DATABASE {database} OWNER TO plain".encode())
    try:
        connection.execute("SET SESSION AUTHORIZATION plain")
        assert schema.install(connection).created
        subscribe(connection, "topical", condition="e.topic = 'topic'")
        published = publish(connection, 1)
        assert poll(connection) == 1
        assert schema.install(connection).created is False
        assert delivered(connection, "topical") == published
        connection.execute("CALL pgmb.maintain_events_table(now() + interval '1 day')")
        assert schema.uninstall(connection) is True
    finally:
        connection.execute("RESET SESSION AUTHORIZATION; DROP SCHEMA IF EXISTS pgmb CASCADE")
        connection.execute(f"ALTER DATABASE {database} OWNER TO CURRENT_USER".encode())
        connection.execute("DROP ROLE IF EXISTS pgmb_reader; DROP ROLE plain")
        if there:
            connection.execute("ALTER ROLE pgmb_reader_of_others RENAME TO pgmb_reader")


def all_refused(connection: Connection, *statements: str) -> None:
    """Assert that each statement needs a privilege that the present role lacks."""
    for each in statements:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(each.encode())


def test_the_role_of_conditions_reads_subscriptions_and_nothing_else(connection: Connection) -> None:
    schema.install(connection)
    connection.execute("SET ROLE pgmb_reader")
    try:
        connection.execute("SELECT count(*) FROM pgmb.subscriptions")
        all_refused(
            connection,
            "SELECT * FROM pgmb.events",
            "SELECT * FROM pgmb.dispatches",
            "SELECT * FROM pgmb.dead_letters",
            "DELETE FROM pgmb.subscriptions",
            "CREATE TABLE pgmb.mine (id int)",
            "SELECT pgmb.poll_for_events()",
            "CALL pgmb.maintain_events_table()",
        )
    finally:
        connection.execute("RESET ROLE")


def test_a_publisher_needs_no_more_than_to_insert(connection: Connection) -> None:
    schema.install(connection)
    subscribe(connection, "all")
    connection.execute(
        "CREATE ROLE publisher; GRANT USAGE ON SCHEMA pgmb TO publisher; "
        "GRANT INSERT ON pgmb.events TO publisher; GRANT USAGE ON SEQUENCE pgmb.event_numbers TO publisher"
    )
    try:
        connection.execute("SET ROLE publisher")
        connection.execute("INSERT INTO pgmb.events (topic, payload) VALUES ('topic', '1')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM pgmb.events")
    finally:
        connection.execute("RESET ROLE")
        connection.execute("DROP OWNED BY publisher; DROP ROLE publisher")
    assert poll(connection) == 1


# What PGMB's client sends to schedule events (its query writeScheduledEvents).
SCHEDULED_BY_PGMB = """
INSERT INTO pgmb.events (id, topic, payload, metadata)
SELECT pgmb.create_event_id(coalesce(ts, clock_timestamp()), pgmb.create_random_bigint()), topic, payload, metadata
FROM unnest(%s::timestamptz[], %s::text[], %s::jsonb[], %s::jsonb[]) AS t (ts, topic, payload, metadata)
RETURNING id
"""


def test_the_grants_of_the_guide_are_enough_for_publishers_and_consumers_and_no_more(connection: Connection) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "events.md").read_text("utf-8")
    (grants,) = re.findall(r"```sql\n(GRANT USAGE.*?)```", guide, re.DOTALL)
    schema.install(connection)
    connection.execute("CREATE ROLE publisher; CREATE ROLE consumer")
    broker = EventBroker(connection)
    try:
        connection.execute(grants.encode())
        connection.execute("SET ROLE consumer")
        subscription = broker.subscribe("group", Interest.topics("topic"))
        broker.subscribe("group", Interest(condition="e.topic = 'topic'", expires_after=timedelta(minutes=1)))
        broker.mark_active([subscription.subscription_id])
        connection.execute("SET ROLE publisher")
        published = broker.publish([NewEvent(topic="topic", payload=1)])
        broker.publish_many([NewEvent(topic="topic", payload=2)])
        broker.schedule(NewEvent(topic="topic", payload=3), due_at=datetime(2100, 1, 1, tzinfo=UTC))
        target: dict[str, Any] = {"subscription_id": subscription.subscription_id}
        broker.publish_many([], **target)
        broker.schedule(NewEvent(topic="topic", payload=3), due_at=datetime(2100, 1, 1, tzinfo=UTC), **target)
        soon, later = (datetime.now(UTC) + timedelta(hours=1), datetime.now(UTC) + timedelta(days=30))
        connection.execute(SCHEDULED_BY_PGMB, ([soon, later], ["topic"] * 2, ["4", "5"], [None] * 2))
        connection.execute("RESET ROLE")
        poll(connection)
        connection.execute("SET ROLE consumer")
        page = broker.read("group", limit=10)
        assert page.next_cursor is not None
        broker.set_cursor("group", page.next_cursor, release=True)
        replayed = broker.replay("group", subscription.subscription_id, after_event_id=published[0], limit=10)
        for call in ("schedule_retry('{}', '{{{}}}', 1, 'h', '1 s')", "fail_events('{}', '{{{}}}', 'h', 'r', 1)"):
            connection.execute(f"SELECT pgmb.{call}".format(subscription.subscription_id, published[0]).encode())
        broker.unsubscribe([subscription.subscription_id])

        assert [item.event.payload for item in page.items] == [1, 2]
        assert len(replayed) == 1
        for role in ("publisher", "consumer"):
            connection.execute(f"SET ROLE {role}".encode())
            all_refused(
                connection,
                "SELECT pgmb.poll_for_events()",
                "SELECT pgmb.extend_partitions('pgmb.events')",
                "SELECT pgmb.drop_expired_partition('pgmb.events')",
                "SELECT pgmb.match_condition('TRUE', NULL, NULL, NULL, NULL)",
                "UPDATE pgmb.subscriptions SET conditions_sql = 'FALSE'",
                "DELETE FROM pgmb.events",
            )
    finally:
        connection.execute("RESET ROLE")
        connection.execute("DROP OWNED BY publisher, consumer; DROP ROLE publisher, consumer")


def test_every_file_says_what_it_is_for_and_holds_what_its_name_says() -> None:
    for path in sorted(EVENTS.rglob("*.sql")):
        text = path.read_text("utf-8")
        if path.parent.name in ("functions", "triggers", "tables", "types"):
            assert re.search(rf"^CREATE \w+ (?:pgmb\.)?{path.stem}\b", text, re.MULTILINE), path.name
            assert text.startswith("-- "), path.name
        if path.parent.name == "functions":
            assert len(re.findall(r"^CREATE ", text, re.MULTILINE)) == 1, path.name

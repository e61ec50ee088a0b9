"""Changes of a table become events, in the transaction that makes them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from queuekeeper.events import schema
from queuekeeper.postgres import Connection

pytestmark = pytest.mark.sql


@pytest.fixture
def postgres_url(broker_url: str) -> str:
    """Every test has a broker of its own."""
    return broker_url


@pytest.fixture
def broker(connection: Connection) -> Connection:
    """Connection to a broker beside a table whose changes are published."""
    connection.execute("CREATE TABLE people (id int PRIMARY KEY, name text, age int)")
    connection.execute("SELECT pgmb.push_table_mutations('people')")
    return connection


def published(connection: Connection) -> list[tuple[str, Any, Any]]:
    return connection.execute("SELECT topic, payload, metadata FROM pgmb.events ORDER BY id").fetchall()


def test_every_changed_row_becomes_an_event(broker: Connection) -> None:
    broker.execute("INSERT INTO people VALUES (1, 'Ada', 36), (2, 'Bob', NULL)")
    broker.execute("UPDATE people SET age = age + 1 WHERE id = 1")
    broker.execute("DELETE FROM people WHERE id = 2")

    assert published(broker) == [
        ("public.people.insert", {"id": 1, "name": "Ada", "age": 36}, None),
        ("public.people.insert", {"id": 2, "name": "Bob"}, None),
        ("public.people.update", {"age": 37}, {"old": {"id": 1, "name": "Ada", "age": 36}}),
        ("public.people.delete", {"id": 2, "name": "Bob"}, None),
    ]


def test_column_that_becomes_null_is_told(broker: Connection) -> None:
    broker.execute("INSERT INTO people VALUES (1, 'Ada', 36)")
    broker.execute("UPDATE people SET age = NULL")

    assert published(broker)[1:] == [
        ("public.people.update", {"age": None}, {"old": {"id": 1, "name": "Ada", "age": 36}})
    ]


def test_null_inside_a_column_of_json_is_told(broker: Connection) -> None:
    broker.execute("CREATE TABLE notes (id int, note jsonb, other jsonb)")
    broker.execute("SELECT pgmb.push_table_mutations('notes')")
    note = {"a": None, "b": [{"c": None}]}
    broker.execute("INSERT INTO notes VALUES (NULL, %s, NULL), (NULL, NULL, NULL)", (Jsonb(note),))
    broker.execute("UPDATE notes SET other = '1' WHERE note IS NOT NULL")
    broker.execute("DELETE FROM notes WHERE note IS NOT NULL")

    assert published(broker) == [
        ("public.notes.insert", {"note": note}, None),
        ("public.notes.insert", {}, None),
        ("public.notes.update", {"other": 1}, {"old": {"note": note}}),
        ("public.notes.delete", {"note": note, "other": 1}, None),
    ]


def test_update_that_changes_nothing_is_not_told(broker: Connection) -> None:
    broker.execute("INSERT INTO people VALUES (1, 'Ada', NULL)")
    broker.execute("UPDATE people SET name = name, age = NULL")

    assert len(published(broker)) == 1


def test_each_row_of_a_large_update_is_told_with_its_own_old_row(broker: Connection) -> None:
    broker.execute("INSERT INTO people SELECT n, 'name ' || n, n FROM generate_series(1, 5000) AS n")
    broker.execute("UPDATE people SET age = 10000 + id")

    updates = published(broker)[5000:]
    assert len(updates) == 5000
    assert all(payload["age"] == 10000 + metadata["old"]["id"] for _, payload, metadata in updates)


def test_truncate_is_told(broker: Connection) -> None:
    broker.execute("TRUNCATE people")

    assert published(broker) == [("public.people.truncate", {}, None)]


def test_upsert_is_told_as_what_it_did(broker: Connection) -> None:
    for age in (36, 37):
        broker.execute(
            "INSERT INTO people VALUES (1, 'Ada', %s) ON CONFLICT (id) DO UPDATE SET age = excluded.age", (age,)
        )

    assert [topic for topic, _, _ in published(broker)] == ["public.people.insert", "public.people.update"]


def test_change_that_is_undone_is_not_told(broker: Connection) -> None:
    with broker.transaction(force_rollback=True):
        broker.execute("INSERT INTO people VALUES (1, 'Ada', 36)")

    assert published(broker) == []


def test_kinds_that_are_not_wanted_are_left_out_and_can_be_added(broker: Connection) -> None:
    broker.execute("CREATE TABLE places (id int)")
    broker.execute("SELECT pgmb.push_table_mutations('places', delete => FALSE, update => FALSE, truncate => FALSE)")
    broker.execute("INSERT INTO places VALUES (1)")
    broker.execute("DELETE FROM places")
    broker.execute("TRUNCATE places")
    assert [topic for topic, _, _ in published(broker)] == ["public.places.insert"]

    broker.execute("SELECT pgmb.push_table_mutations('places', insert => FALSE, update => FALSE, truncate => FALSE)")
    broker.execute("INSERT INTO places VALUES (1)")
    broker.execute("DELETE FROM places")
    assert [topic for topic, _, _ in published(broker)][1:] == ["public.places.insert", "public.places.delete"]


def test_nothing_is_told_after_the_stop_and_foreign_triggers_stay(broker: Connection) -> None:
    broker.execute("CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    broker.execute("CREATE TRIGGER audit AFTER INSERT ON people FOR EACH STATEMENT EXECUTE FUNCTION audit()")
    for _ in range(2):
        broker.execute("SELECT pgmb.stop_table_mutations_push('people')")

    broker.execute("INSERT INTO people VALUES (1, 'Ada', 36)")
    broker.execute("TRUNCATE people")

    assert published(broker) == []
    assert broker.execute("SELECT tgname FROM pg_trigger WHERE tgrelid = 'people'::regclass").fetchall() == [("audit",)]


def test_foreign_trigger_of_the_same_name_is_not_replaced(broker: Connection) -> None:
    broker.execute("CREATE TABLE places (id int)")
    broker.execute("CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    broker.execute(
        "CREATE TRIGGER post_insert_event AFTER INSERT ON places FOR EACH STATEMENT EXECUTE FUNCTION audit()"
    )

    with pytest.raises(psycopg.errors.DuplicateObject, match="post_insert_event that is not ours"):
        broker.execute("SELECT pgmb.push_table_mutations('places')")


def test_events_about_the_broker_itself_are_refused(broker: Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="every event would cause the next one"):
        broker.execute("SELECT pgmb.push_table_mutations('pgmb.events')")


def test_stranger_can_neither_publish_a_table_nor_be_kept_from_changing_one(broker: Connection) -> None:
    broker.execute("CREATE ROLE clerk")
    try:
        broker.execute("GRANT INSERT ON people TO clerk")
        broker.execute("CREATE TABLE places (id int)")
        broker.execute("GRANT USAGE ON SCHEMA pgmb TO clerk")
        broker.execute("SET ROLE clerk")

        broker.execute("INSERT INTO people VALUES (1, 'Ada', 36)")
        with pytest.raises(
            psycopg.errors.InsufficientPrivilege, match="permission denied for function push_table_mutations"
        ):
            broker.execute("SELECT pgmb.push_table_mutations('places')")
    finally:
        broker.execute("RESET ROLE")
        broker.execute("DROP OWNED BY clerk")
        broker.execute("DROP ROLE clerk")
    assert len(published(broker)) == 1


def test_replaced_serialiser_decides_what_is_told(broker: Connection) -> None:
    broker.execute(
        """
        CREATE OR REPLACE FUNCTION pgmb.serialise_record_for_event(
            tabl oid, op text, record record, OUT serialised jsonb, OUT emit boolean
        ) LANGUAGE plpgsql IMMUTABLE STRICT AS $$
        BEGIN
            serialised := to_jsonb(record) - 'age';
            emit := (serialised ->> 'name') NOT LIKE 'test %';
        END $$
        """
    )
    broker.execute("INSERT INTO people VALUES (1, 'Ada', 36), (2, 'test Bob', 1)")
    broker.execute("UPDATE people SET age = 37")
    broker.execute("DELETE FROM people")

    assert published(broker) == [
        ("public.people.insert", {"id": 1, "name": "Ada"}, None),
        ("public.people.delete", {"id": 1, "name": "Ada"}, None),
    ]


def test_replaced_serialiser_outlives_an_upgrade(broker: Connection) -> None:
    broker.execute(
        "CREATE OR REPLACE FUNCTION pgmb.serialise_record_for_event("
        "tabl oid, op text, record record, OUT serialised jsonb, OUT emit boolean) "
        "LANGUAGE plpgsql AS 'BEGIN serialised := jsonb_build_object(''hidden'', TRUE); emit := TRUE; END'"
    )
    schema.install(broker)
    broker.execute("INSERT INTO people VALUES (1, 'Ada', 36)")

    assert published(broker) == [("public.people.insert", {"hidden": True}, None)]


def test_table_with_capitals_and_spaces_in_another_schema_can_be_told(broker: Connection) -> None:
    broker.execute('CREATE SCHEMA "My Shop"')
    broker.execute('CREATE TABLE "My Shop"."Big Orders" (id int)')
    broker.execute('SELECT pgmb.push_table_mutations(\'"My Shop"."Big Orders"\')')
    broker.execute('INSERT INTO "My Shop"."Big Orders" VALUES (1)')

    assert published(broker) == [("my shop.big orders.insert", {"id": 1}, None)]


def test_partitioned_table_is_told_through_its_parent(broker: Connection) -> None:
    broker.execute("CREATE TABLE parted (id int) PARTITION BY RANGE (id)")
    broker.execute("CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (10)")
    broker.execute("CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (10) TO (20)")
    broker.execute("SELECT pgmb.push_table_mutations('parted')")
    broker.execute("INSERT INTO parted VALUES (1), (11)")

    assert [payload for _, payload, _ in published(broker)] == [{"id": 1}, {"id": 11}]


def test_search_path_of_the_session_stays(broker: Connection) -> None:
    broker.execute("SET search_path TO public")
    broker.execute("INSERT INTO people VALUES (1, 'Ada', 36)")

    assert broker.execute("SHOW search_path").fetchone() == ("public",)


@pytest.mark.parametrize(
    ("a", "b", "difference"),
    [
        ('{"a": 1, "b": 2, "c": null}', '{"a": 1, "b": null}', {"b": 2}),
        ('{"a": null}', '{"a": 1}', {"a": None}),
        ("{}", '{"a": 1}', {"a": None}),
        ('{"a": {"x": 1}}', '{"a": {"x": 2}}', {"a": {"x": 1}}),
        ('{"a": 1}', '{"a": 1.0}', None),
        ('{"a": null}', "{}", None),
    ],
)
def test_difference_holds_the_new_values_of_changed_keys(
    broker: Connection, a: str, b: str, difference: object
) -> None:
    assert broker.execute("SELECT pgmb.jsonb_diff(%s, %s)", (a, b)).fetchone() == (difference,)


def test_topic_is_in_lower_case(broker: Connection) -> None:
    row = broker.execute("SELECT pgmb.create_topic('Public', 'Contacts', 'INSERT')").fetchone()

    assert row == ("public.contacts.insert",)

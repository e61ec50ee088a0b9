"""Conditions are judged before they are stored, and one that fails later harms nobody else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count
from typing import Any

import psycopg
import pytest

from queuekeeper import postgres
from queuekeeper.embedded import PostgresServer
from queuekeeper.maintenance.events import broker
from queuekeeper.maintenance.events.broker import failing_conditions
from queuekeeper.postgres import Connection
from tests.event_clock import install_with_clock
from tests.event_samples import delivered, poll, publish, subscribe
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.sql

NUMBER = "(e.payload->>'number')::int > 3"
SLOW = " + ".join(["length(((e.payload->>'number')::numeric * (e.payload->>'number')::numeric)::text)"] * 60) + " > 3"


@pytest.fixture
def postgres_url(broker_url: str) -> str:
    """Every test has a broker of its own."""
    return broker_url


def refusal(connection: Connection, condition: str | None) -> str | None:
    row = connection.execute("SELECT pgmb.condition_refusal(%s)", (condition,)).fetchone()
    assert row is not None
    words: str | None = row[0]
    return words


def test_condition_is_judged_while_the_servers_catalog_is_vacuumed(connection: Connection, postgres_url: str) -> None:
    judged = threading.Event()

    def vacuum() -> None:
        with postgres.connect(postgres_url, autocommit=True) as other:
            while not judged.is_set():
                other.execute("VACUUM pg_catalog.pg_rewrite")

    thread = threading.Thread(target=vacuum)
    thread.start()
    try:
        # Its tree is so long that the catalog holds it out of line.
        condition = " AND ".join(f"e.topic <> 'topic-{number}'" for number in range(60))
        assert [refusal(connection, condition) for _ in range(50)] == [None] * 50
    finally:
        judged.set()
        thread.join()


@pytest.mark.parametrize(
    "condition",
    [
        "TRUE",
        "s.params @> jsonb_build_object('topics', ARRAY[e.topic])",
        "s.params @> jsonb_build_object('topics',ARRAY[e.topic],'partition',hashtext(e.id) % 3)",
        "e.payload->>'absent' IS NOT NULL",
        "e.payload->'data' > s.params->'min'",
        "s.params @> e.payload",
        "s.group_id = e.topic",
        "e.topic LIKE 'device.%'",
        "e.topic = 'it''s' OR topic IN ('a;b', '--', '/*', '$$', '\"', '{}%s%')",
        "(payload->>'value')::int>-1",
        "(e.payload->>'v')::numeric(10,2) BETWEEN 1 AND 2.5e3",
        r"e.topic ~ '^device\.\d+$'",
        "e.payload @? '$.a ? (@ > 3)'",
        "e.topic = ANY(ARRAY['a','b'])",
        "E . Topic = 'a'",
        "CASE WHEN jsonb_typeof(e.payload->'v') = 'number'\n\tTHEN (e.payload->>'v')::int > 3 ELSE FALSE END",
        "extract(epoch FROM now()) > 1",
        "CAST(e.payload->>'v' AS varchar(20)) IS DISTINCT FROM 'x'",
        "pgmb.extract_date_from_event_id(e.id) > now() - interval '1 day'",
        "e.payload['a']['b'] = '1'",
        "e.metadata ?| ARRAY['a']",
        "substring(e.topic,1,1)='o'",
        """jsonb_path_exists(e.payload,'$.items[*] ? (@.sku == "k1")')""",
        "e.topic ~ (s.params->>'re')",
        "to_char(now(),'YYYY') >= '2000'",
        "EXISTS (SELECT 1 FROM jsonb_array_elements(e.payload->'items') i WHERE i->>'sku' = 'k1')",
        "(SELECT sum((i->>'cents')::numeric) FROM jsonb_array_elements(e.payload->'items') AS i) > 100",
        "e.topic IN (SELECT jsonb_array_elements_text(s.params->'topics'))",
        "'x' IN (SELECT t.value FROM jsonb_each_text(e.payload) AS t WHERE t.key LIKE 'a%' ORDER BY 1 LIMIT 3)",
        """e."topic" = 'a' AND "e"."payload"->>'v' = '1' AND topic IS NOT NULL""",
        "TRUE -- for now",
        "/* ) ; ' */ e.topic = 'a' -- ) ; '\n OR FALSE",
        "$$a$$ = e.topic OR e.topic = e'\\''",
        "e.topic OPERATOR(pg_catalog.=) 'x' AND pg_catalog.now() IS NOT NULL",
        "e.payload->>'a' SIMILAR TO 'a%' OR e.topic COLLATE \"C\" > 'a'",
        "(e.payload->>'ip')::inet << '10.0.0.0/8' OR current_timestamp > now() - interval '1 day'",
    ],
)
def test_condition_that_looks_at_event_and_subscription_alone_is_taken(connection: Connection, condition: str) -> None:
    publish(connection, {"v": 1, "value": 2, "a": {"b": 1}}, metadata={"a": 1})

    assert refusal(connection, condition) is None
    subscribe(connection, "taken", condition=condition)


BEYOND = "it looks beyond the event e and the subscription s"
NO_EXPRESSION = "it is not one expression: "
OVER_NOTHING = "it holds a sub-select that is not over a function of e or s"
UNBOUNDED = "its result could take any memory or time"


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (None, "is empty"),
        ("TRUE OR " * 1001 + "TRUE", "more than 8000"),
        ("INVALID SQL", NO_EXPRESSION),
        ("TRUE; DROP TABLE pgmb.events", NO_EXPRESSION + 'syntax error at or near ";"'),
        ("TRUE]); DROP TABLE pgmb.events; SELECT (ARRAY[TRUE", "must be type boolean"),
        ("TRUE) FROM pgmb.events; DROP TABLE pgmb.events; SELECT (TRUE", NO_EXPRESSION),
        ("TRUE) GROUP BY 1) AS m; DROP TABLE pgmb.events; --", NO_EXPRESSION),
        ("TRUE /*", NO_EXPRESSION + "unterminated /* comment"),
        ("TRUE -- \n) OR (TRUE", NO_EXPRESSION),
        ("1 = 2 */ 3", "operator does not exist"),
        ("TRUE, FALSE", "must be type boolean"),
        ("TRUE AS x", NO_EXPRESSION),
        ("TRUE LIMIT 1", NO_EXPRESSION),
        ("$1 IS NULL", "there is no parameter $1"),
        ("$a$a = e.topic", NO_EXPRESSION),
        ("EXISTS (SELECT 1)", OVER_NOTHING),
        ("(SELECT TRUE)", OVER_NOTHING),
        ("(VALUES (TRUE))", OVER_NOTHING),
        ("e.topic IN (VALUES ('a'), ('b'))", OVER_NOTHING),
        ("ARRAY(SELECT 1) IS NULL", OVER_NOTHING),
        ("e.topic IN (TABLE names)", 'relation "names" does not exist'),
        ("(SELECT count(*) FROM pgmb.events) > 0", "sub-select over events"),
        ("EXISTS (SELECT FROM pgmb.subscriptions)", "sub-select over subscriptions"),
        ("EXISTS (SELECT FROM pgmb.judged_condition)", "sub-select over judged_condition"),
        ("EXISTS (SELECT FROM pg_authid)", "sub-select over pg_authid"),
        ("EXISTS (SELECT FROM jsonb_object_keys(e.payload) JOIN pg_stat_activity ON TRUE)", "over pg_stat_activity"),
        ("EXISTS (WITH d AS (DELETE FROM pgmb.events RETURNING id) SELECT FROM d)", "data-modifying"),
        ("EXISTS (WITH w AS (SELECT FROM unnest(ARRAY[1])) SELECT FROM w)", "it holds WITH"),
        ("EXISTS (SELECT FROM unnest(ARRAY[1]) UNION SELECT)", "set operation"),
        ("EXISTS (SELECT FROM generate_series(1, 1000000000))", UNBOUNDED),
        ("EXISTS (SELECT FROM pg_ls_dir('/'))", "it is volatile"),
        ("EXISTS (SELECT FROM ROWS FROM (jsonb_object_keys(e.payload), pg_show_all_settings()) AS t)", BEYOND),
        ("TRUE UNION ALL (TRUE)", NO_EXPRESSION),
        ("DELETE FROM x", NO_EXPRESSION),
        ("pg_sleep(1) IS NULL", "function pg_sleep may not be called in a condition: it is volatile"),
        ("pg_catalog.pg_sleep(1) IS NULL", "function pg_sleep may not be called"),
        ("set_config('a', 'b', TRUE) = 'b'", "function set_config may not be called in a condition: it is volatile"),
        ("random() > 0.5", "it is volatile"),
        ("lastval() > 0", "it is volatile"),
        ("nextval('pgmb.event_numbers') > 0", "type regclass may not be used"),
        ("pg_try_advisory_lock(1)", "it is volatile"),
        ("pg_notify('a', 'b') IS NULL", "it is volatile"),
        ("pg_read_file('/etc/passwd') = ''", "it is volatile"),
        ("lo_get(1) IS NULL", "type oid may not be used"),
        ("query_to_xml('SELECT 1', TRUE, TRUE, '') IS NULL", "type xml may not be used"),
        ("table_to_xml('pg_class', TRUE, TRUE, '') IS NULL", "type xml may not be used"),
        ("current_setting('data_directory') = ''", BEYOND),
        ("version() LIKE 'P%'", BEYOND),
        ("has_table_privilege('pg_authid', 'select')", BEYOND),
        ("txid_current() > 0", BEYOND),
        ("pg_backend_pid() = 1", BEYOND),
        ("current_user = 'a'", "type name may not be used"),
        ("user = 'a'", "type name may not be used"),
        ("to_regclass('pg_authid') IS NULL", "type regclass may not be used"),
        ("pg_get_userbyid(10) = 'a'", "type oid may not be used"),
        ("repeat('x', 1000000000) = e.topic", UNBOUNDED),
        ("lpad('x', 1000000000) = e.topic", UNBOUNDED),
        ("format('%1000000000s', 'x') = e.topic", UNBOUNDED),
        ("replace(e.topic, 'a', e.topic) = ''", UNBOUNDED),
        ("array_fill(1, ARRAY[100000000]) IS NULL", UNBOUNDED),
        ("9 ^ 99999 > 1", "function dpow may not be called in a condition: " + UNBOUNDED),
        ("pgmb.publish(NULL, NULL) IS NULL", "set-returning functions are not allowed"),
        ("pgmb.poll_for_events() > 0", "function poll_for_events may not be called"),
        ("TRUE) OR (TRUE", NO_EXPRESSION),
        ("TRUE] OR ARRAY[TRUE", "must be type boolean"),
        ("(TRUE", NO_EXPRESSION),
        ("e.topic = 'a", NO_EXPRESSION + "unterminated quoted string"),
        ('e.topic = "x"', 'column "x" does not exist'),
        ("e.topic = 't\u00f6pic' AND t\u00f6pic", 'column "t\u00f6pic" does not exist'),
        ("e.topic\u00a0= 'a'", "does not exist"),
        ("e.pg_sleep IS NULL", "column e.pg_sleep does not exist"),
        ("s.password IS NULL", "column s.password does not exist"),
        ("e.transaction_id IS NULL", "column e.transaction_id does not exist"),
        ("s.quarantined_at IS NULL", "column s.quarantined_at does not exist"),
        ("s.ctid IS NULL", "column s.ctid does not exist"),
        ("new.holds", "missing FROM-clause entry"),
        ("e.topic(1) IS NULL", 'schema "e" does not exist'),
        ("(e.payload).a = 1", "column notation .a"),
        ("to_jsonb(e) IS NULL", "it uses a whole row"),
        ("s IS NULL", "it uses a whole row"),
        ("e.topic::regclass IS NULL", "type regclass may not be used"),
        ("e.id <=> 3", "operator does not exist"),
        ("count(*) > 1", "aggregate functions are not allowed"),
        (r"e.topic ~ '(a*)*\1'", "back-reference"),
        ("e.payload @? '$.**.**'", "back-reference or **"),
    ],
)
def test_condition_that_could_do_more_is_refused_in_words(
    connection: Connection, condition: str | None, words: str
) -> None:
    assert words in str(refusal(connection, condition))


def test_refused_condition_is_not_stored(connection: Connection) -> None:
    with pytest.raises(
        psycopg.errors.InvalidParameterValue, match=r"condition .* is refused: it is not one expression"
    ):
        subscribe(connection, "refused", condition="TRUE; DELETE")

    assert connection.execute("SELECT count(*) FROM pgmb.subscriptions").fetchone() == (0,)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("e.topic + 1 = 2", r"refused: operator does not exist: character varying \+ integer"),
        ("e.topic", "must be type boolean"),
        ("e.topic = ", "syntax error"),
        ("[TRUE) OR (TRUE]", "syntax error"),
        ("abs(e.topic) = 1", "function abs"),
        ("e.metadata AND TRUE", "must be type boolean"),
    ],
)
def test_condition_of_wrong_form_or_type_is_refused_without_any_event(
    connection: Connection, condition: str, words: str
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=words):
        subscribe(connection, "refused", condition=condition)


def test_condition_that_fails_on_a_stored_event_is_refused_and_names_it(connection: Connection) -> None:
    _, event_id, _ = publish(connection, {"number": 1}, {"number": "many"}, {"number": 2})

    with pytest.raises(psycopg.errors.InvalidParameterValue, match=f'it fails on event {event_id}: .*"many"'):
        subscribe(connection, "refused", condition=NUMBER)


def test_params_on_which_a_known_condition_fails_are_refused(connection: Connection) -> None:
    condition = "(e.payload->>'number')::int > (s.params->>'least')::int"
    publish(connection, {"number": 1})
    subscribe(connection, "good", condition=condition, params={"least": 3})

    with pytest.raises(psycopg.errors.InvalidParameterValue, match='"three"'):
        subscribe(connection, "bad", condition=condition, params={"least": "three"})


def test_params_that_are_no_object_are_refused(connection: Connection) -> None:
    connection.execute("INSERT INTO pgmb.subscription_groups (id) VALUES ('group')")

    with pytest.raises(psycopg.errors.CheckViolation, match="params_must_be_a_json_object"):
        connection.execute("INSERT INTO pgmb.subscriptions (group_id, params) VALUES ('group', '[]')")


def test_changed_condition_is_judged_and_a_heartbeat_is_not(connection: Connection) -> None:
    subscribe(connection, "poison", condition=NUMBER)
    publish(connection, {"number": "many"})

    connection.execute("UPDATE pgmb.subscriptions SET last_active_at = now()")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="it fails on event"):
        connection.execute("UPDATE pgmb.subscriptions SET conditions_sql = conditions_sql || ' AND TRUE'")
    connection.execute("UPDATE pgmb.subscriptions SET conditions_sql = 'FALSE'")


def test_condition_that_takes_too_long_is_not_stored_and_may_be_tried_again(connection: Connection) -> None:
    publish(connection, *({"number": "7" * 24_000} for _ in range(20)))

    with pytest.raises(psycopg.errors.QueryCanceled, match=r"not tried in time: \d+ events took \d+ ms, and 1000 ms"):
        subscribe(connection, "slow", condition=SLOW)
    assert connection.execute("SELECT count(*) FROM pgmb.subscriptions").fetchone() == (0,)


HELD_UP = """
CREATE OR REPLACE FUNCTION moved.instant() RETURNS timestamptz LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    calls int := coalesce(nullif(current_setting('moved.calls', TRUE), ''), '0')::int + 1;
    late int[] := current_setting('moved.late')::int[];
BEGIN
    PERFORM set_config('moved.calls', calls::text, FALSE);
    RETURN '2030-01-01 00:00Z'::timestamptz
        + interval '1 hour' * (SELECT count(*) FROM unnest(late) AS n WHERE n <= calls);
END $$
"""
"""A clock that stands, but for an hour by which it jumps when it is asked for some of the times in moved.late."""


@pytest.fixture
def held_up(postgres_server: PostgresServer) -> Iterator[Connection]:
    """Connection to a broker whose server can be held up between any two looks at its clock."""
    name = f"held_up_{os.getpid()}"
    with postgres.connect(postgres_server.create_database(name, template="template0"), autocommit=True) as connection:
        install_with_clock(connection)
        connection.execute(HELD_UP.encode())
        connection.execute("SET moved.late = '{}'")
        publish(connection, {"number": 1})
        subscribe(connection, "known", condition=NUMBER)
        yield connection
    postgres_server.drop_database(name)


def trial(connection: Connection, late: Iterable[int]) -> tuple[object, ...]:
    """Try a condition while the server is held up at some of its looks at the clock."""
    connection.execute(f"SET moved.calls = '0'; SET moved.late = '{{{', '.join(map(str, late))}}}'".encode())
    rows = connection.execute("SELECT * FROM pgmb.check_condition(%s, max_duration_ms => 600000)", (NUMBER,)).fetchall()
    return tuple(rows[0])


def test_server_that_is_held_up_once_during_a_trial_is_no_fault_of_the_condition(held_up: Connection) -> None:
    assert {trial(held_up, [at]) for at in range(1, 16)} == {(None, 1, 0.0)}


def test_trial_that_is_late_twice_says_to_try_again_and_nothing_of_a_refusal(held_up: Connection) -> None:
    words = r'"\(e\.payload.* > 3" was not tried in time: 1 events took 3600000 ms, and 600000 ms are the most'
    with pytest.raises(psycopg.errors.QueryCanceled, match=words) as late:
        trial(held_up, range(1, 99))
    assert "Try again, as the server may have had other work" in str(late.value.diag.message_hint)
    with pytest.raises(psycopg.errors.QueryCanceled, match="and 1000 ms are the most") as late:
        subscribe(held_up, "new", condition=f"{NUMBER} AND TRUE")
    assert "refused" not in str(late.value)
    assert held_up.execute("SELECT id FROM pgmb.subscriptions").fetchall() == [("known",)]
    assert trial(held_up, []) == (None, 1, 0.0)


@pytest.mark.parametrize(("late", "is_named"), [(0, False), (2, False), (3, True)])
def test_condition_is_named_as_slow_only_when_it_is_each_time(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, late: int, is_named: bool
) -> None:
    # What is not late by this test's doing must not be by the machine's.
    monkeypatch.setattr(broker, "CANARY_TIMEOUT_MS", round(1_000 * PATIENCE_S))
    subscribe(connection, "known", condition=NUMBER)
    execute, left = connection.execute, count(late, -1)

    def hurried(query: str, *values: Any) -> Any:
        if "condition_fails(%s" in str(query) and next(left) > 0:
            raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        return execute(query, *values)

    monkeypatch.setattr(connection, "execute", hurried)
    assert bool(failing_conditions(connection)) is is_named


def test_trial_reports_what_it_has_tried(connection: Connection) -> None:
    subscribe(connection, "known", condition=NUMBER)
    publish(connection, {"number": 1}, {"number": 2})

    failure, events, duration_ms = connection.execute("SELECT * FROM pgmb.check_condition(%s)", (NUMBER,)).fetchall()[0]
    assert (failure, events) == (None, 2)
    assert duration_ms > 0

    (event_id,) = publish(connection, {"number": "many"})
    failure, events, _ = connection.execute("SELECT * FROM pgmb.check_condition(%s)", (NUMBER,)).fetchall()[0]
    assert failure.startswith(f"it fails on event {event_id}: ")
    assert events == 1  # the latest is tried first, alone


def test_statement_timeout_ends_a_trial(connection: Connection) -> None:
    subscribe(connection, "slow", condition=SLOW)
    publish(connection, *({"number": "7" * 24_000} for _ in range(20)))

    connection.execute("SET statement_timeout = '100ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("SELECT pgmb.check_condition(%s)", (SLOW,))


def test_whoever_may_match_runs_nothing_but_conditions_that_were_judged(connection: Connection) -> None:
    for text in (
        "(SELECT count(*) FROM pgmb.events) > 0",
        "pg_sleep(1) IS NULL",
        "TRUE) GROUP BY 1) AS m; DROP TABLE pgmb.events; --",
    ):
        ((matches, failure),) = connection.execute(
            "SELECT matches, failure FROM pgmb.match_condition(%s, md5('')::uuid, NULL, '{}', '{}')", (text,)
        ).fetchall()

        assert matches is None
        assert "only what was judged is evaluated" in failure


HOSTILE = """
CREATE SCHEMA hostile;
CREATE TABLE hostile.seen (who text);
CREATE FUNCTION hostile.look(text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO hostile.seen VALUES (current_user);
    ALTER FUNCTION pgmb.match_condition SECURITY INVOKER;
    RETURN TRUE;
END $$;
CREATE FUNCTION hostile.stable(text) RETURNS boolean LANGUAGE sql STABLE AS 'SELECT TRUE';
CREATE DOMAIN hostile.checked AS text CHECK (hostile.look(value));
CREATE TYPE hostile.composite AS (field hostile.checked);
CREATE OPERATOR hostile.=== (LEFTARG = text, RIGHTARG = text, FUNCTION = texteq);
CREATE COLLATION hostile.sorted FROM "C";
CREATE FUNCTION pg_temp.look(text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN hostile.look($1); END';
CREATE DOMAIN pg_temp.checked AS text CHECK (pg_temp.look(value));
CREATE TYPE pg_temp.composite AS (field pg_temp.checked);
GRANT USAGE ON SCHEMA hostile TO public;
GRANT ALL ON hostile.seen TO public;
"""


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("hostile.stable('x')", "function stable may not be called in a condition: only functions of pg_catalog"),
        ("hostile.look('x')", "function look may not be called"),
        ("pg_temp.look('x')", "function look may not be called"),
        ("'(x)'::hostile.composite IS NULL", "type hostile.composite may not be used"),
        ("hostile.composite '(x)' IS NULL", "type hostile.composite may not be used"),
        ("e.topic::hostile.checked IS NULL", "type hostile.checked may not be used"),
        ("'(x)'::composite IS NULL", "type composite may not be used"),
        ("EXISTS (SELECT FROM jsonb_to_record(e.payload) AS t (x hostile.checked))", "hostile.checked may not be used"),
        ("jsonb_populate_record(NULL::hostile.composite, e.payload) IS NULL", "hostile.composite may not be used"),
        ("e.topic OPERATOR(hostile.===) 'x'", "an operator or a collation that somebody has made"),
        ("e.topic COLLATE hostile.sorted > 'a'", "an operator or a collation that somebody has made"),
        ("EXISTS (SELECT FROM hostile.seen)", "sub-select over hostile.seen"),
    ],
)
def test_what_others_have_made_is_refused_and_leaves_nothing_behind(
    connection: Connection, condition: str, words: str
) -> None:
    connection.execute(HOSTILE)

    assert words in str(refusal(connection, condition))

    assert connection.execute("SELECT FROM hostile.seen").fetchall() == []
    assert connection.execute(
        "SELECT prosecdef FROM pg_proc WHERE oid = 'pgmb.match_condition'::regproc"
    ).fetchall() == [(True,)]
    assert connection.execute("SELECT FROM pg_rewrite WHERE rulename = 'judged'").fetchall() == []
    subscribe(connection, "good", condition="e.topic = 'a'")


def test_conditions_do_what_they_say(connection: Connection) -> None:
    conditions = {
        "letter": "substring(e.topic,1,1)='o'",
        "path": """jsonb_path_exists(e.payload,'$.items[*] ? (@.sku == "k1")') -- one of them""",
        "pattern": "e.\"topic\" ~ (s.params->>'re')",
        "year": "to_char(now(),'YYYY') >= '2000' /* always */",
        "items": "EXISTS (SELECT 1 FROM jsonb_array_elements(e.payload->'items') i WHERE i->>'sku' = s.params->>'sku')",
    }
    for name, condition in conditions.items():
        subscribe(connection, name, condition=condition, params={"re": "^.r", "sku": "k2"}, group=name)
    (first,) = publish(connection, {"items": [{"sku": "k1"}, {"sku": "k2"}]}, topic="order")
    (second,) = publish(connection, {"items": [{"sku": "k1"}]}, topic="parcel")
    poll(connection)

    assert {name: delivered(connection, name, group=name) for name in conditions} == {
        "letter": [first],
        "path": [first, second],
        "pattern": [first],
        "year": [first, second],
        "items": [first],
    }


def test_trial_of_a_condition_only_reads(connection: Connection) -> None:
    """Judged or not: what slips through is stopped where it writes."""
    connection.execute(
        "ALTER TABLE pgmb.subscriptions DISABLE TRIGGER USER; GRANT USAGE ON SEQUENCE pgmb.event_numbers TO public"
    )
    subscribe(connection, "writes", condition="nextval('pgmb.event_numbers') > 0")
    publish(connection, 1)

    subscribe(connection, "same", condition="nextval('pgmb.event_numbers') > 0", group="other")
    (failure,) = connection.execute(
        "SELECT failure FROM pgmb.check_condition('nextval(''pgmb.event_numbers'') > 0', ARRAY['same'])"
    ).fetchall()[0]

    assert "in a read-only transaction" in failure
    publish(connection, 2)


def test_condition_runs_with_the_rights_of_the_reader_alone(connection: Connection) -> None:
    subscribe(connection, "some", condition="e.topic = 'topic'")
    connection.execute("REVOKE SELECT ON pgmb.subscriptions FROM pgmb_reader")
    published = publish(connection, 1)

    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table subscriptions"):
        poll(connection)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table subscriptions"):
        subscribe(connection, "other", condition="e.topic = 'other'")

    connection.execute("GRANT SELECT ON pgmb.subscriptions TO pgmb_reader")
    poll(connection)
    assert delivered(connection, "some") == published


def test_what_the_server_lacks_is_no_fault_of_a_condition(connection: Connection) -> None:
    subscribe(connection, "some", condition="e.topic = 'topic'")
    connection.execute(
        "INSERT INTO pgmb.events (topic, payload) SELECT 'topic', to_jsonb(i) FROM generate_series(1, 9000) AS i"
    )
    connection.execute("SET temp_file_limit = '64kB'; SET work_mem = '64kB'")

    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
        poll(connection)

    connection.execute("RESET temp_file_limit; RESET work_mem")
    assert poll(connection) == 9000
    assert connection.execute("SELECT quarantine_reason FROM pgmb.subscriptions").fetchall() == [(None,)]


def test_many_subscriptions_of_one_condition_are_judged_together(connection: Connection) -> None:
    publish(connection, *range(100))
    connection.execute("INSERT INTO pgmb.subscription_groups (id) VALUES ('group')")
    connection.execute("SET statement_timeout = '60s'")

    connection.execute(
        "INSERT INTO pgmb.subscriptions (group_id, conditions_sql, params) "
        "SELECT 'group', 's.params @> jsonb_build_object(''topic'', e.topic)', jsonb_build_object('topic', n) "
        "FROM generate_series(1, 20000) AS n"
    )


def test_workers_that_share_by_hash_get_every_event(connection: Connection) -> None:
    for worker in range(3):
        subscribe(
            connection,
            f"worker-{worker}",
            condition="s.params @> jsonb_build_object('topics',ARRAY[e.topic],'partition',hashtext(e.id) % 3)",
            params={"topics": ["topic", "other"], "partition": worker},
        )
    ids = publish(connection, *range(300))
    poll(connection)

    shares = [delivered(connection, f"worker-{worker}") for worker in range(3)]
    assert sorted(chain.from_iterable(shares)) == sorted(ids)
    assert all(shares)


def test_failing_condition_is_quarantined_and_the_others_go_on(connection: Connection) -> None:
    subscribe(connection, "poison", condition=NUMBER)
    subscribe(connection, "all")
    subscribe(connection, "other", condition="e.topic LIKE 'top%'")

    good, bad = publish(connection, {"number": 5}, {"number": "many"})
    poll(connection)

    assert delivered(connection, "all") == delivered(connection, "other") == [good, bad]
    assert delivered(connection, "poison") == []
    quarantined = connection.execute(
        "SELECT id, quarantine_reason FROM pgmb.subscriptions WHERE quarantined_at IS NOT NULL"
    ).fetchall()
    assert quarantined == [("poison", f'event {bad}: invalid input syntax for type integer: "many"')]


def test_release_delivers_what_was_missed_in_order_and_names_what_still_fails(connection: Connection) -> None:
    subscribe(connection, "poison", condition=NUMBER)
    subscribe(connection, "all")
    (before,) = publish(connection, {"number": 4})
    poll(connection)
    missed, bad = publish(connection, {"number": 5}, {"number": "many"})
    poll(connection)
    _, also_missed = publish(connection, {"number": 2}, {"number": 6})
    poll(connection)

    released = connection.execute("SELECT * FROM pgmb.release_subscription('poison')").fetchone()
    (later,) = publish(connection, {"number": 7})
    poll(connection)

    assert released == (2, [bad])
    assert delivered(connection, "poison") == [before, missed, also_missed, later]
    assert len(delivered(connection, "all")) == 6  # nobody else gets anything twice


def test_release_without_redelivery_goes_on_from_now(connection: Connection) -> None:
    subscribe(connection, "held", condition=NUMBER)
    connection.execute("SELECT pgmb.quarantine_subscription('held', 'by hand')")
    publish(connection, {"number": 5})
    poll(connection)

    assert connection.execute("SELECT * FROM pgmb.release_subscription('held', FALSE)").fetchone() == (0, [])
    (later,) = publish(connection, {"number": 6})
    poll(connection)
    assert delivered(connection, "held") == [later]


def test_what_one_release_dispatches_no_other_subscription_has_missed(connection: Connection) -> None:
    names = [f"held{number}" for number in range(4)]
    for name in names:
        subscribe(connection, name, condition=NUMBER, group=name)
    (before,) = publish(connection, {"number": 4})
    poll(connection)
    for name in names[:3]:
        connection.execute("SELECT pgmb.quarantine_subscription(%s, 'by hand')", (name,))
    missed = publish(connection, {"number": 5}, {"number": 6})
    poll(connection)
    connection.execute("SELECT pgmb.quarantine_subscription(%s, 'by hand')", (names[3],))

    for name in names:
        row = connection.execute("SELECT redelivered FROM pgmb.release_subscription(%s)", (name,)).fetchone()
        assert row == (2 if name in names[:3] else 0,)

    assert [delivered(connection, name, group=name) for name in names] == [[before, *missed]] * 4


def test_what_a_subscription_got_in_two_ways_another_one_may_have_missed(connection: Connection) -> None:
    subscribe(connection, "held", condition=NUMBER, group="other")
    subscribe(connection, "both", condition=NUMBER)
    connection.execute("SELECT pgmb.quarantine_subscription('held', 'by hand')")
    (missed,) = publish(connection, {"number": 5})
    ((sent,),) = connection.execute("SELECT pgmb.send('both', ARRAY['topic'], ARRAY['1']::jsonb[])").fetchall()
    poll(connection)

    assert connection.execute("SELECT * FROM pgmb.release_subscription('held')").fetchone() == (1, [])
    assert delivered(connection, "held", group="other") == [missed]
    assert delivered(connection, "both") == [missed, sent]


def test_release_at_an_isolation_level_that_shows_nothing_new_is_refused(connection: Connection) -> None:
    subscribe(connection, "held")
    connection.execute("SELECT pgmb.quarantine_subscription('held', 'by hand')")
    connection.execute("SET default_transaction_isolation TO 'serializable'")
    with pytest.raises(
        psycopg.errors.ObjectNotInPrerequisiteState, match="does not work at isolation level serializable"
    ):
        connection.execute("SELECT pgmb.release_subscription('held')")


def test_quarantine_and_release_can_be_repeated(connection: Connection) -> None:
    subscribe(connection, "held")

    def quarantine(sid: str) -> object:
        row = connection.execute("SELECT pgmb.quarantine_subscription(%s, 'by hand')", (sid,)).fetchone()
        assert row is not None
        return row[0]

    assert [quarantine("held"), quarantine("held"), quarantine("unknown")] == [True, False, False]
    for _ in range(2):
        assert connection.execute("SELECT * FROM pgmb.release_subscription('held')").fetchone() == (0, [])
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="there is no subscription unknown"):
        connection.execute("SELECT pgmb.release_subscription('unknown')")


def test_what_is_sent_directly_reaches_a_quarantined_subscription_once(connection: Connection) -> None:
    subscribe(connection, "held")
    connection.execute("SELECT pgmb.quarantine_subscription('held', 'by hand')")
    sent = connection.execute("SELECT pgmb.send('held', ARRAY['topic'], ARRAY['1']::jsonb[])").fetchall()
    poll(connection)

    connection.execute("SELECT pgmb.release_subscription('held')")
    assert delivered(connection, "held") == [sent[0][0]]


def test_release_waits_for_a_running_poll_and_sees_what_that_dispatched(
    connection: Connection, connect: Callable[[], Connection]
) -> None:
    subscribe(connection, "held")
    connection.execute("SELECT pgmb.quarantine_subscription('held', 'by hand')")
    (missed,) = publish(connection, 1)
    other, watcher = connect(), connect()

    release = threading.Thread(target=lambda: other.execute("SELECT pgmb.release_subscription('held')"))
    with connection.transaction():
        poll(connection)
        release.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = %s"
        while watcher.execute(waiting, (other.info.backend_pid,)).fetchone() == (0,):
            pass
    release.join()

    assert delivered(connection, "held") == [missed]

"""Conditions are judged before they are stored, and one that fails later harms nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import chain

import psycopg
import pytest

from queuekeeper.postgres import Connection
from tests.event_samples import delivered, poll, publish, subscribe

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
    ],
)
def test_condition_that_looks_at_event_and_subscription_alone_is_taken(connection: Connection, condition: str) -> None:
    publish(connection, {"v": 1, "value": 2, "a": {"b": 1}}, metadata={"a": 1})

    assert refusal(connection, condition) is None
    subscribe(connection, "taken", condition=condition)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (None, "is empty"),
        ("TRUE OR " * 1001 + "TRUE", "more than 8000"),
        ("INVALID SQL", "the word INVALID is not known"),
        ("TRUE; DROP TABLE pgmb.events", "semicolon"),
        ("TRUE -- for now", "comment"),
        ("TRUE /* for now */", "comment"),
        ("1 = 2 */ 3", "comment"),
        ("$$a$$ = e.topic", "dollar sign"),
        ("$1 IS NULL", "dollar sign"),
        ("EXISTS (SELECT 1)", "sub-select (EXISTS)"),
        ("(SELECT TRUE)", "sub-select (SELECT)"),
        ("(VALUES (TRUE))", "sub-select (VALUES)"),
        ("e.topic IN (TABLE names)", "sub-select (TABLE)"),
        ("ARRAY(SELECT 1) IS NULL", "after ARRAY a bracket ["),
        ("TRUE UNION ALL (TRUE)", "set operation (UNION)"),
        ("DELETE FROM x", "command word DELETE"),
        ("pg_sleep(1) IS NULL", "function pg_sleep may not be called"),
        ("set_config('a', 'b', TRUE) = 'b'", "function set_config may not be called"),
        ("repeat('x', 1000000000) = e.topic", "function repeat may not be called"),
        ("pgmb.publish(NULL, NULL) IS NULL", "pgmb.publish may not be called"),
        ("pg_catalog.now() IS NULL", "the word pg_catalog is not known"),
        ("TRUE) OR (TRUE", "closes a bracket"),
        ("(TRUE", "does not close all its brackets"),
        ("e.topic = 'a", "a string is not closed"),
        ("e.topic = 'a'\n'b'", "two strings stand side by side"),
        ('e.topic = "x"', "double quote"),
        (r"e.topic = e'\''", "after e a dot and a column must follow"),
        ("U&'a' = 'a'", "the word U is not known"),
        ("e.topic = 't\u00f6pic' AND t\u00f6pic", "the word t is not known"),
        ("e.topic\u00a0= 'a'", "the character \u00a0"),
        ("e.pg_sleep IS NULL", "e.pg_sleep is no column of an event"),
        ("s.password IS NULL", "s.password is no column of a subscription"),
        ("e.topic(1) IS NULL", "an operator must follow"),
        ("(e.payload).a = 1", "follows neither e nor s"),
        ("to_jsonb(e) IS NULL", "after e a dot and a column must follow"),
        ("e.topic OPERATOR(pg_catalog.=) 'x'", "function OPERATOR may not be called"),
        ("e.topic::regclass IS NULL", "the word regclass is not known"),
        ("e.id <=> 3", "operator <=> may not be used"),
        ("9 ^ 99999 > 1", "operator ^ may not be used"),
        ("e.topic ~ (s.params->>'pattern')", "a pattern between single quotes must follow"),
        (r"e.topic ~ '(a*)*\1'", "back-reference"),
        ("e.payload @? '$.**.**'", "back-reference or **"),
    ],
)
def test_condition_that_could_do_more_is_refused_in_words(
    connection: Connection, condition: str | None, words: str
) -> None:
    assert words in str(refusal(connection, condition))


def test_refused_condition_is_not_stored(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"condition .* is refused: .* semicolon"):
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


def test_condition_that_takes_too_long_is_refused(connection: Connection) -> None:
    publish(connection, *({"number": "7" * 24_000} for _ in range(20)))

    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"it took \d+ ms for \d+ events: make it cheaper"):
        subscribe(connection, "slow", condition=SLOW)


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


def test_whoever_may_match_runs_nothing_but_conditions(connection: Connection) -> None:
    for text, words in (
        ("(SELECT count(*) FROM pgmb.events) > 0", "holds a sub-select"),
        ("pg_sleep(1) IS NULL", "function pg_sleep may not be called"),
        ("TRUE) GROUP BY 1) AS m; DROP TABLE pgmb.events; --", "closes a bracket"),
    ):
        ((matches, failure),) = connection.execute(
            "SELECT matches, failure FROM pgmb.match_condition(%s, md5('')::uuid, NULL, '{}', '{}')", (text,)
        ).fetchall()

        assert matches is None
        assert words in failure


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

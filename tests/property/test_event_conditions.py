"""What passes the judgement of conditions looks at one event and one subscription, whatever text it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from queuekeeper.events.schema import install
from queuekeeper.postgres import Connection, connect

pytestmark = pytest.mark.property

ONE_BROKER = settings(
    max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

# What conditions are made of, and what one would try in order to get out of them.
PIECES = [
    *("e.topic", "e.payload", "s.params", "e . id", "payload", "s.group_id", "e", "s", "pgmb.", "pg_catalog.", "e.*"),
    *(
        "TRUE",
        "NULL",
        "1",
        "2.5e3",
        "'a'",
        "'it''s'",
        "''",
        "'",
        "''''",
        "E'\\''",
        "U&'\\0041'",
        "B'1'",
        "$$",
        "$a$",
        '"',
    ),
    *(
        "=",
        "<>",
        "+",
        "-",
        "--",
        "/*",
        "*/",
        "->",
        "->>",
        "@>",
        "~",
        "@?",
        "||",
        "::",
        "%",
        "#",
        "\\",
        ";",
        ":",
        ",",
        ".",
    ),
    *("(", ")", "[", "]", "AND", "OR", "NOT", "IN", "ANY", "ARRAY", "CASE WHEN", "THEN", "ELSE", "END", "CAST(", "AS"),
    *("IS NULL", "LIKE", "text", "int", "regclass", "lower(", "hashtext(", "pg_sleep(9)", "current_user", "version()"),
    *(
        "SELECT",
        "SELECT 1",
        "FROM",
        "pgmb.events",
        "pg_class",
        "UNION",
        "VALUES (1)",
        "TABLE pg_class",
        "EXISTS",
        "WITH",
    ),
    *("DELETE", "INTO", "LIMIT 1", "GROUP BY", "ORDER BY 1", "OFFSET 0", "FOR UPDATE", "OVER ()", "WINDOW", "LATERAL"),
    *("\n", "\t", "\u00a0", "\u2028", "\u00e9"),
]

# Functions over whose rows a sub-select may go.
ELEMENTS = ("jsonb_array_elements", "jsonb_object_keys")

# Conditions that pass, in pieces between which, or in whose place, something else can be put.
RIGHT = [
    "s.params @> jsonb_build_object( 'topics' , ARRAY [ e.topic ] , 'worker' , hashtext ( e.id ) % 3 )",
    "( e.payload ->> 'number' ) :: int BETWEEN 1 AND - 2 OR NOT e.topic LIKE 'device.%'",
    "CASE WHEN jsonb_typeof ( payload -> 'n' ) = 'number' THEN ( payload ->> 'n' ) :: numeric > 2.5 ELSE FALSE END",
    "e.topic IN ( 'a' , 'b' ) AND extract ( epoch FROM now ( ) ) > CAST ( s.params ->> 'since' AS int )",
    "e.topic = ANY ( ARRAY [ 'a' , lower ( s.group_id ) ] ) AND e.topic ~ '^a' AND e.payload @? '$.a'",
    "EXISTS ( SELECT 1 FROM jsonb_array_elements ( e.payload ) AS i WHERE i = s.params AND e.topic = 'a' )",
    "e.topic /* a comment */ IN ( SELECT k FROM jsonb_object_keys ( s.params ) AS k ) -- and another",
]


@st.composite
def nearly_right(draw: st.DrawFn) -> list[str]:
    """Spoil a condition in up to three places, which may leave it as good as it was."""
    pieces = draw(st.sampled_from(RIGHT)).split(" ")
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(pieces)))
        pieces[place : place + draw(st.integers(0, 1))] = [draw(st.sampled_from(PIECES))]
    return pieces


texts = (st.lists(st.sampled_from(PIECES) | st.text(max_size=3), min_size=1, max_size=12) | nearly_right()).flatmap(
    lambda pieces: st.sampled_from(["", " ", "\n"]).map(lambda between: between.join(pieces))
)
values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200)


@pytest.fixture
def broker(postgres_url: str) -> Iterator[Connection]:
    """A broker that also tells how a condition would be executed."""
    with connect(postgres_url, autocommit=True) as connection:
        install(connection)
        connection.execute(
            """
            CREATE FUNCTION pg_temp.plan(condition text) RETURNS json LANGUAGE plpgsql
            SET search_path TO pgmb, pg_catalog, pg_temp AS $$
            DECLARE
                plan json;
            BEGIN
                EXECUTE
                    'EXPLAIN (VERBOSE, FORMAT JSON) SELECT s.id FROM unnest($1::pgmb.events[]) AS e '
                    || E'INNER JOIN pgmb.subscriptions AS s ON TRUE WHERE (\\n' || condition || E'\\n)'
                    INTO plan USING '{}'::pgmb.events[];
                RETURN plan;
            END $$
            """
        )
        yield connection


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def refusal(connection: Connection, condition: str) -> str | None:
    found: str | None = connection.execute("SELECT pgmb.condition_refusal(%s)", (condition,)).fetchall()[0][0]
    return found


@ONE_BROKER
@example("TRUE) OR (TRUE")
@example("[TRUE) OR (TRUE]")
@example("e.topic = 'a' --")
@example("e.topic = e'\\' OR (SELECT TRUE) --'")
@example("TRUE\n) UNION SELECT (TRUE")
@example("e.topic = 'a' /* ) */ OR (SELECT TRUE) --")
@example("TRUE]) OR TRUE OR (ARRAY[TRUE")
@example("EXISTS (SELECT FROM jsonb_array_elements(e.payload) AS i WHERE i = s.params)")
@example("EXISTS (SELECT FROM pgmb.events)")
@given(condition=texts)
def test_condition_that_passes_reads_nothing_else(broker: Connection, condition: str) -> None:
    if "\0" in condition or refusal(broker, condition) is not None:
        return
    try:
        ((plan,),) = broker.execute("SELECT pg_temp.plan(%s)", (condition,)).fetchall()
    except psycopg.Error:
        return  # nothing that PostgreSQL would execute
    found = list(nodes(plan[0]["Plan"]))

    assert [node["Relation Name"] for node in found if "Relation Name" in node] in (["subscriptions"], [])
    assert {node.get("Function Name") for node in found} <= {None, "unnest", *ELEMENTS}


@ONE_BROKER
@example("\\")
@example("50 % of 'a' -- /* $$ ; \" {}")
@given(value=values)
def test_any_text_can_be_compared_with(broker: Connection, value: str) -> None:
    quoted = value.replace("'", "''")
    with broker.transaction(force_rollback=True):
        broker.execute("INSERT INTO pgmb.subscription_groups (id) VALUES ('group')")
        broker.execute(
            "INSERT INTO pgmb.subscriptions (id, group_id, conditions_sql) VALUES ('equal', 'group', %s)",
            (f"e.topic = '{quoted}' AND NOT e.topic <> '{quoted}'",),
        )
        broker.execute(
            "INSERT INTO pgmb.events (topic, payload, transaction_id) VALUES (%s, '1', '0'), (%s, '2', '0')",
            (value, f"{value}+"),
        )
        matched = broker.execute(
            "SELECT m.matches[1].positions, m.failure "
            "FROM pgmb.subscriptions AS s CROSS JOIN LATERAL pgmb.match_condition("
            "s.conditions_sql, s.condition_key, NULL, "
            "ARRAY(SELECT e FROM pgmb.events AS e ORDER BY e.payload), ARRAY[1, 2]) AS m"
        ).fetchall()

    assert matched == [([1], None)]

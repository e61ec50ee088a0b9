from __future__ import annotations

import json
import time
from typing import Any

import psycopg
import pytest

from queuekeeper import assets
from queuekeeper.errors import ServerUnavailable, UsageError
from queuekeeper.jobs.checks import Severity
from queuekeeper.postgres import connect
from queuekeeper.quality.judge import suites, validation
from queuekeeper.quality.judge.validation import SuiteReport
from tests.patience import PATIENCE_S

GOOD: dict[str, Any] = {
    "rows_seen": 100, "copied": 70, "expired": 20, "trimmed": 10, "superseded": 0, "quarantined": 0,
    "sessions_seen": 9, "sessions_copied": 9, "differences": 0,
}  # fmt: skip


@pytest.fixture
def ledger(postgres_url: str, control_schema: None) -> str:
    return postgres_url


def write(url: str, *changes: dict[str, int], plan_id: str = "plan-1") -> None:
    with connect(url) as connection:
        connection.execute(
            "INSERT INTO queuekeeper.plans"
            " (plan_id, parameters, source_fingerprint, code_version, as_of_ms, chosen, state, state_reason)"
            " VALUES (%s, '{}', 'f', '1', 0, '{0}', 'verified', '') ON CONFLICT DO NOTHING",
            (plan_id,),
        )
        for cohort, change in enumerate(changes):
            row = {**GOOD, **change, "plan_id": plan_id, "cohort": cohort, "digest": "d", "verified_at_ms": 1}
            names = ", ".join(row)
            values = ", ".join(f"%({name})s" for name in row)
            connection.execute(f"INSERT INTO queuekeeper.ledger ({names}) VALUES ({values})".encode(), row)


def check(url: str, *, table: str | None = None, query: str | None = None) -> SuiteReport:
    if table is None and query is None:
        table = "queuekeeper.ledger"
    return validation.validate(suites.load("migration_ledger"), postgres_url=url, table=table, query=query)


def failures(report: SuiteReport) -> list[tuple[str, str, int]]:
    return [(str(failure.severity), failure.description, failure.unexpected_count) for failure in report.failures]


def test_a_balanced_ledger_passes_and_leaves_no_connection_behind(ledger: str) -> None:
    write(ledger, {}, {"rows_seen": 0, "copied": 0, "expired": 0, "trimmed": 0})

    report = check(ledger)

    assert failures(report) == []
    assert report.passed
    assert report.worst is None
    assert len(report.results) == len(suites.load("migration_ledger").expectations)
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    give_up_at_s = time.monotonic() + PATIENCE_S
    with connect(ledger, autocommit=True) as connection:
        # A backend ends a moment after its connection was closed.
        while connection.execute(others).fetchone() != (0,):
            assert time.monotonic() < give_up_at_s, "a connection is left behind"
            time.sleep(0.05)


def test_each_kind_of_wrong_row_fails_its_own_check_and_is_named(ledger: str) -> None:
    write(
        ledger,
        {},
        {"rows_seen": 101},
        {"differences": 3},
        {"copied": -70, "expired": 160},
        {"expired": -20, "copied": 110},
        {"trimmed": -10, "copied": 90},
        {"superseded": -1, "copied": 71},
        {"quarantined": -1, "copied": 71},
        {"rows_seen": -100, "copied": 0, "expired": 0, "trimmed": 0},
        {"sessions_copied": -1},
        {"sessions_seen": 8},
        {"superseded": 5, "copied": 65},
        {"quarantined": 6, "copied": 64},
    )

    report = check(ledger)

    found = {
        (failure.description.split(":")[0].rstrip("."), failure.unexpected_count): [
            example["cohort"] for example in failure.examples
        ]
        for failure in report.failures
    }
    assert found == {
        ("Every row is copied, expired, trimmed, superseded or quarantined", 2): [1, 8],
        ("No session differs between PostgreSQL and Redis", 1): [2],
        ("Copied rows are counted", 1): [3],
        ("Expired rows are counted", 1): [4],
        ("Trimmed rows are counted", 1): [5],
        ("Superseded rows are counted", 1): [6],
        ("Quarantined rows are counted", 1): [7],
        ("Rows seen are counted, not corrected", 1): [8],
        ("Copied sessions are counted", 1): [9],
        ("No more sessions were copied than were seen", 1): [10],
        ("No session had been used in Redis before it was copied", 2): [11, 6],
        ("No row waits in the quarantine for repair", 2): [12, 7],
    }
    assert report.worst is Severity.CRITICAL
    assert not report.passed


def test_an_empty_ledger_proves_nothing(ledger: str) -> None:
    report = check(ledger)

    assert failures(report) == [("critical", "A ledger was written: an empty one proves nothing.", 0)]
    assert report.failures[0].observed == "0"
    assert not report.passed


def test_sessions_in_use_and_quarantine_are_reported_but_do_not_fail_the_ledger(ledger: str) -> None:
    write(ledger, {"superseded": 1, "copied": 69}, {"quarantined": 2, "copied": 68})

    report = check(ledger)

    assert [severity for severity, _, _ in failures(report)] == ["warning", "info"]
    assert report.worst is Severity.WARNING
    assert report.passed


def test_a_query_restricts_the_check_to_one_plan(ledger: str) -> None:
    write(ledger, {"rows_seen": 1}, plan_id="bad")
    write(ledger, {}, plan_id="good")

    assert not check(ledger).passed
    assert check(ledger, query="SELECT * FROM queuekeeper.ledger WHERE plan_id = 'good'").passed


def test_examples_are_few_and_hold_identity_and_checked_value_only(ledger: str) -> None:
    write(ledger, *[{"rows_seen": 200}] * 40)

    failure = check(ledger).failures[0]

    assert failure.unexpected_count == 40
    assert list(failure.examples) == [
        {"plan_id": "plan-1", "cohort": cohort, "unaccounted": 100} for cohort in range(validation.SHOWN_VALUES)
    ]


def test_a_check_that_cannot_be_made_is_broken_and_not_bad_data(ledger: str) -> None:
    write(ledger, {})

    report = check(ledger, query="SELECT plan_id, cohort, rows_seen, copied FROM queuekeeper.ledger")

    asked = {each.number: each.kwargs.get("column") for each in suites.load("migration_ledger").expectations}
    broken = next(result for result in report.results if asked[result.expectation] == "unaccounted")
    assert "unaccounted" in broken.broken
    assert not broken.passed
    assert report.worst is Severity.CRITICAL
    assert all(result.passed for result in report.results if asked[result.expectation] == "copied")


def test_a_password_with_signs_that_mean_something_elsewhere_works(ledger: str) -> None:
    write(ledger, {})
    with connect(ledger, autocommit=True) as connection:
        connection.execute("CREATE ROLE checker LOGIN SUPERUSER PASSWORD 'a$HOME${x}%41@/'")
    try:
        info = psycopg.conninfo.conninfo_to_dict(ledger)
        url = f"postgresql://checker:a%24HOME%24%7Bx%7D%2541%40%2F@{info['host']}:{info['port']}/{info['dbname']}"
        assert check(url).passed
    finally:
        with connect(ledger, autocommit=True) as connection:
            connection.execute("DROP ROLE checker")


def test_a_table_is_looked_for_in_its_own_schema_whatever_the_address_says(ledger: str) -> None:
    write(ledger, {})
    with connect(ledger, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.ledger AS SELECT 1 AS unaccounted")

    separator = "&" if "?" in ledger else "?"
    assert check(f"{ledger}{separator}options=-c%20search_path%3Dpublic").passed


def test_a_query_whose_functions_would_write_is_broken_and_writes_nothing(ledger: str) -> None:
    write(ledger, {})
    with connect(ledger, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION wipe() RETURNS SETOF queuekeeper.ledger LANGUAGE sql"
            " AS 'DELETE FROM queuekeeper.ledger RETURNING *'"
        )

    report = check(ledger, query="SELECT * FROM wipe()")

    assert all("read-only transaction" in result.broken for result in report.results)
    assert not report.passed
    assert check(ledger).passed


def test_a_server_that_is_down_is_said_in_plain_words() -> None:
    with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:1\b"):
        check("postgresql://someone:secret@127.0.0.1:1/nothing")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"table": "queuekeeper.legder"}, "there is no table queuekeeper.legder in this database"),
        ({"table": "ledger"}, "table 'ledger' is not a name: write schema.table"),
        (
            {"table": "Queuekeeper.ledger"},
            "table 'Queuekeeper.ledger' is not a name: write schema.table in lower-case letters",
        ),
        ({"query": "DELETE FROM queuekeeper.ledger"}, "the query to check must begin with SELECT"),
        ({"table": "a.b", "query": "SELECT 1"}, "give either a table or a query to check"),
    ],
)
def test_a_subject_that_cannot_be_checked_is_refused(ledger: str, where: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(ledger, **where)


def test_an_unknown_suite_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"there is no expectation suite 'ledger': one of .*migration_ledger"):
        suites.load("ledger")


@pytest.mark.parametrize("name", suites.names())
def test_every_suite_loads(name: str) -> None:
    assert suites.load(name).name == name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "other"}, r"expectations/migration_ledger.json: name is 'other', it must be 'migration_ledger'"),
        ({"expectations": []}, "expectations is empty: such a suite would always pass"),
        ({"notes": None}, "field 'notes' is missing or not a str"),
        ({"meta": {"queuekeeper": {"identity": "plan_id"}}}, "field 'identity' is missing or not a list"),
        ({"suite_parameters": {"limit": 1}}, "suite_parameters is not empty: nothing fills them in"),
        ({"extra": 1}, "unknown field 'extra'"),
    ],
)
def test_a_suite_file_written_wrongly_is_refused(change: dict[str, object], message: str) -> None:
    raw = json.loads(assets.read("expectations", "migration_ledger.json"))

    with pytest.raises(UsageError, match=message):
        suites.parse(json.dumps(raw | change), name="migration_ledger")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"severity": "fatal"}, "expectation 1: severity is 'fatal': one of critical, warning, info"),
        ({"description": None}, "expectation 1: field 'description' is missing or not a str"),
        ({"mostly": 0.9}, "expectation 1: unknown field 'mostly'"),
    ],
)
def test_an_expectation_written_wrongly_is_refused(change: dict[str, object], message: str) -> None:
    raw = json.loads(assets.read("expectations", "migration_ledger.json"))
    raw["expectations"][0] |= change

    with pytest.raises(UsageError, match=message):
        suites.parse(json.dumps(raw), name="migration_ledger")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "expect_miracles"}, "expectation 1, expect_miracles: .*not found"),
        ({"kwargs": {"colum": "copied"}}, "expectation 1, expect_table_row_count_to_be_between: .*colum"),
    ],
)
def test_an_expectation_that_great_expectations_does_not_know_is_refused_not_dropped(
    ledger: str, change: dict[str, object], message: str
) -> None:
    raw = json.loads(assets.read("expectations", "migration_ledger.json"))
    raw["expectations"][0] |= change

    with pytest.raises(UsageError, match=f"(?s){message}"):
        validation.validate(
            suites.parse(json.dumps(raw), name="migration_ledger"), postgres_url=ledger, table="queuekeeper.ledger"
        )

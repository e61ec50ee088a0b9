"""Findings of one cause are one incident from the run that first found it to those that find all of it in order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from queuekeeper import audit
from queuekeeper.cli.application import app
from queuekeeper.embedded import RedisCluster
from queuekeeper.errors import UsageError
from queuekeeper.jobs.checks import Severity
from queuekeeper.jobs.findings import Finding, Status
from queuekeeper.postgres import Connection, connect
from queuekeeper.quality.judge.incidents import Incident, Incidents, Look, State
from queuekeeper.quality.judge.known_issues import KnownIssues
from queuekeeper.quality.judge.run import QualityReport, run_quality
from queuekeeper.quality.judge.store import Verdict
from queuekeeper.quality.judge.suites import Suite, load
from queuekeeper.quality.report.gather import build_report
from tests.quality_rows import AS_OF_MS, NOW, hash_of, queue, save_profile

TODAY = NOW.date()
DAY_MS = 86_400_000


@pytest.fixture
def connection(postgres_url: str, control_schema: None) -> Iterator[Connection]:
    with connect(postgres_url, autocommit=True) as opened:
        yield opened


def finding(status: Status, *, check_id: str = "Q1", severity: Severity = Severity.CRITICAL, count: int = 3) -> Finding:
    return Finding(
        suite="sessions_redis", expectation=1, check_id=check_id, severity=severity, status=status, description="d",
        unexpected_count=0 if status is Status.PASSED else count,
    )  # fmt: skip


def look(*cohorts: int, count: int = 4, place: str = "a:1/0", sample: int = 100) -> Look:
    return Look(place=place, cohorts=cohorts, cohort_count=count, sample_percent=sample)


def note(
    connection: Connection, day: int, where: Look, *findings: Finding, not_judged: tuple[str, ...] = ()
) -> tuple[Incident, ...]:
    """Note what a run of a day found, and return the incidents that then stand."""
    incidents = Incidents(connection)
    at = NOW + timedelta(days=day)
    incidents.note(where, findings, quality_run_id=f"q-{day}", at=at, not_judged=not_judged)
    return incidents.all(today=TODAY)


def test_findings_of_one_cause_are_one_incident_until_a_full_look_no_longer_finds_it(connection: Connection) -> None:
    note(connection, 0, look(0, 1, 2, 3), finding(Status.FAILED))
    (seen,) = note(connection, 2, look(0, 1, 2, 3), finding(Status.FAILED))

    assert (seen.check_id, seen.title, seen.place, seen.state) == ("Q1", "Order", "a:1/0", State.OPEN)
    assert (seen.first_run_id, seen.last_run_id, seen.unexpected_count) == ("q-0", "q-2", 3)
    assert (seen.first_seen_at, seen.last_seen_at) == (NOW, NOW + timedelta(days=2))
    assert seen.days(AS_OF_MS + 2 * DAY_MS) == 2

    assert note(connection, 3, look(0, 1, 2, 3), finding(Status.PASSED)) == ()
    (closed,) = Incidents(connection).all(today=TODAY, closed=True)
    assert (closed.state, closed.closed_at) == (State.CLOSED, NOW + timedelta(days=3))

    (again,) = note(connection, 4, look(0, 1, 2, 3), finding(Status.FAILED))
    assert again.incident_id != closed.incident_id
    assert again.first_run_id == "q-4"


def test_turns_close_an_incident_once_each_cohort_was_found_in_order_and_no_sooner(connection: Connection) -> None:
    note(connection, 0, look(1, 2), finding(Status.FAILED))

    assert [each.cohorts_left for each in note(connection, 1, look(0, 3), finding(Status.PASSED))] == [2]
    assert [each.cohorts_left for each in note(connection, 2, look(1), finding(Status.PASSED))] == [1]
    assert [each.cohorts_left for each in note(connection, 3, look(1), finding(Status.FAILED))] == [2]
    assert [each.cohorts_left for each in note(connection, 4, look(2), finding(Status.PASSED))] == [1]
    assert note(connection, 5, look(1), finding(Status.PASSED)) == ()

    note(connection, 6, look(1, 2), finding(Status.FAILED))
    assert [each.cohorts_left for each in note(connection, 7, look(2, 3), finding(Status.FAILED))] == [3]
    assert [each.cohorts_left for each in note(connection, 8, look(2), finding(Status.PASSED))] == [2]
    # Cut in another way, the cohorts lie elsewhere: all of them have to be looked at.
    assert [each.cohorts_left for each in note(connection, 9, look(2, count=8), finding(Status.FAILED))] == [8]


def test_turns_of_another_cut_close_an_incident_once_each_of_their_cohorts_was_found_in_order(
    connection: Connection,
) -> None:
    note(connection, 0, look(0), finding(Status.FAILED))

    assert [each.cohorts_left for each in note(connection, 1, look(0, count=2), finding(Status.PASSED))] == [1]
    assert [each.cohorts_left for each in note(connection, 2, look(0, count=2), finding(Status.PASSED))] == [1]
    assert note(connection, 3, look(1, count=2), finding(Status.PASSED)) == ()


@pytest.mark.parametrize(
    ("where", "what", "not_judged"),
    [
        (look(0, 1, 2, 3, place="b:1/0"), finding(Status.PASSED), ()),
        (look(0, 1, 2, 3, sample=50), finding(Status.PASSED), ()),
        (look(0, 1, 2, 3), finding(Status.BROKEN), ()),
        (look(0, 1, 2, 3), finding(Status.PASSED), ("Q1",)),
        (look(0, 1, 2, 3), finding(Status.PASSED, check_id="Q3", severity=Severity.WARNING), ()),
    ],
    ids=["other servers", "smaller sample", "broken check", "without contents", "other check"],
)
def test_what_did_not_look_as_thoroughly_closes_nothing(
    connection: Connection, where: Look, what: Finding, not_judged: tuple[str, ...]
) -> None:
    note(connection, 0, look(0, 1, 2, 3), finding(Status.FAILED))

    (still,) = note(connection, 1, where, what, not_judged=not_judged)

    assert (still.last_run_id, still.cohorts_left) == ("q-0", 4)


def test_a_judgement_that_is_made_again_of_an_older_time_closes_nothing(connection: Connection) -> None:
    note(connection, 2, look(0, 1, 2, 3), finding(Status.FAILED))

    assert len(note(connection, 1, look(0, 1, 2, 3), finding(Status.PASSED))) == 1


def test_what_was_found_last_stays_when_a_run_of_an_older_time_is_judged_again(connection: Connection) -> None:
    note(connection, 1, look(0, 1, 2, 3), finding(Status.KNOWN, severity=Severity.WARNING, count=7))
    (last,) = note(connection, 2, look(0, 1, 2, 3), finding(Status.FAILED))

    assert note(connection, 1, look(0), finding(Status.KNOWN, severity=Severity.WARNING, count=7)) == (last,)
    KnownIssues(connection).add(
        check_id="Q1", owner="ops", reason="r", ends_on=TODAY, person="ann", today=TODAY, client_hash=hash_of("a")
    )
    assert [each.state for each in Incidents(connection).all(today=TODAY)] == [State.OPEN]


def test_who_answers_for_an_incident_is_the_owner_of_the_known_issue(connection: Connection) -> None:
    (open_one,) = note(connection, 0, look(0), finding(Status.FAILED))
    until = TODAY + timedelta(days=7)

    owned = Incidents(connection).own(
        open_one.incident_id, owner="ops", reason="Monday", ends_on=until, person="ann", today=TODAY
    )

    assert (owned.state, owned.owner, owned.known_until) == (State.KNOWN, "ops", until)
    (issue,) = KnownIssues(connection).all()
    assert (issue.check_id, issue.owner, issue.reason, issue.ends_on) == ("Q1", "ops", "Monday", until)
    assert issue.place == owned.place
    (entry,) = audit.latest(connection)
    assert (entry.actor, entry.action, entry.subject) == ("ann", "excuse", f"incident {owned.incident_id}")
    assert json.loads(entry.effect) == {
        "check": "Q1", "client_hash": None, "place": "a:1/0", "owner": "ops", "reason": "Monday",
        "ends_on": str(until), "known_issue": issue.known_issue_id,
    }  # fmt: skip
    (overdue,) = Incidents(connection).all(today=until + timedelta(days=1))
    assert (overdue.state, overdue.owner) == (State.OPEN, "")
    KnownIssues(connection).remove(issue.known_issue_id, person="ann")
    assert [each.state for each in Incidents(connection).all(today=TODAY)] == [State.OPEN]


def test_who_answers_for_an_incident_answers_at_its_place_alone(connection: Connection, postgres_url: str) -> None:
    until = TODAY + timedelta(days=7)
    other, here = look(0, place="b:1/0"), look(0)
    note(connection, 0, other, finding(Status.FAILED))
    incidents = {each.place: each for each in note(connection, 0, here, finding(Status.FAILED))}
    Incidents(connection).own(
        incidents["a:1/0"].incident_id, owner="ops", reason="Monday", ends_on=until, person="ann", today=TODAY
    )

    assert {each.place: each.state for each in Incidents(connection).all(today=TODAY)} == {
        "a:1/0": State.KNOWN,
        "b:1/0": State.OPEN,
    }

    save_profile(postgres_url, queue("torn", tied_serials=1))
    run: dict[str, Any] = {"postgres_url": postgres_url, "profile_ids": ["redis-1"], "suites": ["sessions_redis"]}

    def judged(run_id: str, at: datetime = NOW) -> QualityReport:
        return run_quality(**run, quality_run_id=run_id, now=at)

    elsewhere = judged("q-10")
    (failed,) = elsewhere.findings
    KnownIssues(connection).add(
        check_id="Q1", place=failed.place, owner="day", reason="r", ends_on=TODAY, person="ann", today=TODAY
    )
    excused, over = judged("q-11"), judged("q-12", NOW + timedelta(days=8))

    assert elsewhere.verdict is Verdict.FAILED
    assert excused.verdict is Verdict.PASSED
    assert [issue.owner for issue in over.overdue] == ["day"]
    report = build_report(connection, quality_run_id="q-11", now_ms=AS_OF_MS)
    assert [each.owner for line in report.excused for each in report.known_of(line)] == ["day"]


def test_an_incident_is_not_known_while_only_one_of_its_queues_is(connection: Connection) -> None:
    KnownIssues(connection).add(
        check_id="Q1", owner="ops", reason="r", ends_on=TODAY, person="ann", today=TODAY, client_hash=hash_of("a")
    )

    assert [each.state for each in note(connection, 0, look(0), finding(Status.FAILED))] == [State.OPEN]
    assert [each.state for each in note(connection, 1, look(0), finding(Status.KNOWN))] == [State.KNOWN]


def test_an_incident_that_cannot_be_owned_is_refused(connection: Connection) -> None:
    (incident,) = note(connection, 0, look(0, count=1), finding(Status.FAILED))
    note(connection, 1, look(0, count=1), finding(Status.PASSED))

    def own(number: int) -> None:
        Incidents(connection).own(number, owner="ops", reason="r", ends_on=TODAY, person="ann", today=TODAY)

    with pytest.raises(UsageError, match=f"incident {incident.incident_id} is closed"):
        own(incident.incident_id)
    with pytest.raises(UsageError, match="there is no incident 999: `queuekeeper quality incidents list` shows them"):
        own(999)
    assert audit.latest(connection) == []


def test_who_closes_an_incident_is_on_record_and_a_run_that_finds_it_again_opens_a_new_one(
    connection: Connection,
) -> None:
    incidents = Incidents(connection)
    (gone,) = note(connection, 0, look(0), finding(Status.FAILED))

    closed = incidents.close(gone.incident_id, reason=" switched off ", person="ann", today=TODAY)

    assert (closed.state, closed.closed_by, closed.closed_reason) == (State.CLOSED, "ann", "switched off")
    assert incidents.all(today=TODAY) == ()
    assert incidents.all(today=TODAY, closed=True) == (closed,)
    (entry,) = audit.latest(connection)
    assert (entry.actor, entry.action, entry.subject) == ("ann", "close", f"incident {gone.incident_id}")
    assert json.loads(entry.effect) == {"check": "Q1", "place": "a:1/0", "reason": "switched off"}

    (again,) = note(connection, 1, look(0), finding(Status.FAILED))
    assert again.incident_id != gone.incident_id


def test_an_incident_that_cannot_be_closed_is_refused_and_nothing_is_on_record(connection: Connection) -> None:
    incidents = Incidents(connection)
    (by_hand,) = note(connection, 0, look(0, count=1), finding(Status.FAILED))

    def close(number: int, reason: str = "r") -> None:
        incidents.close(number, reason=reason, person="bob", today=TODAY)

    with pytest.raises(UsageError, match="for a reason: give one"):
        close(by_hand.incident_id, " ")
    incidents.close(by_hand.incident_id, reason="gone", person="ann", today=TODAY)
    with pytest.raises(UsageError, match=rf"incident {by_hand.incident_id} is closed, since [0-9-]+ by ann: gone"):
        close(by_hand.incident_id)
    (by_run,) = note(connection, 1, look(0, count=1), finding(Status.FAILED))
    note(connection, 2, look(0, count=1), finding(Status.PASSED))
    with pytest.raises(UsageError, match=rf"incident {by_run.incident_id} is closed, since [0-9-]+ by a run"):
        close(by_run.incident_id)
    with pytest.raises(UsageError, match="there is no incident 999"):
        close(999)
    assert [entry.actor for entry in audit.latest(connection)] == ["ann"]


def test_an_incident_whose_check_its_suite_has_no_more_is_closed_by_a_full_run_of_that_suite_alone(
    connection: Connection, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_profile(postgres_url, queue("torn", tied_serials=1))
    save_profile(postgres_url, queue("device-1"), profile_id="redis-2", cohorts=[1])
    save_profile(postgres_url, queue("torn", tied_serials=1), profile_id="redis-3")
    run_quality(
        postgres_url=postgres_url, profile_ids=["redis-1"], suites=["sessions_redis"], quality_run_id="q-0", now=NOW
    )
    (open_one,) = Incidents(connection).all(today=TODAY)

    def check_taken_out(name: str) -> Suite:
        suite = load(name)
        return replace(
            suite, expectations=tuple(each for each in suite.expectations if each.check != open_one.check_id)
        )

    monkeypatch.setattr("queuekeeper.quality.judge.run.load", check_taken_out)

    def left(profile_id: str, suite: str, day: int) -> list[int]:
        run_quality(
            postgres_url=postgres_url, profile_ids=[profile_id], suites=[suite], quality_run_id=f"q-{day}",
            now=NOW + timedelta(days=day),
        )  # fmt: skip
        return [each.incident_id for each in Incidents(connection).all(today=TODAY)]

    assert left("redis-3", "quarantine", 1) == [open_one.incident_id]
    assert left("redis-2", "sessions_redis", 2) == [open_one.incident_id]
    where = Look(place=open_one.place)
    Incidents(connection).close_unjudged(where, suite="smaller", checks=["Q3"], quality_run_id="q-3", at=NOW)
    assert [each.incident_id for each in Incidents(connection).all(today=TODAY)] == [open_one.incident_id]
    assert left("redis-3", "sessions_redis", 4) == []
    (closed,) = Incidents(connection).all(today=TODAY, closed=True)
    assert (closed.state, closed.closed_by, closed.closed_reason) == (
        State.CLOSED, "quality run q-4", "no longer judged by the suite sessions_redis",
    )  # fmt: skip


def test_a_cluster_is_one_place_whichever_of_its_nodes_was_named(
    connection: Connection, postgres_url: str, redis_cluster: RedisCluster, redis_cluster_url: str
) -> None:
    addresses = sorted(f"127.0.0.1:{node.port}" for node in redis_cluster.nodes)

    def judged(address: str, day: int) -> None:
        run_quality(
            postgres_url=postgres_url, profile_ids=[], suites=["redis_servers"], key_prefix="p",
            redis_url=re.sub(r"127\.0\.0\.1:\d+", address, redis_cluster_url),
            quality_run_id=f"q-{day}", now=NOW + timedelta(days=day),
        )  # fmt: skip

    judged(addresses[-1], 0)
    first = Incidents(connection).all(today=TODAY)
    judged(addresses[0], 1)
    second = Incidents(connection).all(today=TODAY)

    assert {each.place for each in first} == {f"{addresses[0]}/0 p"}
    assert {each.incident_id for each in second} == {each.incident_id for each in first}
    assert {each.last_run_id for each in second} == {"q-1"}


def test_runs_open_incidents_reports_and_commands_show_them_and_a_later_run_closes_them(
    connection: Connection, postgres_url: str
) -> None:
    save_profile(postgres_url, queue("device-1"), queue("torn", tied_serials=1))
    save_profile(postgres_url, queue("device-1"), profile_id="redis-2", cohorts=[1])
    save_profile(postgres_url, queue("device-1"), profile_id="redis-3")

    def judge(profile_id: str, day: int) -> None:
        run_quality(
            postgres_url=postgres_url, profile_ids=[profile_id], suites=["sessions_redis"],
            quality_run_id=f"00000000000000a{day}", now=NOW + timedelta(days=day),
        )  # fmt: skip

    def command(*words: str) -> Any:
        answer = CliRunner().invoke(app, ("quality", "incidents", *words, "--json", "--postgres-url", postgres_url))
        assert answer.exit_code == 0, answer.output
        return json.loads(answer.stdout)

    judge("redis-1", 0)
    judge("redis-2", 1)
    (incident,) = command("list")
    assert (incident["check_id"], incident["priority"], incident["state"]) == ("Q1", "P0", "open")
    number = str(incident["incident_id"])
    owned = command("own", number, "--owner", "ops", "--reason", "r", "--until", date.max.isoformat())
    assert (owned["state"], owned["owner"], owned["cohorts_left"]) == ("known", "ops", 3)
    report = build_report(connection, quality_run_id="00000000000000a1", now_ms=AS_OF_MS + 2 * DAY_MS)
    assert [
        (line.check_id, line.state, line.owner, line.days(report.generated_at_ms)) for line in report.incidents
    ] == [("Q1", "known", "ops", 2)]

    judge("redis-3", 3)
    assert command("list") == []
    assert [each["state"] for each in command("list", "--closed")] == ["closed"]

    judge("redis-1", 4)
    (again,) = command("list")
    command("close", str(again["incident_id"]), "--reason", "the server was switched off")
    closed = build_report(connection, quality_run_id="00000000000000a4", now_ms=AS_OF_MS + 5 * DAY_MS)
    assert closed.incidents == ()
    assert [(line.incident_id, line.closed_reason) for line in closed.closed_by_hand] == [
        (again["incident_id"], "the server was switched off")
    ]
    assert "(command line)" in closed.closed_by_hand[0].closed_by
    shown = CliRunner().invoke(
        app, ("quality", "incidents", "list", "--closed", "--postgres-url", postgres_url), env={"COLUMNS": "400"}
    )
    assert "the server was switched off" in shown.stdout
    answer = CliRunner().invoke(
        app,
        (
            "quality", "incidents", "close", str(again["incident_id"]), "--reason", "r",
            "--postgres-url", postgres_url,
        ),
    )  # fmt: skip
    assert (answer.exit_code, "is closed, since" in answer.stderr) == (2, True)

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

import pytest

from queuekeeper import audit
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.jobs.checks import Priority, Severity
from queuekeeper.jobs.findings import Finding, Status
from queuekeeper.postgres import Connection, connect
from queuekeeper.quality.judge.known_issues import KnownIssues
from queuekeeper.quality.judge.store import QualityStore, Verdict
from queuekeeper.quality.profile.model import ProfileParameters
from queuekeeper.quality.profile.tables import ProfileTables
from tests.quality_rows import NOW, hash_of, queue, save_expiry_hours, save_profile

TODAY = NOW.date()


@pytest.fixture
def connection(postgres_url: str, control_schema: None) -> Iterator[Connection]:
    with connect(postgres_url, autocommit=True) as opened:
        yield opened


def result(number: int = 1, **changes: object) -> Finding:
    values = {
        "suite": "sessions_redis", "expectation": number, "check_id": "Q9", "severity": Severity.INFO,
        "status": Status.PASSED, "description": "Each reference names a payload.",
    }  # fmt: skip
    return Finding(**{**values, **changes})  # type: ignore[arg-type]


def judged(
    store: QualityStore,
    run_id: str,
    *results: Finding,
    age_h: int = 0,
    finish: bool = True,
    profile_id: str | None = "redis-1",
    suite: str = "sessions_redis",
    server: str | None = None,
) -> None:
    store.begin(
        quality_run_id=run_id, mode="full", suites=[suite], profile_ids=[profile_id] if profile_id else [],
        numbers={"queues": 3} | ({"servers": [{"address": server}]} if server else {}),
        started_at=NOW - timedelta(hours=age_h),
    )  # fmt: skip
    if finish:
        store.finish(quality_run_id=run_id, verdict=Verdict.PASSED, results=results, numbers={"messages": 9})


def test_a_run_comes_back_as_it_was_stored_worst_result_first(connection: Connection) -> None:
    store = QualityStore(connection)
    failed = result(
        2, status=Status.FAILED, severity=Severity.WARNING, unexpected_count=3, observed="3 of 9",
        examples=({"client_hash": "ab", "dead": 4},), remedy="expired_reference_cleanup", remedy_conf={"dry_run": True},
    )  # fmt: skip
    judged(store, "q-1", result(1), failed)

    run = store.run("q-1")
    assert (run.verdict, run.numbers, run.started_at) == (Verdict.PASSED, {"queues": 3, "messages": 9}, NOW)
    assert run.finished_at is not None
    assert store.results("q-1") == (failed, result(1))
    assert failed.priority is Priority.P1


def test_a_run_that_is_made_again_forgets_what_it_found(connection: Connection) -> None:
    store = QualityStore(connection)
    judged(store, "q-1", result(1), result(2))
    judged(store, "q-1", result(1), finish=False)

    assert store.results("q-1") == ()
    assert store.run("q-1").verdict is Verdict.RUNNING
    assert store.run("q-1").finished_at is None


def test_the_trend_shows_the_worst_of_each_check_in_the_last_finished_runs(connection: Connection) -> None:
    store = QualityStore(connection)
    judged(store, "old", result(1), age_h=3)
    judged(store, "mid", result(1), result(2, status=Status.KNOWN, unexpected_count=9),
           result(3, status=Status.FAILED, unexpected_count=1), age_h=2)  # fmt: skip
    judged(store, "new", result(1, check_id="Q1"), age_h=1)
    judged(store, "at work", finish=False)

    shown = [
        (
            each.run.quality_run_id,
            {check_id: (cell.status, cell.unexpected_count) for check_id, cell in each.cells.items()},
        )
        for each in store.trend(runs=2)
    ]

    assert shown == [("mid", {"Q9": (Status.FAILED, 1)}), ("new", {"Q1": (Status.PASSED, 0)})]
    assert len(store.trend()) == 3


def test_a_trend_mixes_no_servers(connection: Connection, postgres_url: str) -> None:
    store = QualityStore(connection)
    for number, target in enumerate(("one:6379/0", "two:6379/0", "one:6379/0"), start=1):
        profile_id = save_profile(postgres_url, queue("a"), profile_id=f"redis-{number}", target=target)
        judged(store, f"q-{number}", age_h=4 - number, profile_id=profile_id)

    def shown(like: str | None) -> list[str]:
        return [each.run.quality_run_id for each in store.trend(same_servers_as=like)]

    assert (shown("q-3"), shown("q-2"), shown(None)) == (["q-1", "q-3"], ["q-2"], ["q-1", "q-2", "q-3"])

    without_profile = {
        "f-1": ("fanout", "one:6379"), "f-2": ("fanout", "two:6379"), "f-3": ("fanout", "one:6379"),
        "c-1": ("compacted", "one:6379"), "e-1": ("events", None),
    }  # fmt: skip
    for name, (suite, server) in without_profile.items():
        judged(store, name, profile_id=None, suite=suite, server=server)
    assert [shown(name) for name in ("f-3", "f-2", "c-1", "e-1")] == [["f-1", "f-3"], ["f-2"], ["c-1"], ["e-1"]]


def test_an_unknown_run_or_profile_is_refused_with_the_newest(connection: Connection, postgres_url: str) -> None:
    store = QualityStore(connection)
    with pytest.raises(UsageError, match="there is no quality run 'q-9': there is none yet in this database"):
        store.results("q-9")
    judged(store, "q-1")
    save_profile(postgres_url)

    with pytest.raises(UsageError, match="there is no quality run 'q-9': the newest is q-1"):
        store.run("q-9")
    with pytest.raises(UsageError, match="there is no profile 'r': the newest is redis-1"):
        store.profiles(["redis-1", "r"])


def test_rows_of_queues_are_kept_for_each_server_prefix_and_sample_by_itself(
    connection: Connection, postgres_url: str
) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "server": {"target": "127.0.0.1:6380/0"}, "prefix": {"target": "127.0.0.1:6379/0 tbmq:"},
        "sample": {"sample_percent": 10}, "mode": {"mode": "fast"}, "cohorts": {"cohorts": [0]},
        "older": {}, "newest": {"started_at": NOW + timedelta(hours=1)},
    }  # fmt: skip
    for name, kind in kinds.items():
        save_profile(postgres_url, queue("a"), profile_id=name, **kind)

    ProfileTables(connection).finish("newest", shards=["one"] * 4, hours=[], keep_profiles=1)

    found = QualityStore(connection).profiles(list(kinds))
    assert [profile.profile_id for profile in found if profile.is_forgotten] == ["older"]


def test_a_profile_deletes_what_killed_ones_have_left_of_the_same_store_and_no_profile_that_is_at_work(
    connection: Connection, postgres_url: str
) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "finished": {}, "killed": {"finished_at": None}, "of another": {"finished_at": None, "target": "two:6379/0"},
    }  # fmt: skip
    for name, kind in kinds.items():
        save_profile(postgres_url, queue("a"), profile_id=name, **{"target": "one:6379/0"} | kind)

    def begun(at: Connection, profile_id: str) -> set[str]:
        ProfileTables(at).begin(
            profile_id, store="redis", target="one:6379/0", parameters=ProfileParameters(), cohorts=[0], as_of_ms=0
        )
        return {name for (name,) in connection.execute("SELECT profile_id FROM queuekeeper.profiles")}

    with connect(postgres_url, autocommit=True) as driver:
        left = {"finished", "of another"}
        assert begun(driver, "at work") == left | {"at work"}
        assert begun(connection, "beside it") == left | {"at work", "beside it"}
    found = connection.execute("SELECT DISTINCT profile_id FROM queuekeeper.queue_profiles").fetchall()
    assert {name for (name,) in found} == left


def test_profiles_come_in_the_order_asked_for_and_the_newest_is_the_newest_complete_one(
    connection: Connection, postgres_url: str
) -> None:
    save_profile(postgres_url, queue("a"), profile_id="old")
    save_profile(postgres_url, profile_id="new", started_at=NOW + timedelta(hours=1))
    save_profile(postgres_url, profile_id="killed", started_at=NOW + timedelta(hours=2), finished_at=None)
    save_profile(postgres_url, profile_id="other", store="postgres")
    store = QualityStore(connection)

    assert [each.queues for each in store.profiles(["new", "old"])] == [0, 1]
    assert store.newest_profiles(store="redis") == ("new",)
    assert store.newest_profiles(store="postgres") == ("other",)


def test_the_worst_queues_are_named_by_hash_with_their_faults(connection: Connection, postgres_url: str) -> None:
    save_profile(
        postgres_url,
        queue("well", dead=2),
        queue("odd", odd_characters=1, without_ttl=50),
        queue("torn", tied_serials=1),
    )
    store = QualityStore(connection)

    worst = store.worst_queues("redis-1")

    assert [(each.client_hash, each.faults, each.client_id) for each in worst] == [
        (hash_of("torn"), {"tied_serials": 1}, None),
        (hash_of("odd"), {"without_ttl": 50, "odd_characters": 1}, None),
    ]
    assert [each.client_id for each in store.worst_queues("redis-1", n=1, show_client_ids=True)] == ["torn"]


def test_depths_and_expiry_are_counted(connection: Connection, postgres_url: str) -> None:
    lives = {"a": 0, "b": 1, "c": 2, "d": 3, "e": 9, "f": 70_000}
    save_profile(postgres_url, *(queue(name, live=live) for name, live in lives.items()))
    save_expiry_hours(postgres_url, "redis-1", {3_600_000: (5, 500), 0: (1, 10)})
    store = QualityStore(connection)

    buckets = store.depth_histogram("redis-1")

    assert [(each.low, each.high, each.queues, each.messages) for each in buckets if each.queues] == [
        (0, 0, 1, 0), (1, 1, 1, 1), (2, 3, 2, 5), (8, 15, 1, 9), (65_536, None, 1, 70_000),
    ]  # fmt: skip
    assert [(each.hour_ms, each.messages) for each in store.expiry_hours("redis-1")] == [(0, 1), (3_600_000, 5)]
    assert store.depth_histogram("nothing") == ()


def test_known_issues_are_kept_listed_and_removed(connection: Connection) -> None:
    issues = KnownIssues(connection)
    said: dict[str, Any] = {"owner": "ops", "ends_on": TODAY}
    later = issues.add(check_id="Q9", reason="cleanup on Monday", person="ann", today=TODAY, **said)
    one = issues.add(check_id="Q11", reason="device lost", person="ann", today=TODAY, client_hash=hash_of("a"), **said)

    assert issues.all() == (later, one)
    assert not one.is_overdue(TODAY)
    assert one.is_overdue(TODAY + timedelta(days=1))
    issues.remove(one.known_issue_id, person="bob")
    assert issues.all() == (later,)
    with pytest.raises(UsageError, match="there is no known issue"):
        issues.remove(one.known_issue_id, person="bob")

    of_one, of_later = f"known issue {one.known_issue_id}", f"known issue {later.known_issue_id}"
    removed, second, first = audit.latest(connection)
    assert [(each.actor, each.action, each.subject) for each in (first, second, removed)] == [
        ("ann", "excuse", of_later), ("ann", "excuse", of_one), ("bob", "remove", of_one),
    ]  # fmt: skip
    about = {"check": "Q11", "client_hash": hash_of("a"), "place": None, "owner": "ops"}
    assert json.loads(removed.effect) == about
    assert json.loads(second.effect) == about | {
        "reason": "device lost", "ends_on": str(TODAY), "known_issue": one.known_issue_id,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"check_id": "Q99"}, "there is no check 'Q99'"),
        ({"owner": " "}, "needs an owner and a reason"),
        ({"ends_on": date(2020, 1, 1)}, "would end on 2020-01-01, which has passed"),
        ({"client_hash": "device-7"}, "'device-7' is not a client hash: copy the 16 hex digits"),
    ],
)
def test_a_known_issue_that_excuses_nothing_sensible_is_refused(
    connection: Connection, change: dict[str, object], message: str
) -> None:
    given = {"check_id": "Q9", "owner": "ops", "reason": "r", "ends_on": TODAY, "person": "ann", "today": TODAY}
    with pytest.raises(UsageError, match=message):
        KnownIssues(connection).add(**{**given, **change})  # type: ignore[arg-type]
    assert audit.latest(connection) == []


def test_a_database_without_the_tables_is_refused_with_the_command_that_makes_them(postgres_url: str) -> None:
    with connect(postgres_url, autocommit=True) as connection, pytest.raises(RefusedError, match="database migrate"):
        QualityStore(connection).runs()

"""A judgement on profiles that were written by hand: each planted fault is found by its check, and by no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from queuekeeper import assets
from queuekeeper.embedded import RedisServer
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.jobs.findings import Status
from queuekeeper.maintenance.remedies.model import Selection
from queuekeeper.maintenance.remedies.queues import failed_queues
from queuekeeper.postgres import Connection, connect
from queuekeeper.quality.judge import run, suites
from queuekeeper.quality.judge.known_issues import KnownIssues
from queuekeeper.quality.judge.run import QualityReport, run_quality, suites_for
from queuekeeper.quality.judge.store import QualityStore, Verdict
from queuekeeper.quality.profile.model import ProfileParameters
from queuekeeper.quality.profile.preflight import check_profiled
from queuekeeper.quality.report.gather import build_report
from queuekeeper.redis_client import connect as connect_redis
from tests.quality_rows import AS_OF_MS, NOW, hash_of, queue, save_profile

HEALTHY = [queue(f"device-{number}") for number in range(40)]
EMPTY = {"messages": 0, "live": 0, "lowest_serial": None, "highest_serial": None, "last_packet_id": None,
         "earliest_expires_at_ms": None, "latest_expires_at_ms": None}  # fmt: skip

REDIS_FAULTS: dict[tuple[str, str, str], dict[str, Any]] = {
    ("Q1", "critical", "a"): {"tied_serials": 1},
    ("Q1", "critical", "b"): {"bad_serials": 1},
    ("Q1", "critical", "c"): {"messages": 4, "live": 4},  # more messages than serials from lowest to highest
    ("Q3", "warning", ""): {"step_errors": 2},
    ("Q4", "warning", ""): {"bad_packet_ids": 1},
    ("Q7", "warning", ""): {"over_limit": 5, "messages": 105, "live": 105, "highest_serial": 114.0},
    ("Q8", "info", ""): {"oversized": 1},
    ("Q9", "info", ""): {"dead": 1, "live": 2},
    ("Q10", "info", ""): {"orphans": 1},
    ("Q11", "critical", "a"): {"counter_missing": 1, "last_packet_id": None},
    ("Q11", "critical", "b"): {"counter_invalid": 1, "last_packet_id": None},
    ("Q11", "critical", "c"): {"counter_behind": 1, "last_packet_id": 2},
    ("Q13", "info", ""): {"without_ttl": 1},
    ("Q14", "warning", ""): {"ttl_too_long": 1},
    ("Q16", "warning", ""): {"bad_qos": 1},
    ("Q16", "info", ""): {"qos_0": 1},
    ("Q17", "warning", "a"): {"bad_packet_types": 1},
    ("Q17", "warning", "b"): {"unreadable": 1},
    ("Q18", "info", "a"): {"bad_tag": 1},
    ("Q19", "critical", "a"): {"wrong_type_keys": 1},
    ("Q19", "critical", "b"): {"foreign_references": 1},
    ("Q19", "critical", "c"): {"mismatched": 1},
    ("Q20", "info", ""): {"odd_characters": 1},
    ("Q21", "info", ""): {"duplicate_messages": 1},
}

POSTGRES_FAULTS: dict[tuple[str, str, str], dict[str, Any]] = {
    ("Q2", "critical", ""): {"tied_serials": 1},
    ("Q3", "warning", ""): {"step_errors": 2},
    ("Q4", "warning", ""): {"bad_packet_ids": 1},
    ("Q5", "critical", ""): {"duplicate_packet_ids": 2},
    ("Q7", "info", ""): {"over_limit": 5},
    ("Q8", "info", ""): {"oversized": 1},
    ("Q11", "warning", ""): {"counter_behind": 1},
    ("Q15", "info", ""): {"dead": 1, "live": 2},
    ("Q16", "warning", ""): {"bad_qos": 1},
    ("Q16", "info", ""): {"qos_0": 1},
    ("Q17", "warning", "a"): {"bad_packet_types": 1},
    ("Q17", "warning", "b"): {"unreadable": 1},
    ("Q18", "info", ""): {"bad_tag": 1},
    ("Q20", "info", ""): {"odd_characters": 1},
    ("Q21", "info", ""): {"duplicate_messages": 1},
    ("Q22", "warning", ""): {"missing_session": 1},
}

Found = dict[tuple[str, str], set[str]]


@pytest.fixture
def url(postgres_url: str, control_schema: None) -> str:
    return postgres_url


def judge(url: str, *suites: str, profiles: tuple[str, ...] = ("redis-1",), **changes: Any) -> QualityReport:
    wishes: dict[str, Any] = {"quality_run_id": "q-1", "now": NOW} | changes
    return run_quality(postgres_url=url, profile_ids=profiles, suites=suites or ("sessions_redis",), **wishes)


def planted(faults: dict[tuple[str, str, str], dict[str, Any]]) -> tuple[list[dict[str, Any]], Found]:
    """Return a queue with each fault, and which check is to find which."""
    queues: list[dict[str, Any]] = []
    wanted: Found = {}
    for (check_id, severity, variant), changes in faults.items():
        client_id = f"{check_id} {severity} {variant}"
        queues.append(queue(client_id, **changes))
        wanted.setdefault((check_id, severity), set()).add(hash_of(client_id))
    return queues, wanted


def found(report: QualityReport) -> Found:
    result: Found = {}
    for finding in report.findings:
        hashes = {str(example["client_hash"]) for example in finding.examples}
        assert finding.unexpected_count == len(hashes)
        result.setdefault((finding.check_id, str(finding.severity)), set()).update(hashes)
    return result


def test_healthy_queues_pass_everything(url: str) -> None:
    save_profile(url, *HEALTHY, queue("empty", **EMPTY))

    report = judge(url)

    assert report.findings == ()
    assert report.verdict is Verdict.PASSED
    assert (report.queues, report.messages) == (41, 120)
    assert {result.status for result in report.results} == {Status.PASSED}


def test_each_fault_in_redis_is_found_by_its_own_check_and_named_by_hash(url: str) -> None:
    queues, wanted = planted(REDIS_FAULTS)
    save_profile(url, *HEALTHY, *queues)

    report = judge(url)

    assert found(report) == wanted
    assert report.verdict is Verdict.FAILED
    assert not any("client_id" in example for finding in report.findings for example in finding.examples)


def test_each_fault_in_postgres_is_found_by_its_own_check(url: str) -> None:
    queues, wanted = planted(POSTGRES_FAULTS)
    save_profile(url, *HEALTHY, *queues, profile_id="postgres-1", store="postgres")

    report = judge(url, "sessions_postgres", profiles=("postgres-1",))

    assert found(report) == wanted


def test_a_finding_names_queue_evidence_and_the_filled_in_form_of_its_remedy(url: str) -> None:
    save_profile(url, *HEALTHY, queue("behind", counter_behind=1, last_packet_id=2), cohorts=[0, 1, 3])

    (finding,) = judge(url, key_prefix="tbmq:").findings

    assert finding.examples == (
        {
            "client_hash": hash_of("behind"), "cohort": 0, "messages": 3, "last_packet_id": 2, "counter_missing": 0,
            "counter_invalid": 0, "counter_behind": 1,
        },
    )  # fmt: skip
    assert finding.observed == "1 of 41 (2.4 %)"
    assert finding.remedy == "session_repair"
    assert finding.remedy_conf == {
        "remedy": "repair_counter", "quality_run_id": "q-1", "cohorts": "0-1,3", "key_prefix": "tbmq:", "dry_run": True,
    }  # fmt: skip


def test_a_finding_shows_the_worst_queues_first(url: str) -> None:
    dead = {f"queue {number}": number for number in (4, 9, 1, 7, 8, 3, 6, 2, 5)}
    faulty = (
        queue(name, messages=10, highest_serial=19.0, live=10 - count, dead=count) for name, count in dead.items()
    )
    save_profile(url, *HEALTHY, *faulty)

    (finding,) = judge(url).findings

    assert (finding.check_id, finding.unexpected_count) == ("Q9", 9)
    assert [example["dead"] for example in finding.examples] == [9, 8, 7, 6, 5]
    assert finding.examples[0]["client_hash"] == hash_of("queue 9")


def test_the_form_of_the_cleanup_has_the_limits_that_the_queues_were_judged_by(url: str) -> None:
    save_profile(url, *HEALTHY, queue("gone", dead=1, live=2), session_limit=500, default_ttl_s=60)

    (finding,) = judge(url, key_prefix="tbmq:").findings

    assert finding.remedy == "expired_reference_cleanup"
    assert finding.remedy_conf == {"limit": 500, "default_ttl_s": 60, "key_prefix": "tbmq:", "dry_run": True}


def test_client_ids_are_shown_to_those_who_ask(url: str) -> None:
    save_profile(url, *HEALTHY, queue("<b>=1+1", tied_serials=1))

    (finding,) = judge(url, show_client_ids=True).findings

    assert finding.examples[0]["client_id"] == "<b>=1+1"
    with connect(url, autocommit=True) as connection:
        (stored,) = (each for each in QualityStore(connection).results("q-1") if each.examples)
    assert stored.examples[0]["client_hash"] == hash_of("<b>=1+1")
    assert "client_id" not in stored.examples[0]


def test_profile_whose_queues_were_dropped_is_not_judged(url: str) -> None:
    save_profile(url, queue("torn", tied_serials=1))
    judge(url)
    with connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM queuekeeper.queue_profiles")

    with pytest.raises(RefusedError, match="the queues of profile redis-1 have been dropped since"):
        judge(url)
    with connect(url, autocommit=True) as connection:
        store = QualityStore(connection)
        assert store.run("q-1").verdict is Verdict.FAILED
        with pytest.raises(RefusedError, match="the queues of quality run q-1 have been dropped since"):
            failed_queues(connection, remedy="repair_counter", selection=Selection())
        report = build_report(connection, quality_run_id="q-1", now_ms=AS_OF_MS)
    assert [profile.is_forgotten for profile in report.profiles] == [True]
    save_profile(url, profile_id="empty")
    assert judge(url, profiles=("empty",)).verdict is Verdict.PASSED


def test_stores_are_compared_in_the_same_sample(url: str) -> None:
    save_profile(url, *HEALTHY, sample_percent=10)
    save_profile(url, *HEALTHY, profile_id="source", store="postgres")

    with pytest.raises(UsageError, match="needs profiles of the same cohorts and sample"):
        judge(url, "source_against_target", profiles=("redis-1", "source"))


def test_dead_references_are_worse_where_they_crowd_and_gaps_and_idle_keys_count_when_they_are_many(url: str) -> None:
    crowded = queue("crowded", messages=95, live=5, dead=90, dead_crowding=1, highest_serial=104.0)
    save_profile(url, crowded, queue("gap", serial_gaps=4, highest_serial=16.0), queue("idle", idle_keys=1, **EMPTY))

    assert set(found(judge(url))) == {("Q9", "warning"), ("Q9", "info"), ("Q6", "info")}
    assert judge(url).verdict is Verdict.WARNED


def test_bad_hash_tags_and_shared_ones_weigh_more_on_a_cluster(url: str) -> None:
    save_profile(
        url, queue("}x", bad_tag=1), queue("plain", shard="127.0.0.1:7001"), queue("a"), queue("a}b"), queue("c}d"),
        queue("b}1"), queue("b}2"),
    )  # fmt: skip

    assert found(judge(url)) == {
        ("Q18", "critical"): {hash_of("}x")},
        ("Q18", "info"): {hash_of("a"), hash_of("b}1"), hash_of("b}2")},
    }


def test_what_needs_contents_is_left_out_and_said_when_they_were_not_read(url: str) -> None:
    unread = dict.fromkeys(
        ("ttl_too_long", "bad_qos", "qos_0", "bad_packet_types", "unreadable", "mismatched", "duplicate_messages")
    )
    save_profile(url, *(queue(f"device-{number}", **unread) for number in range(3)), contents=False)

    report = judge(url)

    assert report.verdict is Verdict.PASSED
    assert report.not_judged == ("Q14", "Q16", "Q17", "Q19", "Q21")
    assert not {"Q14", "Q16", "Q17", "Q21"} & {result.check_id for result in report.results}
    # Of Q19 only the part that looks into records.
    assert [result.description for result in report.results if result.check_id == "Q19"] == [
        "Each key has its Redis type, and references are the client's own."
    ]


def test_a_judgement_made_twice_finds_the_same_and_is_kept_once(url: str) -> None:
    save_profile(url, *HEALTHY, queue("torn", tied_serials=1))

    first, second = judge(url), judge(url)

    assert first.results == second.results
    with connect(url) as connection:
        assert QualityStore(connection).results("q-1") == second.results
        assert len(QualityStore(connection).runs()) == 1


def known(connection: Connection, check_id: str, **changes: Any) -> None:
    issue: dict[str, Any] = {"owner": "ops", "reason": "r", "ends_on": NOW.date(), "today": NOW.date()} | changes
    KnownIssues(connection).add(check_id=check_id, person="ann", **issue)


def test_a_known_issue_excuses_its_check_until_its_day_has_passed(url: str) -> None:
    save_profile(url, *HEALTHY, queue("torn", tied_serials=1))
    with connect(url, autocommit=True) as connection:
        known(connection, "Q1")
        known(connection, "Q3")

    excused, later = judge(url), judge(url, now=NOW + timedelta(days=1), quality_run_id="q-2")

    assert (excused.verdict, excused.findings, excused.overdue) == (Verdict.PASSED, (), ())
    assert [result.status for result in excused.results if result.check_id == "Q1"] == [Status.KNOWN]
    assert later.verdict is Verdict.FAILED
    assert [issue.check_id for issue in later.overdue] == ["Q1"]


def test_a_known_issue_of_one_queue_excuses_no_other(url: str) -> None:
    save_profile(url, *HEALTHY, queue("torn", tied_serials=1))
    with connect(url, autocommit=True) as connection:
        known(connection, "Q1", client_hash=hash_of("torn"))

        assert judge(url).verdict is Verdict.PASSED

        connection.execute(
            "UPDATE queuekeeper.queue_profiles SET tied_serials = 1 WHERE client_id IN ('device-3', 'device-4')"
        )
    (finding,) = judge(url).findings
    assert finding.unexpected_count == 3
    assert {example["client_hash"] for example in finding.examples} == {hash_of("device-3"), hash_of("device-4")}


def session(client_id: str, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a session as both stores hold it; a change of ``target_x`` is Redis's alone, ``source_x`` PostgreSQL's."""
    sides = []
    for side in ("source_", "target_"):
        mine = {name.removeprefix(side): value for name, value in changes.items() if name.startswith(side)}
        sides.append(queue(client_id, **mine))
    return sides[0], sides[1]


def test_source_and_target_are_compared_session_by_session(url: str) -> None:
    rest = EMPTY | {"last_packet_id": 9}
    nothing = {f"{side}_{name}": value for side in ("source", "target") for name, value in rest.items()}
    pairs = [
        session("same"),
        session("no messages", **nothing),
        session("counter", target_last_packet_id=11),
        session("no counter", target_last_packet_id=None),
        # What a migration writes in place of these.
        session("counter behind", source_counter_behind=1, target_last_packet_id=11),
        session("counter 70000", source_counter_invalid=1, source_last_packet_id=70_000, target_last_packet_id=11),
        # Our own store passes over packet ids in use when it comes to them, a migration at once.
        session("next in use", source_next_in_use=1, target_last_packet_id=14),
        session(
            "next in use, over the end", source_next_in_use=1, source_last_packet_id=65_535, target_last_packet_id=2
        ),
        session("in use, far ahead", source_next_in_use=1, target_last_packet_id=16),
        session("unusable counter", source_last_packet_id=0, target_last_packet_id=None),
        session("fewer", target_live=2),
        session("older", target_lowest_serial=9.0),
        session("newer", target_highest_serial=13.0),
        session("over the limit", source_over_limit=1, source_lowest_serial=9.0, target_live=2),
        session("expired at the source", source_dead=1, source_live=2, source_lowest_serial=9.0, target_live=2),
        session("expires meanwhile", source_earliest_expires_at_ms=AS_OF_MS - 1, target_live=2),
        session("in quarantine", target_live=2, target_lowest_serial=11.0),
        session("replayed", target_last_packet_id=13),
    ]
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    save_profile(url, *sources, queue("lost"), profile_id="postgres-1", store="postgres")
    save_profile(url, *targets, queue("foreign"))
    with connect(url) as connection:
        connection.execute(
            "INSERT INTO queuekeeper.plans"
            " (plan_id, parameters, source_fingerprint, code_version, as_of_ms, chosen, state, state_reason)"
            " VALUES ('p', '{}', 'f', '1', 0, '{0}', 'verified', '')"
        )
        connection.execute(
            "INSERT INTO queuekeeper.quarantine (plan_id, cohort, kind, reason, detail, client_id, serial_number)"
            " VALUES ('p', 0, 'message', 'r', '', 'in quarantine', 10)"
        )
        connection.execute(
            "INSERT INTO queuekeeper.quarantine (plan_id, cohort, kind, reason, detail, client_id, serial_number,"
            " status, replayed_at) VALUES ('p', 0, 'message', 'r', '', 'replayed', 10, 'replayed', now())"
        )

    report = judge(url, "source_against_target", profiles=("postgres-1", "redis-1"))

    by_description = {
        finding.description.split(" is the same")[0]: {example["client_hash"] for example in finding.examples}
        for finding in report.findings
    }
    assert by_description == {
        "The last packet id of each session": {
            hash_of(name) for name in ("counter", "no counter", "lost", "foreign", "in use, far ahead")
        },
        "Each session is in both stores.": {hash_of("lost"), hash_of("foreign")},
        "Each session has as many live messages in both stores.": {hash_of(n) for n in ("fewer", "lost", "foreign")},
        "The oldest message of each session": {hash_of(name) for name in ("older", "lost", "foreign")},
        "The newest message of each session": {hash_of(name) for name in ("newer", "lost", "foreign")},
    }
    assert report.verdict is Verdict.FAILED


def test_a_comparison_of_nothing_proves_nothing(url: str) -> None:
    save_profile(url, profile_id="postgres-1", store="postgres")
    save_profile(url)

    (finding,) = judge(url, "source_against_target", profiles=("postgres-1", "redis-1")).findings

    assert (finding.check_id, finding.observed) == ("Q34", "0")


def test_servers_that_may_lose_messages_are_named(url: str, redis_url: str) -> None:
    save_profile(url)

    report = judge(url, "redis_servers", redis_url=redis_url)

    (no_replica,) = [finding for finding in report.findings if "replica" in finding.description]
    assert no_replica.examples == ({"address": redis_url.rpartition("@")[2].partition("/")[0], "replicas": 0},)
    with connect(url) as connection:
        (server,) = QualityStore(connection).run("q-1").numbers["servers"]
    assert server["used_memory_bytes"] > 0
    assert server["is_clustered"] is False


def test_a_server_that_may_evict_can_be_profiled_and_is_found(
    url: str, redis_server_factory: Callable[..., RedisServer]
) -> None:
    server = redis_server_factory(maxmemory_policy="allkeys-lru")
    with connect_redis(server.url) as client:
        check_profiled(client, parameters=ProfileParameters())
    save_profile(url)

    report = judge(url, "redis_servers", redis_url=server.url)

    (evicts,) = [finding for finding in report.findings if "may evict" in finding.description]
    assert (evicts.check_id, evicts.examples[0]["maxmemory_policy"]) == ("Q36", "allkeys-lru")


def test_a_quarantine_that_grows_or_is_forgotten_is_reported(url: str) -> None:
    save_profile(url)
    insert = (
        "INSERT INTO queuekeeper.session_quarantine (reason, client_id, serial_number, topic, time, qos, payload,"
        " quarantined_at) VALUES (%s, 'c', 1, 't', 0, 1, '', %s)"
    )
    with connect(url, autocommit=True) as connection:
        connection.execute(insert, ("old", NOW - timedelta(days=31)))
        connection.execute(insert, ("fresh", NOW))
        first = judge(url, "quarantine")
        connection.execute(insert, ("fresh", NOW))
        connection.execute(insert, ("new", NOW))
        second = judge(url, "quarantine", quality_run_id="q-2", now=NOW + timedelta(hours=1))

    assert [(each.severity.value, each.unexpected_count) for each in first.findings] == [("warning", 1), ("info", 2)]
    grown = [example for each in second.findings for example in each.examples if example.get("growth")]
    assert sorted(example["reason"] for example in grown) == ["fresh", "new"]
    assert {(example["origin"], example["growth"]) for example in grown} == {("session store", 1)}


def test_suites_that_fit_are_chosen_by_the_profiles() -> None:
    assert suites_for(["redis"], servers=True) == ("sessions_redis", "redis_servers", "quarantine")
    both = ("sessions_redis", "sessions_postgres", "quarantine")
    assert suites_for(["postgres", "redis"], servers=False) == both
    assert suites_for(["postgres", "redis"], servers=False, compare=True) == (*both, "source_against_target")
    every = ("sessions_redis", "redis_servers", "quarantine", "compacted", "fanout")
    assert suites_for(["redis", "compacted", "fanout"], servers=True) == every
    assert suites_for(["fanout"], servers=True) == ("fanout",)
    assert suites_for([], servers=False) == ("events", "partitions")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "expect_nothing"}, "suite quarantine, expectation 1, expect_nothing: "),
        ({"kwargs": {"colum": "growth", "value_set": [0]}}, "suite quarantine, expectation 1, expect_column_values_"),
    ],
)
def test_an_edited_suite_that_nobody_understands_is_refused_before_anything_is_written(
    url: str, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    save_profile(url)
    edited = json.loads(assets.read("expectations", "quarantine.json"))
    edited["expectations"][0] |= change
    monkeypatch.setattr(run, "load", lambda name: suites.parse(json.dumps(edited), name=name))

    with pytest.raises(UsageError, match=message):
        judge(url, "quarantine")

    with connect(url) as connection:
        assert QualityStore(connection).runs() == ()


@pytest.mark.parametrize(
    ("suites", "profiles", "message"),
    [
        (["sessions_rediss"], ["redis-1"], "there is no expectation suite 'sessions_rediss': one of"),
        (["sessions_postgres"], ["redis-1"], "suite sessions_postgres needs a profile of postgres: make one"),
        (["sessions_redis"], ["redis-9"], "there is no profile 'redis-9': the newest are"),
        (["sessions_redis"], ["redis-1", "redis-2"], "two profiles are of the same store"),
        (["migration_ledger"], ["redis-1"], "suite migration_ledger does not judge queues"),
        (["redis_servers"], ["redis-1"], "suite redis_servers reads settings of the Redis servers: give their address"),
        (["source_against_target"], ["redis-1", "postgres-1"], "needs profiles of the same cohorts"),
        ([], ["redis-1"], "no suite is named"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_anything_is_written(
    url: str, suites: list[str], profiles: list[str], message: str
) -> None:
    save_profile(url)
    save_profile(url, profile_id="redis-2")
    save_profile(url, profile_id="postgres-1", store="postgres", cohorts=[1])

    with pytest.raises(UsageError, match=message):
        run_quality(postgres_url=url, profile_ids=profiles, suites=suites, quality_run_id="q-1", now=NOW)

    with connect(url) as connection:
        assert QualityStore(connection).runs() == ()


def test_a_profile_that_is_not_complete_is_refused(url: str) -> None:
    save_profile(url, finished_at=None)

    with pytest.raises(RefusedError, match="profile redis-1 is not complete: wait for it, or make another"):
        judge(url)

"""``queuekeeper quality`` on real servers: profiles are judged, results shown, known issues kept."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from queuekeeper import assets
from queuekeeper.cli import app
from queuekeeper.clock import system_clock
from queuekeeper.compacted.model import Append
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.jobs.checks import CHECKS, Check
from queuekeeper.keyspace import compacted_keys, payload_key
from queuekeeper.postgres import connect
from queuekeeper.quality.judge import parquet
from queuekeeper.quality.judge.parquet import judge_parquet
from queuekeeper.quality.judge.store import QualityStore
from queuekeeper.quality.judge.validation import SuiteReport
from queuekeeper.quality.profile.model import ProfileParameters
from queuekeeper.quality.profile.preflight import check_profiled
from queuekeeper.quality.profile.servers import read_servers
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests.integration.command_line import CommandLine
from tests.quality_rows import NOW, hash_of, queue, save_profile
from tests.spark_session import spark, spark_of_commands

__all__ = ["spark", "spark_of_commands"]

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_home")]

commands = CommandLine(group="quality")
run, as_json, fails = commands.run, commands.as_json, commands.fails


@pytest.fixture
def url(postgres_url: str, control_schema: None) -> str:
    return postgres_url


@contextmanager
def redis_user(url: str, rules: str) -> Iterator[str]:
    """Create a user with these rules for the block and yield the address with its name and password."""
    with connect_redis(url) as client:
        client.execute_command("ACL", "SETUSER", "somebody", "reset", "on", ">password", *rules.split())
        try:
            yield f"redis://somebody:password@{url.rpartition('@')[2]}"
        finally:
            client.execute_command("ACL", "DELUSER", "somebody")


def test_a_failed_run_says_what_is_wrong_and_what_mends_it_and_ends_with_1(
    url: str, valkey_url: str, tmp_path: Path
) -> None:
    save_profile(url, *(queue(f"device-{n}") for n in range(20)), queue("meter-17", counter_behind=1))
    where = ("--postgres-url", url, "--redis-url", valkey_url)
    chosen = ("--profile", "redis-1", "--suite", "sessions_redis", "--run-id", "q-1", *where)

    shown = run("run", *chosen, "--data-docs", str(tmp_path / "docs"))

    assert shown.exit_code == 1, shown.output
    assert (tmp_path / "docs" / "sessions_redis.html").is_file()
    assert hash_of("meter-17") in shown.stdout
    assert "meter-17" not in shown.output
    facts = as_json("run", *chosen, code=1)
    assert (facts["verdict"], facts["results"][0]["check_id"], facts["results"][0]["priority"]) == (
        "failed",
        "Q11",
        "P0",
    )
    assert facts["results"][0]["remedy_conf"]["quality_run_id"] == "q-1"

    results = as_json("results", "--check", "Q11", "--postgres-url", url)
    assert [each["status"] for each in results["results"]] == ["failed"]
    listed = " ".join(run("results", "q-1", "--postgres-url", url).stdout.split())
    for screen in (" ".join(shown.stdout.split()), listed):
        assert re.search(rf"{hash_of('meter-17')} \(cohort \d+", screen)
    (column,) = as_json("trend", "--postgres-url", url)
    assert column["cells"]["Q11"] == {"status": "failed", "severity": "critical", "unexpected_count": 1}
    assert re.search(r"Q11 +Last packet id +✗ +1", run("trend", "--postgres-url", url).stdout)


def test_the_commands_that_a_run_shows_are_understood_as_they_stand(url: str, valkey_url: str) -> None:
    # Deeper first: the milder finding of a check has no say in what mends it.
    faults = {"counter_behind": 1}, {"dead": 1, "live": 2}, {"bad_qos": 1}, {"qos_0": 1}
    queues = [queue(f"device-{n}", **fault) for n, fault in enumerate(faults)]
    save_profile(url, *queues, cohorts=[0, 2, 3], session_limit=500, default_ttl_s=60)
    where = ("--postgres-url", url, "--redis-url", valkey_url)

    shown = run(
        "run", "--profile", "redis-1", "--suite", "sessions_redis", "--run-id", "it's 1", "--key-prefix", "my $p:",
        *where,
    ).stdout  # fmt: skip

    commands = dict(re.findall(r"^Next for (\S+): (queuekeeper .*)$", shown, re.MULTILINE))
    assert {number: shlex.split(command)[1:3] for number, command in commands.items()} == {
        "Q9": ["cleanup", "plan"],
        "Q11": ["repair", "repair_counter"],
        "Q16": ["repair", "quarantine_messages"],
    }
    plans = {}
    for number, command in commands.items():
        result = CliRunner().invoke(app, [*shlex.split(command)[1:], *where, "--json"])
        assert result.exit_code == 0, result.stderr
        plans[number] = json.loads(result.stdout)
    # The queue of the finding and no other, read by the limits that it was judged by.
    assert [plans[number]["looked_at"] for number in ("Q11", "Q16")] == [1, 1]
    parameters = plans["Q9"]["parameters"]
    assert (parameters["limit"], parameters["default_ttl_s"], parameters["key_prefix"]) == (500, 60, "my $p:")


def test_the_commands_for_a_broken_compacted_queue_find_it_where_its_keys_have_a_prefix(
    url: str, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUEKEEPER_POSTGRES_URL", url)
    monkeypatch.setenv("QUEUEKEEPER_REDIS_URL", valkey_url)
    prefix = "my $p:"
    with connect_redis(valkey_url) as client:
        CompactedQueues(client, prefix=prefix).append("meter 1", [Append(key=b"a", value=b"1")])
        client.hdel(compacted_keys("meter 1", prefix=prefix).values, "a")

    def next_of(shown: str) -> str:
        (command,) = re.findall(r"^Next for Q23: queuekeeper (.*)$", shown, re.MULTILINE)
        return str(command)

    naming = next_of(run("run", "--store", "compacted", "--key-prefix", prefix).stdout)
    assert naming == "quality run --store compacted --show-client-ids --key-prefix 'my $p:'"
    repair = next_of(CliRunner().invoke(app, shlex.split(naming)).stdout)
    assert repair == "compacted repair 'meter 1' --dry-run --key-prefix 'my $p:'"
    planned = json.loads(CliRunner().invoke(app, [*shlex.split(repair), "--json"]).stdout)
    assert (planned["client_id"], planned["found"] > 0) == ("meter 1", True)


def test_a_finding_of_a_release_that_kept_no_limits_still_names_its_command(url: str, valkey_url: str) -> None:
    save_profile(url, queue("device-1", dead=1, live=2))
    where = ("--postgres-url", url, "--redis-url", valkey_url)
    run("run", "--profile", "redis-1", "--suite", "sessions_redis", "--run-id", "q-1", *where)
    with connect(url) as connection:
        connection.execute("UPDATE queuekeeper.quality_results SET remedy_conf = remedy_conf - 'limit' - 'key_prefix'")

    shown = run("results", "q-1", "--postgres-url", url)

    assert "Next for Q9: queuekeeper cleanup plan --default-ttl-s 604800\n" in shown.stdout


def test_what_nobody_judged_is_no_good_result(url: str, valkey_url: str) -> None:
    save_profile(url, queue("device-1"), contents=False)
    judged = ("run", "--profile", "redis-1", "--suite", "sessions_redis", "--redis-url", valkey_url)
    assert run(*judged, "--run-id", "q-1", "--postgres-url", url).exit_code == 0
    with connect(url, autocommit=True) as connection:
        QualityStore(connection).begin(
            quality_run_id="at work", mode="full", suites=["sessions_redis"], profile_ids=[], numbers={},
            started_at=NOW + timedelta(days=36_500),
        )  # fmt: skip

    def words(*arguments: str) -> str:
        return " ".join(run("results", *arguments, "--postgres-url", url).stdout.split())

    assert "✓ All" in words()
    assert "Nothing was judged: the run is at work, or was killed." in words("at work")
    assert "Q14 was not judged: it needs messages' contents" in words("--check", "Q14")
    assert "Q36 was not judged: it is in none of the run's suites, sessions_redis." in words("--check", "Q36")
    assert "✓" not in words("at work") + words("--check", "Q36")


def test_a_known_issue_is_added_listed_excuses_and_is_removed(url: str, valkey_url: str) -> None:
    save_profile(url, queue("torn", tied_serials=1))
    where = ("--postgres-url", url)
    until = (NOW + timedelta(days=36_500)).date().isoformat()
    judged = ("run", "--profile", "redis-1", "--suite", "sessions_redis", "--redis-url", valkey_url, *where)

    added = as_json("known", "add", "Q1", "--owner", "ops", "--reason", "restore runs", "--until", until, *where)

    assert (added["check_id"], added["is_overdue"], added["ends_on"]) == ("Q1", False, until)
    assert as_json("known", "list", *where) == [added]
    assert as_json(*judged)["verdict"] == "passed"
    assert "restore runs" in run("known", "list", *where).stdout
    assert as_json("known", "remove", str(added["known_issue_id"]), *where) == {"removed": added["known_issue_id"]}
    assert as_json(*judged, code=1)["verdict"] == "failed"


def test_checks_are_explained_without_any_server() -> None:
    (q9,) = as_json("checks", "Q9")

    assert (q9["priority"], q9["severity"], q9["remedy"]["dag_id"]) == ("P1", "warning", "expired_reference_cleanup")
    assert [each["id"] for each in as_json("checks")] == list(CHECKS)
    told = run("checks").stdout
    assert [each for each in CHECKS if each not in told] == []
    assert "Remove the dead references." in run("checks", "Q9").stdout


@pytest.mark.parametrize("check", [each for each in CHECKS.values() if each.command], ids=lambda check: check.id)
def test_check_that_no_dag_mends_names_its_command(check: Check) -> None:
    (line,) = [each for each in run("checks", check.id).stdout.splitlines() if each.startswith("remedy")]

    assert (check.remedy, line.split(maxsplit=1)[1]) == (None, f"`queuekeeper {check.command}`")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--suite", "sessions"), "there is no expectation suite 'sessions': one of"),
        (("run", "--compare"), "suite source_against_target needs a profile of postgres: make one"),
        (("run", "--cohorts", "0-96"), "cohort 0-96 is out of range"),
        (("run", "--mode", "fast", "--cohort-count", "8"), "a fast profile needs 96"),
        (("run", "--mode", "fast", "--cohorts", "0-3"), "cohorts '0-3' are 4: a fast profile reads one in 96"),
        (("profile", "--sample-percent", "0"), "sample_percent is 0: it must be an integer from 1 to 100"),
        (
            ("profile", "--parquet-directory", "gs://bucket/profiles"),
            "profiles are in an object store .gs://., which takes universal-pathlib and gcsfs",
        ),
        (("run", "--data-docs", "s3://bucket/docs"), "--data-docs names an object store .s3://"),
        (("run", "--profile", "nothing"), "there is no profile 'nothing'"),
        (("profile", "--rdb", "none.rdb"), "none.rdb cannot be read .No such file or directory.: name an RDB file"),
        (("run", "--rdb", "none.rdb"), "none.rdb cannot be read"),
        (
            ("profile", "--rdb", "a.rdb", "--redis-url", "redis://a"),
            "rdb is read instead of a server: leave out --redis-url, or rdb",
        ),
        (("profile", "--rdb", "a.rdb", "--store", "postgres"), "instead of Redis, which is not among the chosen"),
        (("run", "--rdb", "a.rdb", "--store", "all_redis"), "rdb has sessions, and all_redis asks for"),
        (("run", "--rdb", "a.rdb", "--store", "compacted"), "rdb has sessions, and compacted asks for"),
        (("run", "--rdb", "a.rdb", "--store", "events"), "instead of Redis, which is not among the chosen"),
        (("run", "--rdb", "a.rdb", "--profile", "p"), "rdb makes a profile and --profile names one: leave out"),
        (
            ("profile", "--rdb", "a.rdb", "--throttle-references-per-s", "9"),
            "spares a server, and rdb asks none: leave",
        ),
        (("profile", "--rdb", "a.rdb", "--rdb-as-of", "noon"), "rdb_as_of is 'noon': it must be date and time with"),
        (("run", "--rdb-as-of", "2026-01-31T17:30Z"), "say how an RDB file is read: name one by rdb"),
        (("profile", "--rdb-database", "1"), "say how an RDB file is read: name one by rdb"),
        (("results",), "there is no quality run yet that has finished: make one"),
        (("results", "--check", "Q99"), "there is no check 'Q99'"),
        (("known", "add", "Q1", "--owner", "o", "--reason", "r", "--until", "soon"), "the day is 'soon': write it as"),
        (("known", "remove", "7"), "there is no known issue"),
    ],
)
def test_wrong_wishes_are_refused_before_any_work(url: str, arguments: tuple[str, ...], words: str) -> None:
    fails(*arguments, "--postgres-url", url, code=2, words=words)


def test_a_file_that_is_no_snapshot_is_said_before_spark_starts(url: str, tmp_path: Path) -> None:
    path = tmp_path / "dump.rdb"
    path.write_bytes(b"compressed")
    where = ("--postgres-url", url, "--spark-master", "nowhere")
    fails("profile", "--rdb", str(path), *where, code=1, words="dump.rdb begins with b'compresse': it is no RDB file")


def test_files_of_no_one_cluster_are_refused_before_spark_starts(url: str, tmp_path: Path) -> None:
    files = {
        "single.rdb": b"REDIS0012" + b"\xfb\x01\x00" + b"\x00\x03key\x01v",
        "empty.rdb": b"REDIS0012",
        "clustered.rdb": b"REDIS0012" + b"\xf4\x05\x01\x00" + b"\xfb\x01\x00" + b"\x00\x03key\x01v",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content + b"\xff" + bytes(8))
    single, empty, clustered = (str(tmp_path / name) for name in files)
    where = ("--postgres-url", url, "--spark-master", "nowhere")

    def named(*paths: str) -> tuple[str, ...]:
        return tuple(word for path in paths for word in ("--rdb", path))

    fails(
        "profile", *named(clustered, empty, single), *where, code=2, words="single.rdb is of a single server: name it"
    )
    fails("run", *named(clustered, empty, clustered), *where, code=2, words="clustered.rdb are one file: name the file")


def test_a_server_that_is_down_is_said_before_spark_starts(url: str) -> None:
    fails("run", "--postgres-url", url, "--redis-url", "redis://127.0.0.1:1", code=4, words="127.0.0.1:1 .*refuse")


def test_what_one_store_refuses_is_said_before_spark_starts_and_before_the_other_is_read(
    url: str, valkey_url: str
) -> None:
    # Spark would not start.
    where = ("--postgres-url", url, "--spark-master", "nowhere")
    fails(
        "run", "--store", "both", "--compare", "--redis-url", valkey_url, *where,
        code=4, words="device_publish_msg",
    )  # fmt: skip
    with redis_user(valkey_url, "~* +@all -scan") as limited:
        fails("profile", "--redis-url", limited, *where, code=4, words=r"ACL SETUSER somebody \+scan")


def test_the_access_rules_of_the_guide_are_enough_to_read_and_to_ask_the_server(valkey_url: str) -> None:
    guide = (assets.directory("expectations").parent / "docs" / "quality.md").read_text("utf-8")
    (rules,) = re.findall(r"^ACL SETUSER profiler on >password (.*)$", guide, re.MULTILINE)
    with redis_user(valkey_url, rules) as limited, connect_redis(limited) as user:
        check_profiled(user, parameters=ProfileParameters())
        (server,) = read_servers(user)
    assert server["replicas"] == 0


def test_a_session_that_lost_its_expiry_is_found_from_the_server_to_the_shell(
    url: str, valkey_url: str, spark_of_commands: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect_redis(valkey_url) as client:
        store = RedisSessionStore(client)
        messages = tuple(
            NewMessage(topic=f"t/{n}", payload=b"secret", qos=1, time_ms=system_clock(), expiry_interval_s=3_600)
            for n in range(3)
        )
        store.save_messages([SessionSave(client_id=f"meter-{n}", messages=messages) for n in range(5)])
        client.persist(payload_key("meter-3", 2))

    facts = as_json(
        "run", "--cohort-count", "4", "--contents", "--postgres-url", url, "--redis-url", valkey_url,
        "--suite", "sessions_redis", "--parquet-directory", str(tmp_path / "parquet"),
    )  # fmt: skip

    failed = {each["check_id"]: each["unexpected_count"] for each in facts["results"] if each["status"] == "failed"}
    assert failed == {"Q13": 1}
    assert (facts["queues"], facts["messages"]) == (5, 15)
    assert "secret" not in json.dumps(facts)
    assert "meter" not in json.dumps(facts)

    # Far from the database: the same verdict on the Parquet.
    (folder,) = (tmp_path / "parquet").iterdir()
    # Judging it takes long, and is done once for both ways to show it.
    reports: list[SuiteReport] = []

    def judged_once(spark: Any, **options: Any) -> SuiteReport:
        reports.extend([] if reports else [judge_parquet(spark, **options)])
        return reports[0]

    pages = tmp_path / "pages"
    with monkeypatch.context() as patch:
        patch.setattr(parquet, "judge_parquet", judged_once)
        judged = as_json("judge", str(folder), "--contents", "--data-docs", str(pages), code=critical(facts))
        assert "Q13" in run("judge", str(folder), "--contents").stdout
    unexpected = {each["expectation"]["check"]: each["unexpected_count"] for each in judged["results"]}
    assert {check: count for check, count in unexpected.items() if count} == {"Q13": 1}
    assert (pages / "index.html").is_file()
    fails("judge", str(tmp_path / "nothing"), code=2, words="holds no profile")


def test_messages_of_a_snapshot_are_live_or_expired_as_of_the_instant_that_is_named(
    url: str, valkey_url: str, spark_of_commands: Any
) -> None:
    with connect_redis(valkey_url) as client:
        now_ms = system_clock()
        messages = tuple(
            NewMessage(topic="t", payload=b"p", qos=1, time_ms=now_ms, expiry_interval_s=hours * 3_600)
            for hours in (1, 2, 3)
        )
        RedisSessionStore(client).save_messages([SessionSave(client_id="meter", messages=messages)])
        server: Any = client
        server.save()
        path = str(Path(server.config_get("dir")["dir"], server.config_get("dbfilename")["dbfilename"]))

    def profiled(*options: str) -> tuple[int, int]:
        [report] = as_json("profile", "--rdb", path, *options, "--cohort-count", "2", "--postgres-url", url)
        return report["messages"], report["live"]

    later = datetime.fromtimestamp(now_ms / 1_000 + 5_400, UTC).isoformat()
    assert (profiled(), profiled("--rdb-as-of", later)) == ((3, 3), (3, 2))


def critical(facts: Any) -> int:
    """Return the exit code that what was found calls for."""
    return 1 if facts["verdict"] == "failed" else 0

"""The commands of a migration while devices are connected: there and back, dry runs, exit codes, JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from queuekeeper.sessions.model import SessionSave
from tests.conformance.online_worlds import PLAN_ID, OnlineWorld, message, unhurried_fences, until_none_is_late
from tests.integration.command_line import CommandLine
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

SECRET = "only the device may see this"
CLIENTS = tuple(f"meter-{number}" for number in range(12))
ONLINE = CommandLine(group="online", secret=SECRET)
MIGRATE = CommandLine(group="migrate", secret=SECRET)


@pytest.fixture
def world(postgres_url: str, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnlineWorld]:
    """Some clients in PostgreSQL, a plan of two cohorts, and servers that need not be named."""
    unhurried_fences(monkeypatch)
    monkeypatch.setenv("QUEUEKEEPER_POSTGRES_URL", postgres_url)
    monkeypatch.setenv("QUEUEKEEPER_REDIS_URL", valkey_url)
    world = OnlineWorld(postgres_url, valkey_url)
    for client_id in CLIENTS:
        world.at_postgres.save_messages([SessionSave(client_id=client_id, messages=(message(SECRET.encode()),))])
    world.plan(count=2)
    yield world
    world.close()


def moved(*arguments: str) -> dict[str, Any]:
    """Call a step that reports on clients, and return its report; people who ask for JSON have said yes."""
    found: dict[str, Any] = ONLINE.as_json(*arguments)
    assert not {"late", "busy", "differs", "refused"} & found["outcomes"].keys(), found
    return found


def test_there_and_back_by_command(world: OnlineWorld) -> None:
    assert moved("arm", PLAN_ID)["clients"] == len(CLIENTS)
    report = moved("catch-up", PLAN_ID)
    assert (report["outcomes"], report["written"]) == ({"equal": len(CLIENTS)}, len(CLIENTS))
    moved("verify", PLAN_ID, "--movers", "2")
    steps = ONLINE.as_json("rehearse", PLAN_ID, "--percent", "1", "--yes")
    assert [each["step"] for each in steps][2:5] == ["cut over", "verify", "roll back"]

    for dry in (("cut-over", PLAN_ID, "--dry-run"), ("cut-over", PLAN_ID, "--dry-run", "--cohorts", "0-1")):
        assert ONLINE.as_json(*dry)["clients"] == len(CLIENTS)
    assert world.all_owners() == {"postgres"}
    report = moved("cut-over", PLAN_ID, "--lease-ms", "1000", "--yes")
    assert report["outcomes"] == {"moved": len(CLIENTS)}
    assert 0 < report["fenced_p50_ms"] <= report["fenced_p99_ms"] <= report["fenced_longest_ms"]

    status = ONLINE.as_json("status", PLAN_ID)
    assert {each["state"] for each in status["cohorts"]} == {"on_redis"}
    assert sum(each["owners"]["redis"] for each in status["cohorts"]) == len(CLIENTS)
    behind = f"How far the mirror is behind: queuekeeper online mirror {PLAN_ID} --dry-run"
    assert behind in ONLINE.run("status", PLAN_ID).stdout
    world.at_redis.save_messages([SessionSave(client_id=CLIENTS[0], messages=(message(b"more"),))])
    assert ONLINE.as_json("mirror", PLAN_ID, "--dry-run")["behind"] == 1
    assert ONLINE.as_json("mirror", PLAN_ID)["written"] == 1
    assert ONLINE.as_json("soak", PLAN_ID, "--soak-minutes", "0")["behind"] == 0

    assert ONLINE.as_json("commit", PLAN_ID, "--dry-run")["dry_run"] is True
    assert ONLINE.as_json("roll-back", PLAN_ID, "--dry-run")["clients"] == len(CLIENTS)
    soaking = "cohort 0 is soaking: to cut over it has to be verified or cutting_over"
    ONLINE.fails("cut-over", PLAN_ID, "--dry-run", "--cohorts", "0-1", code=4, words=soaking)
    assert ONLINE.as_json("roll-back", PLAN_ID, "--dry-run", "--cohorts", "0,1")["clients"] == len(CLIENTS)
    assert world.all_owners() == {"redis"}
    assert moved("roll-back", PLAN_ID, "--yes")["outcomes"] == {"moved": len(CLIENTS)}
    assert world.all_owners() == {"postgres"}
    assert len(world.rows()) == len(CLIENTS) + 1
    assert ONLINE.as_json("disarm", PLAN_ID)["disarmed"] is True
    assert world.states() == {"planned"}


# By day: the two tests around it, and tests/conformance/test_online_migration.py for the layout.
@pytest.mark.nightly
def test_into_packed_sessions_and_back_by_command(world: OnlineWorld, tmp_path: Path) -> None:
    plan_id = MIGRATE.as_json("plan", "--mode", "online", "--layout", "packed", "--cohort-count", "2")["plan_id"]
    assert moved("arm", plan_id)["clients"] == len(CLIENTS)
    MIGRATE.as_json("copy", plan_id, "--yes")
    assert len(world.client.keys("*_packed")) == len(world.client.keys("*")) == len(CLIENTS)
    assert moved("catch-up", plan_id)["written"] == 0
    moved("verify", plan_id)
    assert moved("cut-over", plan_id, "--yes")["outcomes"] == {"moved": len(CLIENTS)}
    with world.router() as router:
        router.save_messages([SessionSave(client_id=CLIENTS[0], messages=(message(b"more"),))])
        assert [each.payload for each in router.fetch_pending(CLIENTS[0]).messages] == [SECRET.encode(), b"more"]
    status = ONLINE.as_json("status", plan_id)
    assert sum(each["owners"]["packed"] for each in status["cohorts"]) == len(CLIENTS)
    assert ONLINE.as_json("mirror", plan_id)["written"] == 1
    assert MIGRATE.as_json("report", plan_id, "--directory", str(tmp_path))["verdict"] == "balanced"
    assert moved("roll-back", plan_id, "--yes")["outcomes"] == {"moved": len(CLIENTS)}
    assert world.all_owners() == {"postgres"}
    assert len(world.rows()) == len(CLIENTS) + 1
    assert world.client.keys("*_messages*") == []


def test_from_one_layout_of_redis_to_the_other_by_command(world: OnlineWorld, tmp_path: Path) -> None:
    for client_id in CLIENTS:
        world.at_redis.save_messages([SessionSave(client_id=client_id, messages=(message(SECRET.encode()),))])
    same = ("--mode", "online", "--from-store", "packed", "--layout", "packed")
    MIGRATE.fails("plan", *same, code=2, words="there is nothing to move; choose the layout tbmq")
    planned = MIGRATE.as_json(
        "plan", "--mode", "online", "--from-store", "tbmq", "--layout", "packed", "--cohort-count", "2"
    )
    assert (planned["sessions"], planned["to_copy"]) == (len(CLIENTS), len(CLIENTS))
    plan_id = planned["plan_id"]
    assert moved("arm", plan_id)["clients"] == len(CLIENTS)
    MIGRATE.fails("copy", plan_id, "--yes", code=4, words=f"use queuekeeper online catch-up {plan_id}")
    moved("catch-up", plan_id)
    moved("verify", plan_id)
    assert ONLINE.as_json("cut-over", plan_id, "--dry-run")["clients"] == len(CLIENTS)
    assert moved("cut-over", plan_id, "--yes")["outcomes"] == {"moved": len(CLIENTS)}
    status = ONLINE.as_json("status", plan_id)
    assert sum(each["owners"]["packed"] for each in status["cohorts"]) == len(CLIENTS)
    assert MIGRATE.as_json("report", plan_id, "--directory", str(tmp_path))["verdict"] == "balanced"
    assert moved("roll-back", plan_id, "--yes")["outcomes"] == {"moved": len(CLIENTS)}
    assert "Redis serves" in ONLINE.run("disarm", plan_id).stdout
    MIGRATE.fails("undo", plan_id, "--yes", code=4, words="move inside Redis")


def test_way_back_brings_the_mirror_up_to_date_first_and_says_how_far_it_was(world: OnlineWorld) -> None:
    world.to_redis()
    world.take_no_messages()
    world.leave_behind(CLIENTS[0], SECRET.encode())
    behind = r"the mirror is \d+ s behind for 1 of 12 clients, at most 0 s are allowed"

    told = ("roll-back", PLAN_ID, "--yes", "--max-lag-s", "0")
    ONLINE.fails(*told, "--mirror-wait-minutes", "0", code=4, words=f"{behind}: run queuekeeper online mirror")
    assert world.all_owners() == {"redis"}

    world.take_messages()
    result = ONLINE.run(*told, "--mirror-wait-minutes", "60")
    assert result.exit_code == 0, result.output
    assert re.search(rf"^roll back: {behind}; the mirror is brought up to date for ", result.stdout, re.MULTILINE)
    assert world.all_owners() == {"postgres"}


def test_commit_is_the_end(world: OnlineWorld) -> None:
    world.to_redis()
    for how in ("--yes", "--dry-run"):
        ONLINE.fails("commit", PLAN_ID, how, code=4, words="cohort 0 is on_redis: to commit it has to be soaking")
    ONLINE.as_json("soak", PLAN_ID, "--soak-minutes", "0")
    assert moved("commit", PLAN_ID, "--yes")["clients"] == len(CLIENTS)
    for verb in ("roll-back", "cut-over"):
        ONLINE.fails(verb, PLAN_ID, "--yes", code=4, words="cohort 0 is committed: .* no way back but a new migration")


def test_dry_run_of_a_commit_counts_the_messages_that_it_will_put_aside(
    postgres_url: str, redis_cluster_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUEKEEPER_POSTGRES_URL", postgres_url)
    monkeypatch.setenv("QUEUEKEEPER_REDIS_URL", redis_cluster_url)
    world = OnlineWorld(postgres_url, redis_cluster_url)
    try:
        for client_id in ("meter-1", "}x", "}x"):
            world.at_postgres.save_messages([SessionSave(client_id=client_id, messages=(message(SECRET.encode()),))])
        world.plan(count=2)
        world.to_redis()
        ONLINE.as_json("soak", PLAN_ID, "--soak-minutes", "0")
        would = ONLINE.as_json("commit", PLAN_ID, "--dry-run")
        assert (would["clients"], would["set_aside"], len(world.rows())) == (1, 2, 3)
        words = "2 messages of 1 client that no cluster can hold would be put aside; nothing was changed."
        assert words in " ".join(ONLINE.run("commit", PLAN_ID, "--dry-run").stdout.split())
        done = moved("commit", PLAN_ID, "--yes")
        assert (done["set_aside"], done["outcomes"]) == (2, {"kept": 1})
        assert ONLINE.as_json("commit", PLAN_ID, "--dry-run")["set_aside"] == 0
    finally:
        world.close()


def test_for_people_it_says_the_same_in_words(world: OnlineWorld) -> None:
    assert "Arm of plan" in ONLINE.run("arm", PLAN_ID).stdout
    result = ONLINE.run("catch-up", PLAN_ID)
    assert "catch up: " in result.stdout or "Catch up of plan" in result.stdout
    ONLINE.run("verify", PLAN_ID)
    assert "12 clients of 2 cohorts would be given to the target; nothing was changed." in " ".join(
        ONLINE.run("cut-over", PLAN_ID, "--dry-run").stdout.split()
    )
    # Nobody has said yes.
    for verb in ("rehearse", "cut-over"):
        assert ONLINE.run(verb, PLAN_ID, given=b"n\n").exit_code != 0
    assert world.online.control(PLAN_ID).canary == ()
    assert world.all_owners() == {"postgres"}
    result = ONLINE.run("cut-over", PLAN_ID, "--yes")
    assert result.exit_code == 0
    assert "fenced" in result.stdout
    assert SECRET not in result.output
    status = ONLINE.run("status", PLAN_ID)
    assert "on_redis" in status.stdout
    assert "Redis's" in status.stdout
    assert "Mirror" in ONLINE.run("mirror", PLAN_ID).stdout


def test_pace_is_set_while_it_goes_on(world: OnlineWorld) -> None:
    world.driver().arm()
    assert ONLINE.as_json("pause", PLAN_ID)["paused"] is True
    assert ONLINE.as_json("resume", PLAN_ID)["paused"] is False
    assert ONLINE.as_json("throttle", PLAN_ID, "200")["clients_per_s"] == 200
    assert "at most 200 clients/s" in ONLINE.run("throttle", PLAN_ID, "200").stdout
    assert ONLINE.as_json("throttle", PLAN_ID, "none")["clients_per_s"] is None
    ONLINE.fails("throttle", PLAN_ID, "0", code=2, words="0")
    assert ONLINE.as_json("status", PLAN_ID)["control"]["paused"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("status", PLAN_ID), 2, "was never armed: arm it first"),
        (("arm", "ffffffffffffffff"), 2, "ffffffffffffffff"),
        (("arm", PLAN_ID, "--cohorts", "7"), 2, "cohort 7 is out of range: this plan has cohorts 0 to 1"),
        (("catch-up", PLAN_ID), 4, "none of these cohorts of plan .* is armed: arm them first"),
        (("cut-over", PLAN_ID, "--yes"), 4, "arm them first"),
        (("cut-over", PLAN_ID, "--dry-run"), 4, "none of these cohorts of plan .* is armed: arm them first"),
        (
            ("roll-back", PLAN_ID, "--yes", "--lease-ms", "5"),
            2,
            "lease_ms is 5: it must be an integer from 50 to 1,000",
        ),
        (("rehearse", PLAN_ID, "--percent", "0", "--yes"), 2, "percent"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(
    world: OnlineWorld, arguments: tuple[str, ...], code: int, words: str
) -> None:
    ONLINE.fails(*arguments, code=code, words=words)
    assert world.states() == set()


def test_clients_that_differ_are_named_without_their_content(world: OnlineWorld) -> None:
    driver = world.to_redis()
    world.sql("UPDATE device_publish_msg SET payload = 'another' WHERE client_id = 'meter-3'")
    result = ONLINE.fails("verify", PLAN_ID, code=1, words="1 of 12 clients differ, the first 'meter-3': .*payload")
    assert "another'" not in result.output
    assert until_none_is_late(driver.roll_back).left == {}


def test_followed_mirror_goes_on_until_a_signal_ends_it(world: OnlineWorld) -> None:
    world.to_redis()
    words = ("online", "mirror", PLAN_ID, "--follow", "--json")
    command = [sys.executable, "-c", "import queuekeeper.cli; queuekeeper.cli.main()", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout)

        def next_pass() -> dict[str, Any]:
            found: dict[str, Any] = json.loads("".join(takewhile(lambda line: line != "}\n", lines)) + "}")
            return found

        try:
            passes = [next_pass() for _ in range(2)]
            world.at_redis.save_messages([SessionSave(client_id="meter-3", messages=(message(b"more"),))])
            while not passes[-1]["written"]:
                passes.append(next_pass())
        finally:
            process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert {each["clients"] for each in passes} == {len(CLIENTS)}
    assert ("meter-3", 1) in world.rows()

"""``queuekeeper`` alone tells what to do next, whatever there is in this place."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from queuekeeper import audit, postgres
from queuekeeper.attention import find_matters
from queuekeeper.cli.events import MENDS
from queuekeeper.clock import system_clock
from queuekeeper.jobs.registry import kind_of
from queuekeeper.jobs.store import MaintenanceRuns, RunState, ShardProgress
from queuekeeper.migration.ledger.ledger import MIGRATIONS, MigrationLedger
from queuekeeper.migration.ledger.model import PlanState
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.migration.online.states import OnlineState
from queuekeeper.postgres import Connection
from queuekeeper.quality.judge.store import QualityStore, Verdict
from queuekeeper.redis_client import connect
from queuekeeper.sessions.sample import fill
from queuekeeper.sessions.sample_parameters import SampleParameters
from tests.integration.command_line import CommandLine
from tests.run_kinds import JOBS, KINDS, planned

pytestmark = pytest.mark.integration


@pytest.fixture
def control(named_postgres: str, named_redis: str, control_schema: None) -> Iterator[Connection]:
    """Schema ``queuekeeper`` and an empty Redis, named by the environment."""
    with postgres.connect(named_postgres, autocommit=True) as connection:
        yield connection


def steps() -> dict[str, list[str]]:
    """Return what is said, and the commands below it."""
    result = CommandLine().run()
    assert result.exit_code == 0, result.output
    said: dict[str, list[str]] = {}
    for line in result.stdout.splitlines():
        if line.startswith("  "):
            said[list(said)[-1]].append(line.strip())
        elif line:
            said[line] = []
    assert said.popitem() == ("All commands: queuekeeper --help", [])
    return said


def test_without_servers_it_says_how_to_start_some_and_how_to_name_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for store in ("POSTGRES", "REDIS"):
        monkeypatch.delenv(f"QUEUEKEEPER_{store}_URL", raising=False)
    monkeypatch.setenv("QUEUEKEEPER_HOME", str(tmp_path))

    assert steps() == {
        "There are no servers here. To try Queuekeeper, start private ones:": ["queuekeeper up"],
        "To use servers of your own, name them in the environment and have them examined:": [
            "export QUEUEKEEPER_POSTGRES_URL=postgresql://user:password@host:5432/database",
            "export QUEUEKEEPER_REDIS_URL=redis://user:password@host:6379",
            "queuekeeper doctor",
        ],
    }

    monkeypatch.setenv("QUEUEKEEPER_POSTGRES_URL", "postgresql://somebody@127.0.0.1:1/tbmq")
    assert steps() == {
        "No Redis is named, and no private one runs. To try Queuekeeper, start private ones:": ["queuekeeper up"],
        "To use servers of your own, name them in the environment and have them examined:": [
            "export QUEUEKEEPER_REDIS_URL=redis://user:password@host:6379",
            "queuekeeper doctor",
        ],
    }
    monkeypatch.delenv("QUEUEKEEPER_POSTGRES_URL")

    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "postgres.log").touch()
    assert steps() == {f"The private servers in {tmp_path} are stopped:": ["queuekeeper up"]}


def test_server_that_does_not_answer_is_named_with_the_command_that_examines_it(
    control: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUEKEEPER_REDIS_URL", "redis://:secret@127.0.0.1:1/0")

    ((why, commands),) = steps().items()

    assert "127.0.0.1:1" in why
    assert "secret" not in why
    assert commands == ["queuekeeper doctor"]


def test_runs_are_told_though_redis_is_down(
    control: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = planned(control, "session_migration", tmp_path)
    MigrationLedger(control).set_plan_state(run_id, PlanState.PLANNED)
    monkeypatch.setenv("QUEUEKEEPER_REDIS_URL", "redis://127.0.0.1:1/0")

    assert [command for below in steps().values() for command in below] == [
        "queuekeeper doctor", f"queuekeeper run status {run_id}", f"queuekeeper migrate copy {run_id}",
    ]  # fmt: skip


def test_database_without_the_control_schema_is_given_it_first(named_postgres: str, named_redis: str) -> None:
    ((why, commands),) = steps().items()

    assert "has no control schema `queuekeeper`" in why
    assert commands == ["queuekeeper database migrate"]


def test_empty_stores_are_to_be_filled_and_a_source_is_to_be_planned_and_checked(
    control: Connection, named_redis: str
) -> None:
    assert list(steps().values()) == [["queuekeeper sample"]]

    with connect(named_redis) as client:
        client.set("key", "value")
    assert steps() == {"The queues have not been checked yet:": ["queuekeeper quality run"]}

    fill(
        control,
        SampleParameters(messages=50, sessions=10, long_queues=0, now_ms=system_clock(), create_schema=True),
    )
    assert list(steps().values()) == [["queuekeeper migrate plan"], ["queuekeeper quality run"]]

    at = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)
    store = QualityStore(control)
    store.begin(quality_run_id="q1", mode="all", suites=[], profile_ids=[], numbers={}, started_at=at)
    store.finish(quality_run_id="q1", verdict=Verdict.WARNED, results=[], numbers={})
    assert "The queues were last checked on 2026-11-27 12:00 UTC: warned:" in steps()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in MIGRATIONS])
def test_run_of_each_job_is_told_until_it_is_done(control: Connection, tmp_path: Path, kind: str) -> None:
    run_id = planned(control, kind, tmp_path, has_work=True)
    runs = MaintenanceRuns(control)

    status = f"queuekeeper run status {run_id}"

    assert told() == (f"{begun(kind_of(kind).noun)} {run_id} waits for an approval:", [status, *goes_on(kind, run_id)])
    runs.note_answer(run_id, audit.Answer(action=audit.Action.REJECT, actor="ada"))
    again = "was rejected and can be planned again, or agreed to after all"
    assert told() == (f"{begun(kind_of(kind).noun)} {run_id} {again}:", [status, *goes_on(kind, run_id)])
    shown = CommandLine().run("run", "status", run_id).stdout
    assert "rejected" in shown
    assert "Plan again" in shown
    runs.set_paused(run_id, True, actor="ada")
    assert told() == (f"{begun(kind_of(kind).noun)} {run_id} is paused:", [f"queuekeeper run resume {run_id}"])
    runs.set_paused(run_id, False, actor="ada")
    runs.set_state(run_id, RunState.RUNNING)
    assert told() == (f"{begun(kind_of(kind).noun)} {run_id} is at work:", [status])
    runs.set_state(run_id, RunState.FAILED)
    assert told() == (
        f"{begun(kind_of(kind).noun)} {run_id} has failed and can go on:",
        [status, *goes_on(kind, run_id)],
    )
    runs.save_report(run_id, {})
    runs.set_state(run_id, RunState.DONE)
    assert run_id not in str(told())


def test_dry_run_waits_for_nobody(control: Connection, tmp_path: Path) -> None:
    run_id = planned(control, "compacted_queue_gc", tmp_path, has_work=True)
    assert run_id in str(told())

    MaintenanceRuns(control).save_report(run_id, {"dry_run": True})

    assert run_id not in str(told())


@pytest.mark.parametrize("kind", JOBS)
def test_plan_with_nothing_to_do_waits_for_nobody(control: Connection, tmp_path: Path, kind: str) -> None:
    assert planned(control, kind, tmp_path) not in str(told())


def test_run_that_has_not_begun_or_stands_still_is_not_said_to_be_at_work(control: Connection, tmp_path: Path) -> None:
    kind = "expired_reference_cleanup"
    run_id = planned(control, kind, tmp_path, has_work=True)
    runs = MaintenanceRuns(control)
    status = f"queuekeeper run status {run_id}"

    apply = f"queuekeeper cleanup apply {run_id}"
    runs.approve(run_id, "ada")
    assert told() == (f"{begun(kind_of(kind).noun)} {run_id} is approved and has not begun:", [status, apply])
    runs.set_state(run_id, RunState.RUNNING)
    control.execute("UPDATE queuekeeper.maintenance_runs SET updated_at = clock_timestamp() - interval '2 hours'")
    killed = f"{begun(kind_of(kind).noun)} {run_id} has made no progress for 2 h 00 min; it may have been killed:"
    assert told() == (killed, [status, apply])
    runs.save_progress(run_id, ShardProgress(shard="all", scanned=1))
    assert told() == (f"{begun(kind_of(kind).noun)} {run_id} is at work:", [status])


def test_user_who_may_not_count_keys_is_told_the_other_steps(
    control: Connection, named_redis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = planned(control, "expired_reference_cleanup", tmp_path, has_work=True)
    rules = ("reset", "on", ">password", "~*", "+@all", "-dbsize")
    with connect(named_redis) as client:
        client.execute_command("ACL", "SETUSER", "somebody", *rules)
        monkeypatch.setenv("QUEUEKEEPER_REDIS_URL", f"redis://somebody:password@{named_redis.rpartition('@')[2]}")
        try:
            said = steps()
        finally:
            client.execute_command("ACL", "DELUSER", "somebody")

    assert "dbsize" in " ".join(said)
    commands = [command for below in said.values() for command in below]
    approves = [f"queuekeeper run status {run_id}", f"queuekeeper cleanup apply {run_id}"]
    assert commands == [*approves, "queuekeeper doctor", "queuekeeper quality run"]


def test_migration_is_told_until_it_is_verified(control: Connection, tmp_path: Path) -> None:
    run_id = planned(control, "session_migration", tmp_path)
    ledger = MigrationLedger(control)
    status, copy, verify = f"run status {run_id}", f"migrate copy {run_id}", f"migrate verify {run_id}"

    for state, words, *commands in (
        (PlanState.PLANNED, "waits for an approval", status, copy),
        (PlanState.COPYING, "is at work", status),
        (PlanState.COPIED, "is copied and not verified", status, verify),
        (PlanState.FAILED, "has failed and can go on", status, copy),
    ):
        ledger.set_plan_state(run_id, state)
        assert told() == (
            f"Plan {run_id} {words}:",
            [f"queuekeeper {each}" for each in commands],
        )
    ledger.set_plan_state(run_id, PlanState.COPIED)
    ledger.record_progress(plan_id=run_id, step="verify", part="0", done=1, total=2, at_ms=system_clock())
    assert told() == (f"Plan {run_id} is at work:", [f"queuekeeper {status}"])
    for state in (PlanState.VERIFIED, PlanState.REFUSED):
        ledger.set_plan_state(run_id, state, reason="too many bad rows" if state is PlanState.REFUSED else "")
        assert run_id not in str(told())


def test_online_migration_between_two_steps_says_what_it_waits_for(control: Connection, tmp_path: Path) -> None:
    run_id = planned(control, "online_migration", tmp_path)
    online, driver = OnlineCohorts(control), OnlineCohorts(control).take(run_id, [0])
    control.execute(
        "INSERT INTO queuekeeper.session_owners (client_id, slot, owner, epoch)"
        " SELECT 'c' || n, n, CASE WHEN n < 3 THEN 'redis' ELSE 'postgres' END, 1 FROM generate_series(0, 9) AS n"
    )

    def said() -> list[tuple[str, tuple[str, ...]]]:
        return [(each.words, each.commands) for each in find_matters(control, now_ms=system_clock())]

    for plan, state, waits_for in (
        (PlanState.COPIED, OnlineState.COPYING, "the catch-up"),
        (PlanState.COPIED, OnlineState.CAUGHT_UP, "the verification"),
        (PlanState.VERIFIED, OnlineState.VERIFIED, "the cut over"),
        (PlanState.VERIFIED, OnlineState.CUTTING_OVER, "the end of the cut over"),
        (PlanState.VERIFIED, OnlineState.ON_REDIS, "the soak"),
        (PlanState.VERIFIED, OnlineState.SOAKING, "the commit after the soak"),
    ):
        MigrationLedger(control).set_plan_state(run_id, plan)
        online.move(run_id, [0], driver=driver, after=state, actor="ada")
        control.execute("UPDATE queuekeeper.plans SET updated_at = clock_timestamp() - interval '2 hours'")
        control.execute("UPDATE queuekeeper.online_cohorts SET step_at = clock_timestamp() - interval '1 hour'")
        clients = "PostgreSQL has 7 clients, Redis 3"
        words = f"has changed no cohort for 1 h 00 min: it waits for {waits_for} of 1 cohort; {clients}"
        assert said() == [(words, (f"queuekeeper run status {run_id}", f"queuekeeper online status {run_id}"))]
    online.hold_back(run_id, "Redis answers within 30 ms, the limit is 20 ms")
    ((words, _),) = said()
    assert words.endswith("Redis 3; held back: Redis answers within 30 ms, the limit is 20 ms")
    online.move(run_id, [0], driver=driver, after=OnlineState.COMMITTED, actor="ada")
    assert said() == []


def told() -> tuple[str, list[str]]:
    """Return the first step."""
    return next(iter(steps().items()))


def begun(noun: str) -> str:
    """Return a noun as the first word of a sentence."""
    return f"{noun[0].upper()}{noun[1:]}"


def goes_on(kind: str, run_id: str) -> list[str]:
    """Return the commands that carry a run out, or go on with it."""
    remedy = f"events mend {kind}" if kind in MENDS else f"repair {kind}"
    command = {
        "compacted_queue_gc": f"compacted gc --go-on {run_id}",
        "event_upkeep": f"events upkeep --go-on {run_id}",
        "expired_reference_cleanup": f"cleanup apply {run_id}",
        "fanout_repair": f"fanout repair-all --go-on {run_id}",
        "partition_adoption": f"partitions adopt --go-on {run_id}",
        "partition_creation": "partitions create public.readings",
        "partition_retirement": "partitions retire public.readings",
        "partition_drop": "partitions drop public.readings",
        "partition_reattachment": "",
    }.get(kind, f"{remedy} --go-on {run_id}")
    return [f"queuekeeper {command}"] if command else []

"""Records of cleanups and remedies: what is written is read, by others at once, and two never share a shard."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuekeeper import assets, postgres
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.jobs.engine import load_plan
from queuekeeper.jobs.registry import job_of
from queuekeeper.jobs.store import MaintenanceRun, MaintenanceRuns, RunControl, RunState, ShardProgress
from queuekeeper.postgres import Connection

pytestmark = pytest.mark.sql


@pytest.fixture
def runs(connection: Connection, control_schema: None) -> MaintenanceRuns:
    return MaintenanceRuns(connection)


def save(runs: MaintenanceRuns, *, found: int = 1, kind: str = "repair_ttl") -> MaintenanceRun:
    return runs.save_plan(kind=kind, parameters={"prefix": ""}, plan={"found": found}, operations_per_s=500)


def test_plan_waits_for_approval_and_the_same_one_is_the_same_run(runs: MaintenanceRuns) -> None:
    run = save(runs)

    assert (run.state, run.plan, run.parameters, run.approved_by) == (
        RunState.PLANNED,
        {"found": 1},
        {"prefix": ""},
        None,
    )
    runs.approve(run.maintenance_run_id, "ada")
    again = save(runs)
    assert again.maintenance_run_id == run.maintenance_run_id
    assert (again.state, again.approved_by) == (RunState.APPROVED, "ada")
    assert save(runs, found=2).maintenance_run_id != run.maintenance_run_id


def test_approval_of_a_run_at_work_keeps_its_state(runs: MaintenanceRuns) -> None:
    run_id = save(runs).maintenance_run_id
    runs.set_state(run_id, RunState.RUNNING)
    runs.approve(run_id, "ada")
    assert runs.load(run_id).state is RunState.RUNNING


def test_throttle_and_pause_are_seen_by_another_process(
    runs: MaintenanceRuns, connect: Callable[[], Connection]
) -> None:
    run_id = save(runs).maintenance_run_id
    other = MaintenanceRuns(connect())
    assert other.control(run_id) == RunControl(paused=False, operations_per_s=500)
    runs.set_paused(run_id, True)
    runs.set_throttle(run_id, None)
    assert other.control(run_id) == RunControl(paused=True, operations_per_s=None)


def test_progress_goes_on_from_what_was_written(runs: MaintenanceRuns) -> None:
    run_id = save(runs).maintenance_run_id
    assert runs.shard_progress(run_id, "a:1") == ShardProgress(shard="a:1")
    for cursor, done in (("7", False), ("0", True)):
        runs.save_progress(
            run_id, ShardProgress(shard="a:1", cursor=cursor, scanned=5, removed=3, counts={"x": 3}, done=done)
        )
    runs.save_progress(run_id, ShardProgress(shard="b:1"))
    first, second = runs.progress(run_id)
    assert (first.shard, first.cursor, first.scanned, first.removed, first.counts, first.done) == (
        "a:1", "0", 5, 3, {"x": 3}, True,
    )  # fmt: skip
    assert (second.shard, second.done) == ("b:1", False)


def test_run_of_a_remedy_of_an_earlier_release_is_read_as_that_of_any_job(
    runs: MaintenanceRuns, connection: Connection
) -> None:
    hashes = ("0" * 16, "1" * 16)
    run_id = runs.save_plan(
        kind="repair_ttl",
        parameters={
            "default_ttl_s": 60, "limit": 9, "keep_s": 70, "grace_s": 80, "key_prefix": "tbmq:", "code_version": "0.1",
            "as_of_ms": 7, "selection": {"quality_run_id": "q", "cohorts": "0-3", "client_hashes": list(hashes)},
        },
        plan={
            "remedy": "repair_ttl", "looked_at": 5, "effects": {"life made shorter": 4}, "refusals": {"no": 1},
            "queues": [
                {"client_hash": hashes[0], "effects": {"life made shorter": 4}, "refused": ""},
                {"client_hash": hashes[1], "effects": {}, "refused": "no"},
            ],
            "examples": [{"client_hash": hashes[0], "kind": "life made shorter"}], "undo": "words",
        },
        operations_per_s=500,
    ).maintenance_run_id  # fmt: skip
    counts = {"queues treated": 1, "done: life made shorter": 3, "in the queue begun last: life made shorter": 3}
    runs.save_progress(run_id, ShardProgress(shard="queues", cursor=hashes[0], scanned=1, repaired=3, counts=counts))

    for _ in range(2):
        connection.execute(assets.read("sql", "migrations/0015_remedies_as_jobs.sql").encode())

    plan = load_plan(job_of("repair_ttl"), runs, run_id)
    asked = plan.parameters
    assert (asked.limit, asked.key_prefix, asked.max_operations_per_s) == (9, "tbmq:", 500)
    assert (asked.quality_run_id, asked.cohorts, asked.client_hashes) == ("q", "0-3", hashes)
    assert (plan.code_version, plan.as_of_ms, plan.share_names()) == ("0.1", 7, ["queues"])
    assert (plan.counts.queues, plan.counts.treated, plan.counts.changes) == (5, 1, 4)
    assert plan.found.to_mend == {hashes[0]: {"life made shorter": 4}}
    (progress,) = runs.progress(run_id)
    kept = job_of("repair_ttl").Counts(**progress.counts)
    assert (progress.cursor, kept.queues, kept.treated) == (hashes[0], 0, 1)
    assert kept.effects == kept.in_queue == {"life made shorter": 3}


def test_shard_is_worked_on_by_one_process_at_a_time(runs: MaintenanceRuns, connect: Callable[[], Connection]) -> None:
    run_id = save(runs).maintenance_run_id
    other = MaintenanceRuns(connect())
    with runs.shard_lock(run_id, "a:1"):
        with pytest.raises(RefusedError, match="another process works on a:1 for run"), other.shard_lock(run_id, "a:1"):
            raise AssertionError
        with other.shard_lock(run_id, "b:1"):
            pass
    with other.shard_lock(run_id, "a:1"):
        pass


def test_report_is_kept_and_the_newest_run_of_a_kind_is_found(runs: MaintenanceRuns) -> None:
    assert runs.latest_id() is None
    run_id = save(runs).maintenance_run_id
    other = save(runs, kind="unlink_orphans").maintenance_run_id
    runs.save_report(run_id, {"removed": 4})
    assert runs.load(run_id).report == {"removed": 4}
    assert runs.latest_id() == other
    assert runs.latest_id("repair_ttl") == run_id


def test_unknown_run_and_bad_throttle_are_refused(runs: MaintenanceRuns) -> None:
    with pytest.raises(UsageError, match="there is no run 'x': there is none yet in this database; plan first"):
        runs.load("x")
    run_id = save(runs).maintenance_run_id
    for call in (runs.control, lambda each: runs.set_paused(each, True), lambda each: runs.approve(each, "ada")):
        with pytest.raises(UsageError, match=f"there is no run 'x': the newest is {run_id}"):
            call("x")
    for bad in (0, -1, 2**31):
        words = f"^the rate is {bad}: write operations per second, 1 to 2,147,483,647, or none$"
        with pytest.raises(UsageError, match=words):
            runs.set_throttle(run_id, bad)


def test_connection_that_does_not_commit_is_refused(postgres_url: str) -> None:
    with (
        postgres.connect(postgres_url) as connection,
        pytest.raises(UsageError, match="need a connection with autocommit=True"),
    ):
        MaintenanceRuns(connection)

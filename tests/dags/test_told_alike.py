"""What a task returns is what its command writes as JSON: one record, of which XCom may leave out what is long."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from queuekeeper import postgres, schema_migrations
from queuekeeper.airflow.operators import jobs as job_tasks
from queuekeeper.airflow.operators import partitions as partition_tasks
from queuekeeper.airflow.operators import quality as quality_tasks
from queuekeeper.airflow.operators import report as migration_tasks
from queuekeeper.airflow.operators.jobs import ReportJobOperator, SummariseJobOperator
from queuekeeper.airflow.operators.online import (
    ArmCohortsOperator,
    CatchUpOperator,
    CommitOperator,
    MirrorOperator,
    OnlineOperator,
    RollBackOperator,
    SoakOperator,
)
from queuekeeper.airflow.operators.partitions import ApplyPartitionsOperator, PlanPartitionsOperator
from queuekeeper.airflow.operators.quality import ReportQualityOperator, RunQualityOperator
from queuekeeper.airflow.operators.repair import ReportRepairOperator
from queuekeeper.airflow.operators.report import ReportMigrationOperator
from queuekeeper.cli import app, context, partitions
from queuekeeper.cli.online import OnPlan
from queuekeeper.errors import CheckFailed
from queuekeeper.facts import brief, plain
from queuekeeper.jobs.engine import load_plan
from queuekeeper.jobs.findings import Status
from queuekeeper.jobs.registry import job_of
from queuekeeper.jobs.report import FinishedRun, PlannedRun
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.maintenance.partitions.model import (
    ApplyReport,
    PartitionPlan,
    Purpose,
    StepKind,
    StepOutcome,
    StepState,
    report_of,
)
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.migration.ledger.model import CopyReport, VerifyReport
from queuekeeper.migration.online.reports import MirrorReport, SoakReport, StepReport
from queuekeeper.migration.spark import job
from queuekeeper.quality.judge.run import QualityReport
from queuekeeper.quality.judge.store import Verdict
from queuekeeper.quality.profile.model import ProfileReport
from queuekeeper.redis_client import RedisClient
from tests import quality_samples, report_samples
from tests.run_kinds import JOBS, planned

pytestmark = pytest.mark.dags

ROOT = Path(__file__).resolve().parents[2]
FILES = {"html", "json", "sha256"}
"""Where a report is: each surface writes its own."""
SPARK = {
    "queuekeeper.migration.offline.plan:plan_migration": "plan_migration.py --run-id nightly | migrate plan",
    "queuekeeper.migration.offline.copy:copy_sessions": "copy_sessions.py --plan-id PLAN | migrate copy PLAN --yes",
    "queuekeeper.migration.offline.verify:verify_migration": "verify_migration.py --plan-id PLAN | migrate verify PLAN",
    "queuekeeper.quality.profile.stores:profile_redis": "profile_queues.py --store redis | quality profile",
}
"""What makes a record, the program that a task runs for it, and the command."""


@pytest.fixture
def control(
    stores: tuple[RedisClient, postgres.Connection], named_postgres: str, named_redis: str
) -> postgres.Connection:
    """Both stores, empty, known to tasks and commands alike."""
    schema_migrations.migrate(stores[1])
    return stores[1]


def called(*arguments: str) -> Any:
    """Return the JSON of a command, which may say that a check has failed."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.stdout.strip(), result.stderr
    return json.loads(result.stdout)


def alike(task: Any, command: Any, record: Any, *, but: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Hold that a task and a command tell one record.

    :param record: it, or its kind: it says itself what the task leaves out.
    :param but: names that are no part of it, or that each surface has found out for itself.
    """
    kept = json.loads(json.dumps(task))
    told = command.keys() - set(getattr(record, "at_length", ()))
    assert {name: kept[name] for name in kept.keys() - but} == {name: command[name] for name in told - but}


@pytest.fixture
def no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the pages out, which would have to know the task's run."""
    for module in (job_tasks, migration_tasks, quality_tasks):
        monkeypatch.setattr(module, "publish", lambda files, _: plain(files))


@pytest.mark.parametrize("kind", JOBS)
def test_report_of_a_run_is_the_same_record_from_task_and_command(
    control: postgres.Connection, no_pages: None, tmp_path: Path, kind: str
) -> None:
    run_id = planned(control, kind, tmp_path)

    operator = ReportRepairOperator if job_of(kind).dag == "session_repair" else ReportJobOperator
    task = operator(task_id="report", job=kind, maintenance_run_id=run_id, plan_only="False")

    # Each has looked at a time of its own, by which ages have grown.
    looks = {"generated_at_ms", "watch", "facts"}
    found, told = task.work({}), called("run", "report", run_id)
    alike(found, told, FinishedRun, but=FILES | looks)
    for name in looks - {"generated_at_ms"}:
        assert list(plain(found).get(name, ())) == list(told.get(name, ()))


def test_plan_of_a_cleanup_is_the_same_record_from_task_and_command(control: postgres.Connection) -> None:
    told = called("cleanup", "plan")

    task = SummariseJobOperator(
        task_id="summarise", job="expired_reference_cleanup", maintenance_run_id=told["maintenance_run_id"]
    ).execute({})

    job, run_id = job_of("expired_reference_cleanup"), told["maintenance_run_id"]
    plan = load_plan(job, MaintenanceRuns(control), run_id)
    alike(task, told, PlannedRun(job=job, maintenance_run_id=run_id, plan=plan), but={"markdown"})
    assert (task["empty"], task["counts"]) == (True, told["counts"])


def records() -> Iterator[Any]:
    evidence = report_samples.balanced(count=4)
    plan = replace(evidence.plan, parameters=replace(evidence.plan.parameters, throttle_messages_per_s=7))
    yield plan
    yield CopyReport(
        plan_id=plan.plan_id, cohorts=(0, 3), messages_written=5, messages_expired=1, sessions_written=2,
        sessions_unchanged=0, sessions_moved_on=0, script_calls=3, seconds=0.5,
    )  # fmt: skip
    yield VerifyReport(plan_id=plan.plan_id, ledger=evidence.rows, differences=0, digest="abcd", seconds=1.5)
    yield ProfileReport(
        profile_id="0123456789abcdef", store="redis", mode="full", cohorts=(0, 1), queues=3, messages=9, live=8,
        faulty_queues=1, seconds=0.25,
    )  # fmt: skip


@pytest.mark.parametrize(("made_by", "record"), list(zip(SPARK, records(), strict=True)), ids=list(SPARK.values()))
def test_last_line_of_a_spark_job_is_the_record_of_the_command(
    control: postgres.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], made_by: str, record: Any,
) -> None:  # fmt: skip
    plan_id = planned(control, "session_migration", tmp_path)
    program, command = (each.replace("PLAN", plan_id).split() for each in SPARK[made_by].split(" | "))

    @contextmanager
    def spark(*_: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(made_by.replace(":", "."), lambda *_, **__: record)
    monkeypatch.setattr(context, "spark", spark)
    monkeypatch.setattr(job, "end_with_supervisor", lambda: None)
    monkeypatch.setattr(job.Environment, "spark", lambda *_: None)
    monkeypatch.setattr(sys, "argv", program)
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "spark_jobs" / program[0]), run_name="__main__")
    line = json.loads(capsys.readouterr().out.splitlines()[-1])

    told = called(*command)

    [told] = told if isinstance(told, list) else [told]
    alike(line, told, record)
    assert len(line) > 6


STEPS: dict[str, tuple[type[OnlineOperator], dict[str, Any]]] = {
    "arm": (ArmCohortsOperator, {"require_trigger": False}),
    "verify": (CatchUpOperator, {}),
    "roll-back": (RollBackOperator, {"decision": None, "max_lag_s": 1}),
    "commit": (CommitOperator, {"decision": None}),
    "soak": (SoakOperator, {"soak_minutes": 0}),
    "mirror": (MirrorOperator, {"until": "approve_commit"}),
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_step_with_devices_connected_is_the_same_record_from_task_and_command(
    control: postgres.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    plan_id = planned(control, "online_migration", tmp_path)
    moved = StepReport(
        plan_id=plan_id, step=step, cohorts=(0,), clients=2, outcomes={"moved": 2}, written=5, removed=1, set_aside=0,
        fenced_p50_ms=1.5, fenced_p99_ms=2.5, fenced_longest_ms=3.0, seconds=0.5, examples=(("meter-7", "kept"),),
    )  # fmt: skip
    mirrored = MirrorReport(plan_id=plan_id, clients=2, behind=1, lag_s=0.5, written=1)
    soaked = SoakReport(plan_id=plan_id, clients=2, behind=0, lag_s=0.0, written=1, begun_ms=7, left_s=0.0)
    names = ("arm", "catch_up", "verify", "roll_back", "commit")
    does: Any = {name: lambda *_, **__: moved for name in names}
    does |= {name: lambda *_, **__: soaked for name in ("soak", "look_at_soak")}
    does |= {
        "mirror": lambda *_, **__: mirrored,
        "too_far_behind": lambda *_, **__: "",
        "committed_before": lambda *_: 1,
    }
    monkeypatch.setattr(OnPlan, "driver", lambda *_: SimpleNamespace(**does))
    kind, given = STEPS[step]
    if step != "roll-back":
        given = given | {"mode": "online", "lease_ms": 500}
    operator: OnlineOperator = kind(task_id="task", plan_id=plan_id, **given)

    told = called("online", step, plan_id, *(["--yes"] if step in ("roll-back", "commit") else []))

    alike(operator.step(SimpleNamespace(**does)), told, {"soak": soaked, "mirror": mirrored}.get(step, moved))  # type: ignore[arg-type]


def test_clients_that_a_step_leaves_over_are_counted_in_the_same_words_by_task_and_command(
    control: postgres.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_id = planned(control, "online_migration", tmp_path)
    left = StepReport(
        plan_id=plan_id, step="verify", cohorts=(0,), clients=1_203, outcomes={"moved": 1, "late": 1_200, "busy": 2},
        written=5, removed=1, set_aside=0, fenced_p50_ms=1.5, fenced_p99_ms=2.5, fenced_longest_ms=3.0, seconds=0.5,
    )  # fmt: skip
    driver: Any = SimpleNamespace(verify=lambda *_, **__: left, catch_up=lambda *_, **__: left)
    monkeypatch.setattr(OnPlan, "driver", lambda *_: driver)
    task = CatchUpOperator(task_id="task", plan_id=plan_id, mode="online", lease_ms=500)
    words = "not all clients are done: 1,200 late, 2 busy; they stay where they are: "

    with pytest.raises(CheckFailed, match=rf"^{words}clear this task to try again$"):
        task.step(driver)
    result = CliRunner().invoke(app, ["online", "verify", plan_id])

    assert result.exit_code == 1
    assert f"{words}run the command again" in " ".join(result.stderr.split())


def test_judgement_is_the_same_record_from_task_and_command(
    control: postgres.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = quality_samples.result("Q9", Status.FAILED, unexpected_count=3)
    report = QualityReport(
        quality_run_id="fedcba9876543210", verdict=Verdict.FAILED, mode="full", suites=("events",), profile_ids=(),
        stores=("redis",),
        results=(found, quality_samples.result("Q1")), not_judged=("Q12",), senseless=("Q1 makes no sense",),
        overdue=quality_samples.failed().known_issues[:1], queues=3, messages=9, seconds=1.25,
    )  # fmt: skip
    monkeypatch.setattr("queuekeeper.quality.judge.run.run_quality", lambda **_: report)
    run = SimpleNamespace(dag_id="queue_quality", run_id="run", logical_date=None, run_after=quality_samples.NOW)
    task = RunQualityOperator(task_id="check", profiles=[])
    task.parameters = {"stores": "events"}

    told = called("quality", "run", "--store", "events")

    done = task.execute({"dag_run": run})
    # Only Airflow knows its connections, and so the form whole.
    forms = {"remedy_conf", "remedy_url", "trigger"}
    alike(done, told, QualityReport, but={"findings"})
    for in_task, in_command in zip(done["findings"], told["findings"], strict=True):
        alike(in_task, in_command, found, but=forms)
    assert told["results"][0]["advice"]
    assert told["findings"] == [plain(found.summary())]


def test_published_report_is_the_same_record_from_task_and_command(
    control: postgres.Connection, no_pages: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from queuekeeper.quality.report import gather

    plan_id = planned(control, "session_migration", tmp_path)
    judged = gather.compose_report(quality_samples.failed(), now_ms=quality_samples.NOW_MS)
    monkeypatch.setattr(gather, "build_report", lambda *_, **__: judged)
    run_id = judged.quality_run_id

    migration = ReportMigrationOperator(task_id="report", plan_id=plan_id).execute({})
    quality = ReportQualityOperator(task_id="report", quality_run_id=run_id).execute({})

    alike(migration, called("migrate", "report", plan_id), None, but=FILES)
    alike(quality, called("quality", "report", run_id), judged, but=FILES)


def test_plan_of_partitions_is_the_same_record_from_task_and_command(
    control: postgres.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = PartitionPolicy(table="public.readings", step="1 day", ahead="7 days")

    def made(*_: Any, purpose: Purpose, **__: Any) -> PartitionPlan:
        return PartitionPlan(purpose=purpose, table=policy.table, table_oid=7, policy=policy, as_of_ms=1_000, steps=())

    for module in (partition_tasks, partitions):
        monkeypatch.setattr(module, "plan_for", made)
        monkeypatch.setattr(module, "load_policy", lambda *_: policy)

    [told, *_] = called("partitions", "plan", policy.table)["plans"]
    task = PlanPartitionsOperator(
        task_id="plan", table=policy.table, purpose="creation", plan_only="True", override_consumers="False"
    ).execute({})

    alike(task, told, PartitionPlan)
    assert (told["empty"], told["bytes"]) == (True, 0)


def test_what_became_of_partitions_is_the_same_record_from_task_and_command(
    control: postgres.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = PartitionPolicy(table="public.readings", step="1 day", ahead="7 days")
    plan = PartitionPlan(
        purpose=Purpose.CREATION, table=policy.table, table_oid=7, policy=policy, as_of_ms=1_000, steps=()
    )
    step = StepOutcome(kind=StepKind.CREATE, partition="public.readings_p1", state=StepState.DONE, attempts=2)
    report = ApplyReport(purpose=Purpose.CREATION, table=policy.table, outcomes=(step,), seconds=0.5)
    for module in (partition_tasks, partitions):
        monkeypatch.setattr(module, "carry_out", lambda *_, **__: report)
    monkeypatch.setattr(partitions, "plan_for", lambda *_, **__: plan)
    monkeypatch.setattr(partitions, "load_policy", lambda *_: policy)
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=lambda *, key, value: pushed.update({key: value}))
    context: Any = {"dag_run": SimpleNamespace(run_id="run"), "ti": ti}
    task = ApplyPartitionsOperator(task_id="create", planned=plain(plan), plan_only="False")

    [told] = called("partitions", "create", policy.table)["reports"]
    done = task.execute(context)

    alike(done, told, ApplyReport)
    # A task that fails leaves it, too.
    assert pushed == {partition_tasks.OUTCOME: done}
    assert report_of(json.loads(json.dumps(done))) == report


def test_few_lines_leave_out_what_is_told_at_length() -> None:
    report = next(each for each in records() if isinstance(each, VerifyReport))

    assert plain(report).keys() - brief(report).keys() == {"ledger"}
    assert all(row["unaccounted"] == 0 for row in plain(report)["ledger"])

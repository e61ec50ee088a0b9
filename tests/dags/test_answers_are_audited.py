"""Whatever a person answers in Airflow stands in the audit, and on the page of evidence of every DAG."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.definitions._internal import contextmanager as airflow_context

from queuekeeper import __version__, audit, postgres
from queuekeeper.airflow import operators
from queuekeeper.clock import system_clock
from queuekeeper.errors import RefusedError, StalePlan
from queuekeeper.jobs.engine import save_plan
from queuekeeper.jobs.model import Plan
from queuekeeper.jobs.store import MaintenanceRuns, RunState
from queuekeeper.maintenance.cleanup.expired_references import Cleanup
from queuekeeper.maintenance.cleanup.model import KIND, CleanupCounts, CleanupFound, CleanupParameters
from queuekeeper.maintenance.remedies.model import RemedyCounts, RemedyFound, RemedyParameters
from queuekeeper.maintenance.remedies.repair_ttl import RepairTtl
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import PlanState
from queuekeeper.postgres import Connection
from tests import report_samples
from tests.dags.test_plugin_stores import World

pytestmark = pytest.mark.dags

RUN = "manual__1"
AT = "2026-11-24T10:00:00+00:00"
NO = {"chosen_options": ["Reject"], "responded_by_user": {"id": "1", "name": "ada"}, "responded_at": AT}
LATE = {"chosen_options": ["Reject"], "responded_by_user": None, "responded_at": AT, "timedout": True}


@pytest.fixture
def control(
    postgres_url: str, valkey_url: str, control_schema: None, connections: Callable[..., None]
) -> Iterator[Connection]:
    """Schema ``queuekeeper``, named by the connections of the tasks."""
    connections(queuekeeper_postgres=postgres_url, queuekeeper_redis=valkey_url)
    with postgres.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def in_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Work as a task of a run of some DAG, as Airflow's task runner says it."""

    def begin(dag_id: str) -> Any:
        run = SimpleNamespace(dag_id=dag_id, run_id=RUN, triggering_user_name="bob", conf={})
        context: Any = {"dag_run": run, "dag": SimpleNamespace(params={}), "params": {}}
        monkeypatch.setattr(airflow_context, "_CURRENT_CONTEXT", [context])
        return context

    return begin


def _asking() -> dict[str, type[BaseOperator]]:
    """Return the operators that act on an answer."""
    found: dict[str, type[BaseOperator]] = {}
    for module in pkgutil.iter_modules(operators.__path__):
        for each in vars(importlib.import_module(f"{operators.__name__}.{module.name}")).values():
            if isinstance(each, type) and issubclass(each, BaseOperator) and "decision" in each.template_fields:
                found[each.__name__] = each
    # What several tasks have in common is no task.
    return {name: each for name, each in found.items() if not each.__subclasses__()}


ASKING = _asking()
DAGS = {
    "CheckApprovalOperator": "session_migration",
    "CommitOperator": "session_migration",
    "RollBackOperator": "session_rollback",
    "CheckJobApprovalOperator": "expired_reference_cleanup",
    "ApplyRepairOperator": "session_repair",
    "ApplyApprovedOperator": "partition_maintenance",
    "VerifyArchivesOperator": "partition_maintenance",
}
"""Operator that acts on an answer -> DAG in which it does."""


def planned(connection: Connection, name: str) -> tuple[str, dict[str, Any]]:
    """Return what was asked about, and the arguments of the task that acts on the answer."""
    runs = MaintenanceRuns(connection)
    if name in ("CheckApprovalOperator", "CommitOperator", "RollBackOperator"):
        found = replace(report_samples.balanced(count=4).plan, state=PlanState.PLANNED)
        plan = MigrationLedger(connection).save_plan(found, run_id=RUN)
        values: dict[str, Any] = {"plan_id": plan.plan_id}
        values |= {
            "CheckApprovalOperator": {"run_id": RUN, "copy_groups": "2"},
            "CommitOperator": {"mode": "online", "lease_ms": "1000"},
            "RollBackOperator": {"lease_ms": "1000", "max_lag_s": "10"},
        }[name]
        return plan.plan_id, values
    if name in ("CheckJobApprovalOperator", "ApplyRepairOperator"):
        is_cleanup = name == "CheckJobApprovalOperator"
        made: Any = Plan(
            parameters=CleanupParameters() if is_cleanup else RemedyParameters(),
            code_version=__version__,
            as_of_ms=system_clock(),
            shares=(),
            counts=CleanupCounts() if is_cleanup else RemedyCounts(),
            found=CleanupFound() if is_cleanup else RemedyFound(),
            steps=(),
            seconds=0.0,
        )
        run_id = save_plan(Cleanup if is_cleanup else RepairTtl, runs, made).maintenance_run_id
        return run_id, {"job": KIND, "maintenance_run_id": run_id} if is_cleanup else {"run_id": run_id}
    facts = {"as_of_ms": system_clock(), "code_version": __version__}
    run_id = runs.save_plan(kind="partition_drop", parameters={}, plan=facts).maintenance_run_id
    return run_id, {"asked": run_id, "planned": {"question": run_id, "table": "t", "plan": ""}, "plan_only": "False"}


def test_every_task_that_acts_on_an_answer_is_held_to_the_audit() -> None:
    assert set(ASKING) == set(DAGS)


@pytest.mark.parametrize(("decision", "action", "actor"), [(NO, "reject", "ada"), (LATE, "unanswered", "nobody")])
@pytest.mark.parametrize("name", DAGS)
def test_answer_stands_in_the_audit_once_and_on_the_page_of_evidence(
    control: Connection,
    in_run: Callable[[str], Any],
    tmp_path: Path,
    postgres_url: str,
    valkey_url: str,
    name: str,
    decision: dict[str, Any],
    action: str,
    actor: str,
) -> None:
    context = in_run(DAGS[name])
    subject, values = planned(control, name)

    # A task that is tried again reads the same answer.
    for _ in range(2):
        with pytest.raises(RefusedError, match="rejected"):
            ASKING[name](task_id="task", decision=decision, four_eyes="False", **values).execute(context)

    (entry,) = audit.latest(control, wanted=audit.AuditFilter(subject=subject))
    assert (entry.actor, entry.action) == (actor, action)
    # A no to the last step of a migration, or to its way back, is none to the plan.
    is_about_plan = name not in ("CommitOperator", "RollBackOperator")
    assert MaintenanceRuns(control).load(subject).state is (RunState.REJECTED if is_about_plan else RunState.PLANNED)
    effect = json.loads(entry.effect)
    assert (effect["dag_id"], effect["run_id"]) == (DAGS[name], RUN)
    assert datetime.fromisoformat(effect["answered_at"]) == datetime(2026, 11, 24, 10, tzinfo=UTC)

    world = World(tmp_path, control, postgres_url, valkey_url)
    world.asked[f"/dagRuns/{RUN}"] = {"state": "running"}
    query = {"dag_id": DAGS[name], "run_id": RUN, "task_id": "task"}
    page = world.browser.get("/task", params=query, page=True)
    assert page.status_code == 200
    assert f'<td class="text">{actor}</td>' in page.text
    assert f'<td class="text">{action}</td>' in page.text
    other = world.browser.get("/task", params=query | {"dag_id": "queue_quality"}, page=True)
    assert f"<code>{subject}</code>" not in other.text


@pytest.mark.parametrize("name", DAGS)
def test_with_four_eyes_an_approval_by_who_triggered_the_run_counts_nowhere(
    control: Connection, in_run: Callable[[str], Any], name: str
) -> None:
    context = in_run(DAGS[name])
    subject, values = planned(control, name)
    yes = {"chosen_options": ["Approve"], "responded_by_user": {"name": "ada"}, "responded_at": datetime.now(UTC)}

    for triggered_by in ("ada", None):
        context["dag_run"].triggering_user_name = triggered_by
        with pytest.raises(RefusedError, match="with four eyes these have to be two persons"):
            ASKING[name](task_id="task", decision=yes, four_eyes="True", **values).execute(context)

    assert MaintenanceRuns(control).load(subject).approved_by is None


@pytest.mark.parametrize("name", sorted(set(DAGS.values())))
def test_form_of_every_dag_that_asks_has_four_eyes(dag_bag: Any, name: str) -> None:
    assert dag_bag.dags[name].params.get_param("four_eyes").value is False


def test_evidence_has_what_others_do_to_a_run_that_asks_nobody(
    control: Connection, in_run: Callable[[str], Any], tmp_path: Path, postgres_url: str, valkey_url: str
) -> None:
    in_run("compacted_queue_gc")
    runs = MaintenanceRuns(control)
    run_id = runs.save_plan(kind="compacted_queue_gc", parameters={}, plan={"as_of_ms": 1}).maintenance_run_id
    airflow_context._CURRENT_CONTEXT.clear()
    # Somebody at the command line, who is in no task.
    runs.set_paused(run_id, True, actor="eve")
    runs.save_report(run_id, {"messages": 17})

    world = World(tmp_path, control, postgres_url, valkey_url)
    world.asked[f"/dagRuns/{RUN}"] = {"state": "running"}
    page = world.browser.get(
        "/task", params={"dag_id": "compacted_queue_gc", "run_id": RUN, "task_id": "collect"}, page=True
    )

    for words in ("eve", "pause", "apply", "messages: 17"):
        assert words in page.text


def test_approval_of_the_last_minute_counts_when_its_task_runs_late_and_none_counts_for_an_old_plan(
    control: Connection, in_run: Callable[[str], Any]
) -> None:
    context = in_run("expired_reference_cleanup")
    run_id, values = planned(control, "CheckJobApprovalOperator")
    hour_ms, days_ms = 3_600_000, 8 * 86_400_000
    check = ASKING["CheckJobApprovalOperator"]

    def answered(*, planned_ago_ms: int, answered_ago_ms: int) -> Any:
        now_ms = system_clock()
        control.execute(
            "UPDATE queuekeeper.maintenance_runs SET plan = jsonb_set(plan, '{as_of_ms}', to_jsonb(%s::bigint))",
            (now_ms - planned_ago_ms,),
        )
        at = datetime.fromtimestamp((now_ms - answered_ago_ms) / 1_000, UTC)
        decision = {"chosen_options": ["Approve"], "responded_by_user": {"name": "ada"}, "responded_at": at}
        return check(task_id="check_approval", decision=decision, four_eyes="False", **values).execute(context)

    with pytest.raises(StalePlan, match="before it was approved, and a plan counts for 8 days: plan again"):
        answered(planned_ago_ms=days_ms + hour_ms, answered_ago_ms=0)
    assert MaintenanceRuns(control).load(run_id).approved_by is None

    assert answered(planned_ago_ms=days_ms + hour_ms, answered_ago_ms=2 * hour_ms) == []
    stored = MaintenanceRuns(control).load(run_id)
    assert stored.approved_by == "ada"
    # Both answers stand in the audit, also the one that did not count.
    assert len(audit.latest(control, wanted=audit.AuditFilter(subject=run_id, action="approve"))) == 2
    assert stored.kind == KIND


def test_answer_that_is_older_than_the_plan_approves_nothing(control: Connection, in_run: Callable[[str], Any]) -> None:
    context = in_run("expired_reference_cleanup")
    run_id, values = planned(control, "CheckJobApprovalOperator")
    # Somebody has cleared the plan's task alone, and so nobody was asked about the new plan.
    planned_at_ms = MaintenanceRuns(control).load(run_id).standing.planned_at_ms

    def check(at_ms: int) -> Any:
        at = datetime.fromtimestamp(at_ms / 1_000, UTC)
        decision = {"chosen_options": ["Approve"], "responded_by_user": {"name": "ada"}, "responded_at": at}
        task = ASKING["CheckJobApprovalOperator"](
            task_id="check_approval", decision=decision, four_eyes="False", **values
        )
        return task.execute(context)

    with pytest.raises(StalePlan, match="was planned 2 h 00 min after ada had answered, so the answer is about an ear"):
        check(planned_at_ms - 7_200_000)
    assert MaintenanceRuns(control).load(run_id).approved_by is None

    # Clocks differ a little.
    assert check(planned_at_ms - 20_000) == []
    assert MaintenanceRuns(control).load(run_id).approved_by == "ada"

"""A task that a person has marked as a success left nothing: no run goes on as if there had been nothing to do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, XComArg
from jinja2 import UndefinedError

from queuekeeper.airflow.defaults import START
from queuekeeper.airflow.operators.approval import ApprovePlanOperator
from queuekeeper.airflow.operators.jobs import RUN_KEY, CheckJobApprovalOperator, PlanJobOperator, ReportJobOperator
from queuekeeper.airflow.operators.quality import RunQualityOperator
from queuekeeper.airflow.operators.report import ReportMigrationOperator
from queuekeeper.errors import UsageError
from queuekeeper.events.schema import install
from queuekeeper.schema_migrations import migrate
from tests.dags.runs import states

if TYPE_CHECKING:
    from tests.dags.conftest import Stores

pytestmark = pytest.mark.dags

DAGS = Path(__file__).resolve().parents[2] / "dags"


def context_of(*succeeded: str) -> Any:
    """Return the context of a run in which these tasks have succeeded, and no task has left anything."""
    ti = SimpleNamespace(
        dag_id="dag",
        map_index=-1,
        xcom_pull=lambda task_ids, key="return_value", default=None, map_indexes=None: default,
        get_ti_count=lambda _, task_ids, **__: len(set(task_ids) & set(succeeded)),
        get_relevant_upstream_map_indexes=lambda **_: None,
    )
    return {"ti": ti, "dag_run": SimpleNamespace(dag_id="dag", run_id="by hand"), "params": {"empty": None}}


@pytest.fixture
def tasks() -> dict[str, Any]:
    """Tasks that take what an earlier one returns, or leaves under a key: by itself, in a list, in a text."""
    with DAG("dag", start_date=START, schedule=None):
        plan = PlanJobOperator(task_id="plan", job="fanout_repair")
        approve = ApprovePlanOperator(task_id="approve", subject="?", body="")
        given: dict[str, Any] = {"job": "fanout_repair", "four_eyes": "False"}
        text = "{{ ti.xcom_pull(task_ids='plan')['plan_id'] }}"
        return {
            "by a key": ReportJobOperator(
                task_id="key", plan_only="False", job="fanout_repair", maintenance_run_id=XComArg(plan, key=RUN_KEY)
            ),
            "in a list": RunQualityOperator(task_id="list", profiles=[plan.output], parameters={}),
            "in a text": ReportMigrationOperator(task_id="text", plan_id=text),
            "answer": CheckJobApprovalOperator(task_id="c", maintenance_run_id="1", decision=approve.output, **given),
        }


def rendered(task: Any, *names: str, context: Any) -> Any:
    task.template_fields = names
    task.render_template_fields(context)
    return [getattr(task, name) for name in names]


@pytest.mark.parametrize(
    ("task", "name"), [("by a key", "maintenance_run_id"), ("in a list", "profiles"), ("in a text", "plan_id")]
)
def test_task_says_who_has_left_nothing_and_what_to_do(tasks: dict[str, Any], task: str, name: str) -> None:
    words = r"^task 'plan' has left nothing .*marks a task as a success: clear it with its downstream tasks"
    with pytest.raises(UsageError, match=words):
        rendered(tasks[task], name, context=context_of("plan"))


def test_what_a_failed_or_skipped_task_has_not_left_is_not_missed(tasks: dict[str, Any]) -> None:
    assert rendered(tasks["by a key"], "maintenance_run_id", context=context_of()) == [None]
    assert rendered(tasks["in a list"], "profiles", context=context_of()) == [[None]]
    # The task that acts on an answer puts on record that there is none.
    assert rendered(tasks["answer"], "decision", context=context_of("approve")) == [None]


@pytest.mark.parametrize(("given", "words"), [("params.absent.more", "absent"), ("params.empty.more", "more")])
def test_what_the_form_does_not_have_is_not_taken_for_it(tasks: dict[str, Any], given: str, words: str) -> None:
    tasks["in a text"].plan_id = f"{{{{ {given} }}}}"
    with pytest.raises(UndefinedError, match=words):
        rendered(tasks["in a text"], "plan_id", context=context_of("plan"))


def marked(dag_id: str, task_ids: str) -> Any:
    """Run a DAG, some of whose tasks are marked as a success instead of being run."""
    dag = DagBag(str(DAGS / f"{dag_id}.py")).dags[dag_id]
    for task in dag.tasks:
        task.retries, task.retry_policy = 0, None
    return dag.test(mark_success_pattern=task_ids)


@pytest.mark.nightly
@pytest.mark.usefixtures("airflow_database")
@pytest.mark.parametrize(
    ("dag_id", "task_ids", "failed"),
    [
        ("event_upkeep", "plan", {"expire_subscriptions", "reenqueue_events", "report"}),
        ("event_upkeep", "report", {"upkept"}),
        ("fanout_repair", "plan", {"report"}),
        ("expired_reference_cleanup", "plan", {"summarise_plan"}),
        ("expired_reference_cleanup", "summarise_plan", {"approve"}),
        ("partition_maintenance", "list_tables", {"report"}),
        ("queue_quality", "profile_.*", {"check"}),
    ],
)
def test_run_is_red_where_a_task_was_marked(stores: Stores, dag_id: str, task_ids: str, failed: set[str]) -> None:
    _, connection = stores
    install(connection)
    migrate(connection)

    run = marked(dag_id, task_ids)

    assert run.state == "failed"
    assert {task for task, found in states(run).items() if "failed" in found} == failed

"""Arguments that models declare are taken like all others of an operator: by name, from a DAG, by mapped tasks."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
from airflow.sdk import DAG

from queuekeeper.airflow.defaults import START
from queuekeeper.airflow.forms import template
from queuekeeper.airflow.operators.jobs import ApplyJobShareOperator, PlanJobOperator
from queuekeeper.airflow.operators.online import RollBackOperator, SoakOperator
from queuekeeper.airflow.operators.partitions import (
    ApplyPartitionsOperator,
    ListPartitionedTablesOperator,
    PlanArchiveOperator,
    PlanPartitionsOperator,
    RegisterArchivesOperator,
)
from queuekeeper.airflow.operators.quality import ProfileQueuesOperator
from queuekeeper.airflow.operators.store_call import StoreCallOperator
from queuekeeper.errors import UsageError
from queuekeeper.maintenance.partitions.wishes import PartitionWish
from queuekeeper.migration.ledger.parameters import Lease, OnlineWish

pytestmark = pytest.mark.dags


def test_what_a_task_says_comes_before_its_dag_and_that_before_the_form() -> None:
    with DAG("dag", start_date=START, schedule=None, default_args={"soak_minutes": 5, "lease_ms": "200"}):
        plain = SoakOperator(task_id="plain", plan_id="plan")
        own = SoakOperator(task_id="own", plan_id="plan", soak_minutes="7.5")
    alone = SoakOperator(task_id="alone", plan_id="plan")

    assert (plain.read(OnlineWish).soak_minutes, plain.read(Lease).lease_ms) == (5.0, 200)
    assert (own.read(OnlineWish).soak_minutes, own.read(Lease).lease_ms) == (7.5, 200)
    alone.render_template_fields({"params": {"soak_minutes": 3.0, "lease_ms": 100, "mode": "online"}})
    assert (alone.read(OnlineWish).soak_minutes, alone.read(Lease).lease_ms) == (3.0, 100)


def test_mapped_task_may_say_it_for_all_and_for_each() -> None:
    with DAG("dag", start_date=START, schedule=None):
        task = PlanPartitionsOperator.partial(
            task_id="plan", purpose="retirement", plan_only=False, override_consumers="True"
        ).expand(table=["a", "b"])
        each = PlanPartitionsOperator.partial(task_id="each", purpose="retirement", table="a").expand(
            override_consumers=[True, False]
        )

    for found, wanted in ((task.unmap({"table": "a"}), True), (each.unmap({"override_consumers": False}), False)):
        assert isinstance(found, PlanPartitionsOperator)
        assert found.read(PartitionWish).override_consumers is wanted


def test_answer_of_another_task_is_waited_for() -> None:
    with DAG("dag", start_date=START, schedule=None):
        first = SoakOperator(task_id="first", plan_id="plan")
        task = RollBackOperator(task_id="task", plan_id="plan", decision=None, max_lag_s=first.output)

    assert task.upstream_task_ids == {"first"}


def test_what_has_to_be_given_is_missed_by_name_and_the_rest_is_what_the_class_says() -> None:
    with pytest.raises(TypeError, match="missing keyword argument 'decision'"):
        RollBackOperator(task_id="task", plan_id="plan")
    with pytest.raises(TypeError, match="missing keyword argument 'plan_id'"):
        SoakOperator(task_id="task")

    assert (list(RollBackOperator.template_fields).count("mode"), "decision" in SoakOperator.template_fields) == (
        1,
        False,
    )
    task = RollBackOperator(task_id="task", plan_id="plan", decision=None)
    assert (task.mode, SoakOperator(task_id="task", plan_id="plan").mode) == ("online", template("mode"))


@pytest.mark.parametrize(
    ("operator", "given", "words"),
    [
        (StoreCallOperator, {"call": "sessions.wrong"}, "there is no call 'sessions.wrong': name one of"),
        (
            StoreCallOperator,
            {"call": "sessions.inspect", "arguments": {"client": "a"}},
            "unknown parameter 'client' .did you mean 'client_id'",
        ),
        (PlanJobOperator, {"job": "wrong"}, "there is no job 'wrong': there are "),
        (PlanJobOperator, {"job": "fanout_repair", "parameters": {"queue": "a"}}, "unknown parameter 'queue'"),
        (ApplyJobShareOperator, {"job": "wrong", "maintenance_run_id": "1"}, "there is no job 'wrong': there are "),
        (PlanPartitionsOperator, {"purpose": "create"}, "purpose is 'create': it must be one of creation, "),
        (ProfileQueuesOperator, {"spark_jobs": "", "application": "a.py"}, "takes no application: the job names"),
    ],
)
def test_mapped_tasks_are_refused_while_the_dag_is_read_as_a_single_task_is(
    operator: Any, given: dict[str, Any], words: str
) -> None:
    with DAG("dag", start_date=START, schedule=None):
        with pytest.raises(UsageError, match=words):
            operator.partial(task_id="mapped", **given)
        left = {"table": "a", "arguments": {}, "share": "a", "store": "redis"}
        with pytest.raises(UsageError, match=words):
            operator(task_id="single", **{name: left[name] for name in left if name in _names(operator)} | given)


def _names(operator: Any) -> set[str]:
    return set(signature(operator.__init__).parameters) | set(getattr(operator, "asks", ()))


@pytest.mark.parametrize("operator", [ApplyPartitionsOperator, PlanArchiveOperator, RegisterArchivesOperator])
def test_task_of_partitions_without_its_table_or_plan_is_refused_while_the_dag_is_read(operator: Any) -> None:
    with pytest.raises(TypeError, match=r"missing keyword argument '(planned|table)'"):
        operator(task_id="task")
    with pytest.raises(TypeError, match="planned"):
        ListPartitionedTablesOperator(task_id="task", planned={})


def test_what_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="soak_minuts"):
        SoakOperator(task_id="task", plan_id="plan", soak_minuts=5)
    with pytest.raises(UsageError, match=r"^lease_ms is 5: it must be an integer from 50 to 1,000$"):
        SoakOperator(task_id="task", plan_id="plan", lease_ms="5").read(Lease)

"""Arguments that models declare are taken like all others of an operator: by name, from a DAG, by mapped tasks."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG

from queuekeeper.airflow.defaults import START
from queuekeeper.airflow.forms import template
from queuekeeper.airflow.operators.online import RollBackOperator, SoakOperator
from queuekeeper.airflow.operators.partitions import PlanPartitionsOperator
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


def test_what_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="soak_minuts"):
        SoakOperator(task_id="task", plan_id="plan", soak_minuts=5)
    with pytest.raises(UsageError, match=r"^lease_ms is 5: it must be an integer from 50 to 1,000$"):
        SoakOperator(task_id="task", plan_id="plan", lease_ms="5").read(Lease)

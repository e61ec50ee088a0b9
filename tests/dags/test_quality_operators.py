"""Tasks of ``queue_quality`` one by one: its wiring, its form, what a turn is, and what keeps dependents waiting."""

from __future__ import annotations

import copy
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, ParamValidationError

from queuekeeper import postgres
from queuekeeper.airflow.assets import SESSION_QUALITY
from queuekeeper.airflow.operators.quality import (
    ProfileQueuesOperator,
    PublishQualityOperator,
    id_of,
)
from queuekeeper.airflow.run_index import forms_url
from queuekeeper.clock import system_clock
from queuekeeper.errors import UsageError
from queuekeeper.jobs.checks import CHECKS
from queuekeeper.jobs.parameters import describe
from queuekeeper.quality.judge.store import QualityStore, Verdict
from queuekeeper.quality.profile.model import ProfileParameters, ProfilePlace, ProfileRules, QualityWish, turn_of
from queuekeeper.quality.report.gather import FORMS_PATH

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

pytestmark = pytest.mark.dags

FINDING = {
    "check": "Q11", "priority": "P0", "status": "failed", "description": "The counter is not behind.", "unexpected": 5,
    "remedy": "session_repair",
}  # fmt: skip
WARNING = FINDING | {"check": "Q9", "priority": "P1"}


@pytest.fixture
def dag(dag_bag: DagBag) -> DAG:
    return copy.deepcopy(dag_bag.dags["queue_quality"])


@pytest.fixture
def control(postgres_url: str, control_schema: None, connections: Callable[..., None]) -> str:
    """A control schema that Airflow's connection names."""
    connections(queuekeeper_postgres=postgres_url)
    return postgres_url


def context_of(dag: DAG, **conf: Any) -> Any:
    run = SimpleNamespace(
        dag_id="queue_quality", run_id="manual__1", conf=conf, logical_date=None,
        run_after=datetime(2026, 3, 1, 13, 50, tzinfo=UTC),
    )  # fmt: skip
    return {"dag_run": run, "dag": dag, "outlet_events": {SESSION_QUALITY: SimpleNamespace(extra={})}}


def test_it_is_wired_as_it_is_drawn(dag: DAG) -> None:
    assert {task.task_id: set(task.upstream_task_ids) for task in dag.tasks} == {
        "profile_redis": set(),
        "profile_postgres": set(),
        "check": {"profile_redis", "profile_postgres"},
        "report": {"check"},
        "publish": {"check", "report"},
    }
    # What dependents wait for comes from the task that fails for what is critical, and from no other.
    assert {task.task_id for task in dag.tasks if SESSION_QUALITY in task.outlets} == {"publish"}


def test_its_schedule_comes_paused_and_covers_all_turns_of_a_day(dag: DAG) -> None:
    assert dag.is_paused_upon_creation is True
    first = datetime(2026, 3, 1, tzinfo=UTC)
    assert [turn_of(first + timedelta(minutes=15 * turn)) for turn in range(96)] == list(range(96))
    assert turn_of(datetime(2026, 3, 2, tzinfo=UTC) - timedelta(seconds=1)) == 95


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("suite", "slow"), ("stores", "all"), ("cohorts", "1;2"), ("cohorts", ""), ("cohort_count", 0),
        ("cohort_count", 16_385), ("turn", 96), ("turn", -1), ("contents", "yes"), ("limit", 0), ("limit", 65_536),
        ("default_ttl_s", 0), ("max_payload_bytes", 0), ("throttle_references_per_s", 0), ("key_prefix", "{a}"),
        ("redis_conn_id", "{{ conn.x.password }}"), ("compare", "yes"), ("sample_percent", 0), ("sample_percent", 101),
        ("parquet_directory", "relative"), ("parquet_directory", "/{{ conn.x.password }}"),
    ],
)  # fmt: skip
def test_form_refuses_what_no_profile_could_honour(dag: DAG, name: str, value: Any) -> None:
    with pytest.raises(ParamValidationError, match=f"Invalid input for param {name}"):
        dag.params[name] = value


def test_defaults_are_those_of_the_profile_itself(dag: DAG) -> None:
    params, defaults = dag.params.dump(), ProfileParameters()

    assert params["cohorts"] == defaults.cohorts
    assert params["cohort_count"] == defaults.cohort_count
    assert params["sample_percent"] == defaults.sample_percent
    assert params["parquet_directory"] is None
    assert params["limit"] == defaults.limit
    assert params["default_ttl_s"] == defaults.default_ttl_s
    assert params["max_payload_bytes"] == defaults.max_payload_bytes
    assert params["contents"] is defaults.contents
    assert params["turn"] is None


def wishes(**said: str) -> dict[str, str]:
    """Return a whole form as Airflow renders it: what is said, and the defaults."""
    models = (QualityWish, ProfileRules)
    return {name: each.to_text(each.default) for model in models for name, each in describe(model).items()} | said


def test_profile_of_a_store_that_the_run_is_not_about_is_skipped(dag: DAG) -> None:
    task = ProfileQueuesOperator(task_id="p", store="postgres", parameters=wishes(stores="redis"), spark_jobs="absent")

    with pytest.raises(AirflowSkipException):
        task.execute(context_of(dag))
    with pytest.raises(UsageError, match=r"unknown parameter 'sute' \(did you mean 'suite'\?\)"):
        task.execute(context_of(dag, sute="full"))


def test_what_could_not_be_judged_is_refused_before_it_is_read(dag: DAG) -> None:
    asked = wishes(stores="redis", compare="True")
    task = ProfileQueuesOperator(task_id="p", store="redis", parameters=asked, spark_jobs="absent")

    with pytest.raises(UsageError, match="suite source_against_target needs a profile of postgres"):
        task.execute(context_of(dag))


def test_profile_reads_the_turn_of_its_time_unless_the_form_names_one(dag: DAG) -> None:
    given: dict[str, Any] = {"task_id": "p", "store": "redis", "spark_jobs": "absent"}
    asked = wishes(
        stores="both", suite="fast", contents="True", limit="7", default_ttl_s="8", max_payload_bytes="9",
        sample_percent="10",
    )  # fmt: skip
    context = context_of(dag)

    def taken(asked: dict[str, str]) -> tuple[ProfilePlace, ProfileParameters]:
        """Return what the Spark job makes of the operator's arguments."""
        parser = ArgumentParser()
        for model in (ProfilePlace, ProfileParameters):
            model.declare(parser)
        arguments = vars(parser.parse_args(ProfileQueuesOperator(parameters=asked, **given).arguments(context)))
        return ProfilePlace.take(arguments), ProfileParameters.take(arguments)

    place, by_time = taken(asked)
    assert place == ProfilePlace(store="redis", profile_id=id_of(context, "redis"))
    assert by_time == ProfileParameters(
        mode="fast", turn=55, contents=True, limit=7, default_ttl_s=8, max_payload_bytes=9, sample_percent=10
    )
    place, by_form = taken(asked | {"turn": "0", "parquet_directory": "/srv/profiles"})
    assert place.parquet_directory == "/srv/profiles"
    assert by_form == replace(by_time, turn=0)
    assert taken(asked | {"parquet_directory": "s3://bucket/profiles"})[0].parquet_directory == "s3://bucket/profiles"
    with pytest.raises(UsageError, match=r"^profiles are in an object store \(gs://\), which takes"):
        taken(asked | {"parquet_directory": "gs://bucket/profiles"})


def test_profile_that_spark_would_refuse_is_refused_before_spark_starts(dag: DAG) -> None:
    few = wishes(suite="fast", cohorts="0-3")

    with pytest.raises(UsageError, match="cohorts '0-3' are 4: a fast profile reads one in 96"):
        ProfileQueuesOperator(task_id="p", store="redis", parameters=few, spark_jobs="absent").arguments(
            context_of(dag)
        )


def test_critical_finding_keeps_dependents_waiting_and_says_what_it_is(dag: DAG) -> None:
    judgement = {"quality_run_id": "q", "verdict": "failed", "stores": ["redis"], "findings": [FINDING, WARNING]}
    context = context_of(dag)

    told = r"Q11 failed, 5 found; it expects: The counter is not behind\. The report"
    with pytest.raises(AirflowFailException, match=told) as raised:
        PublishQualityOperator(task_id="publish", judgement=judgement).execute(context)

    assert "Q9" not in str(raised.value)
    assert context["outlet_events"][SESSION_QUALITY].extra == {}


def test_warnings_let_dependents_go_on_and_are_told(dag: DAG, control: str) -> None:
    judgement = {"quality_run_id": "q", "verdict": "warned", "stores": ["redis"], "findings": [WARNING]}
    context = context_of(dag)

    told = PublishQualityOperator(task_id="publish", judgement=judgement).execute(context)

    assert told == {"quality_run_id": "q", "verdict": "warned", "warnings": 1}
    assert context["outlet_events"][SESSION_QUALITY].extra == told


def test_run_about_events_alone_says_nothing_of_sessions(dag: DAG) -> None:
    judgement = {"quality_run_id": "q", "verdict": "passed", "stores": [], "findings": []}
    context = context_of(dag)

    with pytest.raises(AirflowSkipException, match="this run has not judged sessions"):
        PublishQualityOperator(task_id="publish", judgement=judgement).execute(context)

    assert context["outlet_events"][SESSION_QUALITY].extra == {}


def test_turn_that_passes_waits_for_one_that_failed_and_was_not_read_again(dag: DAG, control: str) -> None:
    now = datetime.fromtimestamp(system_clock() / 1_000, UTC)
    with postgres.connect(control, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO queuekeeper.profiles (profile_id, store, target, mode, contents, cohort_count, cohorts,"
            " sample_percent, session_limit, default_ttl_s, max_payload_bytes, as_of_ms)"
            " VALUES ('p', 'redis', 'here', 'fast', false, 96, '{5}', 100, 1, 1, 1, 1)"
        )
        store = QualityStore(connection)
        store.begin(quality_run_id="bad", mode="fast", suites=[], profile_ids=["p"], numbers={}, started_at=now)
        store.finish(quality_run_id="bad", verdict=Verdict.FAILED, results=(), numbers={})
    judgement = {"quality_run_id": "q", "verdict": "passed", "stores": ["redis"], "findings": []}

    with pytest.raises(
        AirflowFailException,
        match=r"cohorts that failed in 1 earlier runs \(bad\) have not been read since as thoroughly",
    ):
        PublishQualityOperator(task_id="publish", judgement=judgement).execute(context_of(dag))


@pytest.mark.parametrize("check_id", [number for number, check in CHECKS.items() if check.remedy is not None])
def test_form_of_every_remedy_takes_what_a_finding_fills_in(dag_bag: DagBag, check_id: str) -> None:
    remedy = CHECKS[check_id].remedy
    assert remedy is not None
    filled = remedy.filled(
        quality_run_id="0123456789abcdef", cohorts="0-3,7", key_prefix=None, limit=7, default_ttl_s=8
    )
    params = copy.deepcopy(dag_bag.dags[remedy.dag_id].params)

    for name, value in {**filled, **dict.fromkeys(remedy.connections, "one")}.items():
        assert name in params
        params[name] = value
    assert filled["dry_run"] is True


def test_links_of_reports_name_the_whole_address_where_airflow_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://ops.example.org/airflow/")
    assert forms_url() == "https://ops.example.org/airflow/queuekeeper/trigger"

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "")
    # The command line, which knows no Airflow, has the path of its own.
    assert forms_url() == FORMS_PATH

"""A plan is shown in short, an answer counts only when somebody gave it, and a plan that no longer holds is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.hitl import HITLOperator
from hypothesis import given, settings
from hypothesis import strategies as st

from queuekeeper import postgres, redis_client, sql_statements
from queuekeeper.airflow.operators.approval import ApprovePlanOperator, answer_of
from queuekeeper.airflow.operators.migration_approval import (
    CheckApprovalOperator,
    SummarisePlanOperator,
    check_plan,
    cohort_groups,
)
from queuekeeper.airflow.summary import summarise
from queuekeeper.clock import system_clock
from queuekeeper.errors import RefusedError, StalePlan, UsageError
from queuekeeper.keyspace import SLOTS, format_cohorts, parse_cohorts
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CohortPlan, MigrationPlan, PlanState, code_version, plan_id
from queuekeeper.migration.ledger.parameters import BadRows, MigrationParameters, Mode
from queuekeeper.migration.preflight import source_fingerprint
from queuekeeper.postgres import Connection
from queuekeeper.sessions.judge import Reason

pytestmark = pytest.mark.dags

APPROVED = {"chosen_options": ["Approve"], "responded_by_user": {"id": "1", "name": "ada"}}


def make_plan(
    *,
    to_copy: tuple[int, ...] = (10, 10),
    fingerprint: str = "f",
    version: str | None = None,
    chosen: tuple[int, ...] | None = None,
    mode: Mode = Mode.OFFLINE,
    bad_rows: BadRows = BadRows.QUARANTINE,
    reason: Reason = Reason.QOS_OUT_OF_RANGE,
) -> MigrationPlan:
    parameters = MigrationParameters(cohort_count=len(to_copy), limit=500, mode=mode, bad_rows=bad_rows)
    size = SLOTS // len(to_copy)
    cohorts = tuple(
        CohortPlan(
            cohort=number,
            slot_first=number * size,
            slot_last=(number + 1) * size - 1,
            shard="127.0.0.1:6379",
            sessions=3,
            clients=2,
            messages=count + 4,
            payload_bytes=1_000,
            to_copy=count,
            expired=2,
            trimmed=1,
            quarantined=1,
            quarantined_by_reason={reason.value: 1},
            forecast_bytes=4_096,
            longest_queue=count,
        )
        for number, count in enumerate(to_copy)
    )  # fmt: skip
    version = version or code_version()
    return MigrationPlan(
        plan_id=plan_id(parameters=parameters, source_fingerprint=fingerprint, version=version),
        parameters=parameters,
        source_fingerprint=fingerprint,
        code_version=version,
        as_of_ms=system_clock(),
        cohorts=cohorts,
        chosen=tuple(range(len(to_copy))) if chosen is None else chosen,
    )


@pytest.fixture
def source(postgres_url: str, control_schema: None, connections: Callable[..., None]) -> Any:
    """Database with the vendor's tables, one session and the control schema; Airflow knows it."""
    connections(queuekeeper_postgres=postgres_url)
    with postgres.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql_statements.statement("sessions/vendor_schema"))
        connection.execute("INSERT INTO device_session_ctx VALUES ('client', 1, 1, 1)")
        yield connection


@pytest.fixture
def plan(source: Connection) -> MigrationPlan:
    """Plan that run ``run-1`` has made."""
    made = make_plan(fingerprint=source_fingerprint(source))
    return MigrationLedger(source).save_plan(made, run_id="run-1")


def check(
    plan: MigrationPlan,
    *,
    run_id: str = "run-1",
    decision: Any = APPROVED,
    four_eyes: bool = False,
    triggered_by: str | None = "ann",
) -> list[str]:
    operator = CheckApprovalOperator(
        task_id="check_approval",
        plan_id=plan.plan_id,
        run_id=run_id,
        decision=decision,
        copy_groups="2",
        four_eyes=str(four_eyes),
    )
    context: Any = {"dag_run": SimpleNamespace(triggering_user_name=triggered_by)}
    return operator.execute(context)


def test_with_four_eyes_who_approves_is_not_who_triggered(source: Connection, plan: MigrationPlan) -> None:
    user: Any = APPROVED["responded_by_user"]
    name = user["name"]
    for who in (name, None):
        with pytest.raises(RefusedError, match="have to be two persons"):
            check(plan, four_eyes=True, triggered_by=who)
    assert MigrationLedger(source).approval(plan.plan_id) is None

    assert check(plan, four_eyes=True, triggered_by="somebody else") == ["0", "1"]
    assert check(plan, four_eyes=False, triggered_by=name) == ["0", "1"]


def test_with_devices_connected_a_source_that_changes_does_not_make_the_plan_stale(source: Connection) -> None:
    made = make_plan(fingerprint=source_fingerprint(source), mode=Mode.ONLINE)
    plan = MigrationLedger(source).save_plan(made, run_id="run-1")
    source.execute("UPDATE device_session_ctx SET last_packet_id = 2")

    assert check(plan) == ["0", "1"]


def test_approved_plan_is_noted_and_shared_out(source: Connection, plan: MigrationPlan) -> None:
    assert check(plan) == ["0", "1"]

    approval = MigrationLedger(source).approval(plan.plan_id)
    assert approval is not None
    assert approval.approved_by == "ada"
    assert MigrationLedger(source).load_plan(plan.plan_id).state is PlanState.APPROVED


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (None, "nobody answered the question about plan .*: nothing was written to Redis"),
        ({}, "nobody answered the question about plan"),
        (
            {"chosen_options": ["Reject"], "responded_by_user": {"id": "1", "name": "ada"}},
            "was rejected by ada: nothing",
        ),
        ({"chosen_options": ["Reject"], "responded_by_user": None}, "was rejected, as nobody answered in time"),
        ({"chosen_options": [], "responded_by_user": {"name": "ada"}}, "was rejected by ada"),
        ({"chosen_options": ["Approve", "Reject"], "responded_by_user": {"name": "ada"}}, "was rejected by ada"),
        ({"chosen_options": ["Approve"], "responded_by_user": None}, "was approved without a name"),
    ],
)
def test_anything_but_a_named_approval_stops_the_run(
    source: Connection, plan: MigrationPlan, decision: Any, words: str
) -> None:
    with pytest.raises(RefusedError, match=words):
        check(plan, decision=decision)

    assert MigrationLedger(source).approval(plan.plan_id) is None


def test_question_lapses_after_the_minutes_of_the_form_and_counts_as_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HITLOperator, "execute", lambda *_: None)
    approve = ApprovePlanOperator(
        task_id="approve", subject="Go on?", body="", timeout_minutes="90", plan_only="False", notifiers=[]
    )

    approve.execute({})

    assert (approve.response_timeout, approve.defaults) == (timedelta(minutes=90), ["Reject"])


def test_answer_without_a_display_name_is_noted_under_the_id() -> None:
    decision = {"chosen_options": ["Approve"], "responded_by_user": {"id": "7", "name": ""}}

    assert answer_of(decision, facts={}).actor == "7"


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO device_session_ctx VALUES ('another', 1, 1, 1)",
        "UPDATE device_session_ctx SET last_packet_id = 2",
        "DELETE FROM device_session_ctx",
        (
            "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, qos, payload) "
            "VALUES ('client', 1, 't', 1, 1, '')"
        ),
    ],
)
def test_plan_is_stale_once_any_row_of_the_source_has_changed(
    source: Connection, plan: MigrationPlan, change: str
) -> None:
    source.execute(change)

    with pytest.raises(StalePlan, match=f"the source has changed since plan {plan.plan_id} was made: make sure that"):
        check(plan)
    assert MigrationLedger(source).approval(plan.plan_id) is None


def test_plan_of_another_release_is_stale(source: Connection) -> None:
    old = MigrationLedger(source).save_plan(
        make_plan(fingerprint=source_fingerprint(source), version="0.0.1"), run_id="run-1"
    )

    with pytest.raises(StalePlan, match=r"was planned by release 0\.0\.1, and this is release"):
        check_plan(old, answer_of(APPROVED, facts={}), source, asked_for=old.plan_id)


def test_plan_that_the_run_has_replaced_is_stale(source: Connection, plan: MigrationPlan) -> None:
    other = make_plan(to_copy=(1, 2, 3), fingerprint=source_fingerprint(source))
    MigrationLedger(source).save_plan(other, run_id="run-1")

    with pytest.raises(
        StalePlan, match=f"this run has since made plan {other.plan_id}, and {plan.plan_id} was approved"
    ):
        check(plan)


def test_summary_of_a_refused_plan_says_why(source: Connection, plan: MigrationPlan) -> None:
    MigrationLedger(source).set_plan_state(plan.plan_id, PlanState.REFUSED, "too many bad rows")

    with pytest.raises(RefusedError, match=f"plan {plan.plan_id} was refused: too many bad rows"):
        SummarisePlanOperator(task_id="summarise_plan", run_id="run-1").execute({})


def test_summary_of_a_run_without_a_plan_says_so(source: Connection) -> None:
    with pytest.raises(UsageError, match="run 'run-9' has made no plan"):
        SummarisePlanOperator(task_id="summarise_plan", run_id="run-9").execute({})


def test_summary_shows_numbers_and_no_client(
    source: Connection, plan: MigrationPlan, valkey_url: str, connections: Callable[..., None]
) -> None:
    connections(queuekeeper_redis=valkey_url)

    found = SummarisePlanOperator(task_id="summarise_plan", run_id="run-1").execute({})

    assert found["plan_id"] == plan.plan_id
    assert found["to_copy"] == 20
    assert found["expired"] == 4
    assert found["quarantined_by_reason"] == {"qos_out_of_range": 2}
    for words in (f"`{plan.plan_id}`", "**20**", "beyond 500 per session", "8.0 KiB forecast", "- QoS out of range: 2"):
        assert words in found["markdown"]


UNTIL_THE_COMMIT = (
    " (no cluster can hold such a client: PostgreSQL serves it until the commit, which moves its messages to "
    "queuekeeper.session_quarantine)"
)


@pytest.mark.parametrize(
    ("mode", "bad_rows", "words"),
    [
        (Mode.OFFLINE, BadRows.QUARANTINE, ""),
        (Mode.ONLINE, BadRows.QUARANTINE, UNTIL_THE_COMMIT),
        (Mode.ONLINE, BadRows.LEAVE, " (no cluster can hold such a client: it stays in PostgreSQL)"),
    ],
)
def test_summary_says_what_becomes_of_clients_that_no_cluster_can_hold(
    mode: Mode, bad_rows: BadRows, words: str
) -> None:
    plan = make_plan(mode=mode, bad_rows=bad_rows, reason=Reason.CLIENT_ID_SCATTERED)

    assert summarise(plan, []).endswith(f"\n- client id scattered: 2{words}")


def test_summary_names_the_memory_limit_when_every_master_has_one_and_what_is_risky(
    redis_server_factory: Callable[..., Any],
) -> None:
    server = redis_server_factory(maxmemory="64mb", appendonly="no")

    with redis_client.connect(server.url) as client:
        summary = summarise(make_plan(), redis_client.facts(client))

    assert "in use of 64.0 MiB" in summary
    risk = "keeps no append-only file, so a crash loses what was copied: CONFIG SET appendonly yes"
    assert f"- Redis at 127.0.0.1:{server.port} {risk}" in summary


@given(st.sets(st.integers(0, 200), min_size=1))
def test_written_cohorts_are_read_as_they_were(cohorts: set[int]) -> None:
    assert parse_cohorts(format_cohorts(sorted(cohorts)), count=201) == sorted(cohorts)


@settings(max_examples=200)
@given(st.data())
def test_groups_hold_every_chosen_cohort_once_and_in_order(data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(0, 1_000), min_size=1, max_size=40))
    chosen = tuple(sorted(data.draw(st.sets(st.integers(0, len(weights) - 1), min_size=1))))
    groups = data.draw(st.integers(1, 50))

    found = cohort_groups(make_plan(to_copy=tuple(weights), chosen=chosen), groups=groups)

    assert len(found) == min(groups, len(chosen))
    assert tuple(cohort for group in found for cohort in parse_cohorts(group, count=len(weights))) == chosen


def test_groups_are_cut_by_messages_and_not_by_number_of_cohorts() -> None:
    plan = make_plan(to_copy=(900, 100, 100, 100, 300, 300))

    assert cohort_groups(plan, groups=2) == ["0", "1-5"]

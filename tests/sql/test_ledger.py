"""The migration ledger gives back what was written, and keeps what is at work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from psycopg.types.json import Jsonb

from queuekeeper import approvals, audit, postgres
from queuekeeper.errors import RefusedError, ServerUnavailable, StalePlan, UsageError
from queuekeeper.jobs.store import MaintenanceRuns, RunControl, Runs, RunState
from queuekeeper.migration.ledger import model
from queuekeeper.migration.ledger.ledger import MigrationLedger, Progress, QuarantinedRow
from queuekeeper.migration.ledger.parameters import MigrationParameters, Mode
from queuekeeper.migration.ledger.throughput import MOST_SAMPLES, ThroughputSample
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.migration.report.gather import summarise_throughput
from queuekeeper.postgres import Connection
from queuekeeper.sessions.judge import Reason
from queuekeeper.sessions.quarantine import SessionQuarantine
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.sql

NOW_MS = 1_790_000_000_000


def make_plan(plan_id: str = "plan-a", *, cohorts: int = 3, messages: int = 10) -> model.MigrationPlan:
    return model.MigrationPlan(
        plan_id=plan_id,
        parameters=MigrationParameters(cohort_count=cohorts, quarantine_cap_percent=25.0, throttle_messages_per_s=500),
        source_fingerprint="fingerprint",
        code_version="1",
        as_of_ms=NOW_MS,
        cohorts=tuple(
            model.CohortPlan(
                cohort=number,
                slot_first=number * 100,
                slot_last=number * 100 + 99,
                shard="127.0.0.1:6379",
                sessions=2,
                clients=3,
                messages=messages,
                payload_bytes=2**40,
                to_copy=messages - 3,
                expired=1,
                trimmed=1,
                quarantined=1,
                quarantined_by_reason={Reason.TOPIC_EMPTY.value: 1},
                forecast_bytes=2**41,
                longest_queue=messages,
            )
            for number in range(cohorts)
        ),
        chosen=(0, 2),
        target_clustered=True,
    )


def bad_message(serial: int, *, cohort: int = 0, client_id: str = "client") -> QuarantinedRow:
    return QuarantinedRow(
        cohort=cohort,
        kind="message",
        reason=Reason.PACKET_ID_OUT_OF_RANGE,
        detail="packet id 70000",
        client_id=client_id,
        serial_number=serial,
        topic="a/☕",
        time=-1,
        packet_id=70_000,
        packet_type="PUBACK",
        qos=7,
        payload=b"\x00\xff secret",
        user_properties='{"props":',
        retain=True,
        msg_expiry_interval=-1,
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="reply",
        correlation_data=b"\x00",
    )


def bad_session(*, cohort: int = 0, client_id: str = "client") -> QuarantinedRow:
    return QuarantinedRow(
        cohort=cohort,
        kind="session",
        reason=Reason.LAST_PACKET_ID_OUT_OF_RANGE,
        detail="last packet id -1",
        client_id=client_id,
        last_packet_id=-1,
    )


def as_written(row: QuarantinedRow) -> QuarantinedRow:
    return replace(row, quarantine_id=None, quarantined_at=None)


def ledger_row(cohort: int, *, copied: int = 4) -> model.LedgerRow:
    return model.LedgerRow(
        cohort=cohort,
        rows_seen=10,
        copied=copied,
        expired=1,
        trimmed=2,
        superseded=1,
        quarantined=2,
        sessions_seen=3,
        sessions_copied=3,
        differences=0,
        digest="d" * 32,
    )


def difference(cohort: int, client_id: str, serial_number: int | None = None) -> model.Difference:
    return model.Difference(
        cohort=cohort, client_id=client_id, serial_number=serial_number, kind="missing", expected="7", found=""
    )


# --- plans -----------------------------------------------------------------------------------------------------


def test_plan_is_given_back_as_stored(ledger: MigrationLedger) -> None:
    plan = make_plan()

    assert ledger.save_plan(plan, run_id="run-1") == plan
    assert ledger.load_plan("plan-a") == plan
    assert ledger.plan_of_run("run-1") == "plan-a"
    assert ledger.throttle("plan-a") == 500
    assert ledger.approval("plan-a") is None
    assert ledger.cohort_states("plan-a") == dict.fromkeys(range(3), model.CohortState.PLANNED)


def test_same_plan_again_refreshes_counts_until_approved(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id="run-1")
    newer = replace(make_plan(messages=20, cohorts=2), as_of_ms=NOW_MS + 1)

    assert ledger.save_plan(newer, run_id="run-2") == newer
    ledger.approve("plan-a", "Ada")
    kept = ledger.save_plan(replace(make_plan(messages=30), as_of_ms=NOW_MS + 2), run_id="run-3")

    assert kept == replace(newer, state=model.PlanState.APPROVED)
    assert {ledger.plan_of_run(f"run-{number}") for number in (1, 2, 3)} == {"plan-a"}


def test_approved_plan_that_counts_no_longer_is_planned_again_unless_it_has_begun(ledger: MigrationLedger) -> None:
    late_ms = NOW_MS + approvals.VALID_MS + 1
    ledger.save_plan(make_plan(), run_id=None)
    ledger.approve("plan-a", "Ada")
    newer = replace(make_plan(messages=20), as_of_ms=late_ms)

    assert ledger.save_plan(newer, run_id=None) == newer
    assert ledger.approval("plan-a") is None

    ledger.approve("plan-a", "Ada")
    ledger.set_cohort_state("plan-a", [0], model.CohortState.COPYING)
    later = replace(newer, as_of_ms=late_ms + approvals.VALID_MS + 1)
    assert ledger.save_plan(later, run_id=None).as_of_ms == late_ms


def test_plan_that_nobody_agreed_to_is_rejected_and_may_be_planned_again_or_approved_after_all(
    ledger: MigrationLedger,
) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    ledger.note_answer("plan-a", audit.Answer(action=audit.Action.REJECT, actor="ada"))
    assert ledger.load_plan("plan-a").state is model.PlanState.REJECTED
    assert Runs(ledger.connection).load("plan-a").state is RunState.REJECTED
    ledger.set_paused("plan-a", True)
    assert ledger.load_plan("plan-a").state is model.PlanState.REJECTED

    assert ledger.save_plan(make_plan(), run_id=None).state is model.PlanState.PLANNED
    ledger.note_answer("plan-a", audit.Answer(action=audit.Action.UNANSWERED, actor="nobody"))
    ledger.approve("plan-a", "ada")
    assert ledger.load_plan("plan-a").state is model.PlanState.APPROVED
    # A later no takes back nothing that was agreed to.
    ledger.note_answer("plan-a", audit.Answer(action=audit.Action.REJECT, actor="eve"))
    assert ledger.load_plan("plan-a").state is model.PlanState.APPROVED


def test_who_agrees_while_a_plan_is_made_again_agrees_to_all_of_it(
    ledger: MigrationLedger, connect: Callable[[], Connection]
) -> None:
    """It is the plan that was looked at, and nobody waits until bad rows without number are written."""
    ledger.save_plan(make_plan(), run_id=None, quarantine=[bad_message(3)])
    newer = replace(make_plan(messages=20), as_of_ms=NOW_MS + 1)
    planner, other = MigrationLedger(connect()), MigrationLedger(connect())
    begun, go = threading.Event(), threading.Event()

    def slowly() -> Iterator[QuarantinedRow]:
        yield bad_message(1)
        begun.set()
        assert go.wait(PATIENCE_S)

    with ThreadPoolExecutor(1) as pool:
        stored = pool.submit(planner.save_plan, newer, run_id="again", quarantine=slowly())
        try:
            assert begun.wait(PATIENCE_S)
            # Nothing of it is to be seen before all of it is, and nobody is kept from steering what is there.
            assert ledger.load_plan("plan-a") == make_plan()
            other.connection.execute(f"SET statement_timeout = '{PATIENCE_S}s'")
            other.set_paused("plan-a", True)
            other.approve("plan-a", "Ada")
        finally:
            go.set()
        assert stored.result() == replace(make_plan(), state=model.PlanState.APPROVED)
    assert [row.serial_number for row in ledger.quarantined("plan-a")] == [3]
    assert ledger.plan_of_run("again") == "plan-a"

    read: list[int] = []

    def noted() -> Iterator[QuarantinedRow]:
        read.append(2)
        yield bad_message(2)

    kept = ledger.save_plan(replace(make_plan(), as_of_ms=NOW_MS + 2), run_id=None, quarantine=noted())
    assert read == []
    assert kept == replace(make_plan(), state=model.PlanState.APPROVED)
    assert [row.serial_number for row in ledger.quarantined("plan-a")] == [3]


def test_plan_that_is_made_again_undisturbed_is_stored_with_its_bad_rows(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None, quarantine=[bad_message(3)])
    newer = replace(make_plan(messages=20), as_of_ms=NOW_MS + 1)
    assert ledger.save_plan(newer, run_id=None, quarantine=[bad_message(1)]) == newer
    ledger.approve("plan-a", "Ada")
    assert ledger.load_plan("plan-a") == replace(newer, state=model.PlanState.APPROVED)
    assert [row.serial_number for row in ledger.quarantined("plan-a")] == [1]


def test_plan_with_armed_cohorts_stays_as_it_is_and_says_so(ledger: MigrationLedger) -> None:
    parameters = replace(make_plan().parameters, mode=Mode.ONLINE)
    plan = ledger.save_plan(replace(make_plan(), parameters=parameters), run_id=None, quarantine=[bad_message(1)])
    online = OnlineCohorts(ledger.connection)
    assert online.hindrances(plan) == []
    online.arm(plan, [2], actor="Ada")
    newer = replace(make_plan(messages=20), parameters=parameters, as_of_ms=NOW_MS + 1)

    assert ledger.save_plan(newer, run_id="again", quarantine=[bad_message(2)]) == plan
    assert [row.serial_number for row in ledger.quarantined("plan-a")] == [1]
    assert ledger.plan_of_run("again") == "plan-a"
    [words] = online.hindrances(plan)
    assert words == (
        "plan plan-a cannot be made anew, since 1 of its 3 cohorts are armed: to plan anew, roll back what is on "
        "Redis, then disarm them (queuekeeper online disarm plan-a)"
    )
    # So does one of a source that has changed since, which has another id.
    other = ledger.save_plan(replace(newer, plan_id="plan-b"), run_id=None)
    [words] = online.hindrances(other)
    assert words == (
        "cohorts of plan plan-a are armed: plan plan-b cannot be armed over the same slots before they are committed, "
        "or rolled back and disarmed (queuekeeper online status)"
    )
    assert online.hindrances(replace(other, parameters=make_plan().parameters)) == []

    online.disarm("plan-a", [2], driver=online.take("plan-a", [2]), actor="Ada")
    assert ledger.save_plan(newer, run_id=None) == newer
    assert online.hindrances(newer) == []


def test_plan_of_which_a_part_cannot_be_stored_is_not_stored_at_all(ledger: MigrationLedger) -> None:
    def broken() -> Iterator[QuarantinedRow]:
        yield bad_message(1)
        raise ServerUnavailable("the source is gone")

    with pytest.raises(ServerUnavailable, match="the source is gone"):
        ledger.save_plan(make_plan(), run_id="run-1", quarantine=broken())

    assert ledger.latest_id() is None


def test_copy_begins_with_the_plan_that_was_read_or_not_at_all(ledger: MigrationLedger) -> None:
    read = ledger.save_plan(make_plan(), run_id=None)
    again = ledger.save_plan(replace(make_plan(), as_of_ms=NOW_MS + 1), run_id=None)
    with pytest.raises(StalePlan, match="plan plan-a was made again while its copy was about to begin: look at the"):
        ledger.begin_copy(read)
    assert ledger.load_plan("plan-a") == again

    ledger.begin_copy(again)
    ledger.begin_copy(again)
    assert ledger.load_plan("plan-a") == replace(again, state=model.PlanState.COPYING)


def test_refused_plan_may_be_planned_again(ledger: MigrationLedger) -> None:
    refused = replace(make_plan(), state=model.PlanState.REFUSED, state_reason="too many bad rows")

    assert ledger.save_plan(refused, run_id=None) == refused
    assert ledger.save_plan(make_plan(), run_id=None) == make_plan()


def test_repeated_run_may_come_to_another_plan(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan("plan-a"), run_id="run-1")
    ledger.save_plan(make_plan("plan-b"), run_id="run-1")

    assert ledger.plan_of_run("run-1") == "plan-b"


def test_latest_plan_is_the_one_asked_for_last(ledger: MigrationLedger) -> None:
    assert ledger.latest_id() is None
    ledger.save_plan(make_plan("plan-a"), run_id=None)
    ledger.save_plan(make_plan("plan-b"), run_id=None)
    assert ledger.latest_id() == "plan-b"
    ledger.save_plan(make_plan("plan-a"), run_id=None)
    assert ledger.latest_id() == "plan-a"


def test_unknown_plan_is_refused_with_the_known_ones(ledger: MigrationLedger) -> None:
    with pytest.raises(UsageError, match=r"there is no plan 'nope': there is none yet in this database; plan first"):
        ledger.load_plan("nope")
    ledger.save_plan(make_plan("plan-a"), run_id=None)
    ledger.save_plan(make_plan("plan-b"), run_id=None)

    calls: list[Callable[[], object]] = [
        lambda: ledger.load_plan("nope"),
        lambda: ledger.set_plan_state("nope", model.PlanState.COPYING),
        lambda: ledger.set_throttle("nope", 1),
        lambda: ledger.throttle("nope"),
        lambda: ledger.approval("nope"),
        lambda: ledger.approve("nope", "Ada"),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=r"there is no plan 'nope': the newest are plan-b, plan-a"):
            call()


def test_unknown_run_is_refused(ledger: MigrationLedger) -> None:
    with pytest.raises(UsageError, match="run 'nope' has made no plan in this database: plan first"):
        ledger.plan_of_run("nope")


def test_state_moves_with_its_reason(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    ledger.set_plan_state("plan-a", model.PlanState.FAILED, "2 differences")

    assert ledger.load_plan("plan-a") == replace(
        make_plan(), state=model.PlanState.FAILED, state_reason="2 differences"
    )


def test_approval_moves_a_waiting_plan_and_leaves_one_at_work(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    ledger.approve("plan-a", "Ada")
    assert ledger.load_plan("plan-a").state is model.PlanState.APPROVED
    ledger.set_plan_state("plan-a", model.PlanState.COPYING)
    ledger.approve("plan-a", "Grace")

    approval = ledger.approval("plan-a")
    assert ledger.load_plan("plan-a").state is model.PlanState.COPYING
    assert approval is not None
    assert (approval.approved_by, approval.approved_at.utcoffset() is not None) == ("Grace", True)


def test_refused_plan_cannot_be_approved(ledger: MigrationLedger) -> None:
    ledger.save_plan(replace(make_plan(), state=model.PlanState.REFUSED, state_reason="too many bad rows"), run_id=None)

    with pytest.raises(RefusedError, match="cannot be approved, it was refused: too many bad rows; plan again"):
        ledger.approve("plan-a", "Ada")


def test_cohorts_move_one_by_one(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    ledger.set_cohort_state("plan-a", [0, 2], model.CohortState.COPIED)
    ledger.set_cohort_state("plan-a", [], model.CohortState.FAILED)

    expected = {0: model.CohortState.COPIED, 1: model.CohortState.PLANNED, 2: model.CohortState.COPIED}
    assert ledger.cohort_states("plan-a") == expected


def test_throttle_changes_at_once_for_others(ledger: MigrationLedger, connect: Callable[[], Connection]) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    other = MigrationLedger(connect())
    other.set_throttle("plan-a", 7)
    assert ledger.throttle("plan-a") == 7
    other.set_throttle("plan-a", None)
    assert ledger.throttle("plan-a") is None
    for value in (0, -1, 2**31):
        words = f"^the rate is {value}: write messages per second, 1 to 2,147,483,647, or none$"
        with pytest.raises(UsageError, match=words):
            ledger.set_throttle("plan-a", value)


def test_who_steers_a_run_leaves_alone_what_others_change_meanwhile(
    ledger: MigrationLedger, connect: Callable[[], Connection]
) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    runs, other = MaintenanceRuns(connect()), connect()
    blocking = "SELECT cardinality(pg_blocking_pids(%s))"
    with ThreadPoolExecutor(1) as pool:
        with other.transaction():
            MigrationLedger(other).set_plan_state("plan-a", model.PlanState.COPYING)
            MigrationLedger(other).set_paused("plan-a", True)
            throttled = pool.submit(runs.set_throttle, "plan-a", 7)
            while ledger.connection.execute(blocking, [runs.connection.info.backend_pid]).fetchone() == (0,):
                assert not throttled.done()
        throttled.result(timeout=PATIENCE_S)

    assert runs.load("plan-a").state is RunState.RUNNING
    assert runs.control("plan-a") == RunControl(paused=True, operations_per_s=7)


# --- progress --------------------------------------------------------------------------------------------------


def test_progress_sums_up_the_parts_of_a_step(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    for part, done in (("0-1/0", 3), ("0-1/1", 4), ("2-2/0", 5), ("0-1/0", 6)):
        ledger.record_progress(plan_id="plan-a", step="copy", part=part, done=done, total=10, at_ms=NOW_MS + done)

    assert ledger.progress("plan-a", "copy") == Progress(done=15, total=30, parts=3, updated_at_ms=NOW_MS + 6)
    some = ledger.progress("plan-a", "copy", parts=["0-1/1", "2-2/0", "9-9/0"])
    assert some == Progress(done=9, total=20, parts=2, updated_at_ms=NOW_MS + 5)
    assert ledger.progress("plan-a", "copy", parts=[]).parts == 0
    assert ledger.progress("plan-a", "verify") == Progress(done=0, total=0, parts=0)
    ledger.clear_progress("plan-a", "copy", "0-1/")
    assert ledger.progress("plan-a", "copy") == Progress(done=5, total=10, parts=1, updated_at_ms=NOW_MS + 5)
    ledger.clear_progress("plan-a", "copy")
    assert ledger.progress("plan-a", "copy").parts == 0


def test_prefix_of_parts_is_no_pattern(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    ledger.record_progress(plan_id="plan-a", step="copy", part="abc", done=1, total=1, at_ms=NOW_MS)
    ledger.clear_progress("plan-a", "copy", "%")
    ledger.clear_progress("plan-a", "copy", "a_c")

    assert ledger.progress("plan-a", "copy").parts == 1


def test_progress_survives_many_writers(ledger: MigrationLedger, connect: Callable[[], Connection]) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    writers = [MigrationLedger(connect()) for _ in range(4)]
    barrier = threading.Barrier(len(writers))

    def write(number: int) -> None:
        barrier.wait()
        for done in range(1, 26):
            for part in ("shared", f"own-{number}"):
                writers[number].record_progress(
                    plan_id="plan-a", step="copy", part=part, done=done, total=25, at_ms=NOW_MS
                )

    with ThreadPoolExecutor(len(writers)) as pool:
        list(pool.map(write, range(len(writers))))
    assert ledger.progress("plan-a", "copy") == Progress(done=125, total=125, parts=5, updated_at_ms=NOW_MS)


def test_throughput_is_a_curve_in_time(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    for at_ms, done in ((20, 2), (10, 1), (20, 3)):
        ledger.record_throughput(plan_id="plan-a", step="copy", at_ms=at_ms, done=done)

    assert ledger.throughput("plan-a", "copy") == [
        ThroughputSample(at_ms=10, done=1),
        ThroughputSample(at_ms=20, done=3),
    ]
    assert ledger.throughput("plan-a", "verify") == []


def test_a_long_step_keeps_few_samples_with_all_its_time_and_messages(
    ledger: MigrationLedger, connect: Callable[[], Connection]
) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    writers = [MigrationLedger(connect()) for _ in range(2)]
    barrier = threading.Barrier(len(writers))
    last = MOST_SAMPLES + 101

    def write(number: int) -> None:
        for second in range(number, last + 1, len(writers)):
            barrier.wait()
            writers[number].record_throughput(plan_id="plan-a", step="copy", at_ms=second * 1_000, done=second * 10)

    with ThreadPoolExecutor(len(writers)) as pool:
        list(pool.map(write, range(len(writers))))

    kept = ledger.throughput("plan-a", "copy")
    told = summarise_throughput("copy", kept)
    assert len(kept) <= MOST_SAMPLES + 1
    assert told is not None
    assert (told.runs, told.messages, told.seconds, told.peak_messages_per_s) == (1, last * 10, float(last), 10.0)


def make_copy_report(sessions_written: int) -> model.CopyReport:
    return model.CopyReport(
        plan_id="plan-a",
        cohorts=(0, 2),
        messages_written=5,
        messages_expired=1,
        sessions_written=sessions_written,
        sessions_unchanged=0,
        sessions_moved_on=0,
        script_calls=3,
        seconds=1.5,
    )


def test_copy_reports_come_first_to_last(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    reports = [make_copy_report(1), make_copy_report(2)]
    for report in reports:
        ledger.save_copy_report(report)

    assert ledger.copy_reports("plan-a") == reports


def test_copy_report_of_another_release_is_read(ledger: MigrationLedger, connection: Connection) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    ledger.save_copy_report(make_copy_report(1))
    connection.execute("UPDATE queuekeeper.copy_reports SET report = report || %s", [Jsonb({"colour": "blue"})])

    assert ledger.copy_reports("plan-a") == [make_copy_report(1)]


# --- quarantine ------------------------------------------------------------------------------------------------


def test_quarantined_row_keeps_every_value(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    rows = [bad_session(), bad_message(-1), bad_message(2**53 + 1)]

    assert ledger.replace_quarantine("plan-a", [0], iter(rows)) == 3
    found = ledger.quarantined("plan-a")
    assert [as_written(row) for row in found] == rows
    assert all(row.quarantined_at is not None for row in found)
    assert "secret" not in repr(found)


def test_quarantine_is_replaced_by_cohort(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    ledger.replace_quarantine("plan-a", [0, 1], [bad_message(1), bad_message(2, cohort=1, client_id="other")])
    ledger.replace_quarantine("plan-a", [0], [bad_message(3)])
    ledger.replace_quarantine("plan-a", [2], [])

    assert [(row.client_id, row.serial_number) for row in ledger.quarantined("plan-a")] == [("client", 3), ("other", 2)]


def test_replacing_the_quarantine_keeps_what_was_replayed(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    rows = [bad_session(), bad_message(1), bad_message(2)]
    ledger.replace_quarantine("plan-a", [0], rows)
    session, first, _ = ledger.quarantined("plan-a")
    assert session.quarantine_id is not None
    assert first.quarantine_id is not None
    assert ledger.mark_replayed(first.quarantine_id, 77, NOW_MS)
    assert ledger.mark_replayed(session.quarantine_id, None, NOW_MS)

    assert ledger.replace_quarantine("plan-a", [0], rows) == 1
    replayed = ledger.quarantined("plan-a", status="replayed")
    assert [(row.serial_number, row.assigned_packet_id) for row in replayed] == [(None, None), (1, 77)]
    assert all(row.replayed_at is not None and row.replayed_at.timestamp() * 1000 == NOW_MS for row in replayed)
    assert [row.serial_number for row in ledger.quarantined("plan-a")] == [2]
    assert len(ledger.quarantined("plan-a", status=None)) == 3


def test_failed_replacement_changes_nothing(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    ledger.replace_quarantine("plan-a", [0], [bad_message(1)])

    with pytest.raises(UsageError, match=r"row of cohort 1 given while replacing cohorts \[0\]"):
        ledger.replace_quarantine("plan-a", [0], [bad_message(2), bad_message(3, cohort=1)])
    with pytest.raises(psycopg.errors.UniqueViolation):
        ledger.replace_quarantine("plan-a", [0], [bad_session(), bad_session()])
    assert [row.serial_number for row in ledger.quarantined("plan-a")] == [1]


def test_quarantine_that_two_plans_of_one_world_replace_at_once_is_that_of_the_last(
    ledger: MigrationLedger, connect: Callable[[], Connection]
) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    rows = [bad_message(1), bad_message(2)]
    begun, other_writes, go = threading.Event(), threading.Event(), threading.Event()

    def slowly() -> Iterator[QuarantinedRow]:
        begun.set()
        assert go.wait(PATIENCE_S)
        yield from rows

    def noted() -> Iterator[QuarantinedRow]:
        other_writes.set()
        yield from rows

    other = MigrationLedger(connect())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(MigrationLedger(connect()).replace_quarantine, "plan-a", [0], slowly())
        assert begun.wait(PATIENCE_S)
        second = pool.submit(other.replace_quarantine, "plan-a", [0], noted())
        while not (other_writes.is_set() or _waits(ledger.connection, other.connection)):
            time.sleep(0.02)
        if other_writes.is_set():
            second.exception()
        go.set()
        assert (first.result(), second.result()) == (2, 2)
    assert [row.serial_number for row in ledger.quarantined("plan-a")] == [1, 2]


def _waits(looking: Connection, waiting: Connection) -> bool:
    wanted = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    return bool(looking.execute(wanted, (waiting.info.backend_pid,)).fetchone() == (True,))


def test_quarantine_is_searched_and_bounded(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    ledger.replace_quarantine(
        "plan-a", [0], [bad_message(2, client_id="b"), bad_message(1, client_id="b"), bad_session(client_id="a")]
    )

    assert [row.client_id for row in ledger.quarantined("plan-a", limit=2)] == ["a", "b"]
    assert [row.serial_number for row in ledger.quarantined("plan-a", client_id="b")] == [1, 2]
    chosen = ledger.quarantined("plan-a", reason=Reason.LAST_PACKET_ID_OUT_OF_RANGE)
    assert [row.client_id for row in chosen] == ["a"]
    assert ledger.quarantined("plan-a", client_id="a' OR true --") == []


def test_reason_that_there_is_not_is_refused_with_those_that_there_are(ledger: MigrationLedger) -> None:
    with pytest.raises(UsageError, match=r"^the reason is 'bad_luck': it must be one of client_id_empty, "):
        ledger.quarantined("plan-a", reason="bad_luck")
    with pytest.raises(UsageError, match=r"^the reason is 'bad_luck': it must be one of client_id_empty, "):
        SessionQuarantine(ledger.connection).rows(reason="bad_luck")


def test_quarantine_is_counted_by_reason(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    ledger.replace_quarantine("plan-a", [0], [bad_session(), bad_message(1), bad_message(2)])
    quarantine_id = ledger.quarantined("plan-a")[1].quarantine_id
    assert quarantine_id is not None
    ledger.mark_replayed(quarantine_id, 5, NOW_MS)

    assert [(row.reason, row.kind, row.open, row.replayed) for row in ledger.quarantine_counts("plan-a")] == [
        ("packet_id_out_of_range", "message", 1, 1),
        ("last_packet_id_out_of_range", "session", 1, 0),
    ]


def test_row_is_replayed_once(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    ledger.replace_quarantine("plan-a", [0], [bad_message(1)])
    quarantine_id = ledger.quarantined("plan-a")[0].quarantine_id
    assert quarantine_id is not None

    assert ledger.mark_replayed(quarantine_id, 5, NOW_MS) is True
    assert ledger.mark_replayed(quarantine_id, 6, NOW_MS) is False
    assert ledger.quarantined("plan-a", status="replayed")[0].assigned_packet_id == 5
    with pytest.raises(
        UsageError, match=rf"quarantine holds no row {quarantine_id + 1}: `queuekeeper migrate quarantine` lists"
    ):
        ledger.mark_replayed(quarantine_id + 1, 5, NOW_MS)


# --- verification and reports ----------------------------------------------------------------------------------


def test_ledger_is_replaced_by_cohort(ledger: MigrationLedger, connection: Connection) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    assert ledger.verified_at_ms("plan-a") is None
    ledger.replace_ledger("plan-a", [ledger_row(1), ledger_row(0)], NOW_MS)
    ledger.replace_ledger("plan-a", [ledger_row(1, copied=1)], NOW_MS + 1)

    assert ledger.ledger("plan-a") == (ledger_row(0), ledger_row(1, copied=1))
    assert ledger.verified_at_ms("plan-a") == NOW_MS + 1
    stored = connection.execute("SELECT cohort, unaccounted FROM queuekeeper.ledger ORDER BY cohort").fetchall()
    assert stored == [(row.cohort, row.unaccounted) for row in ledger.ledger("plan-a")] == [(0, 0), (1, 3)]


def test_differences_are_replaced_by_cohort(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    first = [difference(1, "c", 9), difference(0, "b", 5), difference(0, "b")]
    ledger.replace_differences("plan-a", [0, 1], first, counts={(0, "missing"): 2, (1, "missing"): 1})
    second = {(1, "missing"): 2**40, (1, "expiry"): 7}
    assert ledger.replace_differences("plan-a", [1], [difference(1, "é☕", 2**53)], counts=second) == 1

    expected = [difference(0, "b"), difference(0, "b", 5), difference(1, "é☕", 2**53)]
    assert ledger.differences("plan-a") == expected
    assert ledger.differences("plan-a", limit=1) == expected[:1]
    counts = [("missing", 2**40 + 2), ("expiry", 7)]
    assert list(ledger.difference_counts("plan-a").items()) == counts, "most frequent first"
    with pytest.raises(UsageError, match=r"row of cohort 0 given while replacing cohorts \[1\]"):
        ledger.replace_differences("plan-a", [1], [difference(0, "b")], counts={})
    assert list(ledger.difference_counts("plan-a").items()) == counts


def test_reports_come_latest_first(ledger: MigrationLedger) -> None:
    ledger.save_plan(make_plan(), run_id=None)
    first = ledger.save_report("plan-a", html_path="a.html", json_path="a.json", sha256="1")
    second = ledger.save_report("plan-a", html_path="b.html", json_path="b.json", sha256="2")

    reports = ledger.reports("plan-a")
    assert [(row.report_id, row.html_path, row.json_path, row.sha256) for row in reports] == [
        (second, "b.html", "b.json", "2"),
        (first, "a.html", "a.json", "1"),
    ]


# --- locks and trouble -----------------------------------------------------------------------------------------


def test_second_copy_of_the_same_cohorts_is_refused(
    ledger: MigrationLedger, connection: Connection, connect: Callable[[], Connection]
) -> None:
    other = MigrationLedger(connect())
    with ledger.copy_lock("plan-a", [0, 1]):
        message = rf"another copy of plan plan-a is running \(backend {connection.info.backend_pid}, started 20.* UTC\)"
        with pytest.raises(RefusedError, match=message), other.copy_lock("plan-a", [1, 2]):
            pytest.fail("two copies of cohort 1 run")
        # The refused one has left nothing locked, and others are free.
        with other.copy_lock("plan-a", [2, 3]), other.copy_lock("plan-b", [0, 1]):
            pass
    with other.copy_lock("plan-a", [0, 1]):
        pass


def test_lock_ends_with_the_body_however_it_ends(ledger: MigrationLedger, connect: Callable[[], Connection]) -> None:
    with pytest.raises(ZeroDivisionError), ledger.copy_lock("plan-a", [0]):
        raise ZeroDivisionError
    with MigrationLedger(connect()).copy_lock("plan-a", [0]):
        pass


def test_lock_ends_with_its_backend(
    ledger: MigrationLedger, connection: Connection, connect: Callable[[], Connection]
) -> None:
    victim = connect()

    def lose_the_connection() -> None:
        with MigrationLedger(victim).copy_lock("plan-a", [0]):
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", [victim.info.backend_pid])
            with ledger.copy_lock("plan-a", [0]):
                MigrationLedger(victim).latest_id()

    with pytest.raises(ServerUnavailable, match="broke the connection"):
        lose_the_connection()


def test_too_many_cohorts_to_lock_are_refused_in_words(
    ledger: MigrationLedger, connect: Callable[[], Connection]
) -> None:
    with (
        pytest.raises(RefusedError, match="raise max_locks_per_transaction, or plan with fewer cohorts"),
        ledger.copy_lock("plan-a", range(100_000)),
    ):
        pytest.fail("so many locks fit")
    with MigrationLedger(connect()).copy_lock("plan-a", [0, 1]):
        pass


def test_connection_in_transactions_is_refused(postgres_url: str) -> None:
    with (
        postgres.connect(postgres_url) as manual,
        pytest.raises(UsageError, match="autocommit=True"),
    ):
        MigrationLedger(manual)


def test_missing_schema_is_explained(connection: Connection) -> None:
    with pytest.raises(
        RefusedError, match=r"lacks a part of the schema: .*queuekeeper.*; run `queuekeeper database migrate`"
    ):
        MigrationLedger(connection).latest_id()


def test_deleted_plan_takes_everything_with_it(ledger: MigrationLedger, connection: Connection) -> None:
    ledger.save_plan(make_plan(), run_id="run-1")
    ledger.replace_quarantine("plan-a", [0], [bad_message(1)])
    ledger.replace_ledger("plan-a", [ledger_row(0)], NOW_MS)
    connection.execute("DELETE FROM queuekeeper.plans")

    assert ledger.quarantine_counts("plan-a") == []
    assert ledger.ledger("plan-a") == ()

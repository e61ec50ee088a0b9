"""Records of migrations in schema ``queuekeeper``: plans, progress, ledger, quarantine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

import psycopg
from psycopg.types.json import Jsonb

from queuekeeper import audit
from queuekeeper.approvals import VALID_MS
from queuekeeper.errors import RefusedError, StalePlan, UsageError
from queuekeeper.jobs.store import Approval, Runs
from queuekeeper.migration.ledger.model import (
    CohortPlan,
    CohortState,
    CopyReport,
    Difference,
    LedgerRow,
    MigrationPlan,
    PlanState,
)
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.migration.ledger.throughput import MOST_SAMPLES, ThroughputSample, to_merge
from queuekeeper.postgres import translated_errors
from queuekeeper.sessions.judge import check_reason
from queuekeeper.sql_statements import statement

Step = Literal["copy", "verify"]
QuarantineKind = Literal["message", "session"]
QuarantineStatus = Literal["open", "replayed"]

MIGRATIONS = ("session_migration", "online_migration")
"""Kinds of runs that are migrations: offline and online."""

_QUERIES = "queuekeeper/queries/"
_QUARANTINE_TYPES = (
    "text", "int4", "text", "text", "text", "text", "int8", "text", "int8", "int8", "text", "int4", "bytea",
    "text", "bool", "int4", "int4", "text", "text", "bytea", "int8",
)  # fmt: skip
_DIFFERENCE_TYPES = ("text", "int4", "text", "int8", "text", "text", "text")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a step has come.

    :param done: messages done, over all parts.
    :param total: messages to do, over the parts that have begun.
    :param parts: parts that have begun.
    :param updated_at_ms: when the last part reported; none before the first report.
    """

    done: int
    total: int
    parts: int
    updated_at_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class QuarantinedRow:
    """A whole row of the source that cannot be copied as it is; its ``repr`` shows no content.

    :param kind: ``message`` for a row of ``device_publish_msg``, ``session`` for one of ``device_session_ctx``.
    :param reason: a :class:`~queuekeeper.sessions.judge.Reason`.
    :param detail: the offending value in words, never a payload.
    :param packet_id: as found, so possibly out of range.
    :param last_packet_id: of a session row, as found.
    :param quarantine_id: given by the database; none for a row that was not written yet.
    :param assigned_packet_id: packet id under which the message was replayed.
    """

    cohort: int
    kind: QuarantineKind
    reason: str
    detail: str
    client_id: str
    serial_number: int | None = None
    topic: str | None = None
    time: int | None = None
    packet_id: int | None = None
    packet_type: str | None = None
    qos: int | None = None
    payload: bytes | None = field(default=None, repr=False)
    user_properties: str | None = field(default=None, repr=False)
    retain: bool | None = None
    msg_expiry_interval: int | None = None
    payload_format_indicator: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = field(default=None, repr=False)
    last_packet_id: int | None = None
    status: QuarantineStatus = "open"
    assigned_packet_id: int | None = None
    replayed_at: datetime | None = None
    quarantined_at: datetime | None = None
    quarantine_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class QuarantineCount:
    """How many rows are quarantined for one reason."""

    reason: str
    kind: QuarantineKind
    open: int  # rows that wait for a person
    replayed: int


@dataclass(frozen=True, kw_only=True)
class StoredReport:
    """Where a report was written.

    :param sha256: hash of the HTML file.
    """

    report_id: int
    html_path: str
    json_path: str
    sha256: str
    created_at: datetime


class MigrationLedger(Runs):
    """Reads and writes the records of migrations: runs that also have a ledger, cohorts and a quarantine.

    Every method is one transaction. Methods may be called from many processes at once, each with its own connection.
    """

    kinds = MIGRATIONS
    noun = "plan"
    made_by = "plan first by `queuekeeper migrate plan`"

    # --- plans -------------------------------------------------------------------------------------------------

    def save_plan(
        self, plan: MigrationPlan, *, run_id: str | None, quarantine: Iterable[QuarantinedRow] | None = None
    ) -> MigrationPlan:
        """Store a plan and return it as stored.

        The same plan made again replaces counts and instant of the stored plan while nobody has approved that, or when
        its approval is too old to count and nothing has begun. Otherwise, and while cohorts of it are armed, the stored
        plan stays as it is. It also stays when it is approved, or its copy begins, while the bad rows are written.

        :param run_id: Airflow run or call of the command line that asked for the plan.
        :param quarantine: bad rows of all cohorts, which replace the rows on record; none leaves the rows on record.
            They are read only if the plan is stored.
        """
        head = {
            "plan_id": plan.plan_id,
            "parameters": Jsonb(asdict(plan.parameters)),
            "source_fingerprint": plan.source_fingerprint,
            "code_version": plan.code_version,
            "as_of_ms": plan.as_of_ms,
            "chosen": list(plan.chosen),
            "state": str(plan.state),
            "state_reason": plan.state_reason,
            "throttle_messages_per_s": plan.parameters.throttle_messages_per_s,
            "target_clustered": plan.target_clustered,
            "valid_ms": VALID_MS,
        }
        with self._transaction():
            with self.connection.transaction() as attempt:
                # A stored plan is locked last; a new plan needs no lock, since nobody else knows its id.
                if known := self._row("load_plan", {"plan_id": plan.plan_id}):
                    if not self._may_store(head):
                        raise psycopg.Rollback(attempt)
                    self._set_aside(plan, quarantine)
                if self._row("save_plan", head) is None:
                    raise psycopg.Rollback(attempt)
                self._row("delete_cohorts", {"plan_id": plan.plan_id})
                self._many(
                    "save_cohort",
                    (
                        asdict(cohort)
                        | {
                            "plan_id": plan.plan_id,
                            "quarantined_by_reason": Jsonb(
                                {str(reason): count for reason, count in cohort.quarantined_by_reason.items()}
                            ),
                        }
                        for cohort in plan.cohorts
                    ),
                )
                if not known:
                    self._set_aside(plan, quarantine)
            self._row("touch_plan", {"plan_id": plan.plan_id})
            if run_id is not None:
                self._row("save_plan_run", {"run_id": run_id, "plan_id": plan.plan_id})
        return self.load_plan(plan.plan_id)

    def _may_store(self, head: dict[str, Any]) -> bool:
        """Return whether a plan would be stored now, without a lock."""
        with self.connection.transaction(force_rollback=True):
            return self._row("save_plan", head) is not None

    def _set_aside(self, plan: MigrationPlan, rows: Iterable[QuarantinedRow] | None) -> None:
        if rows is not None:
            self.replace_quarantine(plan.plan_id, [each.cohort for each in plan.cohorts], rows)

    def load_plan(self, plan_id: str) -> MigrationPlan:
        """Return a plan with all its cohorts.

        :raises UsageError: when there is no such plan; names those that exist.
        """
        with self._transaction():
            row = self._known(plan_id, self._row("load_plan", {"plan_id": plan_id}))
            cohorts = tuple(self._records(CohortPlan, "load_cohorts", {"plan_id": plan_id}))
        (
            stored_id, parameters, source_fingerprint, code_version, as_of_ms, chosen, state, state_reason,
            target_clustered,
        ) = row  # fmt: skip
        return MigrationPlan(
            plan_id=stored_id,
            parameters=MigrationParameters(**parameters),
            source_fingerprint=source_fingerprint,
            code_version=code_version,
            as_of_ms=as_of_ms,
            cohorts=cohorts,
            chosen=tuple(chosen),
            state=PlanState(state),
            state_reason=state_reason,
            target_clustered=target_clustered,
        )

    def plan_of_run(self, run_id: str) -> str:
        """Return the id of the plan that a run asked for.

        :raises UsageError: when the run has made no plan.
        """
        row = self._row("plan_of_run", {"run_id": run_id})
        if row is None:
            raise UsageError(f"run {run_id!r} has made no plan in this database: plan first")
        return str(row[0])

    def set_plan_state(self, plan_id: str, state: PlanState, reason: str = "") -> None:
        """Move a plan to another state.

        :param reason: why it was refused or failed.
        :raises UsageError: when there is no such plan.
        """
        self._known(plan_id, self._row("set_plan_state", {"plan_id": plan_id, "state": str(state), "reason": reason}))

    def begin_copy(self, plan: MigrationPlan) -> None:
        """Set a plan's state to copying, unless the plan has changed since it was read.

        :raises StalePlan: when the plan was made again or refused since.
        """
        if self._row("begin_copy", {"plan_id": plan.plan_id, "as_of_ms": plan.as_of_ms}) is None:
            raise StalePlan(
                f"plan {plan.plan_id} was made again while its copy was about to begin: look at the new counts, then "
                "copy again"
            )

    def approval(self, plan_id: str) -> Approval | None:
        """Return the approval of a plan; none when nobody has approved it.

        :raises UsageError: when there is no such plan.
        """
        return self.load(plan_id).approval

    def set_cohort_state(self, plan_id: str, cohorts: Sequence[int], state: CohortState) -> None:
        """Move cohorts of a plan to another state."""
        self._row("set_cohort_state", {"plan_id": plan_id, "cohorts": list(cohorts), "state": str(state)})

    def unwind(self, plan_id: str, cohorts: Sequence[int]) -> None:
        """Reset a plan to its state before the copy, once the imports of some cohorts are removed from Redis."""
        self.set_cohort_state(plan_id, cohorts, CohortState.PLANNED)
        # The plan is read again, since a copy may have changed its state. A plan that was refused or not approved yet
        # keeps its state.
        plan = self.load_plan(plan_id)
        if set(cohorts) == set(plan.chosen):
            self.clear_progress(plan_id, "copy")
            self.clear_progress(plan_id, "verify")
        if plan.state in (PlanState.COPYING, PlanState.COPIED, PlanState.VERIFIED, PlanState.FAILED):
            approved = self.approval(plan_id) is not None
            self.set_plan_state(plan_id, PlanState.APPROVED if approved else PlanState.PLANNED)

    def cohort_states(self, plan_id: str) -> dict[int, CohortState]:
        """Return the state of each cohort, in order."""
        return {cohort: CohortState(state) for cohort, state in self._rows("cohort_states", {"plan_id": plan_id})}

    def throttle(self, plan_id: str) -> int | None:
        """Return how many messages per second the copy of a plan may write now; none for no limit.

        :raises UsageError: when there is no such plan.
        """
        return self.control(plan_id).operations_per_s

    # --- progress ----------------------------------------------------------------------------------------------

    def record_progress(self, *, plan_id: str, step: Step, part: str, done: int, total: int, at_ms: int) -> None:
        """Note how far one part of a step has come."""
        self._row(
            "record_progress",
            {"plan_id": plan_id, "step": step, "part": part, "done": done, "total": total, "at_ms": at_ms},
        )

    def progress(self, plan_id: str, step: Step, *, parts: Sequence[str] | None = None) -> Progress:
        """Return how far a step has come.

        :param parts: only these parts; all of them when absent.
        """
        wanted = None if parts is None else list(parts)
        (found,) = self._records(Progress, "progress", {"plan_id": plan_id, "step": step, "parts": wanted})
        return found

    def clear_progress(self, plan_id: str, step: Step, parts_prefix: str = "") -> None:
        """Delete the progress of the parts whose names begin with a prefix."""
        self._row("clear_progress", {"plan_id": plan_id, "step": step, "parts_prefix": parts_prefix})

    def record_throughput(self, *, plan_id: str, step: Step, at_ms: int, done: int) -> None:
        """Record how many messages were done at an instant; of many samples two become one."""
        of_step = {"plan_id": plan_id, "step": step}
        before = self._row("record_throughput", of_step | {"at_ms": at_ms, "done": done})
        if before is None or before[0] < MOST_SAMPLES:
            return
        with self._transaction():
            self._hold(plan_id)
            found = to_merge(self.throughput(plan_id, step))
            if found is not None:
                left_out, by = found
                merged = {"at_ms": by.at_ms, "worked_ms": by.worked_ms, "messages": by.messages}
                self._row("merge_throughput", of_step | merged | {"left_out_ms": left_out.at_ms})

    def throughput(self, plan_id: str, step: Step) -> list[ThroughputSample]:
        """Return the samples of a step in order of time."""
        return self._records(ThroughputSample, "throughput", {"plan_id": plan_id, "step": step, "since_ms": 0})

    def save_copy_report(self, report: CopyReport, *, messages_by_cohort: Mapping[int, int] | None = None) -> None:
        """Record what one run of the copy did.

        :param messages_by_cohort: messages that the run has written, by cohort.
        """
        kept = asdict(report) | {"messages_by_cohort": messages_by_cohort or {}}
        with self._transaction():
            self._row(
                "save_copy_report",
                {"plan_id": report.plan_id, "cohorts": list(report.cohorts), "report": Jsonb(kept)},
            )
            effect = audit.figures(asdict(report)) | {"cohorts": list(report.cohorts)}
            del effect["paused"]
            self._audit(audit.Action.APPLY, report.plan_id, effect=effect)

    def copy_reports(self, plan_id: str) -> list[CopyReport]:
        """Return the reports of all runs of the copy, first to last."""
        rows = self._rows("copy_reports", {"plan_id": plan_id})
        # Another release may have written more than this one knows.
        known = {each.name for each in fields(CopyReport)}
        return [
            CopyReport(**{name: value for name, value in report.items() if name in known} | {"cohorts": tuple(cohorts)})
            for report, cohorts in rows
        ]

    def copied_messages(self, plan_id: str) -> dict[int, int]:
        """Return, for each cohort whose copy has begun and not ended, how many of its messages are in Redis.

        The numbers are those that paused copies reported, or the last progress of a copy that was ended otherwise.
        """
        return dict(self._rows("copied_messages", {"plan_id": plan_id}))

    # --- quarantine --------------------------------------------------------------------------------------------

    def replace_quarantine(self, plan_id: str, cohorts: Sequence[int], rows: Iterable[QuarantinedRow]) -> int:
        """Replace the open entries of some cohorts; rows that were replayed stay replayed.

        :param rows: rows of these cohorts only; they are streamed.
        :returns: how many rows were written.
        :raises UsageError: when a row belongs to another cohort.
        """
        chosen = {"plan_id": plan_id, "cohorts": list(cohorts)}
        wanted = set(cohorts)
        written = 0
        with self._transaction() as cursor:
            self._hold(plan_id)
            # Delete before reading the replayed keys: a row replayed meanwhile is either gone or seen.
            self._row("delete_open_quarantine", chosen)
            replayed = set(self._rows("replayed_keys", chosen))
            with cursor.copy(statement(f"{_QUERIES}load_quarantine")) as copy:
                copy.set_types(_QUARANTINE_TYPES)
                for row in rows:
                    if row.cohort not in wanted:
                        raise UsageError(f"row of cohort {row.cohort} given while replacing cohorts {sorted(wanted)}")
                    if (row.kind, row.client_id, row.serial_number) in replayed:
                        continue
                    copy.write_row((
                        plan_id, row.cohort, row.kind, str(row.reason), row.detail, row.client_id, row.serial_number,
                        row.topic, row.time, row.packet_id, row.packet_type, row.qos, row.payload, row.user_properties,
                        row.retain, row.msg_expiry_interval, row.payload_format_indicator, row.content_type,
                        row.response_topic, row.correlation_data, row.last_packet_id,
                    ))  # fmt: skip
                    written += 1
        return written

    def quarantine_counts(self, plan_id: str) -> list[QuarantineCount]:
        """Return quarantined rows by reason, most frequent first."""
        return self._records(QuarantineCount, "quarantine_counts", {"plan_id": plan_id})

    def quarantined(
        self,
        plan_id: str,
        *,
        status: QuarantineStatus | None = "open",
        reason: str | None = None,
        client_id: str | None = None,
        limit: int | None = 1_000,
    ) -> list[QuarantinedRow]:
        """Return quarantined rows, client by client and in the order of its messages.

        :param status: none for open and replayed rows.
        :param limit: most rows to return, since they hold payloads; none for all.
        :raises UsageError: when the reason does not exist.
        """
        check_reason(reason)
        choice = {
            "plan_id": plan_id,
            "status": status,
            "reason": None if reason is None else str(reason),
            "client_id": client_id,
            "maximum": limit,
        }
        return self._records(QuarantinedRow, "quarantined_rows", choice)

    def mark_replayed(self, quarantine_id: int, assigned_packet_id: int | None, at_ms: int) -> bool:
        """Note that a quarantined row was replayed.

        :param assigned_packet_id: new packet id of the message; none when it kept its own, or for a session row.
        :returns: false when the replay was noted before.
        :raises UsageError: when there is no such row, since the cohort was copied anew meanwhile.
        """
        mark = {"quarantine_id": quarantine_id, "assigned_packet_id": assigned_packet_id, "at_ms": at_ms}
        if self._row("mark_replayed", mark) is not None:
            return True
        if self._row("quarantine_status", {"quarantine_id": quarantine_id}) is None:
            raise UsageError(f"quarantine holds no row {quarantine_id}: `queuekeeper migrate quarantine` lists them")
        return False

    def reopen_quarantine(self, quarantine_ids: Sequence[int]) -> None:
        """Mark replayed rows as open again, since no session holds them any more."""
        self._row("reopen_quarantine", {"quarantine_ids": list(quarantine_ids)})

    # --- verification ------------------------------------------------------------------------------------------

    def replace_ledger(self, plan_id: str, rows: Iterable[LedgerRow], verified_at_ms: int) -> None:
        """Replace the ledger rows of an earlier verification of these cohorts; other cohorts keep theirs."""
        with self._transaction():
            self._many(
                "save_ledger_row",
                (asdict(row) | {"plan_id": plan_id, "verified_at_ms": verified_at_ms} for row in rows),
            )

    def ledger(self, plan_id: str) -> tuple[LedgerRow, ...]:
        """Return the ledger rows of a plan, cohort by cohort."""
        return tuple(self._records(LedgerRow, "ledger", {"plan_id": plan_id}))

    def verified_at_ms(self, plan_id: str) -> int | None:
        """Return the instant of the plan's last verification; none when no cohort was verified."""
        row = self._row("verified_at", {"plan_id": plan_id})
        return None if row is None or row[0] is None else int(row[0])

    def replace_differences(
        self, plan_id: str, cohorts: Sequence[int], rows: Iterable[Difference], *, counts: Mapping[tuple[int, str], int]
    ) -> int:
        """Replace the differences that an earlier verification of these cohorts found.

        :param rows: differences of these cohorts only; they are streamed.
        :param counts: cohort and kind -> how many there are.
        :returns: how many were written.
        :raises UsageError: when a row belongs to another cohort.
        """
        wanted = set(cohorts)
        written = 0
        with self._transaction() as cursor:
            self._hold(plan_id)
            for name in ("delete_differences", "delete_difference_counts"):
                self._row(name, {"plan_id": plan_id, "cohorts": list(cohorts)})
            self._many(
                "save_difference_count",
                (
                    {"plan_id": plan_id, "cohort": cohort, "kind": kind, "found": found}
                    for (cohort, kind), found in counts.items()
                ),
            )
            with cursor.copy(statement(f"{_QUERIES}load_differences")) as copy:
                copy.set_types(_DIFFERENCE_TYPES)
                for row in rows:
                    if row.cohort not in wanted:
                        raise UsageError(f"row of cohort {row.cohort} given while replacing cohorts {sorted(wanted)}")
                    copy.write_row(
                        (plan_id, row.cohort, row.client_id, row.serial_number, row.kind, row.expected, row.found)
                    )
                    written += 1
        return written

    def differences(self, plan_id: str, *, limit: int | None = 1_000) -> list[Difference]:
        """Return differences, ordered by cohort and client.

        :param limit: most to return; none for all.
        """
        return self._records(Difference, "differences", {"plan_id": plan_id, "maximum": limit})

    def difference_counts(self, plan_id: str) -> dict[str, int]:
        """Return how many differences the last verification found, by kind and most frequent first."""
        return dict(self._rows("difference_counts", {"plan_id": plan_id}))

    # --- reports -----------------------------------------------------------------------------------------------

    def save_report(self, plan_id: str, *, html_path: str, json_path: str, sha256: str) -> int:
        """Record where a report was written, and return the report's number."""
        with self._transaction():
            row = self._row(
                "save_report",
                {"plan_id": plan_id, "html_path": html_path, "json_path": json_path, "sha256": sha256},
            )
            self._audit(audit.Action.REPORT, plan_id, effect={}, report_hash=sha256)
        assert row is not None  # an INSERT with RETURNING gives a row or raises
        return int(row[0])

    def reports(self, plan_id: str) -> list[StoredReport]:
        """Return where reports were written, latest first."""
        return self._records(StoredReport, "reports", {"plan_id": plan_id})

    # --- locks -------------------------------------------------------------------------------------------------

    @contextmanager
    def copy_lock(self, plan_id: str, cohorts: Sequence[int]) -> Iterator[None]:
        """Hold cohorts of a plan for this session, so that no second copy works on them.

        The locks end with the connection, so a killed process leaves none behind.

        :raises RefusedError: when another session holds one of them; names that session.
        """
        wanted = sorted(set(cohorts))
        choice: dict[str, Any] = {"class": _lock_class("copy", plan_id), "cohorts": wanted}
        taken: list[int] = []
        try:
            try:
                answers = self._rows("lock_cohorts", choice)
            except psycopg.errors.OutOfMemory as error:
                taken = wanted  # some were taken; PostgreSQL does not say which
                raise RefusedError(
                    f"PostgreSQL has no room for {len(taken)} locks: raise max_locks_per_transaction, "
                    "or plan with fewer cohorts"
                ) from error
            taken = [cohort for cohort, locked in answers if locked]
            missed = [cohort for cohort, locked in answers if not locked]
            if missed:
                holder = self._row("cohort_lock_holder", choice | {"cohorts": missed})
                pid, started = holder or (None, None)
                who = f"backend {pid}" if pid else "a backend that has just ended"
                since = f", started {started:%Y-%m-%d %H:%M:%S} UTC" if started else ""
                raise RefusedError(
                    f"another copy of plan {plan_id} is running ({who}{since}): wait for it, "
                    f"or end it before starting another; `queuekeeper migrate status {plan_id}` says how far it is"
                )
            yield
        finally:
            # A connection that is gone has given up its locks; the error that broke it is the one to show.
            if taken and not self.connection.closed:
                with suppress(psycopg.OperationalError):
                    self.connection.execute(statement(f"{_QUERIES}unlock_cohorts"), choice | {"cohorts": taken})

    # --- inside ------------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Cursor[tuple[Any, ...]]]:
        with translated_errors(self.connection), self.connection.transaction(), self.connection.cursor() as cursor:
            yield cursor

    def _hold(self, plan_id: str) -> None:
        """Keep others from replacing rows of a plan until the transaction ends, so that no row is written twice."""
        self._row("hold_record", {"class": _lock_class("record", plan_id)})

    def _audit(
        self,
        action: audit.Action,
        plan_id: str,
        *,
        effect: Mapping[str, Any],
        report_hash: str | None = None,
    ) -> None:
        """Add an entry to the audit in the name of the plan's approver."""
        found = self.load(plan_id)
        actor = found.approved_by or self.connection.info.user
        facts = {"kind": found.kind, **effect}
        audit.record(
            self.connection, actor=actor, action=action, subject=plan_id, effect=facts, report_hash=report_hash
        )

    def _many(self, name: str, parameters: Iterable[dict[str, Any]]) -> None:
        with translated_errors(self.connection), self.connection.cursor() as cursor:
            cursor.executemany(statement(f"{_QUERIES}{name}"), parameters)


def _lock_class(purpose: str, plan_id: str) -> int:
    """Return the first key of the advisory locks that a plan holds for a purpose; never negative."""
    return int.from_bytes(hashlib.sha256(f"queuekeeper.{purpose}:{plan_id}".encode()).digest()[:4], "big") >> 1

"""Carries out a plan step by step, with short waits for locks and repeated tries.

A step works by OID and by the bounds at the moment. A step that was done before is no error, a step that no longer fits
the table is not done, and a blocked step does not stop the next one. Statements are written anew from the catalog; a
step whose statements would differ is stale.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import psycopg
from psycopg import sql

from queuekeeper.clock import Backoff
from queuekeeper.errors import CheckFailed, QueuekeeperError, RefusedError
from queuekeeper.maintenance.partitions import broker
from queuekeeper.maintenance.partitions import plan as planning
from queuekeeper.maintenance.partitions.catalog import (
    Blocker,
    Partition,
    any_row,
    blockers,
    clashing_names,
    has_rows,
    is_detaching,
    relations,
    schema_rights,
)
from queuekeeper.maintenance.partitions.drain import Drain
from queuekeeper.maintenance.partitions.manifest import check_archive
from queuekeeper.maintenance.partitions.model import (
    ApplyReport,
    PartitionPlan,
    PlannedStep,
    Purpose,
    RetiredPartition,
    RetiredState,
    Statement,
    StepKind,
    StepOutcome,
    StepState,
)
from queuekeeper.maintenance.partitions.ranges import Range
from queuekeeper.maintenance.partitions.retired import archive_folder, retired_partitions
from queuekeeper.maintenance.partitions.session import pinned, set_lock_timeout, table_lock
from queuekeeper.maintenance.partitions.statements import BEGIN, COMMIT, Writer, name_in_quarantine
from queuekeeper.maintenance.partitions.survey import Survey, lowest_needed, survey
from queuekeeper.postgres import Connection, server_words
from queuekeeper.sql_statements import statement

_QUERIES = "maintenance/partitions/"
_PATIENT_MS = 10_000
"""Longest wait of a statement behind which nobody else waits, in milliseconds."""

_LONG_TRANSACTION_S = 2.0
"""A concurrent detach does not begin while an older transaction holds the table, since it would stay half done."""

_BACKOFF = Backoff(first_s=0.1, longest_s=5.0)

_STALE_ERRORS = (
    psycopg.errors.CheckViolation,
    psycopg.errors.DuplicateTable,
    psycopg.errors.InvalidObjectDefinition,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedObject,
)


class _Stale(Exception):
    """The table has changed since the plan."""


class _Already(Exception):
    """The step was done before."""


def apply_plan(
    connection: Connection,
    *,
    plan: PartitionPlan,
    now_ms: int,
    is_paused: Callable[[], bool] = lambda: False,
    note: Callable[[Sequence[StepOutcome]], None] = lambda _: None,
    wait: Callable[[float], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    random: Random | None = None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> ApplyReport:
    """Do every step of a plan that still fits; safe to repeat.

    :param connection: connection with ``autocommit``; its settings are restored afterwards.
    :param is_paused: called before each step; once it returns true, the remaining steps are not done.
    :param note: called after each step with the outcomes so far.
    :param wait: called with the number of rows just copied; may wait.
    :param say: prints what is being done.
    :param random: spreads the pauses between tries.
    :raises MaintenanceRunning: when another process maintains the table.
    :raises ServerUnavailable: when the connection broke; a repeated apply goes on.
    """
    spread = random or Random()  # noqa: S311 - it spreads tries, and guards nothing
    work = _Work(connection, plan, now_ms, wait, say, spread, sleep, monotonic)
    with (
        pinned(connection, lock_timeout_ms=plan.policy.lock_timeout_ms),
        table_lock(connection, plan.table, plan.table_oid),
    ):
        outcomes: list[StepOutcome] = []
        paused = False
        for step in plan.steps:
            paused = paused or is_paused()
            outcomes.append(_paused(step) if paused else work.do(step))
            note(outcomes)
        report = ApplyReport(
            purpose=plan.purpose, table=plan.table, outcomes=tuple(outcomes), seconds=monotonic() - work.started_s
        )
        if plan.purpose is Purpose.CREATION and report.done:
            _observe(connection, plan, now_ms)
    return report


def _paused(step: PlannedStep) -> StepOutcome:
    words = "the run is paused: resume it, or apply again"
    return StepOutcome(kind=step.kind, partition=step.partition, state=StepState.PAUSED, words=words)


def _observe(connection: Connection, plan: PartitionPlan, now_ms: int) -> None:
    seen = survey(connection, policy=plan.policy, now_ms=plan.as_of_ms)
    highest = seen.highest
    connection.execute(
        statement(f"{_QUERIES}save_observation"),
        {
            "table": plan.table,
            "observed_at_ms": now_ms,
            "highest_key": None if highest is None else seen.table.key.text(highest),
        },
    )


@dataclass
class _Tries:
    """Number and duration of one step's tries."""

    attempts: int = 0
    waited_s: float = 0.0
    rows: int | None = None
    blockers: tuple[Blocker, ...] = field(default=())


class _Work:
    """Carries out one plan."""

    def __init__(
        self,
        connection: Connection,
        plan: PartitionPlan,
        now_ms: int,
        wait: Callable[[float], None],
        say: Callable[[str], None],
        random: Random,
        sleep: Callable[[float], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._plan = plan
        self._policy = plan.policy
        self._now_ms = now_ms
        self._wait = wait
        self._waited_s = 0.0
        self._say = say
        self._random = random
        self._sleep = sleep
        self._monotonic = monotonic
        self.started_s = monotonic()

    # --- tries -----------------------------------------------------------------------------------------------------

    def do(self, step: PlannedStep) -> StepOutcome:
        """Try a step until it is done, no longer fits, or the time is up."""
        begun = self._monotonic()
        tries = _Tries()

        def outcome(state: StepState, words: str = "") -> StepOutcome:
            if words:
                self._say(f"{step.kind.value} {step.partition}: {state.value}: {words}")
            return StepOutcome(
                kind=step.kind,
                partition=step.partition,
                state=state,
                attempts=tries.attempts,
                waited_s=tries.waited_s,
                seconds=self._monotonic() - begun,
                words=words,
                blockers=tries.blockers if state is StepState.BLOCKED else (),
                rows=tries.rows,
            )

        self._say(f"{step.kind.value} {step.partition}: {step.reason}")
        while True:
            tries.attempts += 1
            tried_s = self._monotonic()
            try:
                self._try(step, tries)
                return outcome(StepState.DONE)
            except _Already:
                return outcome(StepState.ALREADY)
            except _Stale as error:
                return outcome(StepState.STALE, f"{error}; make a new plan")
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                tries.waited_s += self._monotonic() - tried_s
                tries.blockers = tries.blockers or self._holders(step)
            except _STALE_ERRORS as error:
                return outcome(StepState.STALE, f"{server_words(error)}; make a new plan")
            except QueuekeeperError as error:
                return outcome(StepState.FAILED, str(error))
            except psycopg.Error as error:
                if self._connection.closed:
                    raise
                return outcome(StepState.FAILED, server_words(error))
            if not self._pause(tries):
                names = ", ".join(f"pid {each.pid} ({each.state})" for each in tries.blockers[:3]) or "others"
                return outcome(
                    StepState.BLOCKED, f"{names} held a lock for all of {self._policy.deadline_s} s; repeat it"
                )

    def _left_s(self) -> float:
        return self.started_s + self._waited_s + self._policy.deadline_s - self._monotonic()

    def _pause(self, tries: _Tries) -> bool:
        """Wait before the next try; return false when no time is left for one."""
        pause = _BACKOFF.after(tries.attempts) * self._random.uniform(0.5, 1.5)
        if self._left_s() <= pause:
            return False
        self._sleep(pause)
        tries.waited_s += pause
        return True

    def _holders(self, step: PlannedStep) -> tuple[Blocker, ...]:
        oids = [self._plan.table_oid, *([step.oid] if step.oid is not None else [])]
        return blockers(self._connection, oids, planning.ALL_MODES)

    # --- one try -----------------------------------------------------------------------------------------------------

    def _try(self, step: PlannedStep, tries: _Tries) -> None:
        seen = self._look()
        partition = next((each for each in seen.table.partitions if each.oid == step.oid), None)
        match step.kind:
            case StepKind.CREATE:
                self._check_free(seen, step, [(step.lower, step.upper)])
                self._run(self._written(seen, step))
            case StepKind.FINALIZE:
                self._finalize(seen, step, partition)
            case StepKind.DETACH | StepKind.QUARANTINE:
                self._retire(seen, step, partition, tries)
            case StepKind.REATTACH:
                self._reattach(seen, step, partition)
            case StepKind.DROP:
                self._drop(seen, step)
            case StepKind.DRAIN:
                self._drain(seen, step, tries)
            case StepKind.CLEAR:
                self._remove(seen, step)
            case StepKind.ADVANCE:
                self._advance(seen, step)

    def _look(self) -> Survey:
        seen = survey(self._connection, policy=self._policy, now_ms=self._plan.as_of_ms)
        if seen.table.oid != self._plan.table_oid:
            raise _Stale(f"{self._plan.table} was created anew")
        return seen

    def _writer(self, seen: Survey) -> Writer:
        return planning.writer(self._connection, seen)

    def _written(self, seen: Survey, step: PlannedStep) -> tuple[Statement, ...]:
        """Return a step's statements, written from the present catalog."""
        found = self._writer(seen).of(step)
        if [each.sql for each in found] != [each.sql for each in step.statements]:
            raise _Stale("its statements would differ by now")
        return found

    def _run(
        self,
        statements: Sequence[Statement],
        note: Callable[[], None] | None = None,
        look: Callable[[], None] | None = None,
    ) -> None:
        """Send statements; those between BEGIN and COMMIT are one transaction.

        :param note: writes the record, in the last transaction.
        :param look: checks again, in the last transaction, once its first statement has locked the table.
        """
        groups = list(_groups(statements))
        for at, group in enumerate(groups):
            if len(group) == 1 and group[0] is not BEGIN:
                self._send(group[0])
                continue
            is_last = at == len(groups) - 1
            with self._connection.transaction():
                for each in group[1:]:
                    self._send(each)
                    if look and is_last and each is group[1]:
                        look()
                if note and is_last:
                    note()

    def _send(self, each: Statement) -> None:
        self._connection.execute(each.sql.encode())

    def _check_free(self, seen: Survey, step: PlannedStep, bounds: Iterable[tuple[str | None, str | None]]) -> None:
        """Check that no partition covers the ranges that are to be created."""
        wanted = [_range(seen, lower, upper) for lower, upper in bounds]
        present = {each.range: each for each in seen.table.partitions if each.range and not each.pending}
        if all(each in present for each in wanted):
            raise _Already
        for each in wanted:
            for other in seen.table.partitions:
                if other.range and other.range.overlaps(each):
                    raise _Stale(f"{other.name} covers keys of it")

    # --- creation ----------------------------------------------------------------------------------------------------

    def _finalize(self, seen: Survey, step: PlannedStep, partition: Partition | None) -> None:
        if partition is None:
            raise _Stale("it is no longer a partition")
        if not partition.pending:
            raise _Already
        if is_detaching(self._connection):
            raise _Stale("another session is detaching a partition")
        self._check_same(step, partition)
        with self._patience():
            self._run(self._written(seen, step))

    def _advance(self, seen: Survey, step: PlannedStep) -> None:
        wanted = seen.table.key.position(step.upper or "")
        while True:
            overflow = seen.table.overflow
            if overflow and overflow.range and overflow.range.start >= wanted:
                return
            with self._connection.transaction():
                made = self._connection.execute(self._writer(seen).of(step)[0].sql.encode()).fetchone()
            seen = self._look()
            if made and made[0]:
                self._say(f"{self._plan.table}: {made[0]} partitions took the place of the overflow")
            elif not (seen.table.overflow and seen.table.overflow.range and seen.table.overflow.range.start >= wanted):
                raise psycopg.errors.LockNotAvailable("the broker's own maintenance is at work")

    def _drain(self, seen: Survey, step: PlannedStep, tries: _Tries) -> None:
        default = seen.table.default
        bounds = [(each.lower, each.upper) for each in step.pieces if each.lower is not None]
        self._check_free(seen, step, bounds)
        if default is None or default.oid != step.oid:
            raise _Stale("the DEFAULT partition was replaced meanwhile")
        self._check_same(replace(step, lower=None, upper=None), default)
        if seen.undrainable:
            raise _Stale(seen.undrainable)
        self._written(seen, step)
        write = self._writer(seen)
        self._make_room(write)
        exchanges = _Tries()

        def copied(rows: int, blocks: str) -> None:
            tries.rows = (tries.rows or 0) + rows
            self._say(f"{step.partition}: {tries.rows:,} rows copied, {blocks}")
            began_s = self._monotonic()
            self._wait(rows)
            # The time limit covers waits for locks, not the copy.
            self._waited_s += self._monotonic() - began_s

        def may_repeat() -> bool:
            exchanges.attempts += 1
            return self._pause(exchanges)

        Drain(
            connection=self._connection,
            step=step,
            write=write,
            send=self._run,
            copied=copied,
            may_repeat=may_repeat,
            note=lambda: self._note_retired(step, default, drained=True),
            say=self._say,
        ).carry_out()

    def _remove(self, seen: Survey, step: PlannedStep) -> None:
        """Remove what an interrupted drain has left; a drain at work would hold the table's maintenance lock."""
        default = seen.table.default
        if default is None or default.oid != step.oid:
            raise _Stale("the DEFAULT partition was replaced meanwhile")
        if not seen.drain_left:
            raise _Already
        self._check_same(step, default)
        self._run(self._written(seen, step))

    # --- retirement --------------------------------------------------------------------------------------------------

    def _retire(self, seen: Survey, step: PlannedStep, partition: Partition | None, tries: _Tries) -> None:
        if partition is None:
            self._quarantine(seen, step)
            return
        self._check_same(step, partition)
        if partition.owner != seen.table.owner:
            raise _Stale(f"it belongs to {partition.owner} by now")
        self._check_consumers(seen, partition)
        write = self._writer(seen)
        self._make_room(write)
        broker.let_idle_groups_go_on(self._connection, table=self._plan.table, upper=partition.upper)
        with self._connection.transaction():
            # Somebody has attached it by hand, which ended its time in quarantine; its archive holds the old rows.
            self._end(step, RetiredState.REATTACHED, RetiredState.QUARANTINED, RetiredState.RESTORING)
            self._note_retired(step, partition)
        target = sql.Identifier(step.schema_name, step.relation_name)
        if seen.table.default and not partition.pending:
            if not self._policy.blocking_detach:
                raise _Stale("the table has a DEFAULT partition by now")
            step = self._renamed(step)
            moves = (BEGIN, write.plain_detach(target), *write.quarantine(step), COMMIT)

            def look() -> None:
                if seen.live and has_rows(self._connection, seen.table, partition):
                    raise _Stale("a row came into it meanwhile: it stays until its system has taken the row out")

            self._run(moves, lambda: self._note_quarantined(step), look)
            return
        with self._patience():
            if partition.pending:
                if is_detaching(self._connection):
                    raise psycopg.errors.LockNotAvailable("another session is detaching a partition")
                self._send(write.finalize(target))
            else:
                self._wait_for_long_transactions(tries)
                self._send(write.detach(target))
        self._quarantine(self._look(), step)

    def _quarantine(self, seen: Survey, step: PlannedStep) -> None:
        """Move a detached partition to the quarantine schema, if a plan asked for the detach."""
        record = next(
            (
                each
                for each in retired_partitions(self._connection, table=self._plan.table)
                if each.partition_oid == step.oid and each.state in {RetiredState.DETACHING, RetiredState.QUARANTINED}
            ),
            None,
        )
        relation = relations(self._connection, [step.oid or 0]).get(step.oid or 0)
        if record is None or relation is None or relation.is_partition:
            raise _Stale("it is no longer a partition of the table")
        if record.state is RetiredState.QUARANTINED:
            raise _Already
        write = self._writer(seen)
        # The table may have been renamed since the plan.
        step = replace(step, schema_name=relation.schema_name, relation_name=relation.relation_name)
        if broker.holds_undispatched(self._connection, table=self._plan.table, oid=relation.oid):
            self._send(write.attachment(step))
            self._end(step, RetiredState.REATTACHED, RetiredState.DETACHING)
            raise _Stale("an event was committed in it meanwhile: it was attached again until that event is dispatched")
        if seen.live and any_row(self._connection, sql.Identifier(step.schema_name, step.relation_name)):
            self._send(write.attachment(step))
            self._end(step, RetiredState.REATTACHED, RetiredState.DETACHING)
            raise _Stale("a row was committed in it meanwhile: it was attached again until its system has taken it out")
        self._make_room(write)
        step = self._renamed(step)
        self._run((BEGIN, *write.quarantine(step), COMMIT), lambda: self._note_quarantined(step))

    def _check_consumers(self, seen: Survey, partition: Partition) -> None:
        """Check consumers again, since a plan may wait a day for its approval."""
        needed = lowest_needed(self._connection, seen, override_consumers=self._plan.overrides_consumers)
        if needed is not None and partition.range and partition.range.end > needed:
            raise _Stale(f"a consumer needs keys from {seen.table.key.text(needed)} by now")

    def _wait_for_long_transactions(self, tries: _Tries) -> None:
        found = [
            each
            for each in blockers(self._connection, [self._plan.table_oid], planning.ALL_MODES)
            if each.transaction_age_s >= _LONG_TRANSACTION_S
        ]
        if found:
            tries.blockers = tuple(found)
            raise psycopg.errors.LockNotAvailable("a long transaction holds the table")

    def _reattach(self, seen: Survey, step: PlannedStep, partition: Partition | None) -> None:
        if partition is not None:
            raise _Already
        away = step.quarantine_schema or self._policy.quarantine_schema

        def look() -> None:
            self._check_place(step, away, step.relation_name)

        look()
        self._check_free(seen, step, [(step.lower, step.upper)])
        self._run(
            self._written(seen, step), lambda: self._end(step, RetiredState.REATTACHED, RetiredState.QUARANTINED), look
        )

    def _drop(self, seen: Survey, step: PlannedStep) -> None:
        record = next(
            (
                each
                for each in retired_partitions(self._connection, table=self._plan.table)
                if each.retired_id == step.retired_id
            ),
            None,
        )
        if record and record.state is RetiredState.DROPPED:
            raise _Already
        if record is None or record.state is not RetiredState.QUARANTINED or record.partition_oid != step.oid:
            raise _Stale("it is not in quarantine any more")

        def look() -> None:
            self._check_place(step, step.schema_name, step.relation_name)
            if self._policy.archive and not record.drained_default:
                self._check_archive(step, record)

        self._run(
            self._written(seen, step), lambda: self._end(step, RetiredState.DROPPED, RetiredState.QUARANTINED), look
        )

    def _check_archive(self, step: PlannedStep, record: RetiredPartition) -> None:
        """Compare files, manifest and table, which nobody can change any more."""
        if record.archived_at is None:
            raise _Stale("its archive is not verified")
        name = sql.Identifier(step.schema_name, step.relation_name).as_string(self._connection)
        try:
            check_archive(self._connection, table=name, path=archive_folder(record))
        except (CheckFailed, RefusedError) as error:
            raise CheckFailed(
                f"it is not dropped, because its archive does not prove to hold its rows: {error}; drop it where the "
                "archive can be read, or archive it again"
            ) from error

    def _check_place(self, step: PlannedStep, schema_name: str, relation_name: str) -> None:
        """Check that the detached table still has the names in the statements."""
        relation = relations(self._connection, [step.oid or 0]).get(step.oid or 0)
        if relation is None or relation.is_partition:
            raise _Stale("it is not in quarantine any more")
        if (relation.schema_name, relation.relation_name) != (schema_name, relation_name):
            raise _Stale(f"it was renamed to {relation.schema_name}.{relation.relation_name}")

    def _check_same(self, step: PlannedStep, partition: Partition) -> None:
        if (partition.lower, partition.upper) != (step.lower, step.upper):
            raise _Stale("its bounds have changed")
        if (partition.schema_name, partition.relation_name) != (step.schema_name, step.relation_name):
            raise _Stale(f"it was renamed to {partition.name}")

    def _make_room(self, write: Writer) -> None:
        """Create the quarantine schema where it is missing, before anything is detached."""
        schema = self._policy.quarantine_schema
        is_present, may_fill, may_create = schema_rights(self._connection, schema)
        role = self._connection.info.user
        if is_present and not may_fill:
            raise RefusedError(f"{role} may put no table into schema {schema}: GRANT CREATE ON SCHEMA {schema} TO it")
        if not is_present and not may_create:
            raise RefusedError(
                f"there is no schema {schema}, and {role} may not create it: create it, and GRANT CREATE ON it"
            )
        if not is_present:
            self._send(write.room())

    def _renamed(self, step: PlannedStep) -> PlannedStep:
        """Return the step with names that are free in the quarantine schema now."""
        found = clashing_names(self._connection, step.oid or 0, schema_name=self._policy.quarantine_schema)
        return replace(step, renames=found)

    # --- records -----------------------------------------------------------------------------------------------------

    def _note_retired(self, step: PlannedStep, partition: Partition, *, drained: bool = False) -> None:
        self._connection.execute(
            statement(f"{_QUERIES}save_retired"),
            {
                "table": self._plan.table,
                "table_oid": self._plan.table_oid,
                "partition_oid": partition.oid,
                "schema_name": partition.schema_name,
                "partition_name": name_in_quarantine(step) if drained else partition.relation_name,
                "quarantine_schema": self._policy.quarantine_schema,
                "lower": partition.lower,
                "upper": partition.upper,
                "drained_default": drained,
                "state": (RetiredState.QUARANTINED if drained else RetiredState.DETACHING).value,
                "size_bytes": partition.bytes,
                "reason": step.reason,
                "now_ms": self._now_ms,
                "quarantine_days": self._policy.quarantine_days,
            },
        )

    def _note_quarantined(self, step: PlannedStep) -> None:
        """Record that a partition is in quarantine; roll back if another table was moved there."""
        name = name_in_quarantine(step)
        self._check_place(step, self._policy.quarantine_schema, name)
        self._connection.execute(
            statement(f"{_QUERIES}set_quarantined"),
            {
                "table": self._plan.table,
                "partition_oid": step.oid,
                "partition_name": name,
                "quarantine_schema": self._policy.quarantine_schema,
                "now_ms": self._now_ms,
                "quarantine_days": self._policy.quarantine_days,
            },
        )

    def _end(self, step: PlannedStep, state: RetiredState, *former: RetiredState) -> None:
        self._connection.execute(
            statement(f"{_QUERIES}end_retired"),
            {
                "table": self._plan.table,
                "partition_oid": step.oid,
                "former": [each.value for each in former],
                "state": state.value,
                "now_ms": self._now_ms,
            },
        )

    def _patience(self) -> _Patience:
        return _Patience(self._connection, self._policy.lock_timeout_ms, min(self._left_s(), _PATIENT_MS / 1_000))


@dataclass
class _Patience:
    """Lets the statements of a block wait longer, since nobody waits behind them."""

    connection: Connection
    usual_ms: int
    longest_s: float

    def __enter__(self) -> None:
        set_lock_timeout(self.connection, max(self.usual_ms, int(self.longest_s * 1_000)))

    def __exit__(self, *_: object) -> None:
        if not self.connection.closed:
            set_lock_timeout(self.connection, self.usual_ms)


def _groups(statements: Sequence[Statement]) -> Iterator[list[Statement]]:
    """Yield each single statement, and the statements of each transaction together, with BEGIN."""
    group: list[Statement] = []
    for each in statements:
        if each == COMMIT:
            yield group
            group = []
        elif each == BEGIN or group:
            group.append(BEGIN if each == BEGIN else each)
        else:
            yield [each]


def _range(seen: Survey, lower: str | None, upper: str | None) -> Range:
    key = seen.table.key
    return Range(
        lower=None if lower is None else key.position(lower), upper=None if upper is None else key.position(upper)
    )

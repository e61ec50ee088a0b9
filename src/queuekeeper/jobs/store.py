"""The record of a job's runs: plan, approval, state, throttle, progress, report."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Literal, TypeVar

from psycopg.types.json import Jsonb

from queuekeeper import __version__, audit
from queuekeeper.approvals import Standing, check_current, milliseconds
from queuekeeper.clock import Bucket
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.jobs.kinds import RunKind
from queuekeeper.jobs.locks import session_lock
from queuekeeper.jobs.parameters import MAX_RATE_PER_S, no_rate
from queuekeeper.jobs.registry import kind_of
from queuekeeper.jobs.shared_bucket import SharedBucket
from queuekeeper.postgres import Connection, records, translated_errors
from queuekeeper.sql_statements import statement
from queuekeeper.wording import article, no_such

_QUERIES = "queuekeeper/queries/"
_KNOWN_RUNS = 5
_BEGINNING = re.compile("[0-9a-f]{4,16}")
T = TypeVar("T")


class RunState(StrEnum):
    """State of a run."""

    PLANNED = "planned"  # counted; waits for approval
    APPROVED = "approved"  # a person agreed
    RUNNING = "running"  # at work, paused, or killed at work
    DONE = "done"  # all shares are done
    REJECTED = "rejected"  # nobody agreed when asked; somebody may after all
    STOPPED = "stopped"  # its time was up, or somebody stopped it; it can go on
    FAILED = "failed"  # an error ended it; it can go on


_BEGUN = (RunState.RUNNING, RunState.DONE, RunState.FAILED)


def run_state(states: Collection[RunState], *, open_shares: int) -> RunState:
    """Return the state of a run from those of the shares that have begun.

    A run works while one of its shares does; then the worst that happened to a share counts, until that share is done.

    :param open_shares: shares of its plan that are not done.
    """
    if not open_shares:
        return RunState.DONE
    for state in (RunState.RUNNING, RunState.FAILED, RunState.STOPPED):
        if state in states:
            return state
    return RunState.RUNNING  # some shares are done, and the others have not begun


Order = Literal["pause", "resume", "throttle", "undo"]
"""What a person can tell a run."""


@dataclass(frozen=True, kw_only=True)
class MaintenanceRun:
    """A run as stored.

    :param kind: kind of the run, such as ``fanout_repair``.
    :param refused: why the run may not be carried out; empty when it may.
    :param parameters: parameters of the run.
    :param plan: the plan, in the kind's own form.
    :param report: what was done; none before the end of the run.
    """

    maintenance_run_id: str
    kind: str
    parameters: dict[str, Any]
    state: RunState
    refused: str = ""
    plan: dict[str, Any]
    report: dict[str, Any] | None
    approved_by: str | None
    approved_at: datetime | None
    throttle_operations_per_s: int | None
    paused: bool
    created_at: datetime
    updated_at: datetime

    @property
    def approval(self) -> Approval | None:
        """The approval of the run; none when nobody has approved it."""
        if self.approved_by is None or self.approved_at is None:
            return None
        return Approval(approved_by=self.approved_by, approved_at=self.approved_at)

    @property
    def of(self) -> RunKind:
        """The run's kind; of a kind that cannot be loaded here, only its name and the reason."""
        try:
            return kind_of(self.kind)
        except UsageError as error:
            why = f"Run {self.maintenance_run_id} is of the job {self.kind}, which cannot be loaded here: {error}."
            return RunKind(name=self.kind, dag=self.kind, noun=self.kind, no_undo=lambda _: why)

    @property
    def unit(self) -> str:
        """What the throttle counts, in the plural."""
        return self.of.unit

    @property
    def rejected(self) -> str:
        """What can be done about a run that nobody agreed to, as sentences; empty for any other."""
        if self.state is not RunState.REJECTED:
            return ""
        after_all = self.of.go_on(self)
        agree = f", or agree after all: `queuekeeper {after_all}` asks again" if after_all else ""
        return f"Nobody agreed when asked, so nothing was changed. Plan again{agree}."

    @property
    def dry_run(self) -> bool:
        """Whether it ended with its plan, as it was asked to, and nobody has carried that out since."""
        return self.state is RunState.PLANNED and bool((self.report or {}).get("dry_run"))

    @property
    def waits_for_approval(self) -> bool:
        """Whether its plan has something to do, was not refused, and nobody has answered for it."""
        has_ended = bool(self.refused) or self.report is not None or self.of.is_empty(self)
        return self.state is RunState.PLANNED and not has_ended

    @property
    def what_next(self) -> str:
        """What can be done about a run at which nothing is at work, as sentences; empty where something may be."""
        carry_out = self.of.go_on(self)
        if self.waits_for_approval and not self.paused:
            asks = f": `queuekeeper {carry_out}` asks for it" if carry_out else ""
            return f"It waits for an approval{asks}."
        if not self.dry_run:
            return self.rejected
        after_all = f" `queuekeeper {carry_out}` carries its plan out, once you agree." if carry_out else ""
        return f"It was a dry run, which changed nothing.{after_all}"

    @property
    def begun_and_open(self) -> bool:
        """Whether it has begun, and not all of its shares are done."""
        return self.state in (RunState.RUNNING, RunState.STOPPED, RunState.FAILED) and not self.refused

    @property
    def over(self) -> str:
        """Why the run can never be at work again, as sentences; empty where it can, as after a failure."""
        if self.refused:
            return f"Its plan was refused: {self.refused}. Plan again."
        # A second look can be paused.
        if self.state is RunState.DONE and (self.report is not None or not self.of.looks_again):
            return (
                "It is done: nothing is at work that could be paused, resumed or slowed down. "
                f"`queuekeeper run report {self.maintenance_run_id}` says what it did."
            )
        return ""

    def refuses(self, order: Order) -> str:
        """Return why the run does not take an order, as sentences; empty where it takes it.

        Pages offer what a run takes, and commands refuse the rest, in the same words.
        """
        return self._takes_not_now(order) or self._never_takes(order)

    def check_takes(self, order: Order) -> None:
        """Refuse an order that the run does not take.

        :raises RefusedError: when it does not take it in its present state.
        :raises UsageError: when no run like it takes it.
        """
        if words := self._takes_not_now(order):
            raise RefusedError(words)
        if words := self._never_takes(order):
            raise UsageError(words)

    def _takes_not_now(self, order: Order) -> str:
        if order == "undo":
            return "Nobody agreed when asked, so there is nothing to undo." if self.rejected else ""
        if order == "resume" and self.paused:
            return ""  # whoever agrees after all, or looks again, would be kept waiting
        if self.rejected:
            return f"Nothing is at work that could be paused, resumed or slowed down. {self.rejected}"
        return self.over

    def _never_takes(self, order: Order) -> str:
        if order == "throttle":
            return self.of.no_pace(self)
        return self.of.no_undo(self) if order == "undo" else ""

    def check_kind(self, kinds: Collection[str], noun: str) -> None:
        """Check that the run is of one of these kinds.

        :param noun: a run of these kinds, in sentences.
        :raises UsageError: saying what the run is.
        """
        if self.kind not in kinds:
            raise UsageError(f"run {self.maintenance_run_id} is {article(self.of.noun)}, not {article(noun)}")

    @property
    def standing(self) -> Standing:
        """What decides whether the run may be carried out: release and instant of its plan, and its approval."""
        facts = {**self.parameters, **self.plan}
        return Standing(
            name=f"{'plan' if self.of.noun == 'plan' else 'run'} {self.maintenance_run_id}",
            code_version=str(facts.get("code_version", "")),
            planned_at_ms=int(facts.get("as_of_ms", 0)),
            approved_by=self.approved_by,
            approved_at_ms=None if self.approved_at is None else milliseconds(self.approved_at),
            begun=self.state in _BEGUN,
            command=self.of.command,
        )


@dataclass(frozen=True, kw_only=True)
class RunControl:
    """What a person may change while a run works.

    :param operations_per_s: throttle over all shards; none for no limit.
    """

    paused: bool
    operations_per_s: int | None


@dataclass(frozen=True, kw_only=True)
class ShardProgress:
    """How far a run has come in one shard.

    :param shard: name of a share of the work; of a cleanup, ``host:port``.
    :param cursor: where to continue, in the kind's own form; empty before its first step.
    :param scanned: keys or queues looked at.
    :param counts: what was removed and repaired, in detail.
    :param updated_at: set by the database; none for progress that was not written yet.
    """

    shard: str
    cursor: str = ""
    scanned: int = 0
    removed: int = 0
    repaired: int = 0
    freed_bytes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    done: bool = False
    updated_at: datetime | None = None


def maintenance_run_id(*, kind: str, parameters: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """Return the id of a run; the same parameters and the same plan give the same id."""
    identity = {"kind": kind, "parameters": parameters, "plan": plan}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """How far a run has come.

    :param shares: shares that have begun.
    :param done: shares that are done.
    :param scanned: keys or queues looked at.
    :param updated_at: instant of the newest progress.
    """

    maintenance_run_id: str
    shares: int
    done: int
    scanned: int
    updated_at: datetime


@dataclass(frozen=True, kw_only=True)
class Approval:
    """Who agreed to a run, and when."""

    approved_by: str
    approved_at: datetime


class Runs:
    """Reads the records of runs of every kind, migrations included; writes approvals, pauses, throttles and undos.

    Every method is one transaction. Methods may be called from many processes at once, each with its own connection.

    :cvar kinds: only runs of these kinds; none for all.
    :cvar noun: word for a run.
    :cvar made_by: what makes a run, for a person who has none.
    :ivar connection: none where no run is put on record.
    """

    kinds: ClassVar[Sequence[str]] = ()
    noun: ClassVar[str] = "run"
    made_by: ClassVar[str] = "plan first"
    connection: Any = None

    def __init__(self, connection: Connection) -> None:
        """Use a connection with ``autocommit``, since others must see progress at once.

        :raises UsageError: when the connection has no ``autocommit``.
        """
        if not connection.autocommit:
            raise UsageError("records of runs need a connection with autocommit=True, so that others see progress")
        self.connection = connection

    def load(self, run_id: str) -> MaintenanceRun:
        """Return a run.

        :raises UsageError: when there is no such run; names those that exist.
        """
        found = self._load([run_id])
        self._known(run_id, tuple(found) or None)
        return found[0]

    def goes_on(self, run_id: str) -> bool:
        """Return whether a run has begun and is not over, such as one that is paused, and this release may go on."""
        found = self._load([run_id])
        return any(run.begun_and_open and run.standing.code_version == __version__ for run in found)

    def latest_id(self, *kinds: str) -> str | None:
        """Return the id of the newest run, if there is one.

        :param kinds: only runs of these kinds; all when empty.
        """
        return next(iter(self._known_ids(kinds, limit=1)), None)

    def newest(self, *, kind: str | None = None, state: RunState | None = None, limit: int) -> list[MaintenanceRun]:
        """Return the newest runs, newest first.

        :param kind: only runs of this kind.
        :param state: only runs in this state.
        """
        return self._load(self._known_ids([kind] if kind else [], state=state, limit=limit))

    def count_by_state(self, *, kind: str | None = None) -> dict[RunState, int]:
        """Return how many runs are in each state, in the order of states.

        :param kind: only runs of this kind.
        """
        found = dict(self._rows("count_runs", {"kinds": [kind] if kind else list(self.kinds) or None}))
        return {state: found.get(state, 0) for state in RunState}

    def find(self, text: str, *, limit: int) -> list[MaintenanceRun]:
        """Return the runs that a text names, newest first.

        :param text: the first digits of a run's id, four at least, or the id of the run of Airflow that has made a
            migration's plan.
        """
        beginning = text if _BEGINNING.fullmatch(text) else None
        wanted = {"beginning": beginning, "airflow_run_id": text, "maximum": limit}
        return self._load([run_id for (run_id,) in self._rows("find_runs", wanted)])

    def progress_of(self, run_ids: Collection[str]) -> dict[str, RunProgress]:
        """Return the progress, by id, of those of the runs that have begun."""
        found = self._records(RunProgress, "run_progress", {"maintenance_run_ids": list(run_ids)})
        return {each.maintenance_run_id: each for each in found}

    def check_current(self, run_id: str, *, now_ms: int, answer: audit.Answer | None = None) -> None:
        """Check that a run may be approved or carried out.

        :param answer: an approval that is not on record yet; none for the approval on record.
        :raises StalePlan: when its plan or its approval is too old, or another release made the plan.
        :raises UsageError: when there is no such run.
        """
        standing = self.load(run_id).standing
        check_current(standing if answer is None else standing.answered(answer, now_ms=now_ms), now_ms=now_ms)

    def approve(self, run_id: str, approved_by: str) -> None:
        """Record that a person approves a run now; a run at work keeps its state.

        :raises UsageError: when there is no such run.
        :raises RefusedError: when its plan was refused.
        """
        answer = audit.Answer(action=audit.Action.APPROVE, actor=approved_by)
        with self.connection.transaction():
            self.note_answer(run_id, answer)
            self.set_approved(run_id, answer)

    def note_answer(self, run_id: str, answer: audit.Answer) -> None:
        """Record the answer to the question; a run that waited for it is rejected when nobody approved.

        :raises UsageError: when there is no such run.
        """
        with self.connection.transaction():
            audit.record_answer(self.connection, answer, subject=run_id, kind=self.load(run_id).kind)
            if answer.action is not audit.Action.APPROVE:
                self._row("reject_planned_run", {"maintenance_run_id": run_id})

    def approve_current(self, run_id: str, answer: audit.Answer, *, now_ms: int) -> None:
        """Approve a run by a person's answer, if plan and answer still count.

        :raises StalePlan: when the plan or the answer no longer counts.
        :raises UsageError: when there is no such run.
        """
        self.check_current(run_id, now_ms=now_ms, answer=answer)
        self.set_approved(run_id, answer)

    def set_approved(self, run_id: str, answer: audit.Answer) -> None:
        """Set a run's state to approved, without an entry in the audit.

        :raises UsageError: when there is no such run.
        :raises RefusedError: when its plan was refused.
        """
        agreed = {"maintenance_run_id": run_id, "approved_by": answer.actor, "approved_at": answer.at}
        if self._row("approve_run", agreed) is None:
            run = self.load(run_id)
            raise RefusedError(
                f"plan {run_id} cannot be approved, it was refused: {run.refused}; {run.standing.remedy}"
            )

    # --- while it runs -----------------------------------------------------------------------------------------

    def set_throttle(self, run_id: str, operations_per_s: int | None, *, actor: str | None = None) -> None:
        """Change the throttle of a run, also while it works.

        :param operations_per_s: throttle over all shards; none lifts it.
        :param actor: person who asks for it; none for the user of the database.
        :raises UsageError: when the throttle is out of range, or there is no such run.
        """
        unit = self.load(run_id).unit
        _check_throttle(operations_per_s, unit)
        with self.connection.transaction():
            self._row("set_run_throttle", {"maintenance_run_id": run_id, "operations_per_s": operations_per_s})
            self._record(run_id, audit.Action.THROTTLE, {f"{unit}_per_s": operations_per_s}, actor=actor)

    def set_paused(self, run_id: str, paused: bool, *, actor: str | None = None) -> None:
        """Pause or resume a run.

        :param actor: person who asks for it; none for the user of the database.
        :raises UsageError: when there is no such run.
        """
        with self.connection.transaction():
            self._known(run_id, self._row("set_run_paused", {"maintenance_run_id": run_id, "paused": paused}))
            self._record(run_id, audit.Action.PAUSE if paused else audit.Action.RESUME, {}, actor=actor)

    def note_undo(self, run_id: str, report: Mapping[str, Any], *, actor: str | None = None) -> None:
        """Record that changes of a run were undone.

        :param report: counts of the undo; values that are no numbers are left out.
        :param actor: person who asked for it; none for the user of the database.
        :raises UsageError: when there is no such run.
        """
        kind = self.load(run_id).kind
        audit.record_undo(self.connection, subject=run_id, kind=kind, report=report, actor=actor)

    def control(self, run_id: str) -> RunControl:
        """Return the pause and the throttle of a run; a run at work asks about once a second.

        :raises UsageError: when there is no such run.
        """
        paused, operations_per_s = self._known(run_id, self._row("run_control", {"maintenance_run_id": run_id}))
        return RunControl(paused=paused, operations_per_s=operations_per_s)

    # --- inside ------------------------------------------------------------------------------------------------

    def _load(self, run_ids: Collection[str]) -> list[MaintenanceRun]:
        found = self._records(MaintenanceRun, "load_runs", {"maintenance_run_ids": list(run_ids)})
        return [replace(each, state=RunState(each.state)) for each in found]

    def _known_ids(self, kinds: Sequence[str], *, state: RunState | None = None, limit: int) -> list[str]:
        wanted = {"kinds": list(kinds or self.kinds) or None, "state": state, "maximum": limit}
        return [str(name) for (name,) in self._rows("known_runs", wanted)]

    def _record(self, run_id: str, action: audit.Action, effect: Mapping[str, Any], *, actor: str | None) -> None:
        facts = {"kind": self.load(run_id).kind, **effect}
        audit.record(self.connection, actor=actor, action=action, subject=run_id, effect=facts)

    def _rows(self, name: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        with translated_errors(self.connection):
            cursor = self.connection.execute(statement(f"{_QUERIES}{name}"), parameters)
            return cursor.fetchall() if cursor.description else []

    def _records(self, made: Callable[..., T], name: str, parameters: dict[str, Any]) -> list[T]:
        return records(self.connection, made, f"{_QUERIES}{name}", parameters)

    def _row(self, name: str, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
        return next(iter(self._rows(name, parameters)), None)

    def _known(self, run_id: str, row: tuple[Any, ...] | None) -> tuple[Any, ...]:
        if row is not None:
            return row
        newest = self._known_ids([], limit=_KNOWN_RUNS)
        raise UsageError(no_such(self.noun, run_id, newest=newest, makes=self.made_by))


class MaintenanceRuns(Runs):
    """Reads and writes the records of jobs and remedies."""

    def save_plan(
        self,
        *,
        kind: str,
        parameters: Mapping[str, Any],
        plan: Mapping[str, Any],
        operations_per_s: int | None = None,
    ) -> MaintenanceRun:
        """Store a plan and return it as stored; the same plan made again stays as it is.

        :param kind: kind of the run, such as ``expired_reference_cleanup`` or the name of a remedy.
        :param parameters: parameters as JSON values.
        :param plan: plan as JSON values, without client ids and payloads, since it is shown to people.
        :param operations_per_s: initial throttle; none for no limit.
        :raises UsageError: when the throttle is out of range.
        """
        _check_throttle(operations_per_s)
        found = maintenance_run_id(kind=kind, parameters=parameters, plan=plan)
        self._begin(
            maintenance_run_id=found, kind=kind, parameters=dict(parameters), plan=dict(plan),
            throttle_operations_per_s=operations_per_s,
        )  # fmt: skip
        return self.load(found)

    def _begin(self, **values: Any) -> None:
        audit.note_subject(self.connection, values["maintenance_run_id"])
        self._row("save_run", values | {name: Jsonb(values[name]) for name in ("parameters", "plan")})

    def set_state(self, run_id: str, state: RunState) -> None:
        """Move a run to another state.

        :raises UsageError: when there is no such run.
        """
        self._known(run_id, self._row("set_run_state", {"maintenance_run_id": run_id, "state": str(state)}))

    def set_share_state(self, run_id: str, share: str, state: RunState, *, shares: Collection[str]) -> None:
        """Record that a share is at work or how its work has ended, and move the run to the state that follows.

        :param state: ``running``, ``stopped`` or ``failed``; ``done`` for a share whose progress is stored as done.
        :param shares: all shares of the plan.
        :raises UsageError: when there is no such run.
        """
        with self.connection.transaction():
            self._known(run_id, self._row("lock_run", {"maintenance_run_id": run_id}))
            if state is not RunState.DONE:
                said = {"maintenance_run_id": run_id, "shard": share, "state": str(state)}
                self._row("set_share_state", said)
            found = self._rows("share_states", {"maintenance_run_id": run_id})
            self._follow(run_id, {name: RunState(each) for name, each in found}, shares)

    def _follow(self, run_id: str, states: Mapping[str, RunState], shares: Collection[str]) -> None:
        open_shares = sum(states.get(share) is not RunState.DONE for share in shares)
        self.set_state(run_id, run_state(set(states.values()), open_shares=open_shares))

    def save_report(
        self,
        run_id: str,
        report: Mapping[str, Any],
        *,
        action: audit.Action = audit.Action.APPLY,
        effect: Mapping[str, Any] | None = None,
        actor: str | None = None,
    ) -> None:
        """Store the report of a run.

        :param report: report as JSON values, without client ids and payloads.
        :param effect: effect in the audit; by default the numbers of the report. An empty effect adds no entry.
        :param actor: person who asked for it; by default the approver.
        :raises UsageError: when there is no such run.
        """
        with self.connection.transaction():
            self._known(
                run_id, self._row("save_run_report", {"maintenance_run_id": run_id, "report": Jsonb(dict(report))})
            )
            if report.get("dry_run") or effect == {}:
                return
            said = audit.figures(report) if effect is None else effect
            self._record(run_id, action, said, actor=actor or self.load(run_id).approved_by)

    def save_progress(self, run_id: str, progress: ShardProgress) -> None:
        """Store the progress of a run in one shard; a killed run continues from there."""
        self._row(
            "save_shard_progress",
            {
                "maintenance_run_id": run_id,
                "shard": progress.shard,
                "cursor": progress.cursor,
                "scanned": progress.scanned,
                "removed": progress.removed,
                "repaired": progress.repaired,
                "freed_bytes": progress.freed_bytes,
                "counts": Jsonb(dict(progress.counts)),
                "done": progress.done,
            },
        )

    def progress(self, run_id: str) -> list[ShardProgress]:
        """Return the progress of a run in each shard that has begun, ordered by name."""
        return self._records(ShardProgress, "shard_progress", {"maintenance_run_id": run_id})

    def shard_progress(self, run_id: str, shard: str) -> ShardProgress:
        """Return the progress of a run in one shard; empty progress for a shard that has not begun."""
        return next((each for each in self.progress(run_id) if each.shard == shard), ShardProgress(shard=shard))

    def bucket(self, run_id: str) -> Bucket:
        """Return what holds all that work for a run to its throttle together."""
        return SharedBucket(self.connection, run_id)

    @contextmanager
    def shard_lock(self, run_id: str, shard: str) -> Iterator[None]:
        """Hold one shard of a run for this session, so that no second process works on it.

        The lock ends with the connection, so a killed process leaves none behind.

        :raises RefusedError: when another session holds it.
        """
        with session_lock(self.connection, json.dumps(["queuekeeper.maintenance", run_id, shard])) as is_held:
            if not is_held:
                raise RefusedError(
                    f"another process works on {shard} for run {run_id}: wait for it, or end it first; "
                    f"`queuekeeper run status {run_id}` says how far it is"
                )
            yield


def _check_throttle(operations_per_s: int | None, unit: str = "operations") -> None:
    if operations_per_s is not None and not 1 <= operations_per_s <= MAX_RATE_PER_S:
        raise no_rate(operations_per_s, unit)

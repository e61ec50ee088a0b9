"""Base of all remedies as jobs of the engine: queue by queue, they find effects, make them, and undo them.

Each remedy is a class, named in :data:`queuekeeper.maintenance.remedies.model.PURPOSES`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from queuekeeper import lua
from queuekeeper.errors import MovedOn, NotOwner, PacketIdInUse, UsageError
from queuekeeper.jobs.kinds import Table
from queuekeeper.jobs.model import Job, Outcome, Plan, Step, Words, World
from queuekeeper.jobs.shares import check_rights, check_servers
from queuekeeper.jobs.undo import read_undo_file
from queuekeeper.maintenance.remedies.model import (
    EXAMPLES,
    PURPOSES,
    Effect,
    Queue,
    QueuePlan,
    QueueRefused,
    RemedyCounts,
    RemedyFound,
    RemedyParameters,
    UndoReport,
)
from queuekeeper.maintenance.remedies.packed import PackedPart
from queuekeeper.maintenance.remedies.queues import failed_queues
from queuekeeper.maintenance.remedies.sessions import Sessions
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import RedisClient
from queuekeeper.report.files import ReportKind
from queuekeeper.wording import number_of

REPORT = ReportKind("repair", "Repair report")

SHARE = "queues"
"""Name of the one share of a remedy."""

_NOT_TREATED = (QueueRefused, MovedOn, NotOwner, PacketIdInUse)
"""Errors that stop one queue only."""

_THROUGH = " is done"
_LOOKING = ("read_session", "list_references", "judge_messages")
# Every remedy finds out whether a session is packed.
_RECOGNISING = "packed/read_session"
_GROUNDWORK = (
    "evalsha", "script|load", "scan", "info", "time", "command", "cluster|nodes", "cluster|slots", "client|setname",
)  # fmt: skip
_WITHOUT_KEY = frozenset({"time"})

RemedyPlan = Plan[RemedyParameters, RemedyCounts, RemedyFound]
RemedyOutcome = Outcome[RemedyParameters, RemedyCounts, RemedyFound]


@dataclass(kw_only=True)
class _Visit:
    """A queue that the remedy works on.

    :ivar planned: effects that may still be made in it, by kind; none for no limit.
    :ivar counts: counts to add at the end of the queue.
    """

    queue: Queue
    planned: Counter[str] | None
    counts: RemedyCounts
    done: Counter[str]
    refused: str = ""


class Remedy(Job[RemedyParameters, RemedyCounts, RemedyFound]):
    """A remedy for queues.

    :cvar purpose: what the remedy does.
    :cvar way_back: how the remedy can be undone, or that it cannot.
    :cvar looks_by: scripts that it reads with, besides the scripts of all remedies.
    :cvar writes_by: scripts that it writes with.
    :cvar reads_source: whether it needs PostgreSQL with TBMQ's tables.
    :cvar packed: the part that works on packed sessions, or why the remedy makes no sense for them.
    :cvar whole: whether :meth:`change` and :meth:`restore` get all effects of a queue at once, and only if all of them
        were planned. The remedy then makes them step by step, and stops at the first that no longer fits.
    """

    dag = "session_repair"
    asks = True
    undoes = True
    purpose: ClassVar[str]
    way_back: ClassVar[str]
    looks_by: ClassVar[frozenset[str]] = frozenset()
    writes_by: ClassVar[frozenset[str]]
    packed: ClassVar[type[PackedPart] | str]
    reads_source: ClassVar[bool] = False
    whole: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Set the remedy's words; the reports of all remedies are of one kind."""
        cls.report = REPORT
        cls.purpose, cls.way_back = PURPOSES[cls.kind]
        cls.words = Words.of_remedy(
            cls.kind,
            about="sessions",
            command=f"repair {cls.kind}",
            unit="queue",
            units="queues",
            question=f"{cls.kind}: {{count:change}} to be made in Redis. Go on?",
            planned="{count:change} to be made in Redis, nothing was changed",
            left="done; {count:more change} to be made since then: plan again",
            footer="Queues are named by a keyed hash of the client's id. No content leaves the server.",
        )

    def __init__(self, world: World[RemedyParameters]) -> None:
        super().__init__(world)
        self.sessions = Sessions(world)
        self._queues: list[QueuePlan] = []
        self._examples: list[dict[str, Any]] = []

    # --- for each remedy -------------------------------------------------------------------------------------------

    def survey(self, queues: Sequence[Queue]) -> Mapping[str, Sequence[int]]:
        """Return, by client id, the numbers that only a SCAN of all keys finds; empty where none is needed."""
        return {}

    @abstractmethod
    def look(self, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return the effects that are to be made in a queue, in order.

        :raises QueueRefused: when the queue cannot be mended.
        """

    @abstractmethod
    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Make the effects that still fit; return for each whether it was made, or in a plan would be."""

    def restore(self, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Undo the effects whose places nobody has changed since.

        :returns: for each effect, why it was not undone; empty when it was.
        """
        raise UsageError(f"the remedy {self.kind} has no undo")

    # --- as a job --------------------------------------------------------------------------------------------------

    @classmethod
    def settled(cls, parameters: RemedyParameters, database: Connection | None) -> RemedyParameters:
        """Return the parameters completed with the quality run that chooses the queues, and the limits of that run.

        The run is fixed when the plan is made, since a newer one may exist by the time of the approval.
        """
        given = parameters.model_fields_set
        if database is None:
            raise UsageError("judgements of quality are kept in PostgreSQL: name the database by --postgres-url")
        judged = failed_queues(database, remedy=cls.kind, selection=parameters)
        limits = {"limit": judged.limit, "default_ttl_s": judged.default_ttl_s}
        missing: dict[str, Any] = {name: value for name, value in limits.items() if name not in given}
        return replace(parameters, quality_run_id=judged.quality_run_id, **missing)

    @classmethod
    def check(cls, client: RedisClient, parameters: RemedyParameters, *, writing: bool) -> None:
        """Check that the servers are new enough and the user has the rights that the remedy's scripts need.

        :raises RefusedError: when a server is too old or a right is missing; names the commands and the rules that
            allow them.
        """
        check_servers(client)
        names = [f"sessions/{name}" for name in (*_LOOKING, *cls.looks_by, *cls.writes_by)]
        names += [_RECOGNISING, *(() if isinstance(cls.packed, str) else cls.packed.scripts)]
        used = [lua.load(name) for name in names]
        # A user who may write may also read.
        ways = (True, False) if writing else (True,)
        called = (lua.commands_called(script, counts_only=way) for script in used for way in ways)
        commands = sorted(frozenset().union(*called) - _WITHOUT_KEY)
        granted = " ".join(f"+{command}" for command in (*_GROUNDWORK, *commands))
        rules = f"ACL SETUSER <user> ~{parameters.key_prefix}{{*}}_* {granted}"
        check_rights(client, key_prefix=parameters.key_prefix, commands=commands, rules=rules)

    def shares(self) -> list[str]:
        """Return the only share."""
        return [SHARE]

    def find(self, share: str, after: str = "") -> Generator[Step, None, None]:
        """Yield the effects in each queue, of each kind at most as many as were planned there.

        An empty step ends each queue. A queue in which a run was stopped is read again.
        """
        if self.reads_source and self.world.database is None:
            raise UsageError(f"{self.kind} needs the PostgreSQL database that the sessions came from: name it")
        begun, was_through = after.removesuffix(_THROUGH), after.endswith(_THROUGH)
        queues = [
            queue
            for queue in self._wanted()
            if queue.client_hash > begun or (queue.client_hash == begun and not was_through)
        ]
        surveyed = self.survey(queues) if queues else {}
        for queue in queues:
            visit = self._visit(queue, is_begun=queue.client_hash == begun)
            for batch in self._batches(self._effects(visit, surveyed.get(queue.client_id, ()))):
                visit.counts.treated = 1
                yield Step(cursor=queue.client_hash, work=(visit, batch))
                if visit.refused:
                    break
            yield Step(cursor=f"{queue.client_hash}{_THROUGH}", work=(visit, []))

    def apply(self, step: Step) -> RemedyCounts:
        """Make the effects that still fit, or only count them."""
        visit, batch = step.work
        if not batch:
            return self._end(visit)
        client_id = visit.queue.client_id
        self.world.writer.note({"client_id": client_id, "effect": asdict(each)} for each in batch)
        try:
            part = self._packed_part(visit.queue)
            fitted = part.change(visit.queue, batch) if part else self.change(visit.queue, batch)
        except _NOT_TREATED as error:
            visit.refused = str(error)
            return RemedyCounts()
        done = [effect for effect, was_done in zip(batch, fitted, strict=True) if was_done]
        visit.done.update(effect.kind for effect in done)
        if len(self._examples) < EXAMPLES:
            shown = done[: EXAMPLES - len(self._examples)]
            self._examples += (effect.shown(visit.queue.client_hash) for effect in shown)
        return RemedyCounts(changed=len(batch) - len(done), effects=dict(Counter(effect.kind for effect in done)))

    def found(self) -> RemedyFound:
        """Return the plan of each queue."""
        return RemedyFound(queues=tuple(self._queues), examples=tuple(self._examples))

    def undo_header(self) -> dict[str, Any]:
        """Return the remedy's parameters: an undo that puts records aside again keeps them for the same time."""
        return {"parameters": {**asdict(self.world.parameters), "client_hashes": []}}

    def undo(self, run_id: str, files: Sequence[Path]) -> UndoReport:
        """Undo the changes in undo files, the last one first, where nobody has changed the place since.

        :raises UsageError: when an undo file is damaged.
        """
        self.check(self.world.client, self.world.parameters, writing=not self.world.counts_only)
        # A repeated run may have noted a change twice: the last note counts.
        noted: dict[tuple[str, Effect], None] = {}
        for path in files:
            try:
                for line in read_undo_file(path, kind=self.kind)[1]:
                    change = (line["client_id"], Effect(**line["effect"]))
                    noted.pop(change, None)
                    noted[change] = None
            except (KeyError, TypeError) as error:
                raise UsageError(f"{path} is damaged: {error}") from None
        left: Counter[str] = Counter()
        for client_id, group in groupby(reversed(noted), key=lambda each: each[0]):
            queue = Queue(client_id=client_id, client_hash=self.world.name_client(client_id))
            effects = [effect for _, effect in group]
            # Undone in reverse order; a remedy that makes its own steps reverses them itself.
            if self.whole:
                effects.reverse()
            for batch in self._batches(effects):
                try:
                    part = self._packed_part(queue)
                    reasons = part.restore(queue, batch) if part else self.restore(queue, batch)
                    left.update(reason for reason in reasons if reason)
                except _NOT_TREATED as error:
                    left[str(error)] += len(batch)
        return UndoReport(
            remedy=self.kind,
            dry_run=self.world.counts_only,
            restored=len(noted) - left.total(),
            left=dict(sorted(left.items())),
        )

    # --- words -----------------------------------------------------------------------------------------------------

    @classmethod
    def rule_words(cls, parameters: RemedyParameters) -> str:
        """Return sentences that say what a run was asked to do, and whether it can be undone."""
        return f"{cls.purpose} Undo: {cls.way_back}"

    @classmethod
    def undo_words(cls, counted: UndoReport) -> str:
        """Return a sentence that says what an undo would do."""
        return f"Up to {number_of(counted.restored, 'change')} of {counted.remedy} will be undone."

    @classmethod
    def plan_rows(cls, plan: RemedyPlan) -> list[tuple[str, str]]:
        """Return the plan as pairs of name and text, without client ids, for the person who approves it."""
        return [("Remedy", f"{cls.kind}: {cls.purpose}"), *super().plan_rows(plan), ("Undo", cls.way_back)]

    @classmethod
    def tables(cls, plan: RemedyPlan) -> list[Table]:
        """Return a table with some of the changes in full."""
        examples = plan.found.examples
        names = list(dict.fromkeys(name for example in examples for name in example))
        return [
            Table(
                heading="Some of the changes",
                heads=tuple(name.replace("_", " ") for name in names),
                rows=tuple(tuple(str(example.get(name, "")) for name in names) for example in examples),
                empty=cls.words.nothing,
            )
        ]

    @classmethod
    def figures(cls, outcome: RemedyOutcome) -> list[tuple[str, str, str]]:
        """Return the main figures of the report."""
        return [("Queues", f"{outcome.plan.counts.queues:,}", "looked at")]

    @classmethod
    def planned(cls, plan: RemedyPlan) -> dict[str, Any]:
        """Return the plan under the names of the remedies' own reports."""
        return {
            "remedy": cls.kind,
            "looked_at": plan.counts.queues,
            "queues": plan.counts.treated,
            "effects": plan.counts.effects,
            "changes": plan.counts.changes,
            "refusals": plan.counts.refusals,
            "undo": cls.way_back,
        }

    @classmethod
    def told(cls, outcome: RemedyOutcome) -> dict[str, Any]:
        """Return the plan and what was done under the names of the remedies' own reports."""
        done = outcome.counts
        return cls.planned(outcome.plan) | {
            "queues": done.treated,
            "done": done.effects,
            "changed": done.changed,
            "not_planned": done.not_planned,
            "refusals": outcome.plan.counts.refusals if outcome.dry_run else done.refusals,
            "undo_file": next(iter(outcome.undo_files), ""),
        }

    # --- inside ----------------------------------------------------------------------------------------------------

    def _wanted(self) -> list[Queue]:
        """Return the queues to work on, in the order of their hashes; for a plan, those with something to do.

        A plan holds no client ids: they are given again, or come from the profile that was judged.
        """
        world, planned = self.world, None if self.world.planned is None else self.world.planned.found.to_mend
        if planned == {}:
            return []
        queues: Sequence[Queue] | None = world.given
        if queues is None:
            if world.database is None:
                raise UsageError("the client ids of this run are not on record: name them again")
            asked = world.parameters if planned is None else replace(world.parameters, client_hashes=tuple(planned))
            queues = failed_queues(world.database, remedy=self.kind, selection=asked).queues
        found = sorted(queues, key=lambda queue: queue.client_hash)
        if planned is None:
            return found
        if missing := planned.keys() - {queue.client_hash for queue in found}:
            raise UsageError(
                f"those named lack {number_of(len(missing), 'session')} of this run: name all of them again"
            )
        return [queue for queue in found if queue.client_hash in planned]

    def _packed_part(self, queue: Queue) -> PackedPart | None:
        """Return what works on a queue if it is packed.

        :raises QueueRefused: when the remedy makes no sense for packed sessions.
        """
        if not self.sessions.is_packed(queue):
            return None
        if isinstance(self.packed, str):
            raise QueueRefused(f"it is packed, for which {self.kind} makes no sense: {self.packed}")
        return self.packed(self.sessions)

    def _visit(self, queue: Queue, *, is_begun: bool) -> _Visit:
        """Begin a queue, or continue in it."""
        limit: Counter[str] | None = None
        done: Mapping[str, int] = self.world.total.in_queue if is_begun else {}
        if self.world.planned is not None and not self.world.counts_only:
            limit = Counter(self.world.planned.found.to_mend[queue.client_hash])
            limit.subtract(done)
        counts = RemedyCounts(queues=1, treated=int(bool(done)))
        return _Visit(queue=queue, planned=limit, counts=counts, done=Counter())

    def _effects(self, visit: _Visit, surveyed: Sequence[int]) -> list[Effect]:
        """Return the effects that are to be made in a queue: no more of any kind than is left of its plan."""
        try:
            part = self._packed_part(visit.queue)
            found = part.look(visit.queue) if part else self.look(visit.queue, surveyed)
        except _NOT_TREATED as error:
            visit.refused = str(error)
            return []
        if visit.planned is None:
            return found
        effects: list[Effect] = []
        for effect in found:
            if visit.planned[effect.kind] > 0:
                visit.planned[effect.kind] -= 1
                effects.append(effect)
        if self.whole and len(effects) < len(found):
            effects = []
        visit.counts.not_planned = len(found) - len(effects)
        return effects

    def _batches(self, effects: list[Effect]) -> Iterable[list[Effect]]:
        """Cut the effects of a queue into steps."""
        if self.whole:
            return [effects] if effects else []
        return self.sessions.batches(effects)

    def _end(self, visit: _Visit) -> RemedyCounts:
        """Return the counts at the end of a queue, and keep its plan."""
        if visit.refused:
            visit.counts.refusals = {visit.refused: 1}
        if visit.done or visit.refused:
            effects = dict(sorted(visit.done.items()))
            self._queues.append(QueuePlan(client_hash=visit.queue.client_hash, effects=effects, refused=visit.refused))
        return visit.counts

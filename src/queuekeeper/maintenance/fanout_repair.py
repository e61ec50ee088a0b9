"""Sets fan-out queues right, in bounded steps: what ran out, what drifted, who died; and looks again whether it did.

Each queue is judged and repaired by its own scripts, which look at all places of a message at once: what others change
meanwhile is never taken for a fault. The plan finds the queues, and what is repaired and looked at again are those in
which it has found something. A run that is killed goes on behind the last queue that it was done with; to repair a
queue again changes nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from heapq import nlargest

from queuekeeper import __version__, lua
from queuekeeper.clock import Clock, Pace
from queuekeeper.errors import (
    QueuekeeperError,
    RefusedError,
    ScriptError,
    ServerUnavailable,
    StoreFull,
    UnknownConsumer,
    UnknownQueue,
    UsageError,
)
from queuekeeper.fanout.model import ConsumerView, QueueView
from queuekeeper.fanout.operations import Step
from queuekeeper.fanout.queue import FanoutQueues
from queuekeeper.jobs.pace import TimeIsUp, run_pace
from queuekeeper.jobs.shares import check_servers, parts_of, scan_hashes, server_clock
from queuekeeper.jobs.store import MaintenanceRun, MaintenanceRuns, RunState, ShardProgress
from queuekeeper.keyspace import (
    fanout_part,
    fanout_queue_of,
    fanout_scan_pattern,
)
from queuekeeper.maintenance.fanout_repair_model import (
    KIND,
    FanoutRepairCounts,
    FanoutRepairOutcome,
    FanoutRepairParameters,
    FanoutRepairPlan,
    FanoutShareReport,
    UnseenConsumer,
    WorstQueue,
)
from queuekeeper.redis_client import RedisClient

PROOF_QUEUES = 10_000
"""The second look is at so many queues of the plan; where there are more, it says so."""

UNSEEN_MS = 86_400_000
"""A consumer for which messages wait and that was not seen for so long may be dead."""

_SHOWN = 10

_log = logging.getLogger(__name__)


class PacedFanoutQueues(FanoutQueues):
    """Fan-out queues that keep to a pace.

    :param pace: told of each call, and of what comes back, before the next one is sent.
    """

    def __init__(
        self,
        client: RedisClient,
        prefix: str = "",
        *,
        clock: Clock | None = None,
        pace: Callable[[int], None],
        counts_only: bool = False,
    ) -> None:
        super().__init__(client, prefix, clock=clock, counts_only=counts_only)
        self.counts_only = counts_only
        self._pace = pace
        self._passed = 0

    def answer(self, step: Step) -> lua.Replies | bool:
        """Send the calls of a step when it is time to."""
        passed, self._passed = self._passed, 0
        self._pace(passed)
        replies = super().answer(step)
        if not isinstance(replies, bool):
            self._passed = sum(1 + (len(reply) if isinstance(reply, list) else 0) for reply in replies)
        return replies


def find_queues(client: RedisClient, *, prefix: str, pace: Callable[[int], None] = lambda _: None) -> list[str]:
    """Return the names of all fan-out queues in order, by the names of all keys.

    :param pace: told of each call and the names that came back, before the next one is sent.
    """
    found: set[str] = set()
    for keys in scan_hashes(client, fanout_scan_pattern(prefix)):
        pace(1 + len(keys))
        found.update(fanout_queue_of(key, prefix=prefix) for key in keys)
    return sorted(found)


def plan_fanout_repair(
    client: RedisClient,
    *,
    parameters: FanoutRepairParameters,
    clock: Clock | None = None,
    say: Callable[[str], None] = _log.info,
) -> FanoutRepairPlan:
    """Count what a repair would do. Nothing is written.

    :param clock: none for the server's.
    :param say: told what is wrong with queues that cannot be read.
    :raises UnknownQueue: when a queue is named that does not exist.
    :raises RefusedError: when a server is too old.
    """
    check_servers(client)
    now_ms = (clock or server_clock(client))()
    pace = Pace(lambda: parameters.max_operations_per_s)
    look = _Look(client, parameters, now_ms=now_ms, pace=pace, say=say)
    started = time.monotonic()
    for queue in parameters.queues or find_queues(client, prefix=parameters.key_prefix, pace=pace):
        if not look.at(queue) and parameters.queues:
            raise UnknownQueue(f"there is no queue {queue!r}")
    return FanoutRepairPlan(
        parameters=parameters,
        code_version=__version__,
        as_of_ms=now_ms,
        counts=look.counts,
        worst=tuple(look.worst),
        unseen=tuple(look.unseen),
        queues=tuple(look.queues),
        seconds=round(time.monotonic() - started, 3),
    )


def save_fanout_repair_plan(runs: MaintenanceRuns, plan: FanoutRepairPlan) -> MaintenanceRun:
    """Store a plan, so that its shares can be repaired."""
    found = asdict(plan)
    # Names that others made up may hold what PostgreSQL's text cannot.
    found["queues"] = json.dumps(found["queues"])
    return runs.save_plan(
        kind=KIND,
        parameters=found.pop("parameters"),
        plan=found,
        operations_per_s=plan.parameters.max_operations_per_s,
    )


def load_fanout_repair_plan(runs: MaintenanceRuns, run_id: str) -> FanoutRepairPlan:
    """Return a stored plan.

    :raises UsageError: when there is none of this id, or it is of another kind.
    """
    run = runs.load(run_id)
    if run.kind != KIND:
        raise UsageError(f"run {run_id} is a {run.kind}, not a repair of fan-out queues")
    plan = dict(run.plan)
    return FanoutRepairPlan(
        parameters=FanoutRepairParameters(**run.parameters),
        counts=FanoutRepairCounts(**plan.pop("counts")),
        worst=tuple(WorstQueue(**each) for each in plan.pop("worst")),
        unseen=tuple(UnseenConsumer(**each) for each in plan.pop("unseen")),
        queues=tuple(json.loads(plan.pop("queues"))),
        **plan,
    )


def repair_share(
    client: RedisClient,
    *,
    runs: MaintenanceRuns,
    run_id: str,
    share: str,
    clock: Clock | None = None,
    say: Callable[[str], None] = _log.info,
) -> FanoutShareReport:
    """Repair one share of a plan. Repeated, it goes on where it was stopped or killed.

    :param share: one of the plan's.
    :param clock: none for the server's.
    :param say: told how far it has come.
    :raises RefusedError: when another process works on the share, or Redis refuses.
    :raises StalePlan: when the plan is too old, or was made by another release.
    """
    plan = load_fanout_repair_plan(runs, run_id)
    known = plan.parameters.share_names()
    if share not in known:
        raise UsageError(f"run {run_id} has no share {share!r}: it has {', '.join(known)}")
    check_servers(client)
    runs.check_current(run_id, now_ms=(clock or server_clock(client))())
    with runs.shard_lock(run_id, share):
        before = runs.shard_progress(run_id, share)
        counts = FanoutRepairCounts(**before.counts)
        stopped = ""
        started = time.monotonic()
        if not before.done:
            runs.set_state(run_id, RunState.RUNNING)
            pace = run_pace(
                runs,
                run_id=run_id,
                shard=share,
                shards=plan.parameters.shares,
                max_run_minutes=plan.parameters.max_run_minutes,
                say=say,
            )
            queues = PacedFanoutQueues(client, plan.parameters.key_prefix, clock=clock, pace=pace)
            work = _ShareWork(
                repair=_Repair(parameters=plan.parameters, queues=queues, say=say),
                counts=counts,
                save=lambda cursor, done: runs.save_progress(run_id, _progress(share, cursor, counts, done=done)),
            )
            parts = parts_of(share)
            done_with = json.loads(before.cursor) if before.updated_at else ""
            try:
                work.run(each for each in plan.queues if fanout_part(each) in parts and each > done_with)
            except TimeIsUp as up:
                stopped = str(up)
                runs.set_state(run_id, RunState.STOPPED)
            except Exception:
                runs.set_state(run_id, RunState.FAILED)
                raise
            say(f"{share}: {counts.changes:,} repairs in {counts.changed_queues:,} of {counts.queues:,} queues")
    if not _open_shares(runs, run_id, plan):
        runs.set_state(run_id, RunState.DONE)
    return FanoutShareReport(
        maintenance_run_id=run_id,
        share=share,
        done=not stopped,
        stopped=stopped,
        counts=counts,
        seconds=round(time.monotonic() - started, 3),
    )


def report_fanout_repair(
    client: RedisClient,
    *,
    runs: MaintenanceRuns,
    run_id: str,
    dry_run: bool,
    clock: Clock | None = None,
    say: Callable[[str], None] = _log.info,
) -> FanoutRepairOutcome:
    """Look at the plan's queues a second time, and keep the outcome with the run, to whose rate and pauses it holds.

    :param dry_run: nothing was to be done: there is no second look, as there is none when the plan was empty.
    """
    plan = load_fanout_repair_plan(runs, run_id)
    counts = FanoutRepairCounts()
    for each in runs.progress(run_id):
        counts.add(FanoutRepairCounts(**each.counts))
    is_over = dry_run or plan.empty
    if plan.empty and not dry_run:
        runs.set_state(run_id, RunState.DONE)
    left, proved = (None, True) if is_over else _second_look(client, plan, runs=runs, run_id=run_id, say=say)
    outcome = FanoutRepairOutcome(
        maintenance_run_id=run_id,
        dry_run=dry_run,
        plan=plan,
        counts=counts,
        left=left,
        proved=proved,
        open_shares=() if is_over else _open_shares(runs, run_id, plan),
        generated_at_ms=(clock or server_clock(client))(),
    )
    kept = asdict(outcome)
    del kept["plan"]
    runs.save_report(run_id, kept | {"clean": outcome.clean, "moved_on": outcome.moved_on})
    return outcome


# --- inside ----------------------------------------------------------------------------------------------------------


def _open_shares(runs: MaintenanceRuns, run_id: str, plan: FanoutRepairPlan) -> tuple[str, ...]:
    """Return the shares that were not gone through to the end."""
    done = {each.shard for each in runs.progress(run_id) if each.done}
    return tuple(share for share in plan.parameters.share_names() if share not in done)


def _second_look(
    client: RedisClient, plan: FanoutRepairPlan, *, runs: MaintenanceRuns, run_id: str, say: Callable[[str], None]
) -> tuple[FanoutRepairCounts, bool]:
    pace = run_pace(
        runs, run_id=run_id, shard="second look", shards=plan.parameters.shares, max_run_minutes=None, say=say
    )
    look = _Look(client, plan.parameters, now_ms=plan.as_of_ms, pace=pace, say=say)
    for queue in plan.queues[:PROOF_QUEUES]:
        look.at(queue)
    return look.counts, len(plan.queues) <= PROOF_QUEUES


def _progress(share: str, cursor: str, counts: FanoutRepairCounts, *, done: bool) -> ShardProgress:
    return ShardProgress(
        shard=share,
        # Names that others made up may hold what PostgreSQL's text cannot.
        cursor=json.dumps(cursor),
        scanned=counts.queues,
        removed=counts.expired_messages + counts.expired_dead + counts.unreferenced_payload,
        repaired=counts.changes,
        counts=asdict(counts),
        done=done,
    )


def note_broken(queue: str, error: Exception, say: Callable[[str], None]) -> None:
    """Say why a queue cannot be read or repaired; one such queue does not stop the others.

    :raises ServerUnavailable: the error, when it is not the queue's.
    """
    if isinstance(error, ServerUnavailable):
        raise error
    words = str(error) if isinstance(error, QueuekeeperError) else "its fields cannot be read"
    say(f"queue {queue!r} cannot be repaired: {words}")


QUEUE_ERRORS = (ScriptError, UsageError, RefusedError, ValueError)
"""What a single queue may be at fault for."""


@dataclass(kw_only=True)
class _Repair:
    """Sets queues right, or counts what there is to do in them; what the queues are told to do is the same.

    :param queues: what only counts sees no step's effect in the next, so that each step says what others will have
        done by then.
    """

    parameters: FanoutRepairParameters
    queues: PacedFanoutQueues
    say: Callable[[str], None]

    def at(self, queue: str) -> tuple[QueueView | None, FanoutRepairCounts]:
        """Do what there is to do in a queue; a queue that cannot be read does not stop the others.

        :returns: the queue as it was, none for one that is broken; and what was done, nothing for one that is not
            there.
        """
        try:
            view = self.queues.inspect(queue)
            return view, self._repair(view) if view.exists else FanoutRepairCounts()
        except QUEUE_ERRORS as error:
            note_broken(queue, error, self.say)
            return None, FanoutRepairCounts(queues=1, broken_queues=1)

    def _repair(self, view: QueueView) -> FanoutRepairCounts:
        queue, done = view.queue, FanoutRepairCounts(queues=1, consumers=len(view.consumers), messages=view.messages)
        members = [each for each in view.consumers if each.options is not None]
        lives_on: set[int] = set()
        for each in members:
            if each.leased or each.delayed:
                lives_on |= self._end_leases(queue, each.consumer, done)
        expired = self.queues.expire(queue, messages_first=True)
        done.expired_messages += expired.expired - (len(lives_on) if self.queues.counts_only else 0)
        done.expired_dead += expired.dead
        for each in members:
            # Ids of messages that are gone take room, and one that is full refuses publishes for all.
            if each.ready or each.leased or each.delayed:
                with suppress(UnknownConsumer):
                    report = self.queues.reap_lists(queue, consumer=each.consumer, lives_on=lives_on)
                    done.expired_references += report.skipped
        for each in view.consumers:
            if each.options is None:
                done.half_removed += self._removed(queue, each.consumer)
            elif each.adopting:
                done.half_registered += self._registered(queue, each.consumer)
        if self.parameters.unregister:
            idle_expiry_ms = self.parameters.idle_expiry_ms
            leaving = {each.consumer for each in view.consumers if each.options is None}
            removed = self.queues.unregister_idle(queue, idle_expiry_ms=idle_expiry_ms)
            done.idle_consumers = sum(each.consumer not in leaving for each in removed)
        done.add_problems(self.queues.repair(queue, dry_run=False, over_too=False).repaired)
        done.changed_queues = int(done.changes > 0)
        return done

    def _end_leases(self, queue: str, consumer: str, done: FanoutRepairCounts) -> set[int]:
        """End leases and put retries in line; return the messages that live on as dead letters."""
        with suppress(UnknownConsumer):
            report = self.queues.reap_leases(queue, consumer=consumer, max_stalls=self.parameters.max_stalls)
            done.overdue_leases += report.requeued + report.dead
            # What only counts will not find them in line.
            done.expired_references += report.gone_in_line if self.queues.counts_only else 0
            return set(report.revived)
        return set()

    def _registered(self, queue: str, consumer: str) -> int:
        try:
            self.queues.adopt(queue, consumer=consumer)
        except UnknownConsumer:
            return 0
        except StoreFull as error:
            # What frees memory goes on, and the next run tries again.
            self.say(f"queue {queue!r}: consumer {consumer!r} does not get what was there before it: {error}")
            return 0
        return 1

    def _removed(self, queue: str, consumer: str) -> int:
        try:
            self.queues.unregister(queue, consumer=consumer, begun=True)
        except UnknownConsumer:
            return 0
        return 1


class _Look:
    """Goes through queues and counts what there is to do.

    :ivar counts: what was found so far.
    :ivar worst: queues in which most was found.
    :ivar unseen: consumers that may be dead.
    :ivar queues: those in which there is something to do, or that cannot be read.
    """

    def __init__(
        self,
        client: RedisClient,
        parameters: FanoutRepairParameters,
        *,
        now_ms: int,
        pace: Callable[[int], None],
        say: Callable[[str], None],
    ) -> None:
        self._now_ms = now_ms
        queues = PacedFanoutQueues(client, parameters.key_prefix, clock=lambda: now_ms, pace=pace, counts_only=True)
        self._repair = _Repair(parameters=parameters, queues=queues, say=say)
        self.counts = FanoutRepairCounts()
        self.worst: list[WorstQueue] = []
        self.unseen: list[UnseenConsumer] = []
        self.queues: list[str] = []

    def at(self, queue: str) -> bool:
        """Count what there is to do in a queue; tell whether it exists."""
        view, found = self._repair.at(queue)
        self.counts.add(found)
        if view is None:
            self.queues.append(queue)
            return True
        if found.changes:
            self.queues.append(queue)
            worst = WorstQueue(queue=queue, changes=found.changes, faults=found.faults, messages=found.messages)
            self.worst = nlargest(_SHOWN, [*self.worst, worst], key=lambda each: each.changes)
        unseen = [one for each in view.consumers if (one := self._unseen(queue, each)) is not None]
        self.unseen = nlargest(_SHOWN, [*self.unseen, *unseen], key=lambda each: each.waiting)
        return view.exists

    def _unseen(self, queue: str, view: ConsumerView) -> UnseenConsumer | None:
        unseen_ms = self._now_ms - view.last_seen_ms
        waiting = view.ready + view.leased + view.delayed
        if unseen_ms < UNSEEN_MS or not waiting:
            return None
        return UnseenConsumer(queue=queue, consumer=view.consumer, unseen_s=unseen_ms // 1_000, waiting=waiting)


@dataclass(kw_only=True)
class _ShareWork:
    """One call of the repair on one share.

    :ivar counts: what was done, by earlier calls of the run too.
    """

    repair: _Repair
    counts: FanoutRepairCounts
    save: Callable[[str, bool], None]
    _cursor: str = field(default="", init=False)

    def run(self, queues: Iterable[str]) -> None:
        """Go through queues.

        :raises TimeIsUp: when the run has taken as long as it may.
        """
        for queue in queues:
            self.counts.add(self.repair.at(queue)[1])
            self._cursor = queue
            self.save(queue, False)
        self.save(self._cursor, True)

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
from typing import Any

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
from queuekeeper.keyspace import (
    fanout_consumer_keys,
    fanout_keys,
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
from queuekeeper.maintenance.queue_shares import check_servers, parts_of, scan_hashes, server_clock
from queuekeeper.maintenance.run_pace import TimeIsUp, run_pace
from queuekeeper.maintenance.runs import MaintenanceRun, MaintenanceRuns, RunState, ShardProgress
from queuekeeper.redis_client import RedisClient, address_of, redis_errors

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
        self, client: RedisClient, prefix: str = "", *, clock: Clock | None = None, pace: Callable[[int], None]
    ) -> None:
        super().__init__(client, prefix, clock=clock)
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
            work = _ShareWork(
                parameters=plan.parameters,
                queues=PacedFanoutQueues(client, plan.parameters.key_prefix, clock=clock, pace=pace),
                counts=counts,
                say=say,
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
    runs.save_report(run_id, kept | {"clean": outcome.clean})
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
        self._client: Any = client
        self._parameters = parameters
        self._now_ms = now_ms
        self._say = say
        self._pace = pace
        self._store = PacedFanoutQueues(client, parameters.key_prefix, clock=lambda: now_ms, pace=pace)
        self.counts = FanoutRepairCounts()
        self.worst: list[WorstQueue] = []
        self.unseen: list[UnseenConsumer] = []
        self.queues: list[str] = []

    def at(self, queue: str) -> bool:
        """Count what there is to do in a queue; tell whether it exists."""
        try:
            view = self._store.inspect(queue)
            if not view.exists:
                return False
            found = self._found(view)
        except QUEUE_ERRORS as error:
            note_broken(queue, error, self._say)
            self.counts.add(FanoutRepairCounts(queues=1, broken_queues=1))
            self.queues.append(queue)
            return True
        self.counts.add(found)
        if found.changes:
            self.queues.append(queue)
            worst = WorstQueue(queue=queue, changes=found.changes, faults=found.faults, messages=found.messages)
            self.worst = nlargest(_SHOWN, [*self.worst, worst], key=lambda each: each.changes)
        unseen = [one for each in view.consumers if (one := self._unseen(queue, each)) is not None]
        self.unseen = nlargest(_SHOWN, [*self.unseen, *unseen], key=lambda each: each.waiting)
        return True

    def _found(self, view: QueueView) -> FanoutRepairCounts:
        parameters = self._parameters
        found = FanoutRepairCounts(queues=1, consumers=len(view.consumers), messages=view.messages)
        found.overdue_leases = sum(each.overdue for each in view.consumers if each.options is not None)
        keys = fanout_keys(view.queue, prefix=parameters.key_prefix)
        found.expired_messages = self._ended(keys.expiries, self._now_ms)
        for each in view.consumers:
            if each.options is None:
                found.half_removed += 1
            else:
                found.half_registered += each.adopting
                own = fanout_consumer_keys(view.queue, each.consumer, prefix=parameters.key_prefix)
                found.expired_dead += self._ended(own.dead, self._now_ms - each.options.dead_retention_ms)
        if parameters.unregister:
            reports = self._store.unregister_idle(view.queue, idle_expiry_ms=parameters.idle_expiry_ms, dry_run=True)
            found.idle_consumers = max(0, len(reports) - found.half_removed)
        report = self._store.verify(view.queue, findings=0)
        found.add_problems(report.counts)
        found.expired_references = report.expired_references
        found.changed_queues = int(found.changes > 0)
        return found

    def _ended(self, key: str, until_ms: int) -> int:
        self._pace(1)
        with redis_errors(address_of(self._client)):
            return int(self._client.zcount(key, "-inf", until_ms))

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

    parameters: FanoutRepairParameters
    queues: PacedFanoutQueues
    counts: FanoutRepairCounts
    say: Callable[[str], None]
    save: Callable[[str, bool], None]
    _cursor: str = field(default="", init=False)

    def run(self, queues: Iterable[str]) -> None:
        """Go through queues.

        :raises TimeIsUp: when the run has taken as long as it may.
        """
        for queue in queues:
            try:
                done = self._repair(queue)
            except QUEUE_ERRORS as error:
                note_broken(queue, error, self.say)
                done = FanoutRepairCounts(queues=1, broken_queues=1)
            self.counts.add(done)
            self._cursor = queue
            self.save(queue, False)
        self.save(self._cursor, True)

    def _repair(self, queue: str) -> FanoutRepairCounts:
        """Do what there is to do in a queue."""
        view = self.queues.inspect(queue)
        if not view.exists:
            return FanoutRepairCounts()
        done = FanoutRepairCounts(queues=1, consumers=len(view.consumers), messages=view.messages)
        for each in view.consumers:
            if each.options is not None and each.leased:
                self._reap(queue, each.consumer, done)
        expired = self.queues.expire(queue)
        done.expired_messages, done.expired_dead = expired.expired, expired.dead
        for each in view.consumers:
            # Ids of messages that are gone take room, and one that is full refuses publishes for all.
            if each.options is not None and (each.ready or each.delayed):
                self._reap(queue, each.consumer, done)
        for each in view.consumers:
            if each.options is None:
                done.half_removed += self._removed(queue, each.consumer)
            elif each.adopting:
                done.half_registered += self._registered(queue, each.consumer)
        if self.parameters.unregister:
            idle_expiry_ms = self.parameters.idle_expiry_ms
            done.idle_consumers = len(self.queues.unregister_idle(queue, idle_expiry_ms=idle_expiry_ms))
        done.add_problems(self.queues.repair(queue, dry_run=False).repaired)
        done.changed_queues = int(done.changes > 0)
        return done

    def _reap(self, queue: str, consumer: str, done: FanoutRepairCounts) -> None:
        with suppress(UnknownConsumer):
            report = self.queues.reap(queue, consumer=consumer, max_stalls=self.parameters.max_stalls)
            done.overdue_leases += report.requeued + report.dead
            done.expired_references += report.skipped

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

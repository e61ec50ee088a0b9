"""Repairs fan-out queues: ends overdue leases, corrects counts, removes dead consumers.

The queue's own scripts judge and repair it. They read all places of a message at once, so that changes by others are
never taken for faults. A step is a queue. A second repair of a queue changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import suppress
from heapq import nlargest

from queuekeeper.errors import StoreFull, UnknownConsumer, UnknownQueue
from queuekeeper.fanout.reports import ConsumerView, QueueView
from queuekeeper.jobs.kinds import Table
from queuekeeper.jobs.model import Job, Outcome, Plan, Step, Words, World
from queuekeeper.jobs.shares import parts_of
from queuekeeper.keyspace import fanout_part
from queuekeeper.maintenance.fanout.model import (
    FanoutRepairCounts,
    FanoutRepairFound,
    FanoutRepairParameters,
    UnseenConsumer,
    WorstQueue,
)
from queuekeeper.maintenance.fanout.queues import QUEUE_ERRORS, PacedFanoutQueues, find_queues, note_broken
from queuekeeper.report.figures import duration, number
from queuekeeper.report.files import ReportKind
from queuekeeper.wording import number_of

UNSEEN_MS = 86_400_000
"""Time after which a consumer with waiting messages that was not seen may be dead."""

_SHOWN = 10


FanoutRepairPlan = Plan[FanoutRepairParameters, FanoutRepairCounts, FanoutRepairFound]
FanoutRepairOutcome = Outcome[FanoutRepairParameters, FanoutRepairCounts, FanoutRepairFound]


class FanoutRepair(Job[FanoutRepairParameters, FanoutRepairCounts, FanoutRepairFound]):
    """Find and repair faults in fan-out queues."""

    kind = "fanout_repair"
    report = ReportKind("fanout", "Fan-out report")
    keeps_steps = True
    proof_steps = 10_000
    words = Words.of_changes(
        "repair",
        noun="repair of fan-out queues",
        title="Repair",
        about="fan-out queues",
        command="fanout repair-all",
        unit="queue",
        units="queues",
        broken="{count:queue} cannot be repaired",
        footer="Queues and consumers are named as their programs name them; no message leaves the server.",
    )

    def __init__(self, world: World[FanoutRepairParameters]) -> None:
        super().__init__(world)
        self._queues = PacedFanoutQueues(
            world.client,
            world.parameters.key_prefix,
            clock=(lambda: world.now_ms) if world.counts_only else world.clock,
            pace=world.pace,
            size=world.size,
            counts_only=world.counts_only,
        )
        self._names: list[str] | None = None
        self._found = FanoutRepairFound()

    def shares(self) -> list[str]:
        """Return ranges of parts of the queues."""
        return self.world.parameters.share_names()

    def find(self, share: str, after: str = "") -> Generator[Step, None, None]:
        """Yield the queues of a share: the queues of the plan, else the named queues, else all."""
        done_with = json.loads(after) if after else ""
        for queue in self._all():
            if fanout_part(queue) in parts_of(share) and queue > done_with:
                # Names from other programs may hold characters that PostgreSQL's text cannot.
                yield Step(cursor=json.dumps(queue), work=queue)

    def apply(self, step: Step) -> FanoutRepairCounts:
        """Repair a queue; an unreadable queue does not stop the others."""
        queue: str = step.work
        try:
            view = self._queues.inspect(queue)
            done = self._repair(view) if view.exists else FanoutRepairCounts()
        except QUEUE_ERRORS as error:
            note_broken(queue, error, self.world.say)
            return FanoutRepairCounts(queues=1, broken_queues=1)
        if self.world.planned is None:
            if self.world.parameters.queues and not view.exists:
                raise UnknownQueue(f"there is no queue {queue!r}")
            self._show(view, done)
        return done

    def found(self) -> FanoutRepairFound:
        """Return the worst queues, and consumers that may be dead."""
        return self._found

    def _all(self) -> list[str]:
        if self._names is None:
            planned, parameters, world = self.world.planned, self.world.parameters, self.world
            self._names = (
                [json.loads(step) for step in planned.steps]
                if planned is not None
                else list(parameters.queues)
                or find_queues(world.client, prefix=parameters.key_prefix, pace=world.pace, size=world.size)
            )
        return self._names

    def _repair(self, view: QueueView) -> FanoutRepairCounts:
        """Do everything that there is to do in a queue.

        In a plan nothing changes, so that each step is told what the steps before it would have done.
        """
        queue, done = view.queue, FanoutRepairCounts(queues=1, consumers=len(view.consumers), messages=view.messages)
        members = [each for each in view.consumers if each.options is not None]
        lives_on: set[int] = set()
        for each in members:
            if each.leased or each.delayed:
                lives_on |= self._end_leases(queue, each.consumer, done)
        expired = self._queues.expire(queue, messages_first=True)
        done.expired_messages += expired.expired - (len(lives_on) if self.world.counts_only else 0)
        done.expired_dead += expired.dead
        for each in members:
            # Ids of messages that are gone take room, and one full consumer makes the queue refuse publishes.
            if each.ready or each.leased or each.delayed:
                with suppress(UnknownConsumer):
                    report = self._queues.reap_lists(queue, consumer=each.consumer, lives_on=lives_on)
                    done.expired_references += report.skipped
        for each in view.consumers:
            if each.options is None:
                done.half_removed += self._removed(queue, each.consumer)
            elif each.adopting:
                done.half_registered += self._registered(queue, each.consumer)
        if self.world.parameters.unregister:
            idle_expiry_ms = self.world.parameters.idle_expiry_ms
            leaving = {each.consumer for each in view.consumers if each.options is None}
            removed = self._queues.unregister_idle(queue, idle_expiry_ms=idle_expiry_ms)
            done.idle_consumers = sum(each.consumer not in leaving for each in removed)
        done.add_problems(self._queues.repair(queue, dry_run=False, over_too=False).repaired)
        done.changed_queues = int(done.changes > 0)
        return done

    def _end_leases(self, queue: str, consumer: str, done: FanoutRepairCounts) -> set[int]:
        """End leases and put retries in line; return the messages that became dead letters."""
        with suppress(UnknownConsumer):
            max_stalls = self.world.parameters.max_stalls
            report = self._queues.reap_leases(queue, consumer=consumer, max_stalls=max_stalls)
            done.overdue_leases += report.requeued + report.dead
            # In a plan they are not in line.
            done.expired_references += report.gone_in_line if self.world.counts_only else 0
            return set(report.revived)
        return set()

    def _registered(self, queue: str, consumer: str) -> int:
        try:
            self._queues.adopt(queue, consumer=consumer)
        except UnknownConsumer:
            return 0
        except StoreFull as error:
            # The repair goes on, since it frees memory, and the next run tries again.
            self.world.say(f"queue {queue!r}: consumer {consumer!r} does not get the earlier messages: {error}")
            return 0
        return 1

    def _removed(self, queue: str, consumer: str) -> int:
        try:
            self._queues.unregister(queue, consumer=consumer, begun=True)
        except UnknownConsumer:
            return 0
        return 1

    def _show(self, view: QueueView, found: FanoutRepairCounts) -> None:
        worst, unseen = self._found.worst, self._found.unseen
        if found.changes:
            one = WorstQueue(queue=view.queue, changes=found.changes, faults=found.faults, messages=found.messages)
            worst = tuple(nlargest(_SHOWN, [*worst, one], key=lambda each: each.changes))
        dead = [who for each in view.consumers if (who := self._unseen(view.queue, each)) is not None]
        unseen = tuple(nlargest(_SHOWN, [*unseen, *dead], key=lambda each: each.waiting))
        self._found = FanoutRepairFound(worst=worst, unseen=unseen)

    def _unseen(self, queue: str, view: ConsumerView) -> UnseenConsumer | None:
        unseen_ms = self.world.now_ms - view.last_seen_ms
        waiting = view.ready + view.leased + view.delayed
        if unseen_ms < UNSEEN_MS or not waiting:
            return None
        return UnseenConsumer(queue=queue, consumer=view.consumer, unseen_s=unseen_ms // 1_000, waiting=waiting)

    # --- words ---------------------------------------------------------------------------------------------------

    @classmethod
    def question(cls, run_id: str, plan: FanoutRepairPlan) -> str:
        """Return the question that a person is asked before anything changes."""
        counts = plan.counts
        words = f"{number_of(counts.changes, 'repair')} will be made in {number_of(counts.changed_queues, 'queue')}"
        if counts.removed:
            words += f"; {number_of(counts.removed, 'message')} will be removed, as expired or owed an ack by nobody"
        if counts.idle_consumers:
            words += (
                f"; {number_of(counts.idle_consumers, 'consumer')} will be removed, with the messages that wait for "
                "nobody else"
            )
        return f"{words}. Repair?"

    @classmethod
    def rule_words(cls, parameters: FanoutRepairParameters) -> str:
        """Return a sentence that says what a repair was asked to do."""
        whom = f"{number(len(parameters.queues))} named queues" if parameters.queues else "all queues"
        stalls = number(parameters.max_stalls)
        words = f"{whom}; a message whose lease ran out more than {stalls} times is a dead letter; "
        if not parameters.unregister:
            return f"{words}no consumer is removed"
        words += "consumers are removed that were not seen for the time in their options"
        if parameters.idle_expiry_s is not None:
            words += f", or for {duration(parameters.idle_expiry_s)} where their options name no time"
        return words

    @classmethod
    def figures(cls, outcome: FanoutRepairOutcome) -> list[tuple[str, str, str]]:
        """Return the numbers of queues, consumers and messages that were looked at."""
        counts = outcome.plan.counts
        return [
            ("Queues", number(counts.queues), "looked at"),
            ("Consumers", number(counts.consumers), "of all queues"),
            ("Messages", number(counts.messages), "stored once each"),
        ]

    @classmethod
    def tables(cls, plan: FanoutRepairPlan) -> list[Table]:
        """Return the worst queues, and consumers that may be dead."""
        worst, unseen = plan.found.worst, plan.found.unseen
        return [
            Table(
                heading="Queues with most to do",
                heads=("Queue", "Repairs", "Of these faults", "Messages"),
                rows=tuple((one.queue, number(one.changes), number(one.faults), number(one.messages)) for one in worst),
                empty="There was nothing to do.",
                note="In healthy queues, too, leases run out and messages expire; only faults are a sign of trouble.",
            ),
            Table(
                heading="Consumers that may be dead",
                heads=("Queue", "Consumer", "Not seen for", "Messages that wait for it"),
                rows=tuple((one.queue, one.consumer, duration(one.unseen_s), number(one.waiting)) for one in unseen),
                empty="Every consumer for which messages wait was seen within a day.",
                note="Messages wait for these consumers, and they were not seen for a day. Only a run that is asked to "
                "removes them.",
            ),
        ]

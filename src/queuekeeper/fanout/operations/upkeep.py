"""Upkeep of a fan-out queue: remove messages, pause consumers, show the state."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from queuekeeper import lua
from queuekeeper.checks import check_integer, check_page
from queuekeeper.errors import UnknownConsumer
from queuekeeper.fanout.model import DEFAULT_PAGE, MAX_PAGE
from queuekeeper.fanout.operations.common import IDS_PER_CALL, Steps, ask, read_message
from queuekeeper.fanout.operations.dead import DeadOperations
from queuekeeper.fanout.reports import ConsumerView, ExpireReport, FanoutMessage, PurgeReport, QueueView
from queuekeeper.keyspace import FanoutKeys
from queuekeeper.lua.scripts import fanout as scripts
from queuekeeper.operation import Operation

SAMPLE = 100
"""Number of messages next in line of each consumer that ``inspect`` looks at."""


class UpkeepOperations(DeadOperations):
    """Expire, purge, pause, resume, peek, size and inspect."""

    def expire(self, queue: str, *, messages_first: bool = False) -> Operation[ExpireReport]:
        """Remove expired messages, and dead letters after their retention, in bounded steps.

        Ids of removed messages stay in the lists of consumers, which skip them.

        :param messages_first: whether messages are removed before dead letters; then an expired message that is also a
            dead letter counts as both.
        """
        membership = yield from self._membership(queue, fresh=True)
        expired = (yield from self._expire_messages(queue)) if messages_first else 0
        now_ms = membership.now_ms if self._clock is None else self._clock()
        dead = 0
        for consumer, member in membership.members.items():
            if member.options is not None:
                before_ms = max(0, now_ms - member.options.dead_retention_ms + 1)
                dead += (yield from self._purge_dead(queue, consumer, died_before_ms=before_ms)).released
        if not messages_first:
            expired = yield from self._expire_messages(queue)
        return ExpireReport(expired=expired, dead=dead)

    def _expire_messages(self, queue: str) -> Steps[int]:
        keys = self._keys(queue)
        expired = held_at = behind = 0
        more = 1
        while more:
            limit = self._size(IDS_PER_CALL)
            reply = yield from ask(
                scripts.expire(keys, limit=limit, held_at=held_at, now_ms=self._now(), behind=behind)
            )
            expired += reply.expired
            more, held_at = reply.more, reply.held_at
            if self._counts_only:
                held_at += reply.here
                behind += limit
        return expired

    def purge(self, queue: str, *, consumer: str | None = None, dry_run: bool = False) -> Operation[PurgeReport]:
        """Remove waiting messages, of one consumer or of all.

        For all consumers, messages that the queue holds are removed too. Messages under lease and dead letters stay.
        The removal takes bounded steps.

        :param consumer: all consumers, and the held messages, when absent.
        """
        keys = self._keys(queue)
        if consumer is None:
            membership = yield from self._membership(queue, fresh=True)
            members = membership.members
        else:
            members = {consumer: (yield from self._member(queue, consumer))}
        released = freed = 0
        for name, member in members.items():
            if dry_run:
                view = yield from self._consumer_view(queue, name, sample=0)
                released += view.ready + view.delayed
                continue
            report = yield from _drained(scripts.purge(keys, member.keys, consumer=name, limit=IDS_PER_CALL))
            released += report.released
            freed += report.freed or 0
        if consumer is None and dry_run:
            released += (yield from self._queue_facts(queue)).held
        elif consumer is None:
            report = yield from _drained(scripts.purge_held(keys, limit=IDS_PER_CALL))
            released += report.released
            freed += report.freed or 0
        return PurgeReport(released=released, freed=None if dry_run else freed, dry_run=dry_run)

    def pause(self, queue: str, *, consumer: str | None = None) -> Operation[bool]:
        """Stop handing out messages, to one consumer or to all.

        Messages under lease can be finished, and publishes go on.

        :returns: false when it was paused already.
        """
        keys, paused = self._pausable(queue, consumer)
        return bool((yield from ask(scripts.pause(keys, paused=paused, consumer=consumer or ""))))

    def resume(self, queue: str, *, consumer: str | None = None) -> Operation[bool]:
        """Hand messages out again.

        This also restarts a consumer that has halted at a dead letter.

        :returns: whether it was paused before.
        """
        keys, paused = self._pausable(queue, consumer)
        if consumer is None:
            membership = yield from self._membership(queue, fresh=True)
            wakes = [member.keys.wakes for member in membership.members.values()]
        else:
            wakes = [self._own_keys(queue, consumer)[1].wakes]
        return bool((yield from ask(scripts.resume(keys, paused=paused, wakes=wakes, consumer=consumer or ""))))

    def _pausable(self, queue: str, consumer: str | None) -> tuple[FanoutKeys, str]:
        """Return the keys of a queue, and the key that holds the mark of a pause."""
        if consumer is None:
            keys = self._keys(queue)
            return keys, keys.state
        keys, own = self._own_keys(queue, consumer)
        return keys, own.details

    def peek(
        self, queue: str, *, consumer: str, offset: int = 0, limit: int = DEFAULT_PAGE, lane: int = 0
    ) -> Operation[tuple[FanoutMessage, ...]]:
        """Read waiting messages without claiming them.

        The next in line comes first.

        :param offset: number of messages to skip before the first one.
        :param limit: largest number of messages; fewer come when they are longer than 1,000,000 bytes together.
        :param lane: number of the lane, from 0, of an ordered consumer with several lanes.
        """
        check_page(offset, limit, most=MAX_PAGE)
        keys = self._keys(queue)
        member = yield from self._member(queue, consumer)
        own = member.keys
        check_integer("lane", lane, 0, len(own.ready) - 1)
        reply = yield from ask(
            scripts.peek(
                keys,
                own,
                ready=own.ready[lane],
                offset=offset,
                limit=limit,
                consumer=consumer,
                lane=lane + 1,
                lanes=len(own.ready),
            )
        )
        messages = (
            read_message(queue, consumer, int(found.id), found.message, attempt=found.attempts, stalls=found.stalls)
            for found in reply.messages
            if found.id.isdigit()
        )
        return tuple(message for message in messages if message is not None)

    def size(self, queue: str, *, consumer: str | None = None) -> Operation[int]:
        """Count messages, all or those of a consumer.

        Without a consumer it counts all stored messages. With one it counts the messages that the consumer has yet to
        acknowledge, without its dead letters.
        """
        if consumer is None:
            return (yield from self._queue_facts(queue)).messages
        view = yield from self._consumer_view(queue, consumer, sample=0)
        return view.ready + view.leased + view.delayed

    def inspect(self, queue: str) -> Operation[QueueView]:
        """Show the state of a queue and its consumers.

        It shows the messages that wait and since when, those under lease, those that have failed, and those that only
        one consumer keeps from being removed. A queue that does not exist is shown as empty.
        """
        facts = yield from self._queue_facts(queue)
        membership = yield from self._membership(queue, fresh=True)
        views: list[ConsumerView] = []
        for consumer in sorted(membership.members):
            with suppress(UnknownConsumer):
                views.append((yield from self._consumer_view(queue, consumer, sample=self._size(SAMPLE))))
        return replace(facts, consumers=tuple(views))


def _drained(call: lua.Call) -> Steps[PurgeReport]:
    """Repeat a call that removes messages until there are no more."""
    released = freed = 0
    more = 1
    while more:
        reply = yield from ask(call)
        released += reply.released
        freed += reply.freed
        more = reply.more
    return PurgeReport(released=released, freed=freed)

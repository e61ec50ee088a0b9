"""A model of fan-out queues: who owes what, in which order, and what becomes of it; it knows no server."""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

from queuekeeper.fanout.model import SUSPECT_STALLS, ConsumerOptions, Mode, Start, WhenFailed

HELD = "(held)"
"""Stands for the consumers to come among those who owe an ack."""

LATE_MS = 600_000
"""What was worked on behind the end of its life stays for so long, except for upkeep."""


@dataclass
class Message:
    """A stored message.

    :ivar due_ms: nobody gets it before.
    :ivar expires_at_ms: as published.
    :ivar kept_until_ms: when it is removed; later than that when somebody works on it, or it is a dead letter.
    :ivar owed_by: consumers that are not done with it.
    """

    body: bytes
    order_hash: int
    due_ms: int
    expires_at_ms: int
    kept_until_ms: int
    owed_by: set[str]

    def is_over(self, now: int) -> bool:
        """Tell whether whoever meets it removes it."""
        late_ms = LATE_MS if self.kept_until_ms > self.expires_at_ms else 0
        return self.kept_until_ms + late_ms <= now


@dataclass
class Note:
    """What a consumer knows of a message that was handed out."""

    attempts: int = 0
    stalls: int = 0
    lane: int = 0
    token: str = ""


@dataclass
class Consumer:
    """What a consumer has.

    :ivar busy: lane -> message that it waits for.
    :ivar blocked: lane -> instant that it waits for.
    """

    name: str
    options: ConsumerOptions
    ready: list[list[int]] = field(default_factory=list)
    leases: dict[int, int] = field(default_factory=dict)
    delayed: dict[int, int] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)
    notes: dict[int, Note] = field(default_factory=dict)
    busy: dict[int, int] = field(default_factory=dict)
    blocked: dict[int, int] = field(default_factory=dict)
    next_lane: int = 0
    paused: bool = False

    def __post_init__(self) -> None:
        self.ready = [[] for _ in range(self.options.lanes)]

    @property
    def is_ordered(self) -> bool:
        return self.options.mode is Mode.ORDERED

    def everything(self) -> list[int]:
        return [*self.leases, *self.delayed, *self.dead, *(number for lane in self.ready for number in lane)]


class QueueModel:
    """A queue and its consumers."""

    def __init__(self) -> None:
        self.messages: dict[int, Message] = {}
        self.consumers: dict[str, Consumer] = {}
        self.held: list[int] = []
        self.published: dict[tuple[str | None, str], int] = {}
        self.next_id = 1

    # Publishing and registering.

    def publish(
        self,
        body: bytes,
        *,
        order_key: str | None,
        ttl_ms: int,
        delay_ms: int,
        deduplication_id: str | None,
        to: str | None,
        now: int,
    ) -> tuple[int, bool]:
        """Return the id of the message, and whether it repeats an earlier one."""
        if deduplication_id is not None:
            if (to, deduplication_id) in self.published:
                return self.published[to, deduplication_id], True
            self.published[to, deduplication_id] = self.next_id
        message_id = self.next_id
        self.next_id += 1
        receivers = [self.consumers[to]] if to else list(self.consumers.values())
        order_hash = crc32(order_key.encode()) if order_key is not None else 0
        owed_by = {consumer.name for consumer in receivers} or {HELD}
        ends_ms = now + delay_ms + ttl_ms
        message = self.messages[message_id] = Message(body, order_hash, now + delay_ms, ends_ms, ends_ms, owed_by)
        for consumer in receivers:
            self._put(consumer, message_id, message, now=now)
        if not receivers:
            self.held.append(message_id)
        return message_id, False

    def remove_over(self, *, most: int, now: int) -> None:
        """Remove those messages whose lives are over that a publish meets."""
        met = sorted((message.kept_until_ms, str(one)) for one, message in self.messages.items())[:most]
        for _, text in met:
            if self.messages[int(text)].is_over(now):
                del self.messages[int(text)]

    def register(self, name: str, options: ConsumerOptions, start: Start, *, now: int) -> int:
        """Return how many messages it adopts."""
        consumer = self.consumers[name] = Consumer(name, options)
        wanted: list[int] = []
        if start is Start.HELD:
            wanted, self.held = self.held, []
        elif start is Start.RETAINED:
            wanted = sorted(self.messages)
        adopted = 0
        for message_id in wanted:
            message = self.messages.get(message_id)
            if message is not None and message.expires_at_ms > now:
                self._put(consumer, message_id, message, now=now)
                message.owed_by.add(name)
                adopted += 1
            if start is Start.HELD:
                self._pass_over(HELD, message_id, now=now)
        return adopted

    def unregister(self, name: str) -> tuple[int, int]:
        """Return how many messages it owed an ack, and how many of them are gone."""
        consumer = self.consumers.pop(name)
        everything = consumer.everything()
        return len(everything), sum(self._release(name, message_id) for message_id in everything)

    # Working.

    def claim(
        self, name: str, *, count: int, lease_ms: int, max_stalls: int, token: str, now: int
    ) -> list[tuple[int, int, int, bytes]]:
        """Return id, attempt, stalls and body of what is handed out."""
        consumer = self.consumers[name]
        if consumer.paused:
            return []
        self._reclaim(consumer, max_stalls=max_stalls, now=now)
        self._promote(consumer, now=now)
        if self.consumers[name].paused:
            return []
        taken: list[int] = []
        suspect = max(1, min(SUSPECT_STALLS, max_stalls))
        is_alone = False

        def take(lane: int) -> list[int]:
            nonlocal is_alone
            one = self._take(consumer, lane, now=now)
            is_alone = bool(one) and consumer.notes.get(one[0], Note()).stalls >= suspect
            if is_alone and taken:
                consumer.ready[lane].insert(0, one.pop())
            return one

        if not consumer.is_ordered:
            while len(taken) < count and consumer.ready[0] and not is_alone:
                taken += take(0)
        else:
            first = consumer.next_lane
            for step in range(consumer.options.lanes):
                lane = (first + step) % consumer.options.lanes
                if lane in consumer.busy or consumer.blocked.get(lane, now) > now:
                    continue
                while len(taken) < count and consumer.ready[lane] and not is_alone:
                    one = take(lane)
                    if one:
                        taken += one
                        consumer.busy[lane] = one[0]
                        consumer.blocked.pop(lane, None)
                        consumer.next_lane = (lane + 1) % consumer.options.lanes
                        break
        found = []
        for message_id in taken:
            note = consumer.notes.setdefault(message_id, Note())
            note.attempts += 1
            note.token = token
            note.lane = self.messages[message_id].order_hash % consumer.options.lanes
            consumer.leases[message_id] = now + lease_ms
            self._keep(message_id, now + lease_ms)
            found.append((message_id, note.attempts, note.stalls, self.messages[message_id].body))
        return found

    def ack(self, name: str, token: str, ids: list[int]) -> tuple[int, int, int]:
        """Return how many are acked, how many were not the caller's, and how many are gone."""
        consumer = self.consumers[name]
        mine = [message_id for message_id in ids if self._is_mine(consumer, message_id, token)]
        freed = 0
        for message_id in mine:
            self._end_lease(consumer, message_id)
            del consumer.notes[message_id]
            freed += self._release(name, message_id)
        return len(mine), len(ids) - len(mine), freed

    def nack(self, name: str, token: str, message_id: int, *, delay_ms: int, max_attempts: int | None, now: int) -> str:
        """Return ``retry``, ``dead`` or ``stale``."""
        consumer = self.consumers[name]
        if not self._is_mine(consumer, message_id, token):
            return "stale"
        self._end_lease(consumer, message_id)
        note = consumer.notes[message_id]
        note.token = ""
        if max_attempts is not None and note.attempts >= max_attempts:
            self._bury(consumer, message_id, now=now)
            return "dead"
        self._keep(message_id, now + delay_ms)
        if consumer.is_ordered:
            consumer.blocked[note.lane] = now + delay_ms
            consumer.ready[note.lane].insert(0, message_id)
        elif delay_ms:
            consumer.delayed[message_id] = now + delay_ms
        else:
            consumer.ready[0].append(message_id)
        return "retry"

    def extend(self, name: str, token: str, ids: list[int], *, lease_ms: int, now: int) -> list[int]:
        """Return the ids that are not the caller's."""
        consumer = self.consumers[name]
        for message_id in ids:
            if self._is_mine(consumer, message_id, token):
                consumer.leases[message_id] = now + lease_ms
                self._keep(message_id, now + lease_ms)
        return [message_id for message_id in ids if not self._is_mine(consumer, message_id, token)]

    def return_claimed(self, name: str, token: str, ids: list[int]) -> int:
        """Return how many were given back."""
        consumer = self.consumers[name]
        mine = sorted((one for one in ids if self._is_mine(consumer, one, token)), reverse=True)
        for message_id in mine:
            self._end_lease(consumer, message_id)
            note = consumer.notes[message_id]
            note.attempts -= 1
            note.token = ""
            consumer.ready[note.lane].insert(0, message_id)
        return len(mine)

    # Upkeep.

    def reap(self, name: str, *, max_stalls: int, now: int) -> tuple[int, int]:
        """Return how many are in line again, and how many are dead."""
        consumer = self.consumers[name]
        counts = self._reclaim(consumer, max_stalls=max_stalls, now=now)
        self._promote(consumer, now=now)
        for number, lane in enumerate(consumer.ready):
            gone = [message_id for message_id in lane if message_id not in self.messages]
            for message_id in gone:
                lane.remove(message_id)
                if consumer.notes.pop(message_id, None) is not None:
                    # A lane that waits for the retry of a message waits no longer when that is gone.
                    consumer.blocked.pop(number, None)
        return counts

    def retry_dead(self, name: str, ids: list[int], *, now: int) -> list[int]:
        """Return the ids that wait again."""
        consumer = self.consumers[name]
        revived = []
        for message_id in sorted(ids):
            if consumer.dead.pop(message_id, None) is None:
                continue
            message = self.messages.get(message_id)
            if message is None:
                consumer.notes.pop(message_id)
                continue
            lane = message.order_hash % consumer.options.lanes
            consumer.notes[message_id] = Note(lane=lane)
            self._keep(message_id, now + consumer.options.dead_retention_ms)
            revived.append(message_id)
        for message_id in reversed(revived) if consumer.is_ordered else revived:
            lane = consumer.notes[message_id].lane
            if consumer.is_ordered:
                consumer.ready[lane].insert(0, message_id)
            else:
                consumer.ready[0].append(message_id)
        return revived

    def purge_dead(self, name: str, *, died_until_ms: int | None = None) -> tuple[int, int]:
        """Return how many letters are gone, and how many messages."""
        consumer = self.consumers[name]
        going = [one for one, died in consumer.dead.items() if died_until_ms is None or died <= died_until_ms]
        for message_id in going:
            del consumer.dead[message_id]
            consumer.notes.pop(message_id, None)
        return len(going), sum(self._release(name, message_id) for message_id in going)

    def purge(self, name: str) -> tuple[int, int]:
        """Return how many it no longer owes an ack, and how many messages are gone."""
        consumer = self.consumers[name]
        going = [*consumer.delayed, *(message_id for lane in consumer.ready for message_id in lane)]
        consumer.delayed.clear()
        consumer.ready = [[] for _ in consumer.ready]
        # A lane waits for a message that has failed, and not for one that is given up.
        consumer.blocked.clear()
        for message_id in going:
            consumer.notes.pop(message_id, None)
        return len(going), sum(self._release(name, message_id) for message_id in going)

    def expire(self, *, now: int) -> tuple[int, int]:
        """Return how many messages, and how many dead letters, are gone."""
        dead = sum(
            self.purge_dead(name, died_until_ms=now - consumer.options.dead_retention_ms)[0]
            for name, consumer in self.consumers.items()
        )
        going = [one for one, message in self.messages.items() if message.kept_until_ms <= now]
        for message_id in going:
            del self.messages[message_id]
        self.held = [message_id for message_id in self.held if message_id in self.messages]
        return len(going), dead

    # What several of them do.

    def _take(self, consumer: Consumer, lane: int, *, now: int) -> list[int]:
        """Return the next message of a list; nothing when it has expired before anybody began on it."""
        message_id = consumer.ready[lane].pop(0)
        message = self.messages.get(message_id)
        if message is not None and (message_id in consumer.notes or message.expires_at_ms > now):
            return [message_id]
        consumer.notes.pop(message_id, None)
        self._pass_over(consumer.name, message_id, now=now)
        return []

    @staticmethod
    def _put(consumer: Consumer, message_id: int, message: Message, *, now: int) -> None:
        if message.due_ms > now:
            consumer.delayed[message_id] = message.due_ms
        else:
            consumer.ready[message.order_hash % consumer.options.lanes].append(message_id)

    def _promote(self, consumer: Consumer, *, now: int) -> None:
        due = sorted((due_ms, message_id) for message_id, due_ms in consumer.delayed.items() if due_ms <= now)
        for _, message_id in due:
            del consumer.delayed[message_id]
            message = self.messages.get(message_id)
            order_hash = 0 if message is None else message.order_hash
            consumer.ready[order_hash % consumer.options.lanes].append(message_id)

    def _reclaim(self, consumer: Consumer, *, max_stalls: int, now: int) -> tuple[int, int]:
        over = sorted((one for one, deadline in consumer.leases.items() if deadline <= now), reverse=True)
        dead = 0
        for message_id in over:
            self._end_lease(consumer, message_id)
            note = consumer.notes[message_id]
            note.stalls += 1
            note.token = ""
            if note.stalls > max_stalls:
                self._bury(consumer, message_id, now=now)
                dead += 1
            else:
                consumer.ready[note.lane].insert(0, message_id)
        return len(over) - dead, dead

    def _bury(self, consumer: Consumer, message_id: int, *, now: int) -> None:
        consumer.dead[message_id] = now
        self._keep(message_id, now + consumer.options.dead_retention_ms)
        if consumer.is_ordered and consumer.options.when_failed is WhenFailed.HALT:
            consumer.paused = True

    def _keep(self, message_id: int, until_ms: int) -> None:
        message = self.messages.get(message_id)
        if message is not None:
            message.kept_until_ms = max(message.kept_until_ms, until_ms)

    def _pass_over(self, name: str, message_id: int, *, now: int) -> None:
        message = self.messages.get(message_id)
        if message is not None and message.is_over(now):
            del self.messages[message_id]
        else:
            self._release(name, message_id)

    def _release(self, name: str, message_id: int) -> bool:
        """Return whether the message is gone."""
        message = self.messages.get(message_id)
        if message is None:
            return False
        message.owed_by.discard(name)
        if message.owed_by:
            return False
        del self.messages[message_id]
        return True

    @staticmethod
    def _is_mine(consumer: Consumer, message_id: int, token: str) -> bool:
        return message_id in consumer.leases and consumer.notes[message_id].token == token

    @staticmethod
    def _end_lease(consumer: Consumer, message_id: int) -> None:
        del consumer.leases[message_id]
        if consumer.is_ordered:
            consumer.busy.pop(consumer.notes[message_id].lane, None)

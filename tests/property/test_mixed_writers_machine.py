"""TBMQ's scripts and our store write one session in any order: places, DUP, counts and packet ids are the model's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tbmq_broker import Broker

from queuekeeper.keyspace import MAX_PACKET_ID, session_keys
from queuekeeper.sessions.model import Ack, NewMessage, Release, SessionSave
from queuekeeper.sessions.reports import SessionCounts
from tests.conformance.store_worlds import RedisWorld, Store
from tests.conftest import REDIS_FLAVOURS, nightly, url_of_parameter
from tests.property.run_machine import run_machine

C = "meter-7"
LIMIT = 9
BROKERS_LIMIT = 6
ONCE_AROUND = MAX_PACKET_ID

places = st.integers(0, LIMIT)
stores = st.integers(0, 1)


@dataclass
class Message:
    """A message that waits.

    :param sent: it was noted as delivered to the client.
    """

    serial: int
    packet_id: int
    topic: str
    released: bool = False
    sent: bool = False


class MixedWriters(RuleBasedStateMachine):
    """One session, two store objects, and a broker that knows its own three kinds of keys only."""

    world: RedisWorld

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[int, Message] = {}
        self.last = 0
        self.numbered = 0
        self.highest_of_ours = -1
        self.trimmed = 0
        self.seen: list[tuple[int, int]] = []
        self.batch: tuple[SessionSave, Any] | None = None

    @initialize(session_expiry_s=st.sampled_from([604_800, None]))
    def start(self, session_expiry_s: int | None) -> None:
        self.world.erase()
        self.stores: list[Store] = [self.world.store(limit=LIMIT, session_expiry_s=session_expiry_s) for _ in range(2)]
        self.broker = Broker(self.world.client, C)

    @invariant()
    def session_is_the_models(self) -> None:
        if hasattr(self, "stores"):
            self._compare(self.numbered % 2)

    def anything_waits(self) -> bool:
        return bool(self.waiting)

    # What TBMQ does.

    @rule(count=st.integers(1, 3))
    def they_add(self, count: int) -> None:
        for _ in range(count):
            topic = self._topic()
            self._added_by_them(topic)
            assert self.broker.add(topic, limit=BROKERS_LIMIT) == self.last

    @rule(count=st.sampled_from([ONCE_AROUND - 1, ONCE_AROUND, ONCE_AROUND, ONCE_AROUND + 1]))
    def they_go_around(self, count: int) -> None:
        """Add as many as there are packet ids, or one less or more."""
        stem = self._topic() + "/"
        serial = max((message.serial for message in self.waiting.values()), default=self.last)
        self.waiting.clear()
        for number in range(count - BROKERS_LIMIT + 1, count + 1):
            packet_id = (self.last + number - 1) % MAX_PACKET_ID + 1
            self.waiting[packet_id] = Message(serial + number, packet_id, f"{stem}{number}")
        self.last = (self.last + count - 1) % MAX_PACKET_ID + 1
        assert self.broker.add_many(stem, count, limit=BROKERS_LIMIT) == self.last

    @precondition(anything_waits)
    @rule(place=places, count=st.integers(1, 3))
    def they_ack(self, place: int, count: int) -> None:
        """Confirm messages from one place on, as clients do in order, or out of it where QoS differs."""
        for message in self._in_order()[place % len(self.waiting) :][:count]:
            self.broker.acknowledge(message.packet_id)
            del self.waiting[message.packet_id]

    @precondition(anything_waits)
    @rule(by_purge=st.booleans())
    def they_empty_it(self, by_purge: bool) -> None:
        if by_purge:
            self.broker.purge()
            self.last = 0
        for packet_id in list(self.waiting):
            self.broker.acknowledge(packet_id)
        self.waiting.clear()

    @rule()
    def they_drain_a_group(self) -> None:
        """Give two packet ids to messages of another queue, by a plain SET."""
        self.last = (self.last + 1) % MAX_PACKET_ID + 1
        self.world.client.set(session_keys(C).last_packet_id, self.last)

    # What we do.

    @rule(count=st.integers(1, 3), store=stores, named=st.booleans())
    def we_save(self, count: int, store: int, named: bool) -> None:
        self.numbered += 1
        new = tuple(
            NewMessage(topic=self._topic(), payload=b"p", qos=2, time_ms=self.world.now_ms(), expiry_interval_s=600)
            for _ in range(count)
        )
        source, offset = ("p0", self.numbered) if named else (None, None)
        save = SessionSave(client_id=C, messages=new, source=source, offset=offset)
        [report] = self.stores[store].save_messages([save])
        assert (report.error, report.refused, report.replayed, report.dead) == (None, {}, False, 0)
        at = self.last
        for message, packet_id, serial in zip(new, report.packet_ids, report.serials, strict=True):
            at = self._next_free(at)
            assert packet_id == at
            assert serial > max([self.highest_of_ours, *(other.serial for other in self.waiting.values())])
            self.highest_of_ours = serial
            self.waiting[packet_id] = Message(serial, packet_id, message.topic)
        self.last = at
        trimmed = self._trimmed_by_us()
        self.trimmed += len(trimmed)
        assert (report.trimmed, report.trimmed_in_flight) == (len(trimmed), sum(each.sent for each in trimmed))
        if named:
            self.batch = save, report

    @precondition(lambda self: self.batch)
    @rule(store=stores)
    def we_repeat(self, store: int) -> None:
        """Save a batch again whose answer was lost: it was stored, whatever has become of its messages."""
        assert self.batch is not None
        save, first = self.batch
        [again] = self.stores[store].save_messages([save])
        assert (again.packet_ids, again.serials) == (first.packet_ids, first.serials)
        assert (again.error, again.replayed, again.trimmed) == (None, True, 0)

    @precondition(anything_waits)
    @rule(store=stores, limit=st.integers(1, LIMIT))
    def we_deliver_the_backlog(self, store: int, limit: int) -> None:
        self._compare(store, limit=limit, mark_delivered=True)

    @precondition(anything_waits)
    @rule(store=stores, place=places)
    def we_mark_delivered(self, store: int, place: int) -> None:
        serial = self._at(place).serial
        self.stores[store].mark_delivered(C, serial=serial)
        self._sent_up_to(serial)

    @precondition(anything_waits)
    @rule(store=stores, place=places, named=st.booleans())
    def we_ack(self, store: int, place: int, named: bool) -> None:
        message = self._at(place)
        ack = Ack(packet_id=message.packet_id, serial=message.serial if named else None)
        assert self.stores[store].ack(C, [ack]).removed == 1
        del self.waiting[message.packet_id]

    @precondition(lambda self: self.seen)
    @rule(store=stores, data=st.data())
    def we_ack_late(self, store: int, data: st.DataObject) -> None:
        """Take a confirmation of what was read before: only that very message may go."""
        packet_id, serial = data.draw(st.sampled_from(self.seen))
        there = self.waiting.get(packet_id)
        is_there = there is not None and there.serial == serial
        assert self.stores[store].ack(C, [Ack(packet_id=packet_id, serial=serial)]).removed == is_there
        if is_there:
            del self.waiting[packet_id]

    @precondition(anything_waits)
    @rule(store=stores, place=places, by_them=st.booleans())
    def client_sends_pubrec(self, store: int, place: int, by_them: bool) -> None:
        message = self._at(place)
        if by_them:
            self.broker.received(message.packet_id)
        else:
            released = self.stores[store].mark_released(C, packet_id=message.packet_id, serial=message.serial)
            assert released is (Release.ALREADY if message.released else Release.RELEASED)
        message.released = True

    @rule(store=stores, ahead=st.integers(0, MAX_PACKET_ID - 2), place=st.none() | places)
    def we_set_the_counter(self, store: int, ahead: int, place: int | None) -> None:
        """Set it anywhere else, or before a packet id that is in use."""
        packet_id = (self.last + ahead) % MAX_PACKET_ID + 1
        if place is not None and self.waiting:
            packet_id = (self._at(place).packet_id - 2) % MAX_PACKET_ID + 1
        assert self.stores[store].set_last_packet_id(C, packet_id=packet_id, expected=self.last or None)
        self.last = packet_id

    @rule(store=stores, count=st.integers(1, 3))
    def we_reserve(self, store: int, count: int) -> None:
        for packet_id in self.stores[store].reserve_packet_ids(C, count=count):
            self.last = self._next_free(self.last)
            assert packet_id == self.last

    @precondition(anything_waits)
    @rule(store=stores, mercy=st.integers(0, 3))
    def we_purge(self, store: int, mercy: int) -> None:
        report = self.stores[store].purge_session(C, dry_run=mercy > 0)
        assert (report.messages, report.kept) == (len(self.waiting), 0)
        if not mercy:
            self.waiting.clear()
            self.last, self.highest_of_ours, self.trimmed, self.batch, self.seen = 0, -1, 0, None, []

    # The model.

    def _topic(self) -> str:
        self.numbered += 1
        return f"t/{self.numbered}"

    def _in_order(self) -> list[Message]:
        return sorted(self.waiting.values(), key=lambda message: message.serial)

    def _at(self, place: int) -> Message:
        return self._in_order()[place % len(self.waiting)]

    def _next_free(self, packet_id: int) -> int:
        packet_id = packet_id % MAX_PACKET_ID + 1
        while packet_id in self.waiting:
            packet_id = packet_id % MAX_PACKET_ID + 1
        return packet_id

    def _added_by_them(self, topic: str) -> None:
        """Add as their script does: over a packet id in use, behind the greatest score, or at the counter's."""
        serial = max((message.serial for message in self.waiting.values()), default=self.last) + 1
        self.last = self.last % MAX_PACKET_ID + 1
        self.waiting[self.last] = Message(serial, self.last, topic)
        for message in self._in_order()[: max(0, len(self.waiting) - BROKERS_LIMIT)]:
            del self.waiting[message.packet_id]

    def _trimmed_by_us(self) -> list[Message]:
        """Trim to our limit: the oldest that was not sent, then the oldest in flight."""
        trimmed: list[Message] = []
        while len(self.waiting) > LIMIT:
            victim = min(self.waiting.values(), key=lambda message: (message.sent, message.serial))
            trimmed.append(self.waiting.pop(victim.packet_id))
        return trimmed

    def _sent_up_to(self, serial: int) -> None:
        for message in self.waiting.values():
            message.sent |= message.serial <= serial

    def _compare(self, store: int, *, limit: int = LIMIT, mark_delivered: bool = False) -> None:
        found: list[Any] = []
        page = self.stores[store].fetch_pending(C, limit=limit, mark_delivered=mark_delivered)
        while True:
            found += page.messages
            assert (page.expired, page.unreadable) == (0, 0)
            if not page.more:
                break
            page = self.stores[store].fetch_pending(
                C,
                after_serial=page.after_serial,
                backlog_serial=page.backlog_serial,
                limit=limit,
                mark_delivered=mark_delivered,
            )
        assert [_facts(message) for message in found] == [
            (m.packet_id, m.serial, m.topic, "PUBREL" if m.released else "PUBLISH", m.sent) for m in self._in_order()
        ]
        self.seen = [*self.seen, *((message.packet_id, message.serial) for message in found)][-20:]
        if mark_delivered and found:
            self._sent_up_to(found[-1].serial)
        assert self.stores[store].get_last_packet_id(C) == (self.last or None)
        view = self.stores[store].inspect(C)
        # What TBMQ trims and purges is none of our doing, and takes nothing of what we have counted away.
        assert (view.messages, view.counts or SessionCounts()) == (
            len(self.waiting),
            SessionCounts(trimmed=self.trimmed),
        )


def _facts(message: Any) -> Sequence[Any]:
    return message.packet_id, message.serial, message.topic, message.packet_type, message.redelivery


@pytest.fixture(params=["valkey", *nightly(*REDIS_FLAVOURS[1:], "cluster")])
def world(request: pytest.FixtureRequest) -> Iterator[RedisWorld]:
    """Valkey, Redis where it is installed, and a cluster."""
    found = RedisWorld(url_of_parameter(request), awaited=False)
    yield found
    found.close()


def test_session_of_two_programs_is_what_both_have_made_of_it(world: RedisWorld) -> None:
    run_machine(MixedWriters, examples=40, steps=30, world=world)

"""Whatever is done to a session, in whatever order, Redis and PostgreSQL hold what the reference holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.sessions.model import Ack, NewMessage, PendingMessage, Refusal, SaveReport, SessionSave, StoreRules
from tests.conformance.reference_store import ReferenceStore, Session, Sessions
from tests.conformance.store_worlds import PostgresWorld, RedisWorld, ServerWorld, Store

LIMIT = 6
CLIENT_IDS = ("meter-7", "}brace")
SOURCES = (None, "p0", "p1")
HOUR_S = 3_600
SHORT_LIFE_MS = 60

clients = st.sampled_from(CLIENT_IDS)
stores = st.integers(0, 1)
places = st.integers(0, LIMIT - 1)


class SessionStoreMachine(RuleBasedStateMachine):
    """Two store objects of the same server, as two brokers hold them, and the reference."""

    world: ServerWorld

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.saved = 0
        self.last_batches: dict[tuple[str, str], SessionSave] = {}
        self.sessions = Sessions(lambda: self.now_ms)
        self.reference = ReferenceStore(self.sessions, StoreRules(limit=LIMIT))

    @initialize()
    def start(self) -> None:
        self.world.erase()
        self.stores: list[Store] = [self.world.store(limit=LIMIT) for _ in range(2)]
        self.now_ms = self.world.now_ms()

    def teardown(self) -> None:
        if hasattr(self, "stores"):
            for client_id in CLIENT_IDS:
                self._compare(client_id, self.stores[0])

    # Rules

    @rule(
        client_id=clients,
        store=stores,
        source=st.sampled_from(SOURCES),
        lives_s=st.lists(
            st.sampled_from([None, HOUR_S, HOUR_S, HOUR_S, 2**31, 0, -1, 2**32]), min_size=1, max_size=LIMIT + 2
        ),
        age_s=st.sampled_from([0, 0, 0, 30, HOUR_S]),
    )
    def publish(self, client_id: str, store: int, source: str | None, lives_s: list[int | None], age_s: int) -> None:
        self._tick()
        time_ms = self.now_ms - 1_000 * age_s
        new = tuple(self._message(time_ms=time_ms, expiry_interval_s=life_s) for life_s in lives_s)
        self._save(client_id, store, new, source=source)

    @rule(client_id=clients, store=stores, count=st.integers(1, 3), first=st.booleans())
    def expire(self, client_id: str, store: int, count: int, first: bool) -> None:
        """Save messages whose life ends at once, beside one that lives; none of them is trimmed for the limit."""
        self._tick()
        if len(self.sessions.live(client_id)) + count + 1 > LIMIT:
            return
        time_ms = self.now_ms - 1_000 * HOUR_S + SHORT_LIFE_MS
        dies_ms = time_ms + 1_000 * HOUR_S
        dying = tuple(self._message(time_ms=time_ms, expiry_interval_s=HOUR_S) for _ in range(count))
        living = (self._message(time_ms=self.now_ms, expiry_interval_s=HOUR_S),)
        self._save(client_id, store, dying + living if first else living + dying, source=None, dies_ms=dies_ms)
        self.world.wait_until(dies_ms)

    @precondition(lambda self: self.last_batches)
    @rule(store=stores, data=st.data())
    def retry(self, store: int, data: st.DataObject) -> None:
        save = self.last_batches[data.draw(st.sampled_from(sorted(self.last_batches)))]
        self._tick()
        [report] = self.stores[store].save_messages([save])
        self._follow(save, report)

    @precondition(lambda self: self.last_batches)
    @rule(store=stores, data=st.data())
    def retry_an_older_batch(self, store: int, data: st.DataObject) -> None:
        save = self.last_batches[data.draw(st.sampled_from(sorted(self.last_batches)))]
        if save.source not in self.sessions.get(save.client_id).batches:
            return
        self._tick()
        assert save.offset is not None
        older = SessionSave(
            client_id=save.client_id, messages=save.messages, source=save.source, offset=save.offset - 1
        )
        [report] = self.stores[store].save_messages([older])
        assert (report.error, report.replayed, report.forgotten, report.stored) == (None, True, True, 0)

    @rule(client_id=clients, store=stores, limit=st.integers(1, LIMIT), mark=st.booleans())
    def reconnect(self, client_id: str, store: int, limit: int, mark: bool) -> None:
        self._compare(client_id, self.stores[store], limit=limit, mark_delivered=mark)

    @precondition(lambda self: self.anything_waits())
    @rule(client_id=clients, store=stores, place=places, by_serial=st.booleans(), late=st.booleans())
    def ack(self, client_id: str, store: int, place: int, by_serial: bool, late: bool) -> None:
        self._tick()
        message = self._waiting(client_id, place)
        if message is None:
            return
        serial = message.serial - late if by_serial else None
        acks = [Ack(packet_id=message.packet_id, serial=serial)]
        assert self.stores[store].ack(client_id, acks) == self.reference.ack(client_id, acks)

    @precondition(lambda self: self.anything_waits())
    @rule(client_id=clients, store=stores, place=places)
    def pubrec(self, client_id: str, store: int, place: int) -> None:
        self._tick()
        message = self._waiting(client_id, place)
        if message is None:
            return
        self._deliver(client_id, store, message)
        call = {"packet_id": message.packet_id, "serial": message.serial}
        assert self.stores[store].mark_released(client_id, **call) is self.reference.mark_released(client_id, **call)

    @precondition(lambda self: self.anything_waits("PUBREL"))
    @rule(client_id=clients, store=stores)
    def pubcomp(self, client_id: str, store: int) -> None:
        """Finish every exchange of QoS 2 that PUBREC has begun."""
        self._tick()
        released = [m for m in self.sessions.live(client_id).values() if m.packet_type == "PUBREL"]
        acks = [Ack(packet_id=m.packet_id, serial=m.serial) for m in released]
        assert self.stores[store].ack(client_id, acks) == self.reference.ack(client_id, acks)

    @precondition(lambda self: self.anything_waits())
    @rule(client_id=clients, store=stores, place=places)
    def deliver(self, client_id: str, store: int, place: int) -> None:
        self._tick()
        message = self._waiting(client_id, place)
        if message is None:
            return
        self._deliver(client_id, store, message)

    @rule(client_id=clients, store=stores, back=st.integers(0, 3), to_the_end=st.booleans(), place=places)
    def wrap(self, client_id: str, store: int, back: int, to_the_end: bool, place: int) -> None:
        """Go on shortly before the last packet id, or before one that is in use."""
        self._tick()
        message = self._waiting(client_id, place)
        target = MAX_PACKET_ID if to_the_end or message is None else message.packet_id
        packet_id = (target - back - 1) % MAX_PACKET_ID + 1
        call: dict[str, Any] = {"packet_id": packet_id, "expected": self.reference.get_last_packet_id(client_id)}
        assert not self.stores[store].set_last_packet_id(client_id, packet_id=7, expected=60_000 + back)
        assert self.stores[store].set_last_packet_id(client_id, **call)
        assert self.reference.set_last_packet_id(client_id, **call)

    @rule(client_id=clients, store=stores, count=st.integers(1, LIMIT))
    def reserve(self, client_id: str, store: int, count: int) -> None:
        self._tick()
        session = self.sessions.by_client_id.setdefault(client_id, Session())
        given = self.stores[store].reserve_packet_ids(client_id, count=count)
        assert len(set(given)) == count
        self._check_given(client_id, given, burned=0)
        session.last_packet_id = given[-1]

    @precondition(lambda self: self.anything_waits())
    @rule(client_id=clients, store=stores, mercy=st.integers(0, 3))
    def purge(self, client_id: str, store: int, mercy: int) -> None:
        """Purge one time in four, so that sessions have the time to grow old, and else only say what would go."""
        self._tick()
        dry_run = mercy > 0
        live = len(self.sessions.live(client_id))
        every = len(self.sessions.get(client_id).messages)
        report = self.stores[store].purge_session(client_id, dry_run=dry_run)
        assert live <= report.messages <= every
        assert (report.kept, report.dry_run) == (0, dry_run)
        self.reference.purge_session(client_id, dry_run=dry_run)

    # What the rules share

    def anything_waits(self, *packet_types: str) -> bool:
        """Return whether there is a live message, of one of these types if any is named."""
        waiting = [message for client_id in CLIENT_IDS for message in self.sessions.live(client_id).values()]
        return any(not packet_types or message.packet_type in packet_types for message in waiting)

    def _deliver(self, client_id: str, store: int, message: PendingMessage) -> None:
        moved = self.stores[store].mark_delivered(client_id, serial=message.serial)
        assert moved == self.reference.mark_delivered(client_id, serial=message.serial)

    def _tick(self) -> None:
        self.now_ms = self.world.now_ms()

    def _message(self, **fields: Any) -> NewMessage:
        self.saved += 1
        return NewMessage(topic=f"t/{self.saved}", payload=b"%d" % self.saved, qos=2, **fields)

    def _waiting(self, client_id: str, place: int) -> PendingMessage | None:
        """Return a live message by its place in the queue; none when there is none at all."""
        live = list(self.sessions.live(client_id).values())
        return live[place % len(live)] if live else None

    def _save(
        self, client_id: str, store: int, new: tuple[NewMessage, ...], *, source: str | None, dies_ms: int | None = None
    ) -> None:
        offset = None if source is None else self.saved
        save = SessionSave(client_id=client_id, messages=new, source=source, offset=offset)
        [report] = self.stores[store].save_messages([save])
        if dies_ms is not None:
            # Whether they died before the server saw them is the server's to say.
            self.now_ms = dies_ms if Refusal.EXPIRED in report.refused.values() else dies_ms - 1
        self._follow(save, report)
        assert self.stores[store].get_last_packet_id(client_id) == self.reference.get_last_packet_id(client_id)
        if source is not None:
            self.last_batches[client_id, source] = save
            if not report.stored:
                # A store may forget a batch of which it has stored nothing: to repeat it does no harm.
                del self.last_batches[client_id, source], self.sessions.get(client_id).batches[source]

    def _follow(self, save: SessionSave, report: SaveReport) -> None:
        """Check a report, and save the same in the reference."""
        assert report.error is None
        session = self.sessions.get(save.client_id)
        if not report.replayed:
            burned = list(report.refused.values()).count(Refusal.EXPIRED)
            self._check_given(save.client_id, [p for p in report.packet_ids if p is not None], burned=burned)
            serials = [session.last_serial, *(serial for serial in report.serials if serial is not None)]
            if session.last_serial:
                assert serials == sorted(set(serials))
        [expected] = self.reference.save_messages([save], like=[report])
        assert report.packet_ids == expected.packet_ids
        assert report.serials == expected.serials
        assert report.refused == expected.refused
        assert report.replayed == expected.replayed
        assert (report.trimmed, report.trimmed_in_flight) == (expected.trimmed, expected.trimmed_in_flight)
        if any(refusal is Refusal.EXPIRED for refusal in report.refused.values()):
            # An id may have gone to a message that was dead on arrival.
            self.sessions.get(save.client_id).last_packet_id = self.stores[0].get_last_packet_id(save.client_id)

    def _check_given(self, client_id: str, given: Any, *, burned: int) -> None:
        """Check that ids follow the last one, and that those which were passed over are in use.

        :param burned: ids that may have been passed over without being in use.
        """
        known = self.sessions.get(client_id).messages
        live = self.sessions.live(client_id)
        at = self.reference.get_last_packet_id(client_id) or 0
        for packet_id in given:
            assert packet_id not in live
            at = at % MAX_PACKET_ID + 1
            while at != packet_id:
                burned -= at not in known
                assert burned >= 0
                at = at % MAX_PACKET_ID + 1

    def _compare(self, client_id: str, store: Store, *, limit: int = LIMIT, mark_delivered: bool = False) -> None:
        self._tick()
        found = self._pages(store, client_id, limit=limit, mark_delivered=mark_delivered)
        expected = self._pages(self.reference, client_id, limit=limit, mark_delivered=mark_delivered)
        assert found == expected
        for message in found[:2]:
            assert store.peek(client_id, packet_id=message.packet_id) == self.reference.peek(
                client_id, packet_id=message.packet_id
            )
        view = store.inspect(client_id)
        assert view.last_packet_id == self.reference.get_last_packet_id(client_id)
        described = [(m.serial, m.packet_id, m.packet_type, m.topic) for m in view.page if m.problem is None]
        assert described == [(m.serial, m.packet_id, m.packet_type, m.topic) for m in expected]

    @staticmethod
    def _pages(store: Store, client_id: str, **options: Any) -> list[PendingMessage]:
        found: list[PendingMessage] = []
        page = store.fetch_pending(client_id, **options)
        while True:
            found += page.messages
            if not page.more:
                return found
            page = store.fetch_pending(
                client_id, after_serial=page.after_serial, backlog_serial=page.backlog_serial, **options
            )


@pytest.fixture(params=["valkey", "postgres"])
def world(request: pytest.FixtureRequest) -> Iterator[ServerWorld]:
    """Redis and PostgreSQL in turn."""
    found: ServerWorld
    if request.param == "valkey":
        found = RedisWorld(request.getfixturevalue("valkey_url"), awaited=False)
    else:
        found = PostgresWorld(request.getfixturevalue("postgres_url"), awaited=False)
    yield found
    found.close()


def test_store_holds_what_the_reference_holds(world: ServerWorld) -> None:
    machine = type("Machine", (SessionStoreMachine,), {"world": world})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            derandomize=True,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )

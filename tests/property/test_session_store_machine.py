"""Whatever is done to a session, in whatever order, both layouts of Redis, PostgreSQL and the reference hold the same.

The stores differ in one thing, which is their vendors': TBMQ 1.x counts serials from 0, TBMQ 2.x from the packet id
that was given out last. So the serials of each store are moved by what its first one is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import orjson
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from queuekeeper.errors import QueuekeeperError
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.parts import BYTES_PER_SAVE
from queuekeeper.sessions.reports import (
    MessageView,
    PendingMessage,
    PendingPage,
    SaveReport,
    SessionCounts,
    SessionView,
)
from queuekeeper.sessions.snapshot import SessionSnapshot, differences
from tests.conformance.reference_store import ReferenceStore, Sessions
from tests.conformance.store_worlds import PackedWorld, PostgresWorld, RedisWorld, ServerWorld, Store
from tests.conftest import nightly
from tests.property.run_machine import run_machine

LIMITS = (6, 3, MAX_PACKET_ID)
"""Of the store objects of each server; a smaller one trims what the others have saved."""

CLIENT_IDS = ("meter-7", "{brace}")
SOURCES = (None, "p0", "p1")
HOUR_S = 3_600
LIVES_S = (None, HOUR_S, HOUR_S, HOUR_S, 2**31 - 1, 2**31, 2**32 - 1, 0, -1, -(2**31), 2**32, 2**63)
AGES_S = (0, 0, 0, 0, 30, 2 * HOUR_S)
"""The last one is dead on arrival when it lives for an hour."""

clients = st.sampled_from(CLIENT_IDS)
limits = st.sampled_from(LIMITS)
places = st.integers(0, 7)
confirmed = st.lists(st.tuples(places, st.sampled_from([None, 0, -1])), min_size=1, max_size=4)
"""Places of messages, and what their serials are given off by, or no serial."""
messages = st.tuples(st.sampled_from(LIVES_S), st.sampled_from(AGES_S), st.integers(0, 24).map(lambda n: n == 24))


class SessionStoreMachine(RuleBasedStateMachine):
    """Stores of two servers, one of them in both layouts, and the reference; each call goes to all of them."""

    redis: RedisWorld
    packed: PackedWorld
    postgres: PostgresWorld

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.saved = 0
        self.last_batches: dict[tuple[str, str], SessionSave] = {}
        self.pages: dict[str, PendingPage] = {}
        self.sessions = Sessions(lambda: self.now_ms)
        self.references = {limit: ReferenceStore(self.sessions, StoreRules(limit=limit)) for limit in LIMITS}
        # By server and client: what its serials are greater than the reference's.
        self.off: dict[tuple[ServerWorld, str], int] = {}
        self.epochs: dict[str, int] = {}
        # By server and client: its session as a mirror holds it.
        self.mirrors: dict[tuple[ServerWorld, str], SessionSnapshot] = {}
        self.ended: set[tuple[ServerWorld, str, int]] = set()

    @initialize(mirrored=st.booleans())
    def start(self, mirrored: bool = False) -> None:
        """:param mirrored: whether the sessions in Redis have a mirror from the beginning."""
        self.layouts = (self.redis, self.packed)
        self.worlds: tuple[ServerWorld, ...] = (*self.layouts, self.postgres)
        for world in self.worlds:
            world.erase()
        self.stores: dict[tuple[ServerWorld, int], Store] = {
            (world, limit): world.store(limit=limit) for world in self.worlds for limit in LIMITS
        }
        self.now_ms = self.redis.now_ms()
        for client_id in CLIENT_IDS if mirrored else ():
            self.epochs[client_id] = 1
            for world in self.layouts:
                store: Any = self.stores[world, LIMITS[0]]
                store.set_owner(client_id, epoch=1, owner="redis", mirrored=True)
                self.mirrors[world, client_id] = store.read_snapshot(client_id)

    def teardown(self) -> None:
        if hasattr(self, "stores"):
            for client_id in CLIENT_IDS:
                self._drain(client_id, LIMITS[0], limit=4)

    # Saving

    @rule(
        limit=limits,
        saves=st.lists(
            st.tuples(clients, st.sampled_from(SOURCES), st.lists(messages, min_size=1, max_size=8)),
            min_size=1,
            max_size=3,
        ),
    )
    def publish(self, limit: int, saves: list[tuple[str, str | None, list[tuple[Any, int, bool]]]]) -> None:
        """Save for several sessions at once, and for one of them twice."""
        made = [
            SessionSave(
                client_id=client_id,
                messages=tuple(self._message(*each) for each in batch),
                source=source,
                offset=None if source is None else self.saved,
            )
            for client_id, source, batch in saves
        ]
        self._save(made, limit)
        for save in made:
            if save.source is not None:
                self.last_batches[save.client_id, save.source] = save

    @precondition(lambda self: self.last_batches)
    @rule(limit=limits, back=st.integers(0, 1), data=st.data())
    def retry(self, limit: int, back: int, data: st.DataObject) -> None:
        """Repeat the last batch of a source, or an older one."""
        save = self.last_batches[data.draw(st.sampled_from(sorted(self.last_batches)))]
        assert save.offset is not None
        self._save([replace(save, offset=max(0, save.offset - back))], limit)

    @rule(client_id=clients, place=places)
    def expire(self, client_id: str, place: int) -> None:
        """End a life, as time would: nobody has met the message since."""
        message = self._waiting(client_id, place)
        if message is None:
            return
        ended = replace(message, expires_at_ms=0)
        self.sessions.get(client_id).messages[message.packet_id] = ended
        for world in self.layouts:
            serial = message.serial + self.off[world, client_id]
            world.expire(client_id, message.packet_id, serial)
            self.ended.add((world, client_id, serial))
        gone = self.postgres.connection.execute(
            "UPDATE device_publish_msg SET time = 0, msg_expiry_interval = 1 WHERE client_id = %s AND packet_id = %s"
            " AND serial_number = %s",
            [client_id, message.packet_id, message.serial + self.off[self.postgres, client_id]],
        )
        assert gone.rowcount == 1

    # Delivering

    @rule(client_id=clients, limit=st.integers(1, 6), mark=st.booleans())
    def reconnect(self, client_id: str, limit: int, mark: bool) -> None:
        self._drain(client_id, LIMITS[0], limit=limit, mark_delivered=mark)

    @rule(client_id=clients, limit=st.integers(1, 6), max_bytes=st.integers(1, 9), mark=st.booleans())
    def read_a_page(self, client_id: str, limit: int, max_bytes: int, mark: bool) -> None:
        """Read one page of those that follow one another, with whatever happens in between."""
        before = self.pages.get(client_id)
        place = {} if before is None else {"after_serial": before.after_serial, "backlog_serial": before.backlog_serial}
        page = self._fetch(client_id, LIMITS[0], limit=limit, max_bytes=max_bytes, mark_delivered=mark, **place)
        self.pages.pop(client_id, None)
        if page.more:
            self.pages[client_id] = page

    @rule(client_id=clients, place=places, beyond=st.booleans())
    def deliver(self, client_id: str, place: int, beyond: bool) -> None:
        message = self._waiting(client_id, place)
        if message is not None:
            serial = self.sessions.get(client_id).last_serial + 5 if beyond else message.serial
            self._call(client_id, "mark_delivered", serial=serial)

    @rule(client_id=clients, wanted=confirmed)
    def ack(self, client_id: str, wanted: list[tuple[int, int | None]]) -> None:
        """Confirm messages, with their serials, without, or with that of another one; also twice."""
        waiting = list(self.sessions.get(client_id).messages.values())
        acks = [
            Ack(packet_id=m.packet_id, serial=None if off is None else m.serial + off)
            for place, off in wanted
            for m in waiting[place : place + 1]
        ]
        self._call(client_id, "ack", acks=[*acks, Ack(packet_id=60_000)])

    @precondition(lambda self: self._everywhere())
    @rule(wanted=confirmed)
    def pubrec(self, wanted: list[tuple[int, int | None]]) -> None:
        """Release messages of any session, with their serials, without, or with that of another one; also twice."""
        for place, off in wanted:
            waiting = self._everywhere()
            client_id, message = waiting[place % len(waiting)]
            serial = None if off is None else message.serial + off
            self._call(client_id, "mark_released", packet_id=message.packet_id, serial=serial)

    @rule(client_id=clients)
    def pubcomp(self, client_id: str) -> None:
        """Finish every exchange of QoS 2 that PUBREC has begun."""
        released = [m for m in self.sessions.live(client_id).values() if m.packet_type == "PUBREL"]
        self._call(client_id, "ack", acks=[Ack(packet_id=m.packet_id, serial=m.serial) for m in released])

    # Packet ids

    @rule(client_id=clients, back=st.integers(0, 3), to_the_end=st.booleans(), place=places)
    def wrap(self, client_id: str, back: int, to_the_end: bool, place: int) -> None:
        """Go on shortly before the last packet id, or before one that is in use."""
        waiting = list(self.sessions.get(client_id).messages.values())
        target = MAX_PACKET_ID if to_the_end or not waiting else waiting[place % len(waiting)].packet_id
        packet_id = (target - back - 1) % MAX_PACKET_ID + 1
        expected = self.sessions.get(client_id).last_packet_id
        assert not self._call(client_id, "set_last_packet_id", packet_id=7, expected=60_000 + back)
        assert self._call(client_id, "set_last_packet_id", packet_id=packet_id, expected=expected)

    @rule(client_id=clients, count=st.integers(1, 8))
    def reserve(self, client_id: str, count: int) -> None:
        assert len(set(self._call(client_id, "reserve_packet_ids", count=count))) == count

    # The whole session

    @rule(client_id=clients, mercy=st.integers(0, 3))
    def purge(self, client_id: str, mercy: int) -> None:
        """Purge one time in four, so that sessions have the time to grow old, and else only say what would go."""
        self._call(client_id, "purge_session", dry_run=mercy > 0)
        if mercy == 0:
            for world in self.worlds:
                self.off.pop((world, client_id), None)
            self.last_batches = {key: save for key, save in self.last_batches.items() if key[0] != client_id}
            self.pages.pop(client_id, None)

    @rule(client_id=clients, limit=st.integers(1, 6))
    def export(self, client_id: str, limit: int) -> None:
        """All stores export the same lines, but for where they come from."""
        found = []
        for world in self.worlds:
            off = self.off.get((world, client_id), 0)
            after_serial: int | None = None
            lines: list[dict[str, Any]] = []
            more = True
            while more:
                page = self.stores[world, LIMITS[0]].export_session(client_id, after_serial=after_serial, limit=limit)
                lines += map(orjson.loads, page.lines)
                after_serial, more = page.after_serial, page.more
            session = lines[0]["session"]
            del session["exported_from"]
            if session["last_serial"] is not None:
                session["last_serial"] -= off
            for line in lines[1:]:
                line["serial"] -= off
            found.append(lines)
        assert found == [found[0]] * len(found)

    # Owners

    @rule(client_id=clients, mirrored=st.booleans())
    def go_round(self, client_id: str, mirrored: bool) -> None:
        """Give Redis's session to PostgreSQL and back, with a copy in between that changes nothing."""
        # A copy leaves out the dead, which reports would miss.
        self._drain(client_id, LIMITS[0], limit=50)
        if not self.sessions.get(client_id).messages:
            return
        epoch = self.epochs[client_id] = self.epochs.get(client_id, 0) + 4
        for world in self.layouts:
            store: Any = self.stores[world, LIMITS[0]]
            store.set_owner(client_id, epoch=epoch, owner="fenced", mirrored=True)
            held = store.read_snapshot(client_id)
            store.set_owner(client_id, epoch=epoch + 1, owner="postgres")
            store.apply_snapshot(client_id, replace(held, messages=held.messages[1::2]), epoch=epoch + 1, driver=1)
            store.apply_snapshot(client_id, held, epoch=epoch + 1, driver=1)
            assert store.read_snapshot(client_id) == held
            store.set_owner(client_id, epoch=epoch + 2, owner="redis", mirrored=mirrored)
            self.mirrors.pop((world, client_id), None)
            if mirrored:
                self.mirrors[world, client_id] = held
        # A repeated batch is told from others still, but no longer known.
        self.last_batches = {key: save for key, save in self.last_batches.items() if key[0] != client_id}
        self._compare(client_id)

    def _follow(self, world: ServerWorld, client_id: str, mirror: SessionSnapshot) -> None:
        """Note what has changed in Redis, as a mirror does: then it holds all of it."""
        store: Any = self.stores[world, LIMITS[0]]
        outbox = store.read_outbox(client_id)
        if outbox is not None:
            changed = store.read_snapshot(client_id, serials=outbox.serials)
            kept = [m for m in mirror.messages if outbox.serials is not None and m.serial not in set(outbox.serials)]
            messages = sorted([*kept, *changed.messages], key=lambda message: message.serial)
            mirror = self.mirrors[world, client_id] = replace(changed, messages=tuple(messages))
            assert store.trim_outbox(client_id, epoch=outbox.epoch, version=outbox.version)
        kept = [m for m in mirror.messages if (world, client_id, m.serial) not in self.ended]
        left = replace(mirror, messages=tuple(kept))
        assert differences(store.read_snapshot(client_id), left) == []

    # What the rules share

    def _message(self, life_s: int | None, age_s: int, large: bool) -> NewMessage:
        self.saved += 1
        return NewMessage(
            topic=f"t/{self.saved}",
            # Of two large ones each is stored by a call of its own.
            payload=b"%d" % self.saved + bytes(BYTES_PER_SAVE // 2 if large else 0),
            qos=2,
            time_ms=self.now_ms - 1_000 * age_s,
            expiry_interval_s=life_s,
        )

    def _everywhere(self) -> list[tuple[str, PendingMessage]]:
        return [(each, m) for each in CLIENT_IDS for m in self.sessions.get(each).messages.values()]

    def _waiting(self, client_id: str, place: int) -> PendingMessage | None:
        """Return a live message by its place in the queue; none when there is none at all."""
        live = list(self.sessions.live(client_id).values())
        return live[place % len(live)] if live else None

    def _save(self, saves: Sequence[SessionSave], limit: int) -> None:
        self._saved_alike(saves, limit)
        for client_id in sorted({save.client_id for save in saves}):
            self._compare(client_id)

    def _saved_alike(self, saves: Sequence[SessionSave], limit: int) -> None:
        """Save by all stores and the reference, which have to say the same."""
        self.now_ms = self.redis.now_ms()
        expected = self.references[limit].save_messages(saves)
        for world in self.worlds:
            reports = self.stores[world, limit].save_messages(saves)
            for report, wanted in zip(reports, expected, strict=True):
                self._note_first(world, report, wanted)
            found = [self._moved(report, world, report.client_id) for report in reports]
            assert found == expected, world

    def _note_first(self, world: ServerWorld, report: SaveReport, wanted: SaveReport) -> None:
        pairs = zip(report.serials, wanted.serials, strict=True) if len(report.serials) == len(wanted.serials) else ()
        for serial, reference in pairs:
            if serial is not None and reference is not None:
                self.off.setdefault((world, report.client_id), serial - reference)

    def _call(self, client_id: str, name: str, **arguments: Any) -> Any:
        """Call a method of all stores and of the reference, which have to say the same, and hold it afterwards."""
        self.now_ms = self.redis.now_ms()
        expected = _told(getattr(self.references[LIMITS[0]], name), client_id, **arguments)
        for world in self.worlds:
            own = {key: self._meant(value, world, client_id, key) for key, value in arguments.items()}
            method = getattr(self.stores[world, LIMITS[0]], name)
            found = _told(method, client_id, **own)
            assert _without_end(self._moved(found, world, client_id)) == _without_end(expected), world
        self._compare(client_id)
        return expected

    def _meant(self, value: Any, world: ServerWorld, client_id: str, name: str) -> Any:
        """Return an argument with the serials of a store."""
        off = self.off.get((world, client_id), 0)
        if name == "acks":
            return [ack if ack.serial is None else replace(ack, serial=ack.serial + off) for ack in value]
        return value + off if name.endswith("serial") and value not in (None, -1) else value

    def _moved(self, value: Any, world: ServerWorld, client_id: str) -> Any:
        """Return a report with the serials of the reference, without what only one kind of store has."""
        off = self.off.get((world, client_id), 0)
        if not is_dataclass(value) or isinstance(value, type):
            return value
        changes: dict[str, Any] = {}
        for field in fields(value):
            found = getattr(value, field.name)
            if field.name == "serials":
                changes[field.name] = tuple(serial if serial is None else serial - off for serial in found)
            elif field.name.endswith("serial") and found not in (None, -1):
                changes[field.name] = found - off
            elif field.name in ("messages", "page") and isinstance(found, tuple):
                changes[field.name] = tuple(self._moved(each, world, client_id) for each in found)
        if isinstance(value, SessionView):
            changes |= {"store": "reference", "owner": None, "epoch": None}
        return replace(value, **changes)

    def _fetch(self, client_id: str, rules_limit: int, **arguments: Any) -> PendingPage:
        page = self._call(client_id, "fetch_pending", **arguments)
        assert isinstance(page, PendingPage)
        return page

    def _drain(self, client_id: str, rules_limit: int, **options: Any) -> None:
        """Read all pages, as on a reconnect."""
        page = self._fetch(client_id, rules_limit, **options)
        while page.more:
            place = {"after_serial": page.after_serial, "backlog_serial": page.backlog_serial}
            page = self._fetch(client_id, rules_limit, **place, **options)

    def _compare(self, client_id: str) -> None:
        """Compare what all hold of a session."""
        for layout in self.layouts:
            if (layout, client_id) in self.mirrors:
                self._follow(layout, client_id, self.mirrors[layout, client_id])
        reference = self.references[LIMITS[0]]
        session = self.sessions.get(client_id)
        expected = self._described(reference.inspect(client_id))
        for world in self.worlds:
            store: Store = self.stores[world, LIMITS[0]]
            assert self._described(self._moved(store.inspect(client_id), world, client_id)) == expected, world
            assert store.get_last_packet_id(client_id) == reference.get_last_packet_id(client_id), world
            for packet_id in [*session.messages][:2]:
                found = self._moved(store.peek(client_id, packet_id=packet_id), world, client_id)
                assert found == reference.peek(client_id, packet_id=packet_id), world

    def _described(self, view: SessionView) -> SessionView:
        """Leave out the dead, of which Redis has the reference only and PostgreSQL the whole row."""
        live = {message.serial for message in self.sessions.live(view.client_id).values()}
        page: tuple[MessageView, ...] = tuple(message for message in view.page if message.serial in live)
        return replace(view, page=page)


def _without_end(told: Any) -> Any:
    """Leave out where the backlog ends: in a packed session behind messages that are gone, too."""
    return replace(told, backlog_serial=0) if isinstance(told, PendingPage) else told


def _told(call: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
    """Return what a call returns, or the kind of its error."""
    try:
        return call(*args, **arguments)
    except QueuekeeperError as error:
        return type(error)


@pytest.fixture
def worlds(valkey_url: str, postgres_url: str) -> Iterator[dict[str, ServerWorld]]:
    """Both layouts of Redis, whose keys differ, and PostgreSQL side by side."""
    found: dict[str, ServerWorld] = {
        "redis": RedisWorld(valkey_url, awaited=False),
        "packed": PackedWorld(valkey_url, awaited=False),
        "postgres": PostgresWorld(postgres_url, awaited=False),
    }
    yield found
    for world in found.values():
        world.close()


@pytest.mark.parametrize("examples", [20, *nightly(60)])
def test_stores_say_and_hold_what_the_reference_does(worlds: dict[str, ServerWorld], examples: int) -> None:
    run_machine(SessionStoreMachine, examples=examples, steps=30, **worlds)


def test_where_packet_ids_run_out_the_same_messages_make_room_in_each_store(worlds: dict[str, ServerWorld]) -> None:
    """The limit is near the number of packet ids: each save needs more than are free."""
    limit, client_id = 65_000, CLIENT_IDS[0]
    machine = type("Machine", (SessionStoreMachine,), worlds)()
    machine.start()
    machine.references[limit] = ReferenceStore(machine.sessions, StoreRules(limit=limit))
    machine.stores |= {(world, limit): world.store(limit=limit) for world in machine.worlds}

    def batch(count: int) -> list[SessionSave]:
        messages = tuple(machine._message(None, 0, large=False) for _ in range(count))
        return [SessionSave(client_id=client_id, messages=messages)]

    def save(count: int) -> None:
        machine._save(batch(count), limit)

    for _ in range(13):
        machine._saved_alike(batch(5_000), limit)
    save(1_000)
    assert machine.sessions.get(client_id).counts == SessionCounts(trimmed=1_000)
    # All in flight but the last ones, which have to go first; then some in the middle are dead.
    machine._call(client_id, "mark_delivered", serial=65_700)
    for place in range(0, 60_000, 3_000):
        machine.expire(client_id, place)
    save(1_000)
    machine._call(client_id, "reserve_packet_ids", count=500)
    machine._call(client_id, "reserve_packet_ids", count=600)
    machine._call(client_id, "ack", acks=[Ack(packet_id=packet_id) for packet_id in range(2_000, 3_000)])
    save(3)
    counts = machine.sessions.get(client_id).counts
    assert counts is not None
    assert (counts.trimmed > 1_500, counts.expired) == (True, 20)

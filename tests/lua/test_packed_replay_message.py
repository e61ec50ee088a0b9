"""``replay_message`` of packed sessions: one repaired message joins an imported session, once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from lua_sessions import HOUR_MS, command, contents, now_ms, unchanged
from script_replies import reply_of

from queuekeeper.errors import MovedOn, PacketIdInUse, StaleEpoch, StoreFull, UsageError
from queuekeeper.keyspace import packed_keys
from queuekeeper.lua import ScriptCaller
from queuekeeper.lua.scripts import packed as scripts
from queuekeeper.redis_client import RedisClient, connect
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.packed_record import expires_at_ms, record_of
from queuekeeper.sessions.packed_state import PackedContent, PackedMessage, PackedState, state_faults, state_of
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore

pytestmark = pytest.mark.lua
C = "meter-7"
KEYS = packed_keys(C)


def message(payload: bytes = b"x") -> NewMessage:
    return NewMessage(topic="t", payload=payload, qos=1, time_ms=now_ms())


def record(packet_id: int, *, life_ms: int = HOUR_MS, payload: bytes = b"mended") -> bytes:
    return record_of(message(payload), packet_id=packet_id, end_ms=now_ms() + life_ms)


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A session that a plan has imported, of three messages unless told otherwise, and the calls on it."""

    client: RedisClient
    plan: str = "plan-a"

    def import_session(self, *, count: int = 3, last: bool = True, until_ms: int | str = "") -> None:
        values = [value for number in range(1, count + 1) for value in (1_000 + number, record(number))]
        call = scripts.import_session(
            KEYS, plan=self.plan, epoch=1, owner="redis", chunk=0, last=int(last), last_packet_id=count,
            last_serial="", until_ms=until_ms, messages=values,
        )  # fmt: skip
        ScriptCaller(self.client).call(*call)

    @property
    def text(self) -> bytes:
        """State as stored."""
        client: Any = self.client
        return client.hget(KEYS.session, "s") or b""

    @property
    def state(self) -> PackedState:
        found = state_of(self.text)
        assert found is not None
        return found

    def replay(self, packet_id: int, serial: int, **options: Any) -> Any:
        given = {"expected": self.text, "last_packet_id": "", "holder": "", "epoch": 1, "record": record(packet_id)}
        call = scripts.replay_message(KEYS, plan=self.plan, serial=serial, **(given | options))
        return reply_of(call, ScriptCaller(self.client).call(*call))

    def drop_import(self) -> int:
        dropped: int = ScriptCaller(self.client).call(*scripts.drop_import(KEYS, plan=self.plan))
        return dropped

    def store(self, **rules: Any) -> RedisSessionStore:
        return RedisSessionStore(self.client, rules=StoreRules(**rules), layout=Layout.PACKED)

    def save(self, count: int = 1) -> tuple[int | None, ...]:
        messages = tuple(message() for _ in range(count))
        return self.store().save_messages([SessionSave(client_id=C, messages=messages)])[0].packet_ids

    def waiting(self) -> list[tuple[int, int]]:
        """Return serial and packet id of what is delivered, in order."""
        return [(each.serial, each.packet_id) for each in self.store().fetch_pending(C).messages]

    def fields(self) -> dict[bytes, bytes]:
        client: Any = self.client
        found: dict[bytes, bytes] = client.hgetall(KEYS.session)
        return found

    def faults(self) -> tuple[str, ...]:
        """Return what the state says that does not hold for the messages."""
        fields = self.fields()
        messages = [
            PackedMessage(int(name), int.from_bytes(value[:2]), expires_at_ms(value) or -1, len(value))
            for name, value in sorted(fields.items(), key=lambda field: (len(field[0]), field[0]))
            if name.isdigit()
        ]
        return state_faults(self.state, PackedContent(messages=messages, others=len(fields) - len(messages)))


@pytest.fixture
def session(client: RedisClient) -> Imported:
    imported = Imported(client=client)
    imported.import_session()
    return imported


@pytest.mark.parametrize("serial", [500, 1_002_000, 2**52], ids=["first", "last", "far behind"])
def test_message_takes_its_place_by_serial_and_the_state_holds(session: Imported, serial: int) -> None:
    mended = record(4, life_ms=HOUR_MS // 2, payload=b"m" * 5_000)
    reply = session.replay(4, serial, record=mended, last_packet_id=4)
    assert reply == {"word": "replayed", "packet_id": b"4", "state": session.text}
    assert session.waiting() == sorted([(1_001, 1), (1_002, 2), (1_003, 3), (serial, 4)])
    fields = session.fields()
    assert fields[b"%d" % serial] == mended
    assert (fields[b"references"], fields[b"imported_last_packet_id"]) == (b"4", b"4")
    assert session.faults() == ()
    assert session.state.bound == 4
    assert session.save(3) == (5, 6, 7)
    assert session.faults() == ()
    acks = [Ack(packet_id=packet_id) for packet_id in range(1, 8)]
    assert session.store().ack(C, acks).removed == 7


def test_last_packet_id_stays_when_none_is_given_and_saves_pass_the_one_in_use(session: Imported) -> None:
    session.replay(5, 500)
    assert session.store().get_last_packet_id(C) == 3
    assert session.fields()[b"imported_last_packet_id"] == b"3"
    assert session.save(3) == (4, 6, 7)
    assert session.faults() == ()


def test_session_without_messages_takes_one(client: RedisClient) -> None:
    session = Imported(client=client)
    session.import_session(count=0)
    assert session.replay(1, 7, last_packet_id=1).word == "replayed"
    assert (session.waiting(), session.faults(), session.save()) == ([(7, 1)], (), (2,))


@pytest.mark.parametrize("packet_id", [4, 5], ids=["the same call", "another packet id"])
def test_repeated_replay_changes_nothing_also_after_its_message_was_confirmed(
    session: Imported, packet_id: int
) -> None:
    session.replay(4, 500, last_packet_id=4)
    with unchanged(session.client):
        assert session.replay(packet_id, 500, expected="", last_packet_id=packet_id) == {
            "word": "unchanged",
            "packet_id": b"4",
        }
    assert session.store().ack(C, [Ack(packet_id=4, serial=500)]).removed == 1
    assert session.replay(packet_id, 500, last_packet_id=packet_id).word == "unchanged"


def test_serial_that_a_later_message_was_given_is_not_taken_for_a_replay(session: Imported) -> None:
    assert session.save() == (4,)
    for acknowledged in (False, True):
        if acknowledged:
            assert session.store().ack(C, [Ack(packet_id=4)]).removed == 1
        with (
            unchanged(session.client),
            pytest.raises(MovedOn, match=r"^serial 1004 has been given to a message that came later$"),
        ):
            session.replay(9, 1_004)
    assert session.replay(9, 1_000).word == "replayed"
    assert session.faults() == ()


def test_session_with_a_replayed_message_can_still_be_dropped(session: Imported) -> None:
    session.replay(4, 500, last_packet_id=4)
    session.replay(5, 2_000, last_packet_id=5)
    assert session.drop_import() == 5


@pytest.mark.parametrize("use", ["ack", "save", "reserve", "deliver"])
def test_replay_does_not_hide_that_a_session_was_used(session: Imported, use: str) -> None:
    store = session.store()
    if use == "ack":
        store.ack(C, [Ack(packet_id=1)])
    elif use == "save":
        session.save()
    elif use == "reserve":
        store.reserve_packet_ids(C, count=1)
    else:
        store.fetch_pending(C, mark_delivered=True)
    session.replay(9, 500, last_packet_id=9)
    with pytest.raises(MovedOn):
        session.drop_import()


def test_packet_id_in_use_is_refused_until_its_message_is_acknowledged(session: Imported) -> None:
    with (
        unchanged(session.client),
        pytest.raises(PacketIdInUse, match=r"^another message of the session has this packet id$"),
    ):
        session.replay(3, 500, holder=1_003)
    assert session.store().ack(C, [Ack(packet_id=3)]).removed == 1
    assert session.replay(3, 500, holder=1_003).word == "replayed"


def test_message_is_not_lost_where_the_key_ends_earlier(client: RedisClient) -> None:
    session = Imported(client=client)
    session.import_session(until_ms=now_ms() + 2 * HOUR_MS)
    mended = record(4, life_ms=24 * HOUR_MS)
    session.replay(4, 500, record=mended, last_packet_id=4)
    assert client.pexpiretime(KEYS.session) == session.state.until_ms == expires_at_ms(mended)
    session.replay(5, 600, last_packet_id=5)
    assert client.pexpiretime(KEYS.session) == expires_at_ms(mended)


def test_expired_message_is_not_written(session: Imported) -> None:
    with unchanged(session.client):
        assert session.replay(4, 500, record=record(4, life_ms=0), last_packet_id=4) == {
            "word": "expired",
            "packet_id": b"",
        }


def test_session_that_has_changed_is_refused(session: Imported) -> None:
    before = session.text
    session.save()
    with (
        unchanged(session.client),
        pytest.raises(MovedOn, match=r"^the state of the session is not the expected one$"),
    ):
        session.replay(9, 500, expected=before)


@pytest.mark.parametrize("reason", ["other plan", "unfinished", "absent"])
def test_session_that_the_plan_has_not_imported_to_its_end_is_refused(client: RedisClient, reason: str) -> None:
    session = Imported(client=client)
    if reason != "absent":
        session.import_session(last=reason == "other plan")
    wanted = replace(session, plan="plan-b") if reason == "other plan" else session
    with (
        unchanged(client),
        pytest.raises(MovedOn, match=rf"^plan {wanted.plan} has not imported the session to its end$"),
    ):
        wanted.replay(9, 500)


def test_greater_epoch_fences_an_older_writer(session: Imported) -> None:
    command(session.client, "HSET", KEYS.session, "epoch", "2")
    with unchanged(session.client), pytest.raises(StaleEpoch, match=r"^epoch 2 owns the session$"):
        session.replay(9, 500)


def test_session_that_moves_with_its_device_connected_is_left_to_that_move(session: Imported) -> None:
    session.store().set_owner(C, epoch=2, owner="redis", mirrored=True)
    for epoch, error in ((1, StaleEpoch), (2, MovedOn)):
        with unchanged(session.client), pytest.raises(error):
            session.replay(9, 500, epoch=epoch)


BAD_ARGUMENTS: dict[str, Any] = {
    "no plan": {"plan": ""},
    "no epoch": {"epoch": ""},
    "a packet id that is none": {"last_packet_id": 65_536},
    "a holder that is none": {"holder": "one"},
    "a serial that is none": {"serial": "1e3"},
    "a record that is none": {"record": b"short"},
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_argument_is_refused(session: Imported, name: str) -> None:
    given = {"plan": "plan-a", "epoch": 1, "expected": session.text, "last_packet_id": 4, "holder": "", "serial": 500}
    call = scripts.replay_message(KEYS, **(given | {"record": record(4)} | BAD_ARGUMENTS[name]))
    with unchanged(session.client), pytest.raises(UsageError):
        ScriptCaller(session.client).call(*call)


def test_full_server_refuses_the_message_as_a_whole(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Imported(client=client)
        session.import_session()
        before = contents(client)
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreFull):
            session.replay(4, 500)
        assert contents(client) == before

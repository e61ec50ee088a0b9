"""Every script of the packed layout runs as a user that may touch one key: that of its session."""

from __future__ import annotations

import time
from collections.abc import Sequence

import orjson
import pytest
from limited_user import limited
from lua_sessions import HOUR_MS, now_ms, served_by

from queuekeeper import lua
from queuekeeper.keyspace import packed_keys
from queuekeeper.lua import ScriptCaller
from queuekeeper.lua.scripts import packed
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.packed_record import record_of
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.snapshot import SessionSnapshot
from tests.conftest import REDIS_FLAVOURS
from tests.patience import short_lives_ms

pytestmark = pytest.mark.lua


class NotingCaller(ScriptCaller):
    """Notes the scripts that it calls."""

    def __init__(self, client: RedisClient) -> None:
        super().__init__(client)
        self.scripts: set[str] = set()

    def execute(self, calls: Sequence[lua.Call]) -> lua.Replies:
        self.scripts |= {call.script.name for call in calls}
        return super().execute(calls)


def _message(payload: bytes = b"x", *, life_ms: int = 24 * HOUR_MS) -> NewMessage:
    time_ms = now_ms() + life_ms - 24 * HOUR_MS
    return NewMessage(topic="t", payload=payload, qos=2, time_ms=time_ms, expiry_interval_s=86_400)


def _outlived(store: RedisSessionStore, client_id: str) -> None:
    """Store a message while it lives, and wait until its life is over."""
    for life_ms in short_lives_ms():
        short = _message(life_ms=life_ms)
        [report] = store.save_messages([SessionSave(client_id=client_id, messages=(short,))])
        if not report.refused:
            break
    while now_ms() < short.time_ms + 24 * HOUR_MS + 2:
        time.sleep(0.01)


@pytest.mark.parametrize("client", [*REDIS_FLAVOURS, "cluster"], indirect=True)
def test_script_touches_the_key_of_its_session_only(client: RedisClient) -> None:
    used: set[str] = set()
    for client_id in served_by(client):
        key = f"{{{client_id}}}_packed"
        # The one key that every script of a packed session declares.
        with limited(client, [key]) as user:
            used |= _scripts_used(client, NotingCaller(user), client_id, key)
        client.delete(key)
    scripts = {name for name in lua.names() if name.startswith("packed/")}
    assert scripts - used == set()


def _scripts_used(client: RedisClient, caller: NotingCaller, client_id: str, key: str) -> set[str]:
    """Have every script called for a session, and return their names."""
    store = RedisSessionStore(client, rules=StoreRules(limit=6), layout=Layout.PACKED)
    store._caller = caller
    # The server is asked for its time where a life ends within the hour.
    messages = (_message(life_ms=HOUR_MS // 2), _message(b"x" * 900_000), *(_message(),) * 6)
    [report] = store.save_messages([SessionSave(client_id=client_id, messages=messages)])
    assert report.trimmed == 2
    # A smaller limit, after a delivery, is kept by calls of its own.
    store.fetch_pending(client_id, limit=2, max_bytes=4_000_000, mark_delivered=True)
    smaller = RedisSessionStore(client, rules=StoreRules(limit=3), layout=Layout.PACKED)
    smaller._caller = caller
    smaller.save_messages([SessionSave(client_id=client_id, messages=(_message(), _message()))])
    field = max((each for each in client.hkeys(key) if each.isdigit()), key=int)
    client.hset(key, field, b"spoiled")
    page = store.fetch_pending(client_id)
    assert (len(page.messages), page.unreadable) == (2, 1)
    last = page.messages[-1]
    assert store.mark_released(client_id, packet_id=last.packet_id) == "released"
    assert store.ack(client_id, [Ack(packet_id=last.packet_id)]).removed == 1
    assert len(store.reserve_packet_ids(client_id, count=3)) == 3
    now_id = store.get_last_packet_id(client_id)
    assert store.set_last_packet_id(client_id, packet_id=7, expected=now_id)
    # Its packet ids may be in use now: all messages are looked through.
    store.reserve_packet_ids(client_id, count=1)
    lines = store.export_session(client_id).lines
    assert store.purge_session(client_id).messages == 1
    first = orjson.loads(lines[0])
    first["session"]["last_serial"] = 2**40
    assert store.import_session(client_id, [orjson.dumps(first), *lines[1:]]).stored == 1
    _outlived(store, client_id)
    assert store.fetch_pending(client_id).expired == 1
    store.purge_session(client_id)
    keys, chunk = packed_keys(client_id), {"chunk": 0, "last": 1, "last_packet_id": 7, "last_serial": 9}
    by = {"plan": "p", "epoch": 0}
    empty = packed.import_session(keys, **by, owner="redis", **chunk, until_ms="", messages=[])
    caller.execute([empty]).or_raise()
    record = record_of(_message(), packet_id=8, end_ms=now_ms() + HOUR_MS)
    place = {"expected": client.hget(key, "s"), "last_packet_id": 8, "holder": "", "serial": 5}
    put = packed.replay_message(keys, **by, **place, record=record)
    assert caller.execute([put, packed.drop_import(keys, plan="p")]).or_raise()[1] == 1
    assert not client.exists(key)
    store.set_owner(client_id, epoch=1, owner="postgres")
    copy = SessionSnapshot(client_id=client_id, last_packet_id=7, last_serial=9, delivered_serial=3)
    store.apply_snapshot(client_id, copy, epoch=1, driver=1)
    store.set_owner(client_id, epoch=2, owner="redis", mirrored=True)
    # With a mirror, every change is noted.
    store.save_messages([SessionSave(client_id=client_id, messages=messages)])
    assert store.mark_released(client_id, packet_id=15) == "released"
    assert store.ack(client_id, [Ack(packet_id=15)]).removed == 1
    assert len(store.reserve_packet_ids(client_id, count=3)) == 3
    view = store.inspect(client_id).page[-1]
    assert view.expires_at_ms is not None
    ends_ms, one = view.expires_at_ms - 1, {"serial": view.serial, "packet_id": view.packet_id}
    aside = {"quarantined": "aside-1", "expires_at_ms": ends_ms}
    state = client.hget(key, "s")
    assert state is not None
    done = caller.execute(
        [
            packed.set_expiry(keys, epoch=2, may_lengthen=0, lives=[view.serial, view.expires_at_ms, ends_ms]),
            packed.set_aside(keys, epoch=2, twin="", **one, **aside),
            packed.restore_message(keys, epoch=2, **one, **aside),
            packed.repair_state(keys, epoch=2, expected="", fields=1, state=state),
        ]
    ).or_raise()
    assert done == [[1], 1, b"restored", 0]
    assert store.purge_session(client_id).messages == 5
    outbox = store.read_outbox(client_id)
    assert outbox is not None
    assert outbox.serials is None
    assert store.trim_outbox(client_id, epoch=2, version=outbox.version)
    return caller.scripts

"""What only sessions in the packed layout promise."""

from __future__ import annotations

import time

import orjson
import pytest

from queuekeeper.errors import UsageError
from queuekeeper.redis_client import connect
from queuekeeper.sessions.model import Ack, Layout, NewMessage, SessionSave
from queuekeeper.sessions.redis_store import RedisSessionStore

pytestmark = pytest.mark.conformance
C = "meter-7"


def batch(*payloads: bytes) -> SessionSave:
    now_ms = time.time_ns() // 1_000_000
    return SessionSave(
        client_id=C, messages=tuple(NewMessage(topic="t", payload=each, qos=1, time_ms=now_ms) for each in payloads)
    )


def test_what_the_layout_cannot_do_yet_is_refused_in_words_and_writes_nothing(valkey_url: str) -> None:
    with connect(valkey_url) as client:
        store = RedisSessionStore(client, layout=Layout.PACKED)
        with pytest.raises(UsageError, match=r"packed layout does not have set_owner yet.*Layout\.TBMQ"):
            store.set_owner(C, epoch=1, owner="redis")
        assert client.dbsize() == 0


def test_session_whose_serials_have_wide_gaps_is_read_by_what_is_there(valkey_url: str) -> None:
    with connect(valkey_url) as client:
        store = RedisSessionStore(client, layout=Layout.PACKED)
        store.save_messages([batch(b"a", b"b", b"c")])
        lines = [orjson.loads(line) for line in store.export_session(C).lines]
        lines[0]["session"]["last_serial"] = 2**52
        for line, serial in zip(lines[1:], (5, 2**40, 2**52), strict=True):
            line["serial"] = serial
        store.purge_session(C)
        store.import_session(C, [orjson.dumps(line) for line in lines])
        store.save_messages([batch(b"d")])

        assert [m.payload for m in store.fetch_pending(C).messages] == [b"a", b"b", b"c", b"d"]
        assert store.ack(C, [Ack(packet_id=2), Ack(packet_id=4)]).removed == 2
        assert [m.serial for m in store.inspect(C).page] == [5, 2**52]
        assert store.purge_session(C).messages == 2
        assert client.dbsize() == 0

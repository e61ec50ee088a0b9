"""What an audit finds in an RDB file is what the messages say, however their texts are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lua_sessions import now_ms

from queuekeeper.keyspace import packed_keys, payload_key
from queuekeeper.migration.audit.found import Found, found_in
from queuekeeper.rdb.files import files_at
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore

pytestmark = pytest.mark.lua

# These are texts of MQTT: a backslash, "u0000" behind it, and no zero character.
TEXTS = ("a\\u0000", "\\u0000", "\\\\u0000 and \\", "C:\\users\\u00001", "\\\x1f\\u0000")


def messages_found(client: Any, layout: Layout) -> list[Found]:
    """Return the messages in the snapshot that a server writes now."""
    client.save()
    files = files_at([Path(client.config_get("dir")["dir"], "dump.rdb")])
    found = found_in(files, prefix="", database=0, packed=layout is Layout.PACKED, taken_at_ms=now_ms())
    return [each for each in found if each.part in {"payload", "record"}]


@pytest.mark.parametrize("layout", Layout)
def test_text_with_a_backslash_before_u0000_is_read(single: Any, layout: Layout) -> None:
    saved = tuple(
        NewMessage(topic=text, payload=b"p", qos=1, time_ms=now_ms(), user_properties=((text, text),)) for text in TEXTS
    )
    store = RedisSessionStore(single, layout=layout)
    store.save_messages([SessionSave(client_id="meter-7", messages=saved)])

    found = messages_found(single, layout)

    facts = {each.packet_id: json.loads(each.facts or "{}") for each in found}
    assert [facts[number]["topicName"] for number in range(1, len(TEXTS) + 1)] == list(TEXTS)
    assert facts[1]["userProperties"] == {"props": [{"k": TEXTS[0], "v": TEXTS[0]}]}


@pytest.mark.parametrize("layout", Layout)
def test_message_with_a_zero_character_is_no_message(single: Any, layout: Layout) -> None:
    message = NewMessage(topic="t", payload=b"p", qos=1, time_ms=now_ms(), content_type="x\\")
    RedisSessionStore(single, layout=layout).save_messages([SessionSave(client_id="meter-7", messages=(message,))])
    if layout is Layout.PACKED:
        key = packed_keys("meter-7").session
        record = single.hget(key, "1").replace(b'"x\\\\"', b'"\\u0000"')
        size = int.from_bytes(record[11:15], "big") + 2
        single.hset(key, "1", record[:11] + size.to_bytes(4, "big") + record[15:])
    else:
        key = payload_key("meter-7", 1)
        single.set(key, single.get(key).replace(b'"x\\\\"', b'"x\\\\\\u0000"'), keepttl=True)

    (found,) = messages_found(single, layout)

    assert found.facts is None

"""``sync_session``: the copy of a session that PostgreSQL owns becomes equal to it, whatever was there before."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import FAR_MS, HOSTILE_IDS, Message, Session, contents, messages, now_ms, stored, unchanged

from queuekeeper.errors import MovedOn, NotOwner, StaleEpoch, StoreFull, UsageError
from queuekeeper.lua import ScriptCaller
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua

BATCH = messages(3, expires_at_ms=FAR_MS)
WHOLE: dict[str, Any] = {
    "last_packet_id": 3,
    "last_serial": 1_003,
    "delivered_serial": 1_001,
    "sources": [("partition-0", 41)],
}
FORGOTTEN = {"word": "forgotten"}
SAVED = stored(first_serial=1_004, references=4)


def members(session: Session) -> list[tuple[str, float]]:
    return [(session.payload(message.packet_id), message.serial) for message in BATCH]


@pytest.mark.parametrize("client_id", HOSTILE_IDS)
def test_session_that_redis_does_not_know_is_written_whole(client: RedisClient, client_id: str) -> None:
    session = Session(client=client, client_id=client_id)
    assert session.sync_session(BATCH, **WHOLE) == {"written": 3, "removed": 0}
    fields = {
        "owner": "postgres",
        "epoch": "1",
        "import": "done",
        "last_serial": "1003",
        "delivered_serial": "1001",
        "source:partition-0": "42",
    }
    encoded = {name.encode(): value.encode() for name, value in fields.items()}
    assert contents(client) == {
        session.keys.messages: ([(name.encode(), score) for name, score in members(session)], -1),
        session.keys.last_packet_id: (b"3", -1),
        session.keys.session: (encoded, -1),
        **{session.payload(message.packet_id): (message.json.encode(), message.expires_at_ms) for message in BATCH},
    }


def test_repeated_call_leaves_the_same(client: RedisClient) -> None:
    session = Session(client=client)
    session.sync_session(BATCH, **WHOLE)
    before = contents(client)
    assert session.sync_session(BATCH, **WHOLE) == {"written": 3, "removed": 0}
    assert contents(client) == before


def test_calls_one_by_one_leave_what_one_call_does(client: RedisClient) -> None:
    session = Session(client=client)
    session.sync_session(BATCH, **WHOLE)
    whole = contents(client)
    for message in [*BATCH, *messages(4, first=10)]:
        session.sync_session([message], **WHOLE)
    assert session.sync_session(removed=[10, 11], **WHOLE) == {"written": 0, "removed": 2}
    assert session.sync_session(removed=[12, 13, 99], **WHOLE) == {"written": 0, "removed": 2}
    assert contents(client) == whole


def test_session_without_messages_leaves_its_fields_only(client: RedisClient) -> None:
    session = Session(client=client)
    session.sync_session(BATCH, **WHOLE)
    assert session.sync_session(removed=[1, 2, 3]) == {"written": 0, "removed": 3}
    assert contents(client) == {
        session.keys.session: (
            {b"owner": b"postgres", b"epoch": b"1", b"import": b"done", b"source:partition-0": b"42"},
            -1,
        )
    }


def test_packet_id_that_another_message_got_meanwhile_is_taken_over(client: RedisClient) -> None:
    session = Session(client=client)
    session.sync_session(BATCH, **WHOLE)
    newer = Message(1, 2_000, FAR_MS + 9, '{"newer":1}')
    assert session.sync_session([newer], **WHOLE) == {"written": 1, "removed": 0}
    assert session.references()[-1] == (session.payload(1), 2_000)
    assert contents(client)[session.payload(1)] == (b'{"newer":1}', FAR_MS + 9)


def test_message_whose_life_is_over_is_removed_instead(client: RedisClient) -> None:
    session = Session(client=client)
    session.sync_session(BATCH, **WHOLE)
    assert session.sync_session([BATCH[0]._replace(expires_at_ms=now_ms() - 1)], **WHOLE) == {
        "written": 0,
        "removed": 1,
    }
    assert session.references() == members(session)[1:]
    assert client.exists(session.payload(1)) == 0


def test_source_is_replaced_or_forgotten(client: RedisClient) -> None:
    session = Session(client=client)
    session.sync_session(sources=[("a", 1), ("b", 2), ("c", 2**53 - 1)])
    session.sync_session(sources=[("a", 5), ("b", "")])
    state = session.state()
    assert {name: value for name, value in state.items() if name.startswith("source:")} == {
        "source:a": "6",
        "source:c": str(2**53),
    }


@pytest.mark.parametrize(
    ("offset", "reply"),
    [(40, FORGOTTEN), (41, FORGOTTEN), (42, SAVED), (43, SAVED)],
)
def test_batch_that_was_saved_in_postgres_is_not_saved_again(
    client: RedisClient, offset: int, reply: dict[str, Any]
) -> None:
    session = Session(client=client)
    session.sync_session(BATCH, **WHOLE)
    session.set_owner("redis", epoch=2)
    saved = session.save_messages(messages(1, first=4), expected=3, source="partition-0", offset=offset, packet_ids="4")
    assert saved == reply


def test_copy_goes_on_where_redis_has_owned_the_session(client: RedisClient) -> None:
    session = Session(client=client)
    session.save_messages(messages(4, expires_at_ms=FAR_MS), source="a", packet_ids="1-4")
    session.set_owner("redis", epoch=2, mirror=1)
    session.set_owner("fenced", epoch=3)
    session.set_owner("postgres", epoch=4)
    assert session.sync_session(BATCH, removed=[4], epoch=4, sources=[("a", "")], last_packet_id=3) == {
        "written": 3,
        "removed": 1,
    }
    assert session.state() == {"owner": "postgres", "epoch": "4", "import": "done"}
    assert [client.pexpiretime(key) for key in session.keys] == [-1, -1, -1]


def test_import_that_postgres_still_owned_is_taken_over(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(BATCH, last_packet_id=3, owner="postgres")
    session.sync_session(BATCH, epoch=2, **WHOLE)
    assert not {"plan", "references", "imported_last_packet_id"} & set(session.state())
    with pytest.raises(MovedOn):
        session.drop_import([1, 2, 3])


@pytest.mark.parametrize("owner", ["redis", "fenced"])
def test_session_of_redis_is_left_alone(client: RedisClient, owner: str) -> None:
    session = Session(client=client)
    session.save_messages(BATCH)
    session.set_owner(owner, epoch=2)
    with (
        unchanged(client),
        pytest.raises(NotOwner, match=r"^the session is owned here, or it is on its way from here$"),
    ):
        session.sync_session(BATCH, epoch=3, **WHOLE)


def test_greater_epoch_is_left_alone(client: RedisClient) -> None:
    session = Session(client=client)
    session.sync_session(BATCH, epoch=4, **WHOLE)
    with unchanged(client), pytest.raises(StaleEpoch, match=r"^epoch 4 owns the session: ask for its owner$"):
        session.sync_session(removed=[1], epoch=3)


def test_session_that_was_used_and_has_no_owner_is_left_alone(client: RedisClient) -> None:
    used: dict[str, Any] = {
        "saved": lambda session: session.save_messages(BATCH),
        "confirmed": lambda session: [session.save_messages(BATCH), session.ack(*((n, "") for n in (1, 2, 3)))],
        "vendor's": lambda session: client.set(session.keys.last_packet_id, 7),
        "being imported": lambda session: session.import_session(BATCH, last=False),
    }
    for client_id, use in used.items():
        use(Session(client=client, client_id=client_id))
    before = contents(client)
    for client_id in used:
        with pytest.raises(MovedOn, match=r"^the session has been used here, and nobody owns it: purge it here"):
            Session(client=client, client_id=client_id).sync_session(BATCH, **WHOLE)
    assert contents(client) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epoch": "x"}, "epoch is not an integer of 0 or more"),
        ({"epoch": -1}, "epoch is not an integer of 0 or more"),
        ({"last_packet_id": 65_536}, "last packet id is not an integer from 0 to 65535"),
        ({"last_serial": -1}, "last or delivered serial is neither empty nor an integer of 0 or more"),
        ({"delivered_serial": "x"}, "last or delivered serial is neither empty nor an integer of 0 or more"),
        ({"sources": [("", 1)]}, "source 1 has no name, or its offset is not an integer"),
        ({"sources": [("a", 1), ("b", -1)]}, "source 2 has no name, or its offset is not an integer"),
        ({"sources": [("a", "x")]}, "source 1 has no name, or its offset is not an integer"),
        ({"removed": [9, 9]}, "payload key 2 comes twice"),
        ({"removed": [1]}, "payload key 2 comes twice"),
        ({"batch": [BATCH[0]._replace(serial=-1)]}, "serial or expiry of payload key 1 is not an integer"),
        (
            {"batch": [BATCH[0], BATCH[1]._replace(expires_at_ms=2**53 + 2)]},
            "serial or expiry of payload key 2 is not an",
        ),
        ({"batch": messages(200), "removed": range(1_000, 1_057)}, "a call takes at most 256 messages and 256 sources"),
        ({"sources": [(f"s{n}", n) for n in range(257)]}, "a call takes at most 256 messages and 256 sources"),
    ],
)
def test_bad_argument_is_refused_before_anything_is_written(
    client: RedisClient, options: dict[str, Any], message: str
) -> None:
    session = Session(client=client)
    session.sync_session(messages(1, first=7))
    with unchanged(client), pytest.raises(UsageError) as caught:
        session.sync_session(**{"batch": BATCH, **options})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("change", [lambda args: args[:-1], lambda args: [*args, "x"], lambda args: args[:5]])
def test_wrong_number_of_arguments_is_refused(client: RedisClient, change: Any) -> None:
    session = Session(client=client)
    script, keys, args = session.sync_call(BATCH, removed=[9], sources=[("a", 1)])
    with pytest.raises(UsageError, match=r"^3 keys, payload keys, 6 arguments, 2 per source and 3 per message are"):
        ScriptCaller(client).call(script, keys, change([*args]))
    assert contents(client) == {}


def test_most_messages_and_sources_are_taken_at_once(client: RedisClient) -> None:
    session = Session(client=client)
    sources = [(f"s{n}", n) for n in range(256)]
    assert session.sync_session(messages(256), sources=sources) == {"written": 256, "removed": 0}
    assert session.sync_session(removed=range(1, 257), sources=[(name, "") for name, _ in sources]) == {
        "written": 0,
        "removed": 256,
    }
    assert list(session.state()) == ["owner", "epoch", "import"]


def test_full_server_refuses_as_a_whole(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session(client=client)
        session.sync_session(BATCH, **WHOLE)
        before = contents(client)
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreFull):
            session.sync_session(messages(1, first=9), removed=[1], **WHOLE)
        assert contents(client) == before

"""``drop_import``: it takes an unused import back, page by page, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lua_sessions import Session, contents, messages, unchanged

from queuekeeper.errors import MovedOn, UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.migration.offline.undo import drop_imports
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua


def test_import_is_dropped_page_by_page_and_leaves_nothing(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(5), last_packet_id=5)

    assert session.drop_import([1, 2]) == {"removed": 2, "remaining": 3}
    assert session.state()["references"] == "3"
    assert session.drop_import([3, 4]) == {"removed": 2, "remaining": 1}
    assert client.get(session.keys.last_packet_id) == b"5"
    assert session.drop_import([5]) == {"removed": 1, "remaining": 0}

    assert contents(client) == {}


def test_page_may_be_repeated(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(3), last_packet_id=3)
    session.drop_import([1])
    assert session.drop_import([1]) == {"removed": 0, "remaining": 2}
    session.drop_import([2, 3])
    assert session.drop_import([2, 3]) == {"removed": 0, "remaining": 0}
    assert contents(client) == {}


def test_unfinished_import_can_be_dropped(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(2), last=False)
    assert session.drop_import([1, 2]) == {"removed": 2, "remaining": 0}
    assert contents(client) == {}


def test_session_without_messages_is_dropped_by_a_call_without_payload_keys(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session([], last_packet_id=7)
    assert session.drop_import() == {"removed": 0, "remaining": 0}
    assert contents(client) == {}


def test_call_without_payload_keys_removes_no_message(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(2))
    before = contents(client)
    assert session.drop_import() == {"removed": 0, "remaining": 2}
    assert contents(client) == before


def test_reference_of_an_expired_message_is_dropped(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(2))
    client.delete(session.payload(1))
    assert session.drop_import([1, 2]) == {"removed": 2, "remaining": 0}
    assert contents(client) == {}


def test_payload_key_that_is_not_referenced_is_left_alone(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(1))
    client.set(session.payload(2), "somebody else's")
    assert session.drop_import([1, 2]) == {"removed": 1, "remaining": 0}
    assert list(contents(client)) == [session.payload(2)]


def test_large_page_is_dropped_in_one_call(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(2_500))
    assert session.drop_import(range(1, 2_501)) == {"removed": 2_500, "remaining": 0}
    assert contents(client) == {}


@pytest.mark.parametrize("use", ["acknowledged", "added", "emptied"])
def test_import_that_was_used_is_left_alone(client: RedisClient, use: str) -> None:
    session = Session(client=client)
    session.import_session(messages(2), last_packet_id=2)
    if use == "added":
        client.set(session.keys.last_packet_id, 3)
        client.zadd(session.keys.messages, {session.payload(3): 2_000})
    else:
        client.zrem(session.keys.messages, *[session.payload(n) for n in ((1,) if use == "acknowledged" else (1, 2))])
    with unchanged(client), pytest.raises(MovedOn, match=r"^the session has been used since it was imported$"):
        session.drop_import([1, 2])


def test_import_that_was_found_used_stays_used_when_its_counts_are_as_they_were(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(2), last_packet_id=2)
    anything: Any = client
    [(first, score), *_] = anything.zrange(session.keys.messages, 0, -1, withscores=True)
    client.zrem(session.keys.messages, first)
    assert session.import_session(messages(2), last_packet_id=2) == {"word": "used", "written": 0, "expired": 0}
    anything.zadd(session.keys.messages, {first: score})
    assert session.import_session(messages(2), last_packet_id=2) == {"word": "used", "written": 0, "expired": 0}
    with pytest.raises(MovedOn, match=r"^the session has been used since it was imported$"):
        session.drop_import([1, 2])


def test_import_of_another_plan_is_left_alone(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(2))
    with pytest.raises(MovedOn, match=r"^plan plan-a imported the session$"):
        replace(session, plan="plan-b").drop_import([1, 2])
    assert len(session.references()) == 2


@pytest.mark.parametrize("existing", ["messages", "last_packet_id", "session"])
def test_session_that_nobody_imported_is_left_alone(client: RedisClient, existing: str) -> None:
    session = Session(client=client)
    match existing:
        case "messages":
            client.zadd(session.keys.messages, {session.payload(1): 1})
        case "last_packet_id":
            client.set(session.keys.last_packet_id, 1)
        case "session":
            client.hset(session.keys.session, mapping={"owner": "redis"})
    with unchanged(client), pytest.raises(MovedOn, match=r"^the session was not imported$"):
        session.drop_import([1])


@pytest.mark.parametrize(
    ("keys", "args", "message"),
    [
        (2, ["plan-a"], "3 keys, payload keys and the plan id are expected"),
        (3, [], "3 keys, payload keys and the plan id are expected"),
        (3, [""], "3 keys, payload keys and the plan id are expected"),
        (5_004, ["plan-a"], "a call takes at most 5000 payload keys"),
    ],
)
def test_bad_argument_is_refused(client: RedisClient, keys: int, args: list[str], message: str) -> None:
    names = [f"{{meter-7}}_{number}" for number in range(keys)]
    with pytest.raises(UsageError) as caught:
        ScriptCaller(client).call(load("sessions/drop_import"), names, args)
    assert str(caught.value) == message


def test_import_is_dropped_from_a_full_server(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session(client=client)
        session.import_session(messages(4), last_packet_id=4)
        client.config_set("maxmemory", 1)
        assert session.drop_import([1, 2]) == {"removed": 2, "remaining": 2}
        assert session.drop_import([3, 4]) == {"removed": 2, "remaining": 0}
        assert contents(client) == {}


def test_dry_run_of_an_undo_says_what_the_undo_then_does(client: RedisClient) -> None:
    """The broker has used two of the sessions, one has been imported by another plan and one by nobody."""
    names = [f"meter-{number}" for number in range(7)]
    sessions = {name: Session(client=client, client_id=name) for name in names}
    for name, count in zip(names[:5], (3, 1_200, 2, 2, 0), strict=True):
        sessions[name].import_session(messages(count), last_packet_id=count)
    Session(client=client, client_id=names[5], plan="plan-b").import_session(messages(4), last_packet_id=4)
    anything: Any = client
    anything.zrem(sessions[names[2]].keys.messages, sessions[names[2]].payload(1))
    anything.set(sessions[names[3]].keys.last_packet_id, 3)
    before = contents(client)

    said = drop_imports(client, names, plan_id="plan-a", prefix="", dry_run=True)
    assert contents(client) == before
    done = drop_imports(client, names, plan_id="plan-a", prefix="", dry_run=False)

    assert said == replace(done, dry_run=True)
    assert (done.sessions_dropped, done.messages_dropped) == (3, 1_203)
    assert (done.sessions_moved_on, done.sessions_absent) == (2, 2)
    assert done.sessions_dropped + done.sessions_moved_on + done.sessions_absent == len(names)
    left = {name for name in names if any(f"{{{name}}}" in key for key in contents(client))}
    assert left == {names[2], names[3], names[5]}

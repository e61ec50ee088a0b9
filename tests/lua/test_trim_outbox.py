"""``trim_outbox``: what the other store has been told is forgotten, unless more has come since."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import FAR_MS, HOSTILE_IDS, Session, contents, messages

from queuekeeper.errors import StaleEpoch, UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua


def mirrored(client: RedisClient, client_id: str = "meter-7") -> Session:
    session = Session(client=client, client_id=client_id, epoch=5)
    session.save_messages(messages(3, expires_at_ms=FAR_MS))
    session.set_owner("redis", mirror=1)
    return session


@pytest.mark.parametrize("client_id", HOSTILE_IDS)
def test_changes_that_the_other_store_has_are_forgotten(client: RedisClient, client_id: str) -> None:
    session = mirrored(client, client_id)
    before = session.state()
    assert session.trim_outbox(1) == 1
    after = session.state()
    assert {name: before[name] for name in before.keys() - after.keys()}.keys() == {"outbox", "outbox_ms"}
    assert after["outbox_version"] == "1"


def test_change_since_keeps_all_of_them(client: RedisClient) -> None:
    session = mirrored(client)
    session.ack((1, 1))
    before = contents(client)
    assert session.trim_outbox(1) == 0
    assert contents(client) == before
    assert session.trim_outbox(2) == 1


def test_what_was_told_no_longer_counts_for_how_far_the_other_store_is_behind(client: RedisClient) -> None:
    session = mirrored(client)
    since_ms = int(session.state()["outbox_ms"])
    session.ack((1, 1))
    assert session.trim_outbox(1, read_ms=since_ms + 7) == 0
    assert session.state()["outbox_ms"] == str(since_ms + 7)
    # An older reading tells nothing new.
    assert session.trim_outbox(1, read_ms=since_ms + 3) == 0
    assert session.state()["outbox_ms"] == str(since_ms + 7)
    assert session.trim_outbox(2, read_ms=since_ms + 9) == 1
    assert session.trim_outbox(1, read_ms=since_ms + 9) == 0
    assert "outbox_ms" not in session.state()


def test_version_goes_on_after_the_outbox_was_emptied(client: RedisClient) -> None:
    session = mirrored(client)
    session.trim_outbox(1)
    session.ack((1, 1))
    assert (session.state()["outbox"], session.state()["outbox_version"]) == ("1", "2")
    assert session.trim_outbox(1) == 0


def test_session_that_never_had_one_is_left_alone(client: RedisClient) -> None:
    session = Session(client=client, epoch=5)
    session.set_owner("redis", mirror=1)
    before = contents(client)
    assert session.trim_outbox(0) == 0
    assert contents(client) == before


@pytest.mark.parametrize("epoch", [4, 6])
def test_another_epoch_is_refused(client: RedisClient, epoch: int) -> None:
    session = mirrored(client)
    before = contents(client)
    with pytest.raises(StaleEpoch, match=r"^epoch 5 owns the session: ask for its owner$"):
        session.trim_outbox(1, epoch=epoch)
    with pytest.raises(StaleEpoch, match=r"^epoch none owns"):
        Session(client=client, client_id="none").trim_outbox(1)
    assert contents(client) == before


@pytest.mark.parametrize(("version", "epoch"), [("x", 5), (-1, 5), ("", 5), (1, ""), (1, "x"), (1, -1)])
def test_bad_argument_is_refused(client: RedisClient, version: Any, epoch: Any) -> None:
    session = mirrored(client)
    before = contents(client)
    expected = r"^1 key, an epoch, a version and an instant, integers of 0 or more, are expected$"
    with pytest.raises(UsageError, match=expected):
        session.trim_outbox(version, epoch=epoch)
    for read_ms in ("x", "", -1):
        with pytest.raises(UsageError, match=expected):
            session.trim_outbox(1, read_ms=read_ms)
    with pytest.raises(UsageError):
        ScriptCaller(client).call(load("sessions/trim_outbox"), [session.keys.session], [5])
    assert contents(client) == before


def test_full_server_forgets(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = mirrored(client)
        client.config_set("maxmemory", 1)
        assert session.trim_outbox(1) == 1

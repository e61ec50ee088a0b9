"""A save is checked where it is made, and counts its bytes there, once for every store."""

from __future__ import annotations

from typing import Any, cast

import pytest

from queuekeeper.errors import UsageError
from queuekeeper.sessions.judge import MAX_EXPIRY_INTERVAL_S, MAX_TIME_MS
from queuekeeper.sessions.model import NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.parts import end_of_life, ends_of_lives
from queuekeeper.sessions.router.routing import RouterOperations
from queuekeeper.sessions.router.steps import AtPostgres

pytestmark = pytest.mark.unit


def new(payload: bytes) -> NewMessage:
    """Return a message."""
    return NewMessage(topic="t", payload=payload, qos=1, time_ms=1)


def test_what_is_no_message_is_refused_where_the_save_is_made() -> None:
    wrong: Any = (new(b"x"), b"y")
    with pytest.raises(UsageError, match="a message for 'a' is a bytes: it must be a NewMessage"):
        SessionSave(client_id="a", messages=wrong)


@pytest.mark.parametrize(("sizes", "together", "largest"), [((5,), 5, 5), ((2, 7, 0), 9, 7)])
def test_bytes_are_counted_where_the_save_is_made(sizes: tuple[int, ...], together: int, largest: int) -> None:
    messages = tuple(new(bytes(size)) for size in sizes)
    checked = SessionSave.checked(client_id="a", messages=messages, sizes_bytes=sizes, source=None, offset=None)
    made = SessionSave(client_id="a", messages=messages)
    assert made == checked
    for save in (made, checked):
        assert (save.payload_bytes, save.largest_bytes) == (together, largest)


def test_router_checks_the_messages_of_a_writer_once_and_its_source() -> None:
    router = RouterOperations(rules=StoreRules(max_payload_bytes=10))
    too_large, long = new(bytes(11)), "s" * 70_000
    with pytest.raises(UsageError, match="a payload for 'a' has 11 bytes"):
        router.check_payload("a", too_large)
    assert router.check_payload("a", new(bytes(10))) == 10
    with pytest.raises(UsageError, match="must be a NewMessage"):
        router.check_payload("a", cast("Any", b"y"))

    of_writer = SessionSave.checked(client_id="a", messages=(too_large,), sizes_bytes=(11,), source=None, offset=None)
    of_caller = SessionSave(client_id="a", messages=(too_large,))
    with_source = SessionSave.checked(client_id="a", messages=(new(b"x"),), sizes_bytes=(1,), source=long, offset=1)

    assert type(next(router.save_messages([of_writer]))) is AtPostgres
    with pytest.raises(UsageError, match="a payload for 'a' has 11 bytes"):
        next(router.save_messages([of_caller]))
    with pytest.raises(UsageError, match="source"):
        next(router.save_messages([with_source]))


@pytest.mark.parametrize("intervals_s", [(None,), (None, None, None), (1, None, MAX_EXPIRY_INTERVAL_S)])
@pytest.mark.parametrize("time_ms", [0, 1_780_000_000_000, MAX_TIME_MS])
@pytest.mark.parametrize("default_ttl_s", [1, MAX_EXPIRY_INTERVAL_S])
def test_messages_of_a_batch_live_as_long_as_each_would_alone(
    intervals_s: tuple[int | None, ...], time_ms: int, default_ttl_s: int
) -> None:
    batch = [
        NewMessage(topic="t", payload=b"", qos=1, time_ms=time_ms, expiry_interval_s=interval_s)
        for interval_s in intervals_s
    ]
    assert ends_of_lives(batch, default_ttl_s=default_ttl_s) == [
        end_of_life(message, default_ttl_s=default_ttl_s) for message in batch
    ]


def test_batch_with_a_message_that_is_refused_has_no_ends() -> None:
    batch = [new(b""), NewMessage(topic="t", payload=b"", qos=1, time_ms=1, expiry_interval_s=0)]
    assert ends_of_lives(batch, default_ttl_s=60) is None

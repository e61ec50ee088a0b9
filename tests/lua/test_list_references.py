"""``list_references``: references in the order of delivery, page by page."""

from __future__ import annotations

import pytest
from lua_sessions import Session

from queuekeeper.errors import UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient

pytestmark = pytest.mark.lua


@pytest.fixture
def session(client: RedisClient) -> Session:
    """A session of five messages with serials 1 to 5."""
    return Session.saved(client, 5)


def test_pages_by_rank_join_without_gap(session: Session) -> None:
    pages = [session.list_references("rank", start, 2) for start in (0, 2, 4, 6)]
    assert [serial for page in pages for _, serial in page] == [1, 2, 3, 4, 5]
    assert [len(page) for page in pages] == [2, 2, 1, 0]
    assert pages[0][0] == (session.payload(1), 1)


def test_pages_by_serial_begin_behind_the_serial_whatever_was_removed(session: Session) -> None:
    assert [serial for _, serial in session.list_references("serial", -1, 2)] == [1, 2]
    session.ack((1, ""), (2, ""), (4, ""))
    assert [serial for _, serial in session.list_references("serial", 2, 2)] == [3, 5]
    assert session.list_references("serial", 5) == []


def test_session_that_does_not_exist_has_no_references(client: RedisClient) -> None:
    assert Session(client=client).list_references("rank", 0) == []
    assert Session(client=client).list_references("serial", -1) == []


@pytest.mark.parametrize(
    ("by", "start", "limit", "message"),
    [
        ("rank", "x", 1, "start is not an integer"),
        ("serial", "", 1, "start is not an integer"),
        ("rank", -1, 1, "references are listed by serial, or by rank from 0"),
        ("score", 0, 1, "references are listed by serial, or by rank from 0"),
        ("rank", 0, 0, "limit is not an integer from 1 to 1000"),
        ("serial", 0, 1_001, "limit is not an integer from 1 to 1000"),
    ],
)
def test_bad_argument_is_refused(session: Session, by: str, start: int | str, limit: int, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        session.list_references(by, start, limit)
    assert str(caught.value) == message


def test_wrong_number_of_arguments_is_refused(session: Session) -> None:
    with pytest.raises(UsageError, match=r"^1 key and 3 arguments are expected$"):
        ScriptCaller(session.client).call(load("sessions/list_references"), [session.keys.messages], ["rank", 0])

"""A save is checked where it is made, and counts its bytes there, once for every store."""

from __future__ import annotations

from typing import Any

import pytest

from queuekeeper.errors import UsageError
from queuekeeper.sessions.model import NewMessage, SessionSave

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
    checked = SessionSave.checked(client_id="a", messages=messages, source=None, offset=None)
    made = SessionSave(client_id="a", messages=messages)
    assert made == checked
    for save in (made, checked):
        assert (save.payload_bytes, save.largest_bytes) == (together, largest)

"""Parameters of a sample are refused in words before anything is touched."""

from __future__ import annotations

from typing import Any

import pytest

from queuekeeper.errors import UsageError
from queuekeeper.sessions.hostile import hostile_rows
from queuekeeper.sessions.sample_parameters import SampleParameters

pytestmark = pytest.mark.unit

NOW_MS = 1_790_000_000_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"messages": -1}, "messages is -1: it must be 0 to"),
        ({"sessions": 0}, "sessions is 0: it must be 1 to"),
        ({"seed": -1}, "seed is -1: it must be 0 to"),
        ({"now_ms": 0}, "now_ms is 0: it must be 2592000000 to"),
        ({"long_queues": -1}, "long_queues is -1: it must be 0 to 1000"),
        ({"long_queue_messages": 50_001}, "long_queue_messages is 50001: it must be 1 to 50000"),
    ],
)
def test_impossible_parameter_is_named_with_its_rule(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SampleParameters(**({"now_ms": NOW_MS} | changes))


def test_hostile_rows_are_unique_and_fit_the_vendors_columns() -> None:
    messages, sessions = hostile_rows(SampleParameters(now_ms=NOW_MS, messages=200_000))
    identities = [(message.client_id, message.serial_number) for message in messages]

    assert len(set(identities)) == len(identities)
    assert len({session.client_id for session in sessions}) == len(sessions)
    assert max(len(message.client_id) for message in messages) == 255
    # No text of PostgreSQL can hold this character.
    assert not any("\0" in (message.client_id + message.topic) for message in messages)


def test_bad_rows_stand_between_healthy_neighbours() -> None:
    messages, _ = hostile_rows(SampleParameters(now_ms=NOW_MS))
    queue = sorted(
        (message for message in messages if message.client_id == "hostile-qos-seven-0"),
        key=lambda row: row.serial_number,
    )

    assert [(row.kind, row.qos) for row in queue] == [(None, 1), ("qos_seven", 7), (None, 1)]

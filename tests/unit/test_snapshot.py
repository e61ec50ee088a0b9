"""In what two snapshots of a session differ."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.snapshot import Difference, SessionSnapshot, SourceBatch, differences

pytestmark = pytest.mark.unit

MESSAGE = PendingMessage(
    serial=7,
    packet_id=3,
    packet_type="PUBLISH",
    topic="t/a",
    payload=b"secret",
    qos=1,
    time_ms=1_000,
    expires_at_ms=9_000,
    redelivery=False,
)
SNAPSHOT = SessionSnapshot(
    client_id="meter-7",
    last_packet_id=3,
    last_serial=7,
    delivered_serial=None,
    batches=(SourceBatch(source="p0", offset=4),),
    messages=(MESSAGE, replace(MESSAGE, serial=8, packet_id=4)),
)
OTHER: dict[str, Any] = {
    "packet_id": 9,
    "packet_type": "PUBREL",
    "topic": "t/b",
    "payload": b"geheim",
    "qos": 2,
    "time_ms": 1_001,
    "expires_at_ms": 9_001,
    "retain": True,
    "expiry_interval_s": 8,
    "payload_format_indicator": 1,
    "content_type": "text",
    "response_topic": "r",
    "correlation_data": b"c",
    "user_properties": (("k", "v"),),
    "subscription_ids": (1,),
}


def test_equal_snapshots_do_not_differ() -> None:
    assert differences(SNAPSHOT, replace(SNAPSHOT)) == []


def test_whether_a_message_was_sent_follows_from_the_rest() -> None:
    sent = replace(SNAPSHOT, messages=tuple(replace(each, redelivery=True) for each in SNAPSHOT.messages))

    assert differences(SNAPSHOT, sent) == []


def test_every_other_field_of_a_message_is_compared() -> None:
    assert OTHER.keys() == {field.name for field in fields(PendingMessage)} - {"serial", "redelivery"}


@pytest.mark.parametrize("name", OTHER)
def test_another_value_of_a_message_is_found(name: str) -> None:
    found = replace(SNAPSHOT, messages=(replace(MESSAGE, **{name: OTHER[name]}), SNAPSHOT.messages[1]))

    (difference,) = differences(SNAPSHOT, found)

    assert (difference.what, difference.serial, difference.source) == (name, 7, None)
    assert differences(found, SNAPSHOT) == [replace(difference, expected=difference.found, found=difference.expected)]


@pytest.mark.parametrize("name", ["last_packet_id", "last_serial", "delivered_serial"])
def test_another_value_of_the_session_is_found(name: str) -> None:
    change: dict[str, Any] = {name: 99}

    (difference,) = differences(SNAPSHOT, replace(SNAPSHOT, **change))

    assert (difference.what, difference.found, difference.serial) == (name, "99", None)


def test_messages_that_only_one_has_are_found() -> None:
    other = replace(SNAPSHOT, messages=(SNAPSHOT.messages[1], replace(MESSAGE, serial=9, packet_id=5)))

    assert differences(SNAPSHOT, other) == [
        Difference(client_id="meter-7", what="message", serial=7, expected="PUBLISH with packet id 3", found=""),
        Difference(client_id="meter-7", what="message", serial=9, expected="", found="PUBLISH with packet id 5"),
    ]


def test_batches_of_sources_are_found_whatever_their_order() -> None:
    batches = (SourceBatch(source="p2", offset=1), SourceBatch(source="p0", offset=5))

    found = differences(SNAPSHOT, replace(SNAPSHOT, batches=batches))

    assert [(each.what, each.source, each.expected, each.found) for each in found] == [
        ("batch", "p0", "4", "5"),
        ("batch", "p2", "", "1"),
    ]
    assert differences(replace(SNAPSHOT, batches=batches), replace(SNAPSHOT, batches=batches[::-1])) == []


def test_messages_whose_life_is_over_are_not_looked_at() -> None:
    none = replace(SNAPSHOT, messages=())

    assert len(differences(SNAPSHOT, none, as_of_ms=8_999)) == 2
    assert differences(SNAPSHOT, none, as_of_ms=9_000) == []
    for_ever = replace(SNAPSHOT, messages=(replace(MESSAGE, expires_at_ms=None),))
    assert len(differences(for_ever, none, as_of_ms=9_000)) == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"last_serial": None}, "'meter-7': last_serial is missing, not 7"),
        (
            {"messages": SNAPSHOT.messages[:1]},
            "'meter-7': message 8 is missing, not PUBLISH with packet id 4",
        ),
        ({"batches": ()}, "'meter-7': batch of source 'p0' is missing, not 4"),
    ],
)
def test_difference_as_text_is_a_sentence(change: dict[str, Any], text: str) -> None:
    assert [str(each) for each in differences(SNAPSHOT, replace(SNAPSHOT, **change))] == [text]


def test_difference_as_text_does_not_show_content() -> None:
    contents: dict[str, Any] = {
        "payload": b"geheim",
        "correlation_data": b"geheim",
        "user_properties": (("geheim", "geheim"),),
    }
    found = replace(SNAPSHOT, messages=(replace(MESSAGE, **contents), SNAPSHOT.messages[1]))

    texts = [str(each) for each in differences(SNAPSHOT, found)]

    assert texts == [
        "'meter-7': payload of message 7 is another of 6 bytes",
        "'meter-7': correlation_data of message 7 is 6 bytes, not missing",
        "'meter-7': user_properties of message 7 is 1 pairs, not 0 pairs",
    ]


@pytest.mark.parametrize(
    ("interval_s", "waited_ms", "left_s"),
    [
        (None, 5_000, None),
        (60, 0, 60),
        (60, 1, 59),
        (60, 59_000, 1),
        (60, 60_000, 0),
        (60, 90_000, 0),
        (60, -5_000, 60),
    ],
)
def test_expiry_interval_to_send_on_is_less_by_the_seconds_begun_that_a_message_has_waited(
    interval_s: int | None, waited_ms: int, left_s: int | None
) -> None:
    waiting = replace(MESSAGE, expiry_interval_s=interval_s)

    assert waiting.remaining_s(now_ms=MESSAGE.time_ms + waited_ms) == left_s

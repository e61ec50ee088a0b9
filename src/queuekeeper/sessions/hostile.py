"""Odd and broken rows as old databases hold them; a sample adds them to its healthy rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from queuekeeper.clock import DAY_MS
from queuekeeper.keyspace import MAX_PACKET_ID

if TYPE_CHECKING:
    from queuekeeper.sessions.sample_parameters import SampleParameters

Row = TypeVar("Row")


_BROKEN_PROPERTIES = (
    "not json",
    '{"props":',
    '{"props":{}}',
    '{"props":[{"k":1,"v":"number for a name"}]}',
    '{"props":[{"v":"no name"}]}',
    "[]",
    "",
    "null",
)
_ODD_IDS: dict[str, str] = {
    "client_id_begins_with_brace": "}hostile-%d",
    "client_id_begins_with_percent": "%%7Dhostile-%d",
    "client_id_braces": "hostile{a}{%d}",
    "client_id_empty_braces": "hostile{}%d",
    "client_id_glob": "hostile-*?[a-z]-%d",
    "client_id_html": "<script>alert('hostile-%d')</script>",
    "client_id_emoji": "hostile-🐇👩‍👩‍👧-%d",
    "client_id_formula": "=1+1+%d",
    "client_id_key_like": "hostile-%d}_messages",
    "client_id_line_break": "hostile\r\n\t%d\u2028end",
    "client_id_right_to_left": "\u202ehostile-%d",
}


@dataclass(frozen=True, kw_only=True)
class HostileMessage:
    """One row of ``device_publish_msg`` in a test or a sample.

    :param kind: what is odd about it; none for a healthy neighbour.
    """

    kind: str | None
    client_id: str
    serial_number: int
    time: int
    topic: str = "hostile/topic"
    packet_id: int | None
    packet_type: str | None = "PUBLISH"
    qos: int = 1
    payload: bytes = field(default=b"healthy", repr=False)
    user_properties: str | None = None
    retain: bool | None = False
    msg_expiry_interval: int | None = None
    payload_format_indicator: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None

    def row(self) -> tuple[Any, ...]:
        """Return the values in the order of the table's columns."""
        return (
            self.client_id, self.serial_number, self.topic, self.time, self.packet_id, self.packet_type, self.qos,
            self.payload, self.user_properties, self.retain, self.msg_expiry_interval, self.payload_format_indicator,
            self.content_type, self.response_topic, self.correlation_data,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HostileSession:
    """One row of ``device_session_ctx``; ``kind`` as in :class:`HostileMessage`."""

    kind: str | None
    client_id: str
    last_updated_time: int
    last_serial_number: int | None
    last_packet_id: int | None

    def row(self) -> tuple[Any, ...]:
        """Return the values in the order of the table's columns."""
        return self.client_id, self.last_updated_time, self.last_serial_number, self.last_packet_id


def hostile_rows(parameters: SampleParameters) -> tuple[list[HostileMessage], list[HostileSession]]:
    """Return odd and broken rows as old databases hold them: a few of each kind, more in a larger sample.

    Each bad row stands between healthy rows of the same client, which must not be lost with it.
    """
    rng = np.random.default_rng([parameters.seed, 3])
    hour_ago = parameters.now_ms - 3_600_000
    repeats = max(1, min(20, parameters.messages // 20_000))
    messages: list[HostileMessage] = []
    sessions: list[HostileSession] = []

    def client(client_id: str, *rows: HostileMessage) -> None:
        messages.extend(rows)
        usable = [row.packet_id for row in rows if row.packet_id and 1 <= row.packet_id <= MAX_PACKET_ID]
        sessions.append(
            HostileSession(
                kind=None,
                client_id=client_id,
                last_updated_time=hour_ago,
                last_serial_number=max((row.serial_number for row in rows), default=-1),
                last_packet_id=usable[-1] if usable else 1,
            )
        )

    def message(kind: str | None, client_id: str, serial: int, **changes: Any) -> HostileMessage:
        values: dict[str, Any] = {"packet_id": serial, "time": hour_ago + serial, "payload": rng.bytes(40)}
        return HostileMessage(kind=kind, client_id=client_id, serial_number=serial, **(values | changes))

    def bad_row(kind: str, **changes: Any) -> None:
        """Add a client with a bad row between two healthy ones."""
        for number in range(repeats):
            client_id = f"hostile-{kind.replace('_', '-')}-{number}"
            client(
                client_id,
                message(None, client_id, 1),
                message(kind, client_id, **({"serial": 2} | changes)),
                message(None, client_id, 3),
            )

    ahead = parameters.now_ms + 3_650 * DAY_MS
    bad_row("packet_id_null", packet_id=None)
    bad_row("packet_id_zero", packet_id=0)
    bad_row("packet_id_negative", packet_id=-7)
    bad_row("packet_id_too_large", packet_id=MAX_PACKET_ID + 1)
    bad_row("expiry_zero", msg_expiry_interval=0)
    bad_row("expiry_negative", msg_expiry_interval=-1)  # what 0xFFFFFFFF looks like, signed
    bad_row("expiry_most_negative", msg_expiry_interval=-(2**31))
    bad_row("qos_zero", qos=0)
    bad_row("qos_seven", qos=7)
    bad_row("packet_type_unknown", packet_type="PUBACK")
    bad_row("packet_type_null", packet_type=None)
    bad_row("packet_type_lower_case", packet_type="publish")
    bad_row("topic_empty", topic="")
    bad_row("topic_html", topic="<img src=x onerror=alert(1)>/{a}/*/☕")
    bad_row("time_negative", time=-1)
    bad_row("time_far_future", time=ahead)
    bad_row("time_overflow", time=2**63 - 1)
    bad_row("serial_negative", serial=-1, packet_id=2, time=hour_ago)
    bad_row("serial_too_large", serial=2**53 + 1, packet_id=2, time=hour_ago)
    bad_row("payload_empty", payload=b"")
    bad_row(
        "properties_empty", content_type="", response_topic="", correlation_data=b"", user_properties='{"props":[]}'
    )
    bad_row("retain_null", retain=None)
    for number, text in enumerate(_BROKEN_PROPERTIES):
        client_id = f"hostile-user-properties-{number}"
        client(
            client_id,
            message(None, client_id, 1),
            message("user_properties_broken", client_id, 2, user_properties=text),
            message(None, client_id, 3),
        )
    # Large rows are few: a sample has to load quickly.
    client_id = "hostile-payload-megabyte"
    client(
        client_id,
        message("payload_megabyte", client_id, 1, payload=rng.bytes(2**20)),
        message("payload_megabyte", client_id, 2, payload=bytes(2**20)),
    )

    for kind, template in _ODD_IDS.items():
        for number in range(repeats):
            client_id = template % number
            client(client_id, *(message(kind, client_id, serial) for serial in (1, 2)))
    client_id = "hostile-" + "é" * 247
    client(client_id, *(message("client_id_255_characters", client_id, serial) for serial in (1, 2)))
    client("", message("client_id_empty", "", 1))

    for number in range(repeats):
        client_id = f"orphan-{number}"
        messages.extend(message("no_session_row", client_id, serial) for serial in (1, 2, 3))

        # The ids have wrapped: the older message waits under the same id as the newer one.
        client_id = f"hostile-packet-id-duplicate-{number}"
        client(
            client_id,
            message("packet_id_duplicate", client_id, 5),
            message(None, client_id, 6),
            message(None, client_id, 5 + MAX_PACKET_ID, packet_id=5, time=hour_ago + 10),
        )

        # Serial and time disagree, and the rows lie backwards in the table.
        client_id = f"hostile-serials-unsorted-{number}"
        client(
            client_id,
            *(
                message("serials_unsorted_in_time", client_id, serial, time=hour_ago - serial * 1_000)
                for serial in range(8, 0, -1)
            ),
        )

    last_packet_ids: dict[str, int | None] = {
        "session_last_packet_id_null": None,
        "session_last_packet_id_zero": 0,
        "session_last_packet_id_negative": -1,
        "session_last_packet_id_too_large": MAX_PACKET_ID + 1,
        "session_last_serial_null": 3,
    }
    for kind, last_packet_id in last_packet_ids.items():
        for number in range(repeats):
            client_id = f"hostile-{kind.replace('_', '-')}-{number}"
            # Every second one of them has messages.
            if number % 2 == 0:
                messages.extend(message(None, client_id, serial) for serial in (1, 2, 3))
            sessions.append(
                HostileSession(
                    kind=kind,
                    client_id=client_id,
                    last_updated_time=hour_ago,
                    last_serial_number=None if kind == "session_last_serial_null" else 3,
                    last_packet_id=last_packet_id,
                )
            )
    return _shuffled(rng, messages), _shuffled(rng, sessions)


def _shuffled(rng: np.random.Generator, rows: list[Row]) -> list[Row]:
    return [rows[int(index)] for index in rng.permutation(len(rows))]

"""One session as JSON Lines, in the same form for every store. An import checks all lines before it writes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from unicodedata import category

import orjson

from queuekeeper.checks import shown
from queuekeeper.errors import UsageError
from queuekeeper.jsonl import attributes
from queuekeeper.keyspace import MAX_PACKET_ID, check_client_id, safe_counter
from queuekeeper.sessions import wire
from queuekeeper.sessions.judge import MAX_SERIAL
from queuekeeper.sessions.pages import STORES
from queuekeeper.sessions.reports import PendingMessage

FORMAT = 1
"""Version of the format of the lines; an incompatible change raises it."""

_MAX_INSTANT_MS = 2**63 - 1
_SESSION_FIELDS = ("client_id", "last_packet_id", "last_serial", "exported_from", "format")
_MESSAGE_FIELDS = ("serial", "expires_at_ms", "delivered", "message")
_FACTS = (
    "serial packet_id packet_type topic qos retain redelivery time_ms expires_at_ms expiry_interval_s "
    "payload_format_indicator content_type response_topic"
)


@dataclass(frozen=True, kw_only=True)
class ExportedSession:
    """A session as read from its lines.

    :param last_packet_id: last packet id to import, past the ids in use; see ``keyspace.safe_counter``.
    :param messages: in the order of delivery; no two have the same packet id.
    :param exported_from: ``redis`` or ``postgres``.
    """

    client_id: str
    last_packet_id: int | None
    last_serial: int | None
    exported_from: str
    messages: tuple[PendingMessage, ...]

    @property
    def delivered_serial(self) -> int:
        """Serial up to which messages have been sent; -1 when none were."""
        return max((message.serial for message in self.messages if message.redelivery), default=-1)


def session_line(*, client_id: str, last_packet_id: int | None, last_serial: int | None, exported_from: str) -> bytes:
    """Return the first line of an export."""
    values = (client_id, last_packet_id, last_serial, exported_from, FORMAT)
    return orjson.dumps({"session": dict(zip(_SESSION_FIELDS, values, strict=True))})


def message_line(message: PendingMessage, *, client_id: str) -> bytes:
    """Return the line of one message."""
    json = wire.stored_json(message, client_id=client_id, packet_id=message.packet_id, packet_type=message.packet_type)
    values = (message.serial, message.expires_at_ms, message.redelivery, orjson.Fragment(json))
    return orjson.dumps(dict(zip(_MESSAGE_FIELDS, values, strict=True)))


def message_facts(message: PendingMessage, *, content: bool) -> dict[str, Any]:
    """Return a message as a dictionary of its fields.

    :param content: include what the publisher wrote into the message.
    """
    facts: dict[str, Any] = {
        **attributes(message, _FACTS),
        "subscription_ids": list(message.subscription_ids),
        "payload_bytes": len(message.payload),
        "correlation_data_bytes": None if message.correlation_data is None else len(message.correlation_data),
        "user_property_count": len(message.user_properties),
    }
    if content:
        facts |= _readable("payload", message.payload)
        if message.correlation_data is not None:
            facts |= _readable("correlation_data", message.correlation_data)
        facts["user_properties"] = [list(pair) for pair in message.user_properties]
    return facts


def _readable(name: str, content: bytes) -> dict[str, str]:
    """Return bytes as text, or as base64 when they are not printable text, under a name that says which."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if any(category(character) == "Cc" and character not in "\t\n\r" for character in text):
        return {name: b64encode(content).decode(), f"{name}_encoding": "base64"}
    return {name: text, f"{name}_encoding": "utf-8"}


def read_lines(lines: Iterable[bytes], *, client_id: str, max_payload_bytes: int) -> ExportedSession:
    """Read and check an export as a whole.

    :param lines: with or without line ends; empty lines are skipped.
    :param client_id: client whose session the export must hold.
    :param max_payload_bytes: largest payload that the importing store takes.
    :raises UsageError: naming the number of the line and what is wrong with it.
    """
    check_client_id(client_id)
    session: dict[str, Any] | None = None
    messages: list[PendingMessage] = []
    line_of: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, bytes):
            raise UsageError(f"line {number} of lines is {shown(line)}: it must be bytes; read the file as bytes")
        if not line.strip():
            continue
        try:
            fields = _parsed(line)
            if session is None:
                session = _session(fields, client_id=client_id)
                continue
            message = _message(fields, client_id=client_id)
            if messages and message.serial <= messages[-1].serial:
                raise ValueError(f"serial {message.serial} does not follow {messages[-1].serial}")
            if message.packet_id in line_of:
                raise ValueError(f"packet id {message.packet_id} is on line {line_of[message.packet_id]} too")
            if len(message.payload) > max_payload_bytes:
                raise ValueError(
                    f"payload has {len(message.payload)} bytes: this store takes at most {max_payload_bytes}"
                )
        except ValueError as error:
            raise UsageError(f"line {number} is not a line of an export of {client_id!r}: {error}") from None
        line_of[message.packet_id] = number
        messages.append(message)
    if session is None:
        raise UsageError("there is no line: the first line of an export is the session")
    last_serial = session["last_serial"]
    if messages and (last_serial is None or last_serial < messages[-1].serial):
        last_serial = messages[-1].serial
    return ExportedSession(
        client_id=client_id,
        last_packet_id=safe_counter(session["last_packet_id"], [message.packet_id for message in messages]),
        last_serial=last_serial,
        exported_from=session["exported_from"],
        messages=tuple(messages),
    )


def _parsed(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from None


def _session(fields: Any, *, client_id: str) -> dict[str, Any]:
    session = _members(_members(fields, ("session",))["session"], _SESSION_FIELDS)
    if session["format"] != FORMAT or type(session["format"]) is not int:
        raise ValueError(f"format is {session['format']!r}: this release reads format {FORMAT}")
    if session["client_id"] != client_id:
        raise ValueError(f"its client_id is {session['client_id']!r}")
    _check("last_packet_id", session["last_packet_id"], 1, MAX_PACKET_ID, absent=True)
    _check("last_serial", session["last_serial"], 0, MAX_SERIAL, absent=True)
    if session["exported_from"] not in STORES:
        raise ValueError(f"exported_from is {session['exported_from']!r}: it must be one of {', '.join(STORES)}")
    return session


def _message(fields: Any, *, client_id: str) -> PendingMessage:
    values = _members(fields, _MESSAGE_FIELDS)
    _check("serial", values["serial"], 0, MAX_SERIAL)
    _check("expires_at_ms", values["expires_at_ms"], 0, _MAX_INSTANT_MS, absent=True)
    if type(values["delivered"]) is not bool:
        raise ValueError(f"delivered is {values['delivered']!r}: it must be true or false")
    message = values["message"]
    if isinstance(message, dict) and not message.keys() <= wire.FIELDS:
        unknown = ", ".join(sorted(message.keys() - wire.FIELDS))
        raise ValueError(f"message has members that TBMQ does not know: {unknown}")
    return wire.pending_message(
        message,
        client_id=client_id,
        serial=values["serial"],
        expires_at_ms=values["expires_at_ms"],
        redelivery=values["delivered"],
    )


def _members(fields: Any, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(fields, dict) or fields.keys() != set(names):
        unknown = sorted(fields.keys() - set(names)) if isinstance(fields, dict) else []
        surprise = f" and has {', '.join(unknown)}" if unknown else ""
        raise ValueError(f"it must be an object of {', '.join(names)}{surprise}")
    return fields


def _check(name: str, value: Any, least: int, most: int, *, absent: bool = False) -> None:
    if value is None and absent:
        return
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}: it must be an integer, {least} to {most}{' or null' if absent else ''}")

"""Moves records to a session's quarantine and back, for several remedies."""

from __future__ import annotations

import re
from collections.abc import Sequence

from queuekeeper.keyspace import quarantined_key
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.maintenance.remedies.model import Effect, Queue
from queuekeeper.maintenance.remedies.sessions import Sessions

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,15}")
_LEFT = {
    "missing": "it is no longer kept",
    "occupied": "its packet id or its place is in use by now",
    "unreadable": "nobody can read it",
}


def is_serial(score: str) -> bool:
    """Return whether a score can name a record in quarantine: an exact whole number."""
    return _INTEGER.fullmatch(score) is not None


def aside_key(sessions: Sessions, queue: Queue, effect: Effect) -> str:
    """Return the name of a record in quarantine."""
    return quarantined_key(queue.client_id, int(effect.serial), prefix=sessions.parameters.key_prefix)


def payload_of(sessions: Sessions, queue: Queue, effect: Effect) -> bytes:
    """Return the name that a record has in its session, also an invalid one."""
    if effect.member:
        return effect.raw_member
    return sessions.payload(queue, effect.packet_id or 0).encode()


def put_aside(sessions: Sessions, queue: Queue, effects: Sequence[Effect], *, judged: bool) -> list[bool]:
    """Move records whose serial has not changed to the quarantine; return for each whether it was moved.

    :param judged: move only records that are not messages of this client under their own packet id.
    """
    keys = sessions.keys(queue)
    replies = sessions.ask_each(
        scripts.quarantine_message(
            keys,
            payload=payload_of(sessions, queue, each),
            quarantined=aside_key(sessions, queue, each),
            epoch="",
            serial=each.serial,
            keep_ms=1_000 * sessions.parameters.keep_s,
            client_id=queue.client_id if judged else "",
        )
        for each in effects
    )
    return [bool(reply) for reply in replies]


def bring_back(sessions: Sessions, queue: Queue, effects: Sequence[Effect], *, judged: bool) -> list[str]:
    """Move records back into their session; return for each why it was not moved, or an empty text.

    :param judged: move only records that are messages of this client under their own packet id.
    """
    keys = sessions.keys(queue)
    replies = sessions.ask_each(
        scripts.restore_message(
            keys,
            aside=aside_key(sessions, queue, each),
            payload=payload_of(sessions, queue, each),
            serial=each.serial,
            expires_at_ms="" if each.expires_at_ms is None else str(each.expires_at_ms),
            client_id=queue.client_id if judged else "",
        )
        for each in effects
    )
    return [_LEFT.get(reply.decode(), "") for reply in replies]

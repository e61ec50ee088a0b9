"""Read positions, purges and retentions that people write as text, for the command line and for Airflow."""

from __future__ import annotations

from datetime import datetime

from queuekeeper.compacted.model import MAX_SEQUENCE, Position, Purge, Retention, RetentionPolicy, chosen
from queuekeeper.durations import duration_ms
from queuekeeper.errors import UsageError


def position(text: str) -> Position:
    """Read a position.

    :param text: ``earliest``, ``latest``, a sequence number, or an instant such as ``2026-11-22T08:00:00Z``.
    :raises UsageError: for anything else.
    """
    if text in ("earliest", "latest"):
        return Position(kind=text)
    if _is_number(text):
        return Position.sequence(int(text))
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise UsageError(
            f"position is {text[:80]!r}: write earliest, latest, a sequence number, or an instant with its time zone, "
            "such as 2026-11-22T08:00:00Z"
        )
    return Position.time_ms(int(instant.timestamp() * 1_000))


def purge(text: str) -> Purge:
    """Read which messages a purge removes.

    :param text: ``all``, ``acked``, or the last sequence number to remove.
    :raises UsageError: for anything else.
    """
    if _is_number(text):
        return Purge.up_to(int(text))
    if text in ("all", "acked"):
        return Purge(kind=text)
    raise UsageError(f"purge is {text[:80]!r}: write all, acked, or the sequence number up to which messages go")


def retention(
    before: Retention | None,
    *,
    policy: RetentionPolicy | str | None = None,
    retention: str | None = None,
    tombstone_life: str | None = None,
) -> Retention:
    """Return a retention in which some parts are changed.

    :param before: retention whose other parts stay; none for the defaults.
    :param policy: which messages the collector may remove once they are older than ``retention``.
    :param retention: age at which a message may be removed: 10s, 30m, 1h, 7d, or a number of milliseconds.
    :param tombstone_life: age at which an acknowledged tombstone may be removed.
    :raises UsageError: for a policy that does not exist, or a text that is no duration.
    """
    known = before or Retention()
    return Retention(
        policy=known.policy if policy is None else chosen(RetentionPolicy, "retention policy", policy),
        retention_ms=known.retention_ms if retention is None else duration_ms("retention", retention),
        tombstone_ms=known.tombstone_ms if tombstone_life is None else duration_ms("tombstone life", tombstone_life),
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_SEQUENCE))

"""What both stores say about a DEVICE session when it is inspected; it never holds the content of a message."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from queuekeeper.errors import UsageError

DEFAULT_PAGE = 500
MAX_PAGE = 10_000
"""Most messages of one inspection; longer queues are read page by page."""


class Problem(StrEnum):
    """Why a reference in Redis leads to no message."""

    DANGLING = "dangling"  # the payload key has expired or was removed
    FOREIGN = "foreign"  # the reference does not name a payload key of this session, and is not followed
    UNREADABLE = "unreadable"  # the payload key holds something else than a message


@dataclass(frozen=True, kw_only=True)
class MessageView:
    """One pending message without its content.

    What the store does not say, or what a broken reference hides, is none.

    :param serial: place in the order of delivery.
    :param packet_type: ``PUBLISH``, or ``PUBREL`` once the client has sent PUBREC.
    :param payload_bytes: size of the payload itself, without base64.
    :param time_ms: when the broker received it.
    :param expires_at_ms: end of its life; none when the message has no expiry of its own.
    :param problem: set when the reference leads to no message.
    """

    serial: int
    packet_id: int | None = None
    packet_type: str | None = None
    qos: int | None = None
    topic: str | None = None
    payload_bytes: int | None = None
    time_ms: int | None = None
    expires_at_ms: int | None = None
    problem: Problem | None = None


@dataclass(frozen=True, kw_only=True)
class ImportView:
    """What the session hash in Redis says about the migration that wrote the session.

    :param state: number of the next chunk, or ``done``.
    :param references: references that the import left.
    :param last_packet_id: last packet id that it wrote.
    :param touched: whether somebody has used the session since.
    """

    plan_id: str
    state: str
    references: int | None
    last_packet_id: int | None
    touched: bool


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """A session and one page of its messages, in the order of delivery.

    :param store: ``redis`` or ``postgres``.
    :param exists: whether the store holds anything of the session.
    :param messages: all messages of the session; references in Redis, rows in PostgreSQL.
    :param offset: messages before the page.
    :param page: messages of the page.
    :param last_serial: serial given out last, where the store keeps it.
    :param owner: store that owns the session, where Redis says so.
    :param imported: none when no migration wrote the session.
    """

    client_id: str
    store: str
    exists: bool
    messages: int
    offset: int
    page: tuple[MessageView, ...]
    last_packet_id: int | None
    last_serial: int | None = None
    owner: str | None = None
    epoch: int | None = None
    imported: ImportView | None = None

    @property
    def next_offset(self) -> int | None:
        """Offset of the next page, or none at the end."""
        reached = self.offset + len(self.page)
        return reached if self.page and reached < self.messages else None

    @property
    def payload_bytes(self) -> int:
        """Size of all payloads of the page."""
        return sum(message.payload_bytes or 0 for message in self.page)

    @property
    def problems(self) -> dict[Problem, int]:
        """Broken references of the page by kind."""
        counts: dict[Problem, int] = {}
        for message in self.page:
            if message.problem is not None:
                counts[message.problem] = counts.get(message.problem, 0) + 1
        return counts


def check_page(*, offset: int, limit: int) -> None:
    """Refuse a page that no store would read.

    :raises UsageError: naming the parameter, its value and the rule.
    """
    if offset < 0:
        raise UsageError(f"offset is {offset}: it must be 0 or more")
    if not 1 <= limit <= MAX_PAGE:
        raise UsageError(f"limit is {limit}: it must be 1 to {MAX_PAGE}; read longer queues page by page")

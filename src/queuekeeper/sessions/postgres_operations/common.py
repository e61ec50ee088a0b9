"""Shared by the operations of sessions in PostgreSQL: steps, locks, transactions, and reading of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from psycopg import errors as postgres_errors

from queuekeeper.errors import NotOwner, QueuekeeperError, RefusedError, SessionFenced, StaleEpoch, UsageError
from queuekeeper.keyspace import check_client_id
from queuekeeper.operation import Operation
from queuekeeper.sessions import wire
from queuekeeper.sessions.judge import broken_rule, pairs_of
from queuekeeper.sessions.model import EpochOf, NewMessage, StoreRules
from queuekeeper.sessions.parts import MAX_INSTANT_MS
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.store import FIRST_SERIAL
from queuekeeper.sessions.wire import UnreadableError

ROWS_PER_STEP = 1_000
"""Most messages that one step of a purge or of acknowledgements removes."""

MAX_VENDOR_TEXT = 255
"""Most characters in the vendor's columns for client id, content type and response topic."""

FOR_EVER_MS = 2**63 - 1
TRIES = 5
REFUSALS: dict[str, type[QueuekeeperError]] = {"QK001": NotOwner, "QK002": SessionFenced, "QK003": StaleEpoch}
"""Exceptions by SQLSTATE of ``queuekeeper.hold_owners``."""

JUDGED_COLUMNS = (
    "serial_number", "packet_id", "packet_type", "topic", "payload", "qos", "time", "payload_format_indicator",
    "content_type", "response_topic", "correlation_data", "user_properties",
)  # fmt: skip
"""Columns of a row that is judged but not delivered; payload and correlation data are sizes."""

_EXPIRY_SLACK_MS = 60_000
"""TBMQ 2.x counts a life from the moment when it stores the message, shortly after the message's time."""

_RETRIED = (
    postgres_errors.DeadlockDetected,
    postgres_errors.SerializationFailure,
    # A writer that does not lock sessions, such as the vendor's broker, has given out the same serial.
    postgres_errors.UniqueViolation,
)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One statement of ``sql/sessions`` with its parameters."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Statements that a store sends together; the answer is a list with the rows of each.

    :param begin: begin a transaction before them; it is rolled back when a statement fails.
    :param end: commit the transaction after them.
    :param undo: roll the transaction back, if it has not ended.
    :param transaction: identity of the transaction, for steps that only begin it or roll it back.
    """

    queries: tuple[Query, ...] = ()
    begin: bool = False
    end: bool = False
    undo: bool = False
    transaction: object = None


@dataclass(slots=True)
class Session:
    """A locked session, and its new state in a transaction."""

    client_id: str
    last_serial: int
    last_packet_id: int
    now_ms: int
    delivered_serial: int
    message_bound: int | None
    messages: int | None
    batch_offset: int | None
    batch_first_serial: int | None
    batch_packet_ids: list[int | None] | None
    used_packet_ids: list[int]
    # Whether it has a row in session_states; without a row nothing is counted.
    is_kept: bool
    # Whether this transaction has created the session.
    is_new: bool = False
    stored: int = 0
    # None when it is not known.
    until_ms: int | None = None
    trimmed: int = 0
    trimmed_in_flight: int = 0
    dead: int = 0
    expired: int = 0
    refused: int = 0

    def grow(self, count: int) -> None:
        """Add to the number of messages; a negative count removes."""
        if self.messages is not None:
            self.messages += count
            self.message_bound = self.messages
        elif self.message_bound is not None:
            self.message_bound += count


class Undo(Exception):
    """Ends an operation and rolls its transaction back."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


class CommonOperations:
    """Base of all operations; see ``PostgresSessionOperations``."""

    def __init__(self, rules: StoreRules, *, epoch_of: EpochOf | None = None) -> None:
        self._rules = rules
        self._epoch_of = epoch_of

    def _lock(
        self,
        client_ids: Sequence[str],
        *,
        sources: Sequence[str | None] | None = None,
        counts: Sequence[int] | None = None,
    ) -> Operation[dict[str, Session]]:
        """Lock sessions, create missing ones, and return their states."""
        parameters = {"client_ids": list(client_ids)}
        answer = yield Step(
            queries=(
                self._hold(client_ids),
                Query(name="lock_sessions", parameters=parameters),
                Query(name="forget_cleared_sessions", parameters=parameters),
                Query(
                    name="read_sessions",
                    parameters=parameters
                    | {
                        "sources": list(sources or [None] * len(client_ids)),
                        "counts": list(counts or [0] * len(client_ids)),
                        "limit": self._rules.limit,
                    },
                ),
            )
        )
        sessions = {row[0]: Session(*row) for row in answer[-1]}
        for (client_id,) in answer[1]:
            if client_id is not None:
                sessions[client_id].is_new = True
        return sessions

    def _hold(self, client_ids: Sequence[str]) -> Query:
        """Return the first statement of a write, which keeps its sessions from changing their owner."""
        epochs = [None if self._epoch_of is None else self._epoch_of(client_id) for client_id in client_ids]
        return Query(name="hold_owners", parameters={"client_ids": list(client_ids), "epochs": epochs})

    def _expires_at_ms(self, time_ms: int, interval: int | None) -> int:
        end_ms = wire.expires_at_ms(
            time_ms=time_ms, msg_expiry_interval=interval, default_ttl_s=self._rules.default_ttl_s
        )
        return min(end_ms, MAX_INSTANT_MS)

    def _until_ms(self, latest_ms: int) -> int:
        expiry_s = self._rules.session_expiry_s
        return FOR_EVER_MS if expiry_s is None else latest_ms + 1000 * expiry_s

    def _pending(self, columns: Sequence[Any], *, delivered_serial: int) -> PendingMessage:
        """Return a row as a message.

        :raises UnreadableError: with the reason of the rule that the row breaks, as in the migration's quarantine.
        """
        (
            serial,
            packet_id,
            packet_type,
            topic,
            payload,
            qos,
            time_ms,
            retain,
            interval,
            payload_format_indicator,
            content_type,
            response_topic,
            correlation_data,
            user_properties,
        ) = columns
        pairs = pairs_of(user_properties)
        broken = broken_rule(
            {
                "serial_number": serial,
                "packet_id": packet_id,
                "packet_type": packet_type,
                "topic": topic,
                "payload": len(payload),
                "qos": qos,
                "time": time_ms,
                "payload_format_indicator": payload_format_indicator,
                "content_type": content_type,
                "response_topic": response_topic,
                "correlation_data": None if correlation_data is None else len(correlation_data),
                "user_properties": pairs,
            }
        )
        if broken is not None:
            raise UnreadableError(broken.reason, broken.reason)
        return PendingMessage(
            serial=serial,
            packet_id=packet_id,
            packet_type=packet_type,
            topic=topic,
            payload=payload,
            qos=qos,
            time_ms=time_ms,
            expires_at_ms=self._expires_at_ms(time_ms, interval),
            redelivery=serial <= delivered_serial,
            retain=bool(retain),
            expiry_interval_s=wire.interval_s(interval),
            payload_format_indicator=payload_format_indicator,
            content_type=content_type,
            response_topic=response_topic,
            correlation_data=correlation_data,
            user_properties=pairs,
        )

    def _check_import(self, message: PendingMessage) -> None:
        try:
            check_columns(message)
        except UsageError as error:
            raise UsageError(f"the message with serial {message.serial} cannot be stored here: {error}") from None
        expires_at_ms = self._expires_at_ms(message.time_ms, signed(message.expiry_interval_s))
        told_ms = message.expires_at_ms
        if told_ms is not None and abs(told_ms - expires_at_ms) > _EXPIRY_SLACK_MS:
            raise UsageError(
                f"the message with serial {message.serial} expires at {told_ms}, but in this store it would expire at "
                f"{expires_at_ms}: TBMQ 1.x has no column for this time; import into a store with the default_ttl_s of "
                "the exporting store"
            )

    @staticmethod
    def _transaction(body: Operation[T]) -> Operation[T]:
        """Run steps in one transaction; it is rolled back when they end early."""
        transaction = object()
        try:
            yield Step(begin=True, transaction=transaction)
            result = yield from body
            yield Step(end=True)
        except Undo as undo:
            yield Step(undo=True, transaction=transaction)
            return undo.result  # type: ignore[no-any-return]
        except Exception:
            yield Step(undo=True, transaction=transaction)
            raise
        return result


def retried(attempt: Callable[[], Operation[T]]) -> Operation[T]:
    """Run an operation, again when it loses to another writer."""
    for _ in range(TRIES - 1):
        try:
            return (yield from attempt())
        except RefusedError as error:
            if not isinstance(error.__cause__, _RETRIED):
                raise
    return (yield from attempt())


def stored_serial(serial: int | None) -> int:
    """Return the value of the columns for a serial."""
    return FIRST_SERIAL if serial is None else serial


def signed(interval_s: int | None) -> int | None:
    """Return the value of the vendor's column for an expiry interval: its four bytes as a signed number."""
    return interval_s - 2**32 if interval_s is not None and interval_s >= 2**31 else interval_s


def check_vendor_id(client_id: str) -> None:
    """Check a client id, including the length of the vendor's column."""
    check_client_id(client_id)
    check_length("client id", client_id)


def check_columns(message: NewMessage | PendingMessage) -> None:
    """Refuse a message with a value that the vendor's tables cannot hold.

    :raises UsageError: naming the value.
    """
    if message.subscription_ids:
        raise UsageError(
            f"subscription_ids is {message.subscription_ids}: TBMQ 1.x has no column for them; leave them out, or use "
            "the Redis store"
        )
    for name, value in (("content_type", message.content_type), ("response_topic", message.response_topic)):
        if value is not None:
            check_length(name, value)


def check_length(name: str, value: str) -> None:
    """Refuse a text that is longer than the vendor's columns.

    :raises UsageError: naming the field and its length.
    """
    if len(value) > MAX_VENDOR_TEXT:
        raise UsageError(
            f"{name} has {len(value)} characters ({value[:20]!r}...): this store has columns of {MAX_VENDOR_TEXT}"
        )

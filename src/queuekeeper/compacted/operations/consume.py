"""Operations of consumers: subscribe, fetch, acknowledge; and of operators: rewind, skip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuekeeper.checks import check_integer, check_text
from queuekeeper.compacted.model import (
    FETCH_BYTES,
    MAX_ACKS,
    MAX_LEASE_MS,
    MAX_SEQUENCE,
    MAX_TEXT_BYTES,
    MAX_VALUE_BYTES,
    MAX_WINDOW,
    Fence,
    Position,
    Refill,
    chosen,
)
from queuekeeper.compacted.operations.common import BYTES_PER_CALL, CommonOperations, Steps, ask
from queuekeeper.compacted.records import message_of
from queuekeeper.compacted.reports import AckReport, Fetched, Heartbeat, RewindReport, Subscription
from queuekeeper.errors import UsageError
from queuekeeper.lua.scripts import compacted as scripts
from queuekeeper.operation import Operation

FETCHED_PER_CALL = 100
"""Most messages of one call, so that it does not block the server for long; larger fetches take several calls."""

_GOING_ON = "going_on"


class ConsumeOperations(CommonOperations):
    """Subscribe, fetch, ack, heartbeat, release; rewind and skip."""

    def subscribe(
        self,
        client_id: str,
        *,
        session: str,
        takeover: bool = True,
        lease_ms: int = 60_000,
        start: Position | None = None,
    ) -> Operation[Subscription]:
        """Become the queue's only consumer; the fence of the consumer before becomes invalid.

        :param session: name of the consumer, which inspections show.
        :param takeover: take the queue even while another session holds a lease on it.
        :param lease_ms: how long the consumer holds the queue without a heartbeat, at most a day.
        :param start: position of the first message; none to continue behind the last acknowledged one.
        :raises QueueBusy: without ``takeover``, when another session holds a lease on the queue.
        """
        check_text("session", session, most_bytes=MAX_TEXT_BYTES, filled=True)
        _check_lease(lease_ms)
        keys = self._keys(client_id)
        reply = yield from ask(
            scripts.subscribe(
                keys,
                session=session,
                mode="takeover" if takeover else "if_free",
                lease_ms=lease_ms,
                now=self._now(),
                start=_position(start),
            )
        )
        return Subscription(
            client_id=client_id,
            session=session,
            fence=Fence(incarnation=reply.incarnation, epoch=reply.epoch),
            sequence=reply.sequence,
            sent=reply.sent,
            acked=reply.acked,
            lag=reply.lag,
            in_flight=reply.in_flight,
            previous_session=reply.previous_session.decode() or None,
            is_clamped=bool(reply.is_clamped),
        )

    def fetch(
        self,
        client_id: str,
        *,
        fence: Fence,
        limit: int = 5,
        window: int = 5,
        max_bytes: int = FETCH_BYTES,
        refill: Refill = Refill.ON_EMPTY,
        redeliver: bool = False,
        acks: Sequence[int] = (),
    ) -> Operation[Fetched]:
        """Acknowledge messages, then return the next ones in order.

        After a subscription, the first fetches redeliver the messages in flight, with ``redelivered`` set. Messages
        whose key has a newer value are left out.

        :param limit: most messages to return, at most ``window``.
        :param window: most messages in flight, at most 500.
        :param max_bytes: most bytes of keys and values; a larger message comes alone.
        :param refill: when to return new messages: if all in flight are acknowledged, or whenever the window has room.
        :param redeliver: redeliver all messages in flight, from the first; continue with fetches that do not set it.
        :param acks: sequence numbers to acknowledge first, at most 1,000.
        """
        check_integer("window", window, 1, MAX_WINDOW, "messages in flight")
        check_integer("limit", limit, 1, window, "at most the window")
        check_integer("max_bytes", max_bytes, 1, MAX_VALUE_BYTES, "one message comes whatever its size")
        refill = chosen(Refill, "refill", refill)
        _check_sequences(acks, least=0)
        keys = self._keys(client_id)
        _check_fence(fence)

        def part(most: int, left_bytes: int, how: str, redeliver: bool, acks: Sequence[int]) -> Steps[Any]:
            return (
                yield from ask(
                    scripts.fetch(
                        keys,
                        incarnation=fence.incarnation,
                        epoch=fence.epoch,
                        window=window,
                        limit=min(most, FETCHED_PER_CALL),
                        # A call for a single message needs no limit of bytes.
                        max_bytes=left_bytes if most == 1 else min(left_bytes, BYTES_PER_CALL),
                        refill=how,
                        redeliver=int(redeliver),
                        now=self._now(),
                        sequences=acks,
                    )
                )
            )

        reply = first = yield from part(limit, max_bytes, refill, redeliver, acks)
        rows = list(reply.messages)
        again = _come_again(reply)
        left = limit - len(rows)
        left_bytes = max_bytes
        # A large fetch takes several calls, so that none blocks the server for long, until one returns nothing new.
        while again and not again[-1] and reply.lag and reply.in_flight < window and left > 0:
            left_bytes -= _fetched_bytes(reply.messages)
            if left_bytes <= 0:
                break
            reply = yield from part(left, left_bytes, _GOING_ON, False, ())
            if not reply.messages and left > 1 and left_bytes > BYTES_PER_CALL:
                reply = yield from part(1, left_bytes, _GOING_ON, False, ())
            if not reply.messages:
                break
            again += _come_again(reply)
            rows += reply.messages
            left -= len(reply.messages)
        return Fetched(
            messages=tuple(
                message_of(
                    client_id,
                    key=row.key,
                    sequence=row.sequence,
                    appended_ms=row.ms,
                    redelivered=is_redelivered,
                    stored=row.value,
                )
                for is_redelivered, row in zip(again, rows, strict=True)
            ),
            lag=reply.lag,
            in_flight=reply.in_flight,
            acks=AckReport(
                acked=first.acked_now, unknown=first.unknown, acked_up_to=first.acked, in_flight=reply.in_flight
            ),
            more_to_resend=bool(first.more_to_resend),
        )

    def ack(
        self, client_id: str, *, fence: Fence, sequences: Sequence[int], up_to: bool = False
    ) -> Operation[AckReport]:
        """Acknowledge messages in any order; numbers that are not in flight change nothing.

        :param sequences: sequence numbers, 1 to 1,000.
        :param up_to: acknowledge all messages in flight up to the greatest of the numbers.
        """
        _check_sequences(sequences, least=1)
        keys = self._keys(client_id)
        _check_fence(fence)
        call = scripts.ack(
            keys,
            incarnation=fence.incarnation,
            epoch=fence.epoch,
            mode="up_to" if up_to else "each",
            now=self._now(),
            sequences=[max(sequences)] if up_to else sequences,
        )
        return _ack_report((yield from ask(call)))

    def heartbeat(self, client_id: str, *, fence: Fence, lease_ms: int = 60_000) -> Operation[Heartbeat]:
        """Prolong the lease on a queue, and return its counts of waiting messages.

        :param lease_ms: how long the consumer holds the queue from now on.
        """
        _check_lease(lease_ms)
        keys = self._keys(client_id)
        _check_fence(fence)
        reply = yield from ask(
            scripts.heartbeat(
                keys, incarnation=fence.incarnation, epoch=fence.epoch, lease_ms=lease_ms, now=self._now()
            )
        )
        return Heartbeat(lag=reply.lag, in_flight=reply.in_flight)

    def release(self, client_id: str, *, fence: Fence) -> Operation[bool]:
        """End the lease on a queue, so that another session can subscribe at once; messages in flight stay so.

        :returns: whether the fence was still valid.
        """
        keys = self._keys(client_id)
        _check_fence(fence)
        return bool((yield from ask(scripts.release(keys, incarnation=fence.incarnation, epoch=fence.epoch))))

    def rewind(self, client_id: str, *, to: Position, fence: Fence | None = None) -> Operation[RewindReport]:
        """Move the cursor back or forward; then no message is in flight, and the consumer's fence is invalid.

        :param to: position of the message to deliver next.
        :param fence: fence of the consumer that calls; none for an operator.
        :raises UnknownQueue: when the queue does not exist.
        """
        keys = self._keys(client_id)
        if fence is not None:
            _check_fence(fence)
        reply = yield from ask(
            scripts.rewind(
                keys,
                incarnation="" if fence is None else fence.incarnation,
                epoch="" if fence is None else fence.epoch,
                to=_position(to),
            )
        )
        return RewindReport(
            old_acked=reply.old_acked,
            new_acked=reply.new_acked,
            to_deliver=reply.to_deliver,
            is_clamped=bool(reply.is_clamped),
            oldest_sequence=reply.oldest_sequence or None,
            fence=Fence(incarnation=reply.incarnation, epoch=reply.epoch),
        )

    def skip(self, client_id: str, *, sequence: int) -> Operation[AckReport]:
        """Acknowledge a message in flight for its consumer.

        An operator calls it for a message that its consumer cannot handle; it stays in the queue.

        :raises UnknownQueue: when the queue does not exist.
        """
        _check_sequences([sequence], least=1)
        keys = self._keys(client_id)
        return _ack_report((yield from ask(scripts.skip(keys, sequence=sequence, now=self._now()))))


def _come_again(reply: Any) -> list[bool]:
    """Return, for each message of a fetch, whether it was delivered before."""
    return [True] * reply.redelivered + [False] * (len(reply.messages) - reply.redelivered)


def _fetched_bytes(rows: Sequence[Any]) -> int:
    """Return the bytes of keys and stored values, which a fetch limits."""
    return sum(len(row.key) + len(row.value) for row in rows)


def _ack_report(reply: Any) -> AckReport:
    return AckReport(acked=reply.acked_now, unknown=reply.unknown, acked_up_to=reply.acked, in_flight=reply.in_flight)


def _check_fence(fence: Any) -> None:
    if type(fence) is not Fence:
        raise UsageError(f"fence is {fence!r}: it must be the fence of a subscription")


def _position(position: Position | None) -> str:
    if position is None:
        return ""
    if type(position) is not Position:
        raise UsageError(f"position is {position!r}: it must be a Position")
    names = {"sequence": "seq", "time_ms": "ms"}
    return f"{names[position.kind]}:{position.value}" if position.kind in names else position.kind


def _check_lease(lease_ms: Any) -> None:
    check_integer("lease_ms", lease_ms, 1, MAX_LEASE_MS, "a day at most")


def _check_sequences(sequences: Sequence[Any], *, least: int) -> None:
    if not least <= len(sequences) <= MAX_ACKS:
        raise UsageError(f"{len(sequences)} numbers are to be acknowledged: it must be {least} to {MAX_ACKS}")
    # Check all numbers together first: a call may have a thousand of them.
    if {*map(type, sequences)} != {int} or not 0 <= min(sequences) <= max(sequences) <= MAX_SEQUENCE:
        for sequence in sequences:
            check_integer("sequence", sequence, 0, MAX_SEQUENCE, "the number of a message")

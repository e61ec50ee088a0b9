"""Consuming: a session subscribes, fetches, and acknowledges what it has done."""

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
"""Most messages of one call, likewise; larger fetches take several."""

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
        """Become the queue's only consumer; the one before is fenced off.

        :param session: name of the consumer, for others to see.
        :param takeover: also while another session holds its lease.
        :param lease_ms: how long the queue is held without a further call.
        :param start: none for where the consumer before ended.
        :raises QueueBusy: when another session holds its lease, without ``takeover``.
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

        After a subscription, messages come first that are in flight from before, flagged; those that were overwritten
        meanwhile are left out.

        :param limit: most messages, at most ``window``.
        :param window: most messages in flight.
        :param max_bytes: of keys and values; one message is returned whatever its size.
        :param redeliver: begin again with what is in flight, all of it; to be said in one call only.
        :param acks: numbers to acknowledge before, as :meth:`ack` does.
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
                        # A single message is bounded by itself.
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
        # What one call would keep the server too long for comes by several, as long as the last has brought new ones.
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
        """Acknowledge messages in any order; repeated and unknown numbers change nothing.

        :param up_to: acknowledge everything in flight up to the greatest of the numbers.
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
        """Hold the queue for longer, and learn what waits."""
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
        """Give the queue up, so that another session may subscribe at once; what is in flight stays so.

        :returns: whether the fence still held it.
        """
        keys = self._keys(client_id)
        _check_fence(fence)
        return bool((yield from ask(scripts.release(keys, incarnation=fence.incarnation, epoch=fence.epoch))))

    def rewind(self, client_id: str, *, to: Position, fence: Fence | None = None) -> Operation[RewindReport]:
        """Move the cursor, back or forward; then nothing is in flight, and the consumer's fence is old.

        :param fence: of the consumer that asks; none for an operator.
        :raises UnknownQueue: when there is no such queue.
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
        """Acknowledge a message that its consumer cannot acknowledge.

        It is for operators. The message stays in the queue.

        :raises UnknownQueue: when there is no such queue.
        """
        _check_sequences([sequence], least=1)
        keys = self._keys(client_id)
        return _ack_report((yield from ask(scripts.skip(keys, sequence=sequence, now=self._now()))))


def _come_again(reply: Any) -> list[bool]:
    """Tell of each message of a fetch whether it was delivered before."""
    return [True] * reply.redelivered + [False] * (len(reply.messages) - reply.redelivered)


def _fetched_bytes(rows: Sequence[Any]) -> int:
    """Return what messages of a fetch count for against its limit: keys, and values as they are stored."""
    return sum(len(row.key) + len(row.value) for row in rows)


def _ack_report(reply: Any) -> AckReport:
    return AckReport(acked=reply.acked_now, unknown=reply.unknown, acked_up_to=reply.acked, in_flight=reply.in_flight)


def _check_fence(fence: Any) -> None:
    if type(fence) is not Fence:
        raise UsageError(f"fence is {fence!r}: it must be that of a subscription")


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
    # Held to the rule all at once first: they come with every call, up to a thousand of them.
    if {*map(type, sequences)} != {int} or not 0 <= min(sequences) <= max(sequences) <= MAX_SEQUENCE:
        for sequence in sequences:
            check_integer("sequence", sequence, 0, MAX_SEQUENCE, "the number of a message")

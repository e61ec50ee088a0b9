"""Publishing to a fan-out queue."""

from __future__ import annotations

from binascii import crc32
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from queuekeeper import lua
from queuekeeper.checks import check_integer
from queuekeeper.clock import EPOCH
from queuekeeper.errors import MembershipChanged, QueueFull, QueuekeeperError, UnknownConsumer
from queuekeeper.fanout.model import NewMessage, check_body, check_consumer
from queuekeeper.fanout.operations.common import (
    BYTES_PER_CALL,
    MAX_ID,
    TRIES,
    CommonOperations,
    Membership,
    Steps,
    ask,
    publish_parts,
)
from queuekeeper.fanout.records import write_record
from queuekeeper.fanout.reports import PublishReport
from queuekeeper.keyspace import FanoutKeys
from queuekeeper.lua.scripts import fanout as scripts
from queuekeeper.operation import Operation

MESSAGES_PER_CALL = 100
REFERENCES_PER_CALL = 2_500

_MS = timedelta(milliseconds=1)


class PublishOperations(CommonOperations):
    """Publish messages, and cancel those that are not due."""

    def publish(
        self, queue: str, messages: Sequence[NewMessage], *, to: str | None = None
    ) -> Operation[list[PublishReport]]:
        """Publish messages in order, each to all consumers or to none.

        After the first message that fails, the others are not sent, so that the order is kept. If no
        message was published, the call raises the error; otherwise the reports of those not published hold it.

        :param to: consumer that alone gets the messages; all consumers when absent.
        :returns: a report for each message, in order.
        :raises QueueFull: naming the consumer that has no room; also when the queue holds ``max_held`` messages.
        :raises NoConsumer: when no consumer is registered and the queue holds no messages.
        :raises PayloadTooLarge: when a body is too large; no message was published.
        :raises ServerUnavailable: when the server does not answer; messages may have been published. A message with a
            deduplication id can be published again, and is stored once.
        """
        keys = self._keys(queue)
        if to is not None:
            check_consumer(to)
        for message in messages:
            check_body(message, self._rules)
        records = list(map(write_record, messages))
        for_later = any(map(_instant, messages))
        reports: list[PublishReport] = []
        most = MESSAGES_PER_CALL
        tries = 0
        while len(reports) < len(messages):
            at = len(reports)
            try:
                is_known = to is None or self._recent_member(queue, to) is not None
                membership = yield from self._membership(queue, fresh=bool(tries) or not is_known)
                end = at + 1
                if end < len(records):
                    named = 1 if to is not None else len(membership.joined if for_later else membership.named)
                    end = _end_of_chunk(records, at, min(most, REFERENCES_PER_CALL // max(1, named)))
                chunk = partial(self._publish_chunk, keys, membership, messages[at:end], records[at:end], to=to)
                reply = yield from (chunk() if to is None else self._with_all_in_line(queue, to, chunk))
            except MembershipChanged as error:
                tries += 1
                if tries > TRIES:
                    return _given_up(reports, len(messages), error)
            except QueueFull as error:
                if end == at + 1:
                    return _given_up(reports, len(messages), error)
                # Publish one by one, so that the messages for which there is room are published.
                most = 1
            except QueuekeeperError as error:
                return _given_up(reports, len(messages), error)
            else:
                tries = 0
                reports += reply
        return reports

    def cancel(self, queue: str, *, message_id: int) -> Operation[bool]:
        """Remove a message that was published for later and is not due.

        The queue still remembers its deduplication id.

        :returns: whether it was removed; false when it is due, done or unknown.
        """
        check_integer("message_id", message_id, 1, MAX_ID)
        keys = self._keys(queue)
        for tries in range(TRIES + 1):
            membership = yield from self._membership(queue, fresh=bool(tries))
            joined = [membership.members[name].keys.delayed for name in membership.joined]
            call = scripts.cancel(
                keys, delayed_sets=joined, membership=membership.number, id=message_id, now_ms=self._now()
            )
            try:
                return bool((yield from ask(call)))
            except MembershipChanged:
                if tries == TRIES:
                    raise
        raise AssertionError("unreachable")

    def _publish_chunk(
        self,
        keys: FanoutKeys,
        membership: Membership,
        messages: Sequence[NewMessage],
        records: Sequence[bytes],
        *,
        to: str | None,
    ) -> Steps[list[PublishReport]]:
        for_later = False
        values: list[lua.Value] = []
        for message, record in zip(messages, records, strict=True):
            order_hash = crc32(message.order_key.encode()) if message.order_key is not None else 0
            remembered_ms = "" if message.deduplication_ms is None else message.deduplication_ms
            due = _instant(message)
            for_later = for_later or due != ""
            values += (message.ttl_ms, order_hash, message.deduplication_id or "", remembered_ms, due, record)
        consumer_keys, consumer_args = membership.publish_keys, membership.publish_args
        if to is not None:
            member = membership.members.get(to)
            if member is None or member.options is None:
                raise UnknownConsumer(
                    f"no consumer {to!r} is registered with the queue: register it first, or publish to all"
                )
            consumer_keys, consumer_args = publish_parts(membership.members, [to])
        elif for_later:
            # Each waits beside the lists of every consumer until it is due.
            consumer_keys, consumer_args = publish_parts(membership.members, membership.joined)
        reply = yield from ask(
            scripts.publish(
                keys,
                consumer_keys=consumer_keys,
                membership=membership.number,
                to=to or "",
                now_ms=self._now(),
                consumers=len(consumer_args) // 2,
                values=[*consumer_args, *values],
            )
        )
        last = len(reply.messages) - 1
        return [
            PublishReport(
                id=int(published.id),
                consumers=published.consumers,
                held=published.consumers == 0,
                duplicate=bool(published.is_duplicate),
                # The number is that of the call; the report of its last message has it.
                dropped=reply.dropped if position == last else 0,
            )
            for position, published in enumerate(reply.messages)
        ]


def _given_up(reports: list[PublishReport], count: int, error: QueuekeeperError) -> list[PublishReport]:
    """Return the reports, with the error for the other messages; raise it when no message was published."""
    if not reports:
        raise error
    return [*reports, *[PublishReport(error=error)] * (count - len(reports))]


def _instant(message: NewMessage) -> str:
    """Return the due time of a message as the script takes it; empty means at once."""
    if message.delay_ms:
        return f"+{message.delay_ms}"
    if message.due_at is None:
        return ""
    # Round up to a millisecond: the message is never due early.
    return str(max(0, -((EPOCH - message.due_at) // _MS)))


def _end_of_chunk(records: Sequence[bytes], start: int, most: int) -> int:
    """Return the end of the slice of records, at most ``most``, that one call publishes."""
    size_bytes = len(records[start])
    end = start + 1
    last = min(len(records), start + most)
    while end < last and size_bytes + len(records[end]) <= BYTES_PER_CALL:
        size_bytes += len(records[end])
        end += 1
    return end

"""Delivery of a fan-out queue's messages: leases, from the claim to their end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial

from queuekeeper import lua
from queuekeeper.checks import check_integer
from queuekeeper.errors import ServerUnavailable, UsageError
from queuekeeper.fanout.model import DEFAULT_LEASE_MS, DEFAULT_MAX_STALLS, MAX_CLAIM, MAX_MS
from queuekeeper.fanout.operations.common import (
    IDS_PER_CALL,
    MAX_STALLS,
    RECENT_QUEUES,
    CommonOperations,
    Steps,
    Wake,
    ask,
    parts_of,
    read_message,
)
from queuekeeper.fanout.reports import AckReport, Claimed, ExtendReport, NackReport, Outcome, ReapReport, ReturnReport
from queuekeeper.keyspace import FanoutConsumerKeys, FanoutKeys
from queuekeeper.lua.scripts import fanout as scripts
from queuekeeper.operation import Operation

MAX_REASON_BYTES = 1_000
MAX_WAIT_S = 86_400.0
UNREADABLE = "unreadable"
"""Reason of a dead letter that is not a valid record."""


class DeliverOperations(CommonOperations):
    """Claim, ack, nack, extend, return, reap; wait for messages."""

    def claim(
        self,
        queue: str,
        *,
        consumer: str,
        count: int = 1,
        lease_ms: int = DEFAULT_LEASE_MS,
        max_stalls: int = DEFAULT_MAX_STALLS,
    ) -> Operation[Claimed]:
        """Take the next messages under a lease, and count an attempt of each.

        The call also ends leases that have run out, and puts messages that are due in line.

        :param count: largest number of messages, 1 by default; fewer come when they are longer than 1,000,000 bytes
            together, and then ``more`` is set.
        :param lease_ms: time in ms until the lease runs out, 30,000 by default.
        :param max_stalls: number of leases that may run out before a message becomes a dead letter, 3 by default.
        """
        check_integer("count", count, 1, MAX_CLAIM)
        check_integer("lease_ms", lease_ms, 1, MAX_MS)
        check_integer("max_stalls", max_stalls, 0, MAX_STALLS)
        token = self._new_token()
        reply = yield from self._ask_with_lanes(
            queue,
            consumer,
            lambda keys, own: scripts.claim(
                keys,
                own,
                consumer=consumer,
                token=token,
                lease_ms=lease_ms,
                count=count,
                max_stalls=max_stalls,
                now_ms=self._now(),
            ),
        )
        self._note_logged(queue, consumer, reply.logged)
        dead = reply.dead
        messages = []
        for raw_id, attempt, stalls, raw in reply.messages:
            message = read_message(queue, consumer, int(raw_id), raw, attempt=attempt, stalls=stalls)
            if message is not None:
                messages.append(message)
                continue
            # No retry will make the record valid. If the connection is lost here, this message comes again; the others
            # are leased and must still be returned.
            with suppress(ServerUnavailable):
                yield from self.nack(
                    queue, consumer=consumer, token=token, message_id=int(raw_id), max_attempts=1, reason=UNREADABLE
                )
                dead += 1
        return Claimed(
            messages=tuple(messages),
            token=token,
            deadline_ms=int(reply.deadline_ms),
            wait_until_ms=reply.wait_until_ms or None,
            more=bool(reply.more),
            skipped=reply.skipped,
            stalled=reply.stalled,
            dead=dead,
        )

    def ack(self, queue: str, *, consumer: str, token: str, ids: Sequence[int]) -> Operation[AckReport]:
        """Acknowledge messages under a lease; the last acknowledgement of a message removes it."""
        keys, own = self._own_keys(queue, consumer)
        acked = freed = stale = 0
        for part in parts_of(ids):
            reply = yield from ask(scripts.ack(keys, own, token=token, ids=part))
            acked += reply.acked
            freed += reply.freed
            stale += len(reply.stale)
        return AckReport(acked=acked, stale=stale, freed=freed)

    def nack(
        self,
        queue: str,
        *,
        consumer: str,
        token: str,
        message_id: int,
        delay_ms: int = 0,
        max_attempts: int | None = None,
        reason: str = "",
    ) -> Operation[NackReport]:
        """Report a failure: the message is retried, or becomes a dead letter.

        :param delay_ms: time in ms until the retry, 0 by default; an ordered consumer gets no other message before.
        :param max_attempts: attempts after which it becomes a dead letter; ``None``, the default, means never.
        :param reason: reason, of which a dead letter keeps 1,000 bytes.
        """
        check_integer("delay_ms", delay_ms, 0, MAX_MS)
        if max_attempts is not None:
            check_integer("max_attempts", max_attempts, 1, 2**31 - 1)
        reply = yield from self._ask_with_lanes(
            queue,
            consumer,
            lambda keys, own: scripts.nack(
                keys,
                own,
                consumer=consumer,
                token=token,
                id=message_id,
                delay_ms=delay_ms,
                max_attempts=max_attempts or "",
                reason=_cut(reason),
                position="tail",
                now_ms=self._now(),
            ),
        )
        if reply.word == "retried":
            return NackReport(outcome=Outcome.RETRY, due_ms=int(reply.due_ms))
        return NackReport(outcome=Outcome.DEAD if reply.word == "dead" else Outcome.STALE)

    def extend(
        self, queue: str, *, consumer: str, token: str, ids: Sequence[int], lease_ms: int = DEFAULT_LEASE_MS
    ) -> Operation[ExtendReport]:
        """Extend the lease of messages: it then runs out in ``lease_ms`` from now, 30,000 ms by default."""
        check_integer("lease_ms", lease_ms, 1, MAX_MS)
        keys, own = self._own_keys(queue, consumer)
        deadline_ms = 0
        stale: list[int] = []
        for part in parts_of(ids):
            reply = yield from ask(
                scripts.extend(keys, own, token=token, lease_ms=lease_ms, now_ms=self._now(), ids=part)
            )
            deadline_ms = int(reply.deadline_ms)
            stale += map(int, reply.stale)
        return ExtendReport(deadline_ms=deadline_ms, stale=tuple(stale))

    def return_claimed(self, queue: str, *, consumer: str, token: str, ids: Sequence[int]) -> Operation[ReturnReport]:
        """Give messages back that were not begun: they are next in line, and the attempt does not count."""
        returned = stale = 0

        def call(part: Sequence[int], _: FanoutKeys, own: FanoutConsumerKeys) -> lua.Call:
            return scripts.return_claimed(own, token=token, ids=part)

        # Each part goes to the head: the first part last.
        for part in reversed(parts_of(sorted(ids))):
            reply = yield from self._ask_with_lanes(queue, consumer, partial(call, part))
            returned += reply.returned
            stale += len(reply.stale)
        return ReturnReport(returned=returned, stale=stale)

    def reap(self, queue: str, *, consumer: str, max_stalls: int = DEFAULT_MAX_STALLS) -> Operation[ReapReport]:
        """Do the upkeep of a consumer without claims, in bounded steps.

        It ends leases that have run out, puts messages that are due in line, and removes ids of messages that are gone.

        :param max_stalls: as for :meth:`claim`.
        """
        return (yield from self._reap(queue, consumer, max_stalls, "all"))

    def reap_leases(self, queue: str, *, consumer: str, max_stalls: int) -> Operation[ReapReport]:
        """Do the first half of ``reap``: end leases that have run out, and put messages that are due in line."""
        return (yield from self._reap(queue, consumer, max_stalls, "leases"))

    def reap_lists(self, queue: str, *, consumer: str, lives_on: Collection[int] = ()) -> Operation[ReapReport]:
        """Remove ids of messages that are gone or have expired from the lists of a consumer.

        :param lives_on: ids of expired messages that stay: ``reap_leases`` has made them dead letters, or would do so.
        """
        return (yield from self._reap(queue, consumer, DEFAULT_MAX_STALLS, "lists", list(lives_on)[:MAX_CLAIM]))

    def _reap(
        self, queue: str, consumer: str, max_stalls: int, part: str, lives_on: Sequence[int] = ()
    ) -> Steps[ReapReport]:
        check_integer("max_stalls", max_stalls, 0, MAX_STALLS)
        requeued = dead = skipped = unseen = offset = behind = 0
        revived: list[int] = []
        more = lane = 1

        def call(keys: FanoutKeys, own: FanoutConsumerKeys) -> lua.Call:
            return scripts.reap(
                keys,
                own,
                consumer=consumer,
                max_stalls=max_stalls,
                limit=limit,
                lane=lane,
                offset=offset,
                now_ms=self._now(),
                part=part,
                behind=behind if self._counts_only else "",
                ids=lives_on,
            )

        while more:
            limit = self._size(IDS_PER_CALL)
            reply = yield from self._ask_with_lanes(queue, consumer, call)
            requeued += reply.requeued
            dead += reply.dead
            skipped += reply.skipped
            unseen += reply.unseen
            revived += map(int, reply.revived)
            more, lane, offset = reply.more, reply.lane, reply.offset
            behind += limit
            offset += reply.here if self._counts_only else 0
        return ReapReport(requeued=requeued, dead=dead, skipped=skipped, gone_in_line=unseen, revived=tuple(revived))

    def await_wake(self, queue: str, *, consumer: str, timeout_s: float) -> Operation[bool]:
        """Wait until there may be something to claim.

        :param timeout_s: longest time in seconds, more than 0 and at most 86,400.
        :returns: whether a wake-up came; claim in both cases.
        """
        keys, own = self._own_keys(queue, consumer)
        if not 0 < timeout_s <= MAX_WAIT_S:
            raise UsageError(f"timeout_s is {timeout_s}: it must be more than 0, and {MAX_WAIT_S:g} at most")
        logged = self._logged.get((queue, consumer), 0)
        woken: bool = yield Wake({keys.log: logged, own.wakes: 0}, timeout_s)
        return woken

    def _note_logged(self, queue: str, consumer: str, number: int) -> None:
        """Note how far the log went at the last claim: a wait is over when it goes farther."""
        self._logged[(queue, consumer)] = number
        if len(self._logged) > RECENT_QUEUES:
            # Without its number the next wait only ends at once.
            self._logged.clear()


def _cut(reason: str) -> bytes:
    """Return the part of a reason that a dead letter keeps."""
    return reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore").encode()

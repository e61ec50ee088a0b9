"""What the consumer of a compacted queue does, as operations: subscribes, fetches, acknowledges, takes it back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from queuekeeper.checks import check_fields, check_integer
from queuekeeper.clock import SERVER_BACKOFF
from queuekeeper.compacted.model import (
    FETCH_BYTES,
    MAX_LEASE_MS,
    MAX_VALUE_BYTES,
    MAX_WINDOW,
    Fence,
    Position,
    Refill,
    chosen,
)
from queuekeeper.compacted.operations import CompactedOperations
from queuekeeper.compacted.reports import CompactedMessage
from queuekeeper.errors import QueueBusy, ServerUnavailable, StaleEpoch, UnreadableRecord
from queuekeeper.operation import Operation, Pause

TAKE_BACK_S = 1.0
"""How long a queue is left to the consumer that took it, by one that wants it back."""


BEGIN_S = 10.0
"""How long a server that is away is waited for before the queue is held for the first time."""


_log = logging.getLogger(__name__)


class Resubscribe(StrEnum):
    """What a consumer does that has lost its queue: to another consumer, or because somebody moved the cursor."""

    NEVER = "never"  # ends with StaleEpoch
    UNLESS_TAKEN = "unless_taken"  # goes on after a rewind; ends with StaleEpoch when another consumer holds the queue
    ALWAYS = "always"  # takes the queue back


class WhenUnreadable(StrEnum):
    """What a consumer does with a message whose record was damaged."""

    STOP = "stop"  # ends with UnreadableRecord; the message stays in flight until it is appended anew or skipped
    HAND_OUT = "hand_out"  # hands it out with is_readable False and what is stored as its value


@dataclass(frozen=True, kw_only=True)
class ConsumerRules:
    """How a queue is consumed.

    :param window: most messages in flight.
    :param refill: when new messages come: when all are acknowledged, or as far as the window has room.
    :param max_bytes: of values in one fetch; a larger one comes alone.
    :param lease_ms: how long the queue is held without a heartbeat.
    :param heartbeat_ms: time between two heartbeats, each of which looks for messages too; less than the lease.
    :param takeover: also while another consumer holds the queue.
    :param resubscribe: what to do when the queue was lost.
    :param start: where to begin; none for where the consumer before ended.
    :param unreadable: what to do with a message whose record was damaged.
    :raises UsageError: naming parameter, value and rule.
    """

    window: int = 5
    refill: Refill = Refill.ON_EMPTY
    max_bytes: int = FETCH_BYTES
    lease_ms: int = 60_000
    heartbeat_ms: int = 30_000
    takeover: bool = True
    resubscribe: Resubscribe = Resubscribe.UNLESS_TAKEN
    start: Position | None = None
    unreadable: WhenUnreadable = WhenUnreadable.STOP

    def __post_init__(self) -> None:
        check_fields(self, "takeover", "start")
        check_integer("window", self.window, 1, MAX_WINDOW, "messages in flight")
        check_integer("max_bytes", self.max_bytes, 1, MAX_VALUE_BYTES, "one message comes whatever its size")
        check_integer("lease_ms", self.lease_ms, 2, MAX_LEASE_MS, "at most a day")
        check_integer("heartbeat_ms", self.heartbeat_ms, 1, self.lease_ms - 1, "less than lease_ms")
        object.__setattr__(self, "refill", chosen(Refill, "refill", self.refill))
        object.__setattr__(self, "resubscribe", chosen(Resubscribe, "resubscribe", self.resubscribe))
        object.__setattr__(self, "unreadable", chosen(WhenUnreadable, "unreadable", self.unreadable))


class Consumption:
    """What a consumer holds and what it has to do next; both kinds of consumers carry out its operations.

    :ivar ready: messages that were fetched and not yet handed out.
    :ivar stopping: it is to end: nothing more is fetched, and a server that is away is not waited for.
    :param settled: called with a message and whether its acknowledgement has counted.
    """

    def __init__(
        self,
        operations: CompactedOperations,
        client_id: str,
        *,
        rules: ConsumerRules,
        session: str,
        now_s: Callable[[], float],
        settled: Callable[[CompactedMessage, bool], None] = lambda message, counted: None,
    ) -> None:
        self.client_id = client_id
        self.session = session
        self.rules = rules
        self.ready: deque[CompactedMessage] = deque()
        self.stopping = False
        self._operations = operations
        self._now_s = now_s
        self._settled = settled
        self._fence: Fence | None = None
        # Delivered under this fence and not acknowledged, by sequence number, handed out or not.
        self._held: dict[int, CompactedMessage] = {}
        self._acks: dict[int, CompactedMessage] = {}
        self._acks_wait = True
        # There may be something to fetch; all in flight is to come again; it is still coming.
        self._look = self._redeliver = self._resending = False
        # What has come again so far, to be compared with what is held; none while nothing is compared.
        self._again: set[int] | None = None
        self._heartbeat_at_s = 0.0

    @property
    def room(self) -> int:
        """How many messages may be fetched now."""
        room = self.rules.window - len(self._held) + len(self._acks)
        in_turn = self._resending or self.rules.refill is Refill.SLIDING or len(self._held) == len(self._acks)
        return max(0, room) if in_turn else 0

    @property
    def _limit(self) -> int:
        if self.stopping:
            return 0
        # All that is in flight is asked for, to be compared with what is held.
        return self.rules.window if self._redeliver or self._again is not None else self.room

    @property
    def heartbeat_in_s(self) -> float:
        """Time until the next heartbeat."""
        return max(0.0, self._heartbeat_at_s - self._now_s())

    @property
    def has_work(self) -> bool:
        """Whether there is something to ask the server now."""
        acks = bool(self._acks) and not (self._acks_wait and self.ready)
        return acks or (self._look and self._limit > 0) or self.heartbeat_in_s == 0

    @property
    def listens(self) -> bool:
        """Whether a wake-up would tell anything new."""
        return not self._look and not self.stopping

    def wake(self) -> None:
        """Take note of a wake-up: there may be something to fetch."""
        self._look = True
        if not self.room:
            # It may have been meant for a consumer that has the queue now. A heartbeat tells, and wakes that one.
            self._heartbeat_at_s = self._now_s()

    def holds(self, message: CompactedMessage) -> bool:
        """Return whether a message can be acknowledged: it was not, nor skipped, nor was the queue lost since."""
        return self._held.get(message.sequence) is message and message.sequence not in self._acks

    def take(self) -> CompactedMessage:
        """Hand out the next message that is ready.

        :raises UnreadableRecord: when it cannot be read, and that is to end the consumer.
        """
        message = self.ready[0]
        if not message.is_readable and self.rules.unreadable is WhenUnreadable.STOP:
            raise UnreadableRecord(
                f"message {message.sequence} of the queue of {self.client_id!r}, with key {message.key!r}, cannot be "
                "read and stays in flight: append the key anew, skip the number, or consume with "
                f"unreadable={WhenUnreadable.HAND_OUT}"
            )
        return self.ready.popleft()

    def acknowledge(self, message: CompactedMessage, *, soon: bool) -> bool:
        """Take note of an acknowledgement.

        :param soon: with the next call of the server; else when what is ready has been handed out.
        :returns: false when the message is not held any more.
        """
        if not self.holds(message):
            return False
        self._acks_wait = self._acks_wait and not soon
        self._acks[message.sequence] = message
        return True

    def begin(self) -> Operation[None]:
        """Subscribe; a server that is away is waited for, but not for long."""
        give_up_at_s = self._now_s() + BEGIN_S
        attempt = 0
        while True:
            try:
                yield from self._subscribe(takeover=self.rules.takeover, start=self.rules.start)
            except ServerUnavailable:
                if self.stopping or self._now_s() >= give_up_at_s:
                    raise
                yield Pause(SERVER_BACKOFF.after(attempt))
                attempt += 1
            else:
                return

    def turn(self) -> Operation[None]:
        """Do what there is to do, in one call of the server if it can be; a server that is away is waited for.

        :raises StaleEpoch: when the queue was lost and is not to be taken back.
        :raises ServerUnavailable: when the server is away and the consumer is to end.
        """
        attempt = 0
        while True:
            try:
                if self._fence is None:
                    yield from self._take_back()
                yield from self._step()
            except StaleEpoch as error:
                yield from self._lose(error)
            except ServerUnavailable:
                # Messages of an answer that was lost are in flight, and nobody has them.
                self._redeliver = self._look = True
                if self.stopping:
                    raise
                yield Pause(SERVER_BACKOFF.after(attempt))
                attempt += 1
            else:
                return

    def end(self) -> Operation[None]:
        """Send what was acknowledged and give the queue up; what is in flight stays so, for the next consumer."""
        if self._fence is None:
            return
        try:
            if self._acks:
                yield from self._send_acks(self._fence)
            yield from self._operations.release(self.client_id, fence=self._fence)
        except (StaleEpoch, ServerUnavailable) as error:
            _log.warning("queue of %r: the consumer %s ended without a word: %s", self.client_id, self.session, error)
        finally:
            self.forget()

    def _step(self) -> Operation[None]:
        fence = self._fence
        assert fence is not None
        if self.heartbeat_in_s == 0:
            heartbeat = yield from self._operations.heartbeat(self.client_id, fence=fence, lease_ms=self.rules.lease_ms)
            self._heartbeat_at_s = self._now_s() + self.rules.heartbeat_ms / 1_000
            if heartbeat.in_flight < len(self._held):
                # An operator has skipped some of what is held.
                self._redeliver = True
            if heartbeat.lag or self._redeliver:
                self._look = True
        limit = self._limit
        if self._look and limit:
            yield from self._fetch(fence, limit)
        elif self._acks:
            yield from self._send_acks(fence)

    def _fetch(self, fence: Fence, limit: int) -> Operation[None]:
        if self._redeliver:
            self._again = set()
        # A server that has lost its newest writes may have given a number anew: what is held is compared first.
        acks = dict(self._acks) if self._again is None else {}
        fetched = yield from self._operations.fetch(
            self.client_id,
            fence=fence,
            limit=limit,
            window=self.rules.window,
            max_bytes=self.rules.max_bytes,
            refill=self.rules.refill,
            redeliver=self._redeliver,
            acks=tuple(acks),
        )
        self._settle(acks)
        # One call begins the redelivery; those after it go on with it.
        self._redeliver, self._resending = False, fetched.more_to_resend
        for message in fetched.messages:
            self._hold(message)
        if self._again is not None:
            self._again.update(message.sequence for message in fetched.messages)
            if not self._resending:
                self._keep(self._again)
                self._again = None
        self._look = self._resending or fetched.lag > 0

    def _hold(self, message: CompactedMessage) -> None:
        """Take a message over, unless it is held already and was not lost."""
        held = self._held.get(message.sequence)
        if held is not None:
            if (held.key, held.appended_ms) == (message.key, message.appended_ms):
                return
            # After a failover the number is another message's. An acknowledgement of the old one must not be its own.
            if self._acks.pop(message.sequence, None) is not None:
                self._settled(held, False)
            with suppress(ValueError):
                self.ready.remove(held)
        self._held[message.sequence] = message
        self.ready.append(message)

    def _keep(self, in_flight: set[int]) -> None:
        """Let go of what is held and not in flight: it was skipped, or overwritten since."""
        kept = in_flight | self._acks.keys()
        self._held = {sequence: message for sequence, message in self._held.items() if sequence in kept}
        self.ready = deque(message for message in self.ready if message.sequence in self._held)

    def _send_acks(self, fence: Fence) -> Operation[None]:
        acks = dict(self._acks)
        yield from self._operations.ack(self.client_id, fence=fence, sequences=tuple(acks))
        self._settle(acks)

    def _settle(self, acks: dict[int, CompactedMessage]) -> None:
        for sequence, message in acks.items():
            del self._acks[sequence]
            self._held.pop(sequence, None)
            self._settled(message, True)
        self._acks_wait = True

    def _subscribe(self, *, takeover: bool, start: Position | None) -> Operation[None]:
        subscription = yield from self._operations.subscribe(
            self.client_id, session=self.session, takeover=takeover, lease_ms=self.rules.lease_ms, start=start
        )
        self._fence = subscription.fence
        self._heartbeat_at_s = self._now_s() + self.rules.heartbeat_ms / 1_000
        self._look = self._resending = True
        self._redeliver, self._again = False, None

    def _lose(self, error: StaleEpoch) -> Operation[None]:
        """Let go of a queue that is another's now, or whose cursor was moved."""
        fence = self._fence
        if fence is None:
            raise error
        self.forget()
        with suppress(ServerUnavailable):
            # A wake-up that was taken while waiting may have been meant for the consumer that has the queue now.
            yield from self._operations.release(self.client_id, fence=fence)
        if self.stopping or self.rules.resubscribe is Resubscribe.NEVER:
            raise error

    def _take_back(self) -> Operation[None]:
        try:
            yield from self._subscribe(takeover=False, start=None)
        except QueueBusy as error:
            if self.rules.resubscribe is not Resubscribe.ALWAYS:
                raise StaleEpoch(f"the queue of {self.client_id!r} was lost: {error}") from None
            # Two consumers that take a queue from each other must still come to their work.
            yield Pause(TAKE_BACK_S)
            yield from self._subscribe(takeover=True, start=None)

    def forget(self) -> None:
        """Let go of the queue and of all that is held, without a word to the server."""
        self._fence = None
        acks, self._acks = self._acks, {}
        self._held.clear()
        self.ready.clear()
        for message in acks.values():
            self._settled(message, False)

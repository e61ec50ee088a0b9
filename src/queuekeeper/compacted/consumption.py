"""State and operations of a consumer: subscribe, fetch, acknowledge, and subscribe again after losing the queue."""

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
"""How long a consumer that lost its queue waits before it takes the queue back from another consumer."""


BEGIN_S = 10.0
"""How long the first subscription is repeated while the server is unavailable."""


_log = logging.getLogger(__name__)


class Resubscribe(StrEnum):
    """What a consumer does after another consumer took its queue, or somebody moved the queue's cursor."""

    NEVER = "never"  # end with StaleEpoch
    UNLESS_TAKEN = "unless_taken"  # subscribe again; end with StaleEpoch if another consumer holds the queue
    ALWAYS = "always"  # subscribe again; take the queue back if another consumer holds it


class WhenUnreadable(StrEnum):
    """What a consumer does with a message whose record is damaged."""

    STOP = "stop"  # end with UnreadableRecord; the message stays in flight until its key is appended or it is skipped
    HAND_OUT = "hand_out"  # hand it out with is_readable False and the stored bytes as its value


@dataclass(frozen=True, kw_only=True)
class ConsumerRules:
    """How a consumer reads a queue.

    :param window: most messages in flight, 1 to 500.
    :param refill: when to fetch new messages: when all in flight are acknowledged, or whenever the window has room.
    :param max_bytes: most bytes of keys and values in one fetch; a larger message comes alone.
    :param lease_ms: how long the consumer holds the queue after its last heartbeat, at most a day.
    :param heartbeat_ms: time between two heartbeats, which also look for messages; less than ``lease_ms``.
    :param takeover: take the queue even while another consumer holds it; by default a consumer does, and a
        :class:`~queuekeeper.compacted.handlers.CompactedWorker` waits for its turn.
    :param resubscribe: what to do when the queue is lost.
    :param start: position of the first message; none to continue behind the last acknowledged one.
    :param unreadable: what to do with a message whose record is damaged.
    :raises UsageError: naming parameter, value and rule.
    """

    window: int = 5
    refill: Refill = Refill.ON_EMPTY
    max_bytes: int = FETCH_BYTES
    lease_ms: int = 60_000
    heartbeat_ms: int = 30_000
    takeover: bool | None = None
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
    """State of a consumer, and its operations, which the blocking and the asyncio consumer carry out.

    :ivar ready: messages fetched and not yet handed out.
    :ivar stopping: the consumer ends: it fetches nothing more, and does not wait for an unavailable server.
    :param settled: called with a message, and true if its acknowledgement was stored, false if it was lost.
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
        # Messages delivered under this fence and not acknowledged, handed out or not, by sequence number.
        self._held: dict[int, CompactedMessage] = {}
        self._acks: dict[int, CompactedMessage] = {}
        self._acks_wait = True
        # There may be messages to fetch; all in flight must be fetched again; fetching them again is not complete.
        self._look = self._redeliver = self._resending = False
        # Numbers fetched again so far, to drop held messages that are no longer in flight; none outside a redelivery.
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
        # A redelivery fetches everything in flight, to compare it with the held messages.
        return self.rules.window if self._redeliver or self._again is not None else self.room

    @property
    def heartbeat_in_s(self) -> float:
        """Time until the next heartbeat."""
        return max(0.0, self._heartbeat_at_s - self._now_s())

    @property
    def has_work(self) -> bool:
        """Whether the server has to be called now."""
        acks = bool(self._acks) and not (self._acks_wait and self.ready)
        return acks or (self._look and self._limit > 0) or self.heartbeat_in_s == 0

    @property
    def listens(self) -> bool:
        """Whether to wait for a wake-up: not while a fetch is due or the consumer ends."""
        return not self._look and not self.stopping

    def wake(self) -> None:
        """Handle a wake-up: the next turn fetches."""
        self._look = True
        if not self.room:
            # Another consumer may have taken the queue, and the wake-up may be for it. A heartbeat finds that out.
            self._heartbeat_at_s = self._now_s()

    def holds(self, message: CompactedMessage) -> bool:
        """Return whether a message can be acknowledged: not after it was acknowledged or skipped, or the queue lost."""
        return self._held.get(message.sequence) is message and message.sequence not in self._acks

    def take(self) -> CompactedMessage:
        """Hand out the next message that is ready.

        :raises UnreadableRecord: when its record is damaged and the rules say ``stop``.
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
        """Acknowledge a message with one of the next calls of the server.

        :param soon: send it with the next call; if false, wait until all ready messages are handed out.
        :returns: false when the message cannot be acknowledged any more.
        """
        if not self.holds(message):
            return False
        self._acks_wait = self._acks_wait and not soon
        self._acks[message.sequence] = message
        return True

    def begin(self) -> Operation[None]:
        """Subscribe; repeat that for 10 s while the server is unavailable."""
        give_up_at_s = self._now_s() + BEGIN_S
        attempt = 0
        while True:
            try:
                yield from self._subscribe(takeover=self.rules.takeover is not False, start=self.rules.start)
            except ServerUnavailable:
                if self.stopping or self._now_s() >= give_up_at_s:
                    raise
                yield Pause(SERVER_BACKOFF.after(attempt))
                attempt += 1
            else:
                return

    def turn(self) -> Operation[None]:
        """Send what is due: heartbeat, acknowledgements, fetch. Repeat that while the server is unavailable.

        :raises StaleEpoch: when the queue was lost and the rules do not let the consumer take it back.
        :raises ServerUnavailable: when the server is unavailable and the consumer ends.
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
                # The messages of a lost reply are in flight, and must be fetched again.
                self._redeliver = self._look = True
                if self.stopping:
                    raise
                yield Pause(SERVER_BACKOFF.after(attempt))
                attempt += 1
            else:
                return

    def end(self) -> Operation[None]:
        """Send the acknowledgements, and release the queue; messages in flight stay so for the next consumer."""
        if self._fence is None:
            return
        try:
            if self._acks:
                yield from self._send_acks(self._fence)
            yield from self._operations.release(self.client_id, fence=self._fence)
        except (StaleEpoch, ServerUnavailable) as error:
            _log.warning("queue of %r: consumer %s could not release it: %s", self.client_id, self.session, error)
        finally:
            self.forget()

    def _step(self) -> Operation[None]:
        fence = self._fence
        assert fence is not None
        if self.heartbeat_in_s == 0:
            heartbeat = yield from self._operations.heartbeat(self.client_id, fence=fence, lease_ms=self.rules.lease_ms)
            self._heartbeat_at_s = self._now_s() + self.rules.heartbeat_ms / 1_000
            if heartbeat.in_flight < len(self._held):
                # An operator has skipped some of the held messages.
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
        # A server that lost its newest writes may have used a number again, so a redelivery compares the held messages
        # before it acknowledges any.
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
        # Only the first call of a redelivery asks for it; the next ones continue it.
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
        """Add a message to the held and ready ones, unless it is held already."""
        held = self._held.get(message.sequence)
        if held is not None:
            if (held.key, held.appended_ms) == (message.key, message.appended_ms):
                return
            # After a failover the number belongs to another message. The old acknowledgement must not count for it.
            if self._acks.pop(message.sequence, None) is not None:
                self._settled(held, False)
            with suppress(ValueError):
                self.ready.remove(held)
        self._held[message.sequence] = message
        self.ready.append(message)

    def _keep(self, in_flight: set[int]) -> None:
        """Drop held messages that are no longer in flight: they were skipped or overwritten."""
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
        """Drop the state of a lost queue, and raise the error if the consumer is not to subscribe again."""
        fence = self._fence
        if fence is None:
            raise error
        self.forget()
        with suppress(ServerUnavailable):
            # This consumer may have received a wake-up that was for the new one: releasing wakes the new one.
            yield from self._operations.release(self.client_id, fence=fence)
        if self.stopping or self.rules.resubscribe is Resubscribe.NEVER:
            raise error

    def _take_back(self) -> Operation[None]:
        try:
            yield from self._subscribe(takeover=False, start=None)
        except QueueBusy as error:
            if self.rules.resubscribe is not Resubscribe.ALWAYS:
                raise StaleEpoch(f"the queue of {self.client_id!r} was lost: {error}") from None
            # Of two consumers that take the queue from each other, each has it for a while.
            yield Pause(TAKE_BACK_S)
            yield from self._subscribe(takeover=True, start=None)

    def forget(self) -> None:
        """Drop the fence and all messages, without a call to the server."""
        self._fence = None
        acks, self._acks = self._acks, {}
        self._held.clear()
        self.ready.clear()
        for message in acks.values():
            self._settled(message, False)

"""Shared parts of the operations of fan-out queues: steps, registered consumers, views of queues and consumers."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from queuekeeper import lua
from queuekeeper.checks import check_integer
from queuekeeper.clock import Clock
from queuekeeper.errors import ConsumerBehind, MembershipChanged, QueuekeeperError
from queuekeeper.fanout.model import (
    MAX_CLAIM,
    ConsumerOptions,
    FanoutRules,
    Mode,
    QueueOptions,
    WhenFailed,
    WhenFull,
    WhenNobody,
    check_consumer,
    check_queue,
)
from queuekeeper.fanout.records import read_record
from queuekeeper.fanout.reports import ConsumerView, FanoutMessage, QueueView
from queuekeeper.keyspace import FanoutConsumerKeys, FanoutKeys, check_prefix, fanout_consumer_keys, fanout_keys
from queuekeeper.lua.scripts import fanout as scripts

IDS_PER_CALL = 500
"""Largest number of messages that one call moves or removes."""

IDS_PER_WALK = 1_000
BYTES_PER_CALL = 1_000_000
"""Largest number of bytes that one call publishes; a larger message is published alone."""

TRIES = 5
"""Largest number of repetitions of a call because the consumers of the queue have changed."""

RECENT_QUEUES = 10_000
MAX_STALLS = 1_000_000
MAX_ID = 2**53 - 1
LEAVING = "leaving"
"""Mode of a consumer that is being removed."""

T = TypeVar("T")

Reply: TypeAlias = Any


class Wake(NamedTuple):
    """Step: wait until a consumer may have something to claim; the answer is whether a wake-up came.

    :ivar streams: each stream with the number of the entry behind which a new one wakes.
    """

    streams: dict[str, int]
    timeout_s: float


Step: TypeAlias = list[lua.Call] | Wake
Steps: TypeAlias = Generator[Step, Any, T]
_ConsumerCall: TypeAlias = Callable[[FanoutKeys, FanoutConsumerKeys], lua.Call]


class Member(NamedTuple):
    """A registered consumer; its options are ``None`` while it is being removed.

    :ivar cursor: number of the log's entry up to which it has read; ``None`` when publishers put ids into its lists.
    """

    options: ConsumerOptions | None
    last_seen_ms: int
    keys: FanoutConsumerKeys
    cursor: int | None

    @property
    def publish_keys(self) -> list[str]:
        """The keys of a publish that names this consumer."""
        own = self.keys
        return [own.wakes, own.details, own.delayed, *own.ready]


class Membership(NamedTuple):
    """The consumers of a queue, with the keys and arguments of a publish.

    :ivar number: number of the membership.
    :ivar joined: names of the consumers that are not being removed.
    :ivar named: names of those of them that a publish to all names, since they have no cursor.
    :ivar publish_keys: their keys.
    :ivar publish_args: their names and options.
    """

    number: int
    now_ms: int
    members: dict[str, Member]
    joined: list[str]
    named: list[str]
    publish_keys: list[str]
    publish_args: list[str]


class CommonOperations:
    """Shared parts of all operations; ``FanoutOperations`` describes the parameters."""

    def __init__(
        self,
        *,
        prefix: str = "",
        rules: FanoutRules | None = None,
        clock: Clock | None = None,
        new_token: Callable[[], str] = lambda: secrets.token_hex(8),
        counts_only: bool = False,
        size: Callable[[int], int] = lambda full: full,
    ) -> None:
        self._prefix = check_prefix(prefix)
        self._rules = rules or FanoutRules()
        self._clock = clock
        self._new_token = new_token
        self._counts_only = counts_only
        self._size = size
        self._memberships: OrderedDict[str, Membership] = OrderedDict()
        self._logged: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        # Making these names takes as long as the rest of a call with one message.
        self._keys_of = lru_cache(maxsize=RECENT_QUEUES)(partial(fanout_keys, prefix=self._prefix))
        self._own_keys_of = lru_cache(maxsize=RECENT_QUEUES)(partial(fanout_consumer_keys, prefix=self._prefix))

    def _now(self) -> lua.Value:
        return "" if self._clock is None else self._clock()

    def _keys(self, queue: str) -> FanoutKeys:
        check_queue(queue)
        return self._keys_of(queue)

    def _own_keys(self, queue: str, consumer: str) -> tuple[FanoutKeys, FanoutConsumerKeys]:
        """Return the keys of a queue and of a consumer, with the list of its first lane only."""
        check_consumer(consumer)
        return self._keys(queue), self._own_keys_of(queue, consumer)

    def _ask_with_lanes(self, queue: str, consumer: str, make: _ConsumerCall) -> Steps[Reply]:
        """Make a call that needs the lists of all lanes of a consumer; read their number when it was wrong."""
        keys, own = self._own_keys(queue, consumer)
        for tries in range(TRIES + 1):
            # Assume one lane for an unknown consumer: that is likely, and reading all consumers may take long.
            member = self._recent_member(queue, consumer)
            if tries:
                member = (yield from self._membership(queue, fresh=True)).members.get(consumer)
            try:
                return (yield from ask(make(keys, own if member is None else member.keys)))
            except MembershipChanged:
                if tries == TRIES:
                    raise
        raise AssertionError("unreachable")

    def _recent_member(self, queue: str, consumer: str) -> Member | None:
        with self._lock:
            membership = self._memberships.get(queue)
        return None if membership is None else membership.members.get(consumer)

    def _membership(self, queue: str, *, fresh: bool = False) -> Steps[Membership]:
        """Return the registered consumers, as this process has read them last.

        :param fresh: read them from the server.
        """
        if not fresh:
            with self._lock:
                known = self._memberships.get(queue)
                if known is not None:
                    self._memberships.move_to_end(queue)
                    return known
        keys = self._keys(queue)
        reply = yield from ask(scripts.list_consumers(keys))
        members: dict[str, Member] = {}
        for each in reply.members:
            name = each.consumer.decode()
            own = fanout_consumer_keys(queue, name, lanes=_lanes(each.options), prefix=self._prefix)
            cursor = None if each.cursor < 0 else each.cursor
            members[name] = Member(read_options(each.options), each.last_seen_ms, own, cursor)
        joined = [name for name, member in members.items() if member.options is not None]
        named = [name for name in joined if members[name].cursor is None]
        found = Membership(reply.membership, reply.now_ms, members, joined, named, *publish_parts(members, named))
        with self._lock:
            self._memberships[queue] = found
            self._memberships.move_to_end(queue)
            if len(self._memberships) > RECENT_QUEUES:
                self._memberships.popitem(last=False)
        return found

    def _member(self, queue: str, consumer: str) -> Steps[Member]:
        """Return a consumer as it is now.

        :raises UnknownConsumer: when it is not registered; ``UnknownQueue`` when there is no such queue.
        """
        check_consumer(consumer)
        member = (yield from self._membership(queue, fresh=True)).members.get(consumer)
        if member is not None:
            return member
        yield from self._consumer_view(queue, consumer, sample=0)
        # It was registered between the two calls.
        return (yield from self._member(queue, consumer))

    def _queue_facts(self, queue: str) -> Steps[QueueView]:
        """Return the view of a queue without its consumers."""
        keys = self._keys(queue)
        reply = yield from ask(scripts.inspect(keys))
        state = _texts(reply.fields)
        chosen = {name: state.pop(name) for name in ("when_nobody", "max_held", "deduplication_ms") if name in state}
        for name in ("version", "members", "logged"):
            state.pop(name, None)
        return QueueView(
            queue=queue,
            exists=bool(reply.fields),
            options=QueueOptions(
                when_nobody=WhenNobody(chosen.pop("when_nobody", QueueOptions.when_nobody)),
                **{name: int(value) for name, value in chosen.items()},
            ),
            paused=state.pop("paused", None) is not None,
            version=int(state.pop("membership", 0)),
            last_id=int(state.pop("next_id", 1)) - 1,
            messages=reply.messages,
            held=reply.held,
            deduplications=reply.deduplications,
            stored_bytes=int(state.pop("bytes", 0)),
            next_expiry_ms=reply.next_expiry_ms or None,
            counters={name: int(value) for name, value in state.items()},
            consumers=(),
        )

    def _consumer_facts(self, queue: str, consumer: str, *, sample: int) -> Steps[Reply]:
        """Return the reply of the script for a consumer."""
        return (
            yield from self._ask_with_lanes(
                queue,
                consumer,
                lambda keys, own: scripts.inspect_consumer(
                    keys, own, consumer=consumer, sample=sample, now_ms=self._now()
                ),
            )
        )

    def _consumer_view(self, queue: str, consumer: str, *, sample: int) -> Steps[ConsumerView]:
        """Return the view of a consumer.

        :param sample: number of messages next in line to look at for ``only_holder``.
        """
        reply = yield from self._consumer_facts(queue, consumer, sample=sample)
        details, lanes = _texts(reply.fields), reply.lanes
        blocked_ms = [int(lane.state.split()[1]) for lane in lanes if lane.state.startswith(b"blocked ")]
        del details["registered_ms"]
        return ConsumerView(
            consumer=consumer,
            options=read_options(reply.options),
            paused=bool(details.pop("paused")),
            adopting=bool(details.pop("adopting")),
            last_seen_ms=reply.last_seen_ms,
            ready=sum(lane.length for lane in lanes) + reply.in_log,
            leased=reply.leased,
            overdue=reply.overdue,
            delayed=reply.delayed,
            dead=reply.dead,
            oldest_ready_ms=min(
                (since_ms for since_ms in (reply.in_log_since_ms, *(lane.published_ms for lane in lanes)) if since_ms),
                default=None,
            ),
            next_deadline_ms=reply.deadline_ms or None,
            next_due_ms=reply.due_ms or None,
            oldest_dead_ms=reply.oldest_dead_ms or None,
            blocked_until_ms=min(blocked_ms, default=None),
            sampled=reply.sampled,
            only_holder=reply.only_holder,
            counters={name: int(value or 0) for name, value in details.items()},
        )

    def _with_all_in_line(self, queue: str, consumer: str, make: Callable[[], Steps[T]]) -> Steps[T]:
        """Make a call that needs what waits for a consumer in its own lists; put it there when it is in the log."""
        for _ in range(TRIES):
            try:
                return (yield from make())
            except ConsumerBehind:
                in_log = 1
                while in_log:
                    in_log = yield from self._ask_with_lanes(
                        queue,
                        consumer,
                        lambda keys, own: scripts.pull(keys, own, consumer=consumer, limit=self._size(IDS_PER_WALK)),
                    )
        return (yield from make())

    def _forget(self, queue: str) -> None:
        """Forget the consumers of a queue, which have changed; the next call reads them."""
        with self._lock:
            self._memberships.pop(queue, None)

    def _walk_ids(self, key: str, *, most: int = IDS_PER_WALK) -> Steps[list[int]]:
        """Return the ids that a key holds, read in pages of at most ``most``."""
        found: list[int] = []
        cursor: lua.Value = 0
        while True:
            limit = self._size(most)
            reply = yield from ask(scripts.list_ids(holder=key, cursor=cursor, limit=limit, with_values=0))
            cursor = reply.cursor
            found += map(int, reply.ids)
            if cursor == b"0":
                return found

    def _walk_values(self, key: str) -> Steps[dict[int, bytes]]:
        """Return the value of each id in a hash or in the log."""
        found: dict[int, bytes] = {}
        cursor: lua.Value = 0
        while True:
            limit = self._size(IDS_PER_WALK)
            reply = yield from ask(scripts.list_ids(holder=key, cursor=cursor, limit=limit, with_values=1))
            cursor = reply.cursor
            found.update((int(entry.id), entry.value) for entry in reply.entries)
            if cursor == b"0":
                return found


def ask(call: lua.Call) -> Steps[Reply]:
    """Return the reply of one call, with the names of the script's header; raise it if it is an error."""
    [reply] = yield [call]
    if isinstance(reply, QueuekeeperError):
        raise reply
    return call.script.read(reply)


def parts_of(ids: Sequence[int], most: int = MAX_CLAIM) -> list[Sequence[int]]:
    """Return ids in parts of at most ``most``, one part per call.

    :raises UsageError: when one is not an id.
    """
    for message_id in ids:
        check_integer("id", message_id, 1, MAX_ID)
    return [ids[start : start + most] for start in range(0, len(ids), most)]


def _texts(fields: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the fields of a hash as text."""
    return {name.decode(): value.decode() for name, value in fields}


def publish_parts(members: Mapping[str, Member], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the keys, and the names and options, of consumers that a publish names."""
    keys: list[str] = []
    args: list[str] = []
    for name in names:
        member = members[name]
        if member.options is not None:
            keys += member.publish_keys
            args += (name, written_options(member.options))
    return keys, args


def written_options(options: ConsumerOptions) -> str:
    """Return options as the server stores them."""
    return (
        f"{options.mode} {options.when_failed} {options.lanes} {options.max_length or 0} {options.when_full} "
        f"{options.dead_retention_ms} {options.idle_expiry_ms or 0}"
    )


def _lanes(text: bytes) -> int:
    return int(text.split()[2])


def read_options(text: bytes) -> ConsumerOptions | None:
    """Return the options of a consumer from their stored text; ``None`` while it is being removed."""
    mode, when_failed, lanes, max_length, when_full, dead_retention_ms, idle_expiry_ms = text.decode().split()
    if mode == LEAVING:
        return None
    return ConsumerOptions(
        mode=Mode(mode),
        when_failed=WhenFailed(when_failed),
        lanes=int(lanes),
        max_length=int(max_length) or None,
        when_full=WhenFull(when_full),
        dead_retention_ms=int(dead_retention_ms),
        idle_expiry_ms=int(idle_expiry_ms) or None,
    )


def read_message(
    queue: str, consumer: str, message_id: int, raw: bytes, *, attempt: int, stalls: int
) -> FanoutMessage | None:
    """Return a message as its consumer gets it; ``None`` when it is not a valid record."""
    try:
        published_ms, expires_at_ms, _, stored = raw.split(b":", 3)
        record = read_record(stored)
        return FanoutMessage(
            queue=queue,
            consumer=consumer,
            id=message_id,
            body=record.body,
            content_type=record.content_type,
            headers=record.headers,
            order_key=record.order_key,
            published_ms=int(published_ms),
            attempt=attempt,
            stalls=stalls,
            expires_at_ms=int(expires_at_ms),
        )
    except ValueError:
        return None

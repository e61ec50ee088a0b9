"""The operations of fan-out queues, as steps of script calls.

A step is a list of calls, whose answer is the list of their replies with an exception in the place of a reply that is
an error; or it is a :class:`Wake`, whose answer is whether it came.
"""

from __future__ import annotations

import secrets
import threading
from binascii import crc32
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from queuekeeper import lua
from queuekeeper.checks import check_choice, check_integer
from queuekeeper.clock import Clock
from queuekeeper.errors import (
    ConsumerLeaving,
    HasLeases,
    MembershipChanged,
    QueueFull,
    QueuekeeperError,
    ServerUnavailable,
    UnknownConsumer,
    UnknownQueue,
    UsageError,
)
from queuekeeper.fanout.model import (
    DEFAULT_MAX_STALLS,
    DEFAULT_PAGE,
    MAX_CLAIM,
    MAX_MS,
    MAX_PAGE,
    AckReport,
    Claimed,
    ConsumerOptions,
    ConsumerView,
    DeadLetter,
    DeadPage,
    ExpireReport,
    ExtendReport,
    FanoutMessage,
    FanoutRules,
    Finding,
    Mode,
    NackReport,
    NewMessage,
    Outcome,
    Problem,
    PublishReport,
    PurgeReport,
    QueueOptions,
    QueueView,
    ReapReport,
    Registration,
    RepairReport,
    RetryReport,
    ReturnReport,
    Start,
    UnregisterReport,
    VerifyReport,
    WhenFailed,
    WhenFull,
    WhenNobody,
    check_body,
    check_consumer,
    check_queue,
)
from queuekeeper.fanout.records import read_record, write_record
from queuekeeper.fanout.store import DEFAULT_FINDINGS, DEFAULT_LEASE_MS
from queuekeeper.keyspace import FanoutConsumerKeys, FanoutKeys, check_prefix, fanout_consumer_keys, fanout_keys
from queuekeeper.lua.bind import Bound
from queuekeeper.lua.scripts import fanout as scripts
from queuekeeper.operation import Operation, errors_name

MESSAGES_PER_CALL = 100
REFERENCES_PER_CALL = 2_500
BYTES_PER_CALL = 1_000_000
"""Most that one publish stores; a single larger message is stored alone."""

IDS_PER_CALL = 500
"""Most messages that one call moves or gives up."""

IDS_PER_WALK = 1_000
SUSPECTS_PER_CALL = 100
ENTRIES_PER_CALL = 1_000_000
"""Longest lists that one call looks through for a message."""

KEYS_PER_CALL = 5_000
SAMPLE = 100
"""Messages next in line of each consumer that an inspection looks at."""

MAX_FINDINGS = 100_000
TRIES = 5
"""Tries with a membership that others change meanwhile."""

RECENT_QUEUES = 10_000
MAX_STALLS = 1_000_000
MAX_REASON_BYTES = 1_000
MAX_WAIT_S = 86_400.0
MAX_ID = 2**53 - 1
LEAVING = "leaving"
"""Mode of a consumer that is being removed."""

UNREADABLE = "unreadable"
"""Reason of a dead letter whose record nobody can read."""

T = TypeVar("T")

Reply: TypeAlias = Any


class Wake(NamedTuple):
    """A step that waits until a consumer may have something to claim."""

    key: str
    timeout_s: float


Step: TypeAlias = list[lua.Call] | Wake
Steps: TypeAlias = Generator[Step, Any, T]
_ConsumerCall: TypeAlias = Callable[[FanoutKeys, FanoutConsumerKeys], lua.Call]


class _Member(NamedTuple):
    """A consumer as the membership has it; its options are none while it is being removed."""

    options: ConsumerOptions | None
    last_seen_ms: int
    keys: FanoutConsumerKeys


class _Membership(NamedTuple):
    """Who is registered, and what a publish to all of them names.

    :ivar publish_keys: none while a consumer has several lanes: then it is for messages to say.
    """

    number: int
    now_ms: int
    members: dict[str, _Member]
    joined: int
    publish_keys: list[str] | None
    publish_args: list[str]

    def keys_of_all(self, order_hashes: Sequence[int]) -> list[str]:
        """Return what a publish to all of them names; only lists of lanes that the messages are of are among it."""
        if self.publish_keys is not None:
            return self.publish_keys
        joined = (member for member in self.members.values() if member.options is not None)
        return [key for member in joined for key in _publish_keys(member, order_hashes)]


class _Walk(NamedTuple):
    """What a walk through a queue has seen.

    :ivar messages: how many there are.
    :ivar suspects: ids of which something looks wrong.
    :ivar held: how many are held.
    :ivar lengths: consumer -> ids in its lists.
    :ivar expired_references: ids in lists whose messages have expired.
    """

    messages: int
    suspects: list[int]
    held: int
    lengths: dict[str, int]
    expired_references: int


class _Verdict(NamedTuple):
    """What is wrong with one message.

    :ivar references: its count, less than 0 when there is none.
    :ivar owed: how many consumers have it, group by group; the list of held messages is left out.
    """

    id: int
    references: int
    owed: list[int]
    findings: tuple[Finding, ...]


class _Judged(NamedTuple):
    """What a look at some messages found.

    :ivar judged: how many were looked at, from the first on.
    :ivar groups: consumers that were looked at together.
    :ivar wrong: those of which something is wrong.
    """

    judged: int
    membership: _Membership
    groups: list[list[str]]
    wrong: list[_Verdict]

    @property
    def findings(self) -> list[Finding]:
        """All that is wrong."""
        return [finding for one in self.wrong for finding in one.findings]


@errors_name(UnknownQueue, UnknownConsumer, HasLeases, ConsumerLeaving, queue="queue", consumer="consumer")
class FanoutOperations:
    """What ``store.FanoutStore`` says, for Redis.

    An instance may be shared by threads.

    :param prefix: put before every key.
    :param rules: bounds to keep.
    :param clock: says what time it is; the server does when there is none.
    :param new_token: makes up the tokens of leases, letters and digits.
    :param counts_only: who answers the calls writes nothing: pages step over what would be gone by then.
    :raises UsageError: for a prefix with a brace.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        rules: FanoutRules | None = None,
        clock: Clock | None = None,
        new_token: Callable[[], str] = lambda: secrets.token_hex(8),
        counts_only: bool = False,
    ) -> None:
        self._prefix = check_prefix(prefix)
        self._rules = rules or FanoutRules()
        self._clock = clock
        self._new_token = new_token
        self._counts_only = counts_only
        self._memberships: OrderedDict[str, _Membership] = OrderedDict()
        self._lock = threading.Lock()
        # To put the names together takes as long as all else that a call of one message does here.
        self._keys_of = lru_cache(maxsize=RECENT_QUEUES)(partial(fanout_keys, prefix=self._prefix))
        self._own_keys_of = lru_cache(maxsize=RECENT_QUEUES)(partial(fanout_consumer_keys, prefix=self._prefix))

    # Who is registered.

    def register(
        self, queue: str, *, consumer: str, options: ConsumerOptions | None = None, start: Start = Start.NEW
    ) -> Operation[Registration]:
        """See ``store.FanoutStore.register``."""
        keys = self._keys(queue)
        check_consumer(consumer)
        check_choice("start", start, Start)
        chosen = options or ConsumerOptions()
        own = fanout_consumer_keys(queue, consumer, prefix=self._prefix)
        reply = yield from _ask(
            scripts.register(keys, own, consumer=consumer, options=_written(chosen), start=start, now_ms=self._now())
        )
        self._forget(queue)
        adopted = (yield from self._adopt(queue, consumer, reply.adopting.decode())) if reply.adopting else 0
        return Registration(
            queue=queue,
            consumer=consumer,
            created=bool(reply.created),
            options=_read_options(reply.options) or chosen,
            adopted=adopted,
            version=reply.membership,
        )

    def adopt(self, queue: str, *, consumer: str) -> Operation[int]:
        """See ``store.FanoutStore.adopt``."""
        reply = yield from self._consumer_facts(queue, consumer, sample=0)
        fields: list[bytes] = reply.fields
        adopting = fields[fields.index(b"adopting") + 1]
        return (yield from self._adopt(queue, consumer, adopting.decode())) if adopting else 0

    def _adopt(self, queue: str, consumer: str, adopting: str) -> Steps[int]:
        """Give a new consumer what was there before, newest first.

        :param adopting: which messages, and the id that they are below.
        """
        start, below = adopting.split()
        ids: list[int] = []
        if start == Start.RETAINED:
            # Every message has a count of references, and counts are small to walk through.
            counts = yield from _walk(self._keys(queue).references)
            ids = sorted({message_id for message_id in counts if message_id < int(below)}, reverse=True)
        adopted = at = 0
        more = 1

        def call(keys: FanoutKeys, own: FanoutConsumerKeys) -> lua.Call:
            return scripts.adopt(
                keys,
                own,
                consumer=consumer,
                limit=IDS_PER_CALL,
                is_last=int(at >= len(ids)),
                now_ms=self._now(),
                ids=page,
            )

        while more:
            page = ids[at : at + IDS_PER_CALL]
            at += IDS_PER_CALL
            reply = yield from self._ask_with_lanes(queue, consumer, call)
            adopted += reply.adopted
            more = reply.more
            if self._counts_only and start != Start.RETAINED:
                # What is held has not become less.
                break
        return adopted

    def configure(
        self, queue: str, *, consumer: str | None = None, options: ConsumerOptions | QueueOptions
    ) -> Operation[None]:
        """See ``store.FanoutStore.configure``."""
        if isinstance(options, QueueOptions) != (consumer is None):
            raise UsageError("a consumer takes ConsumerOptions, and the queue itself QueueOptions")
        if isinstance(options, QueueOptions):
            yield from _ask(
                scripts.configure_queue(
                    self._keys(queue),
                    when_nobody=options.when_nobody,
                    max_held=options.max_held,
                    deduplication_ms=options.deduplication_ms,
                )
            )
            return
        assert consumer is not None
        text = _written(options)
        yield from self._ask_with_lanes(
            queue, consumer, lambda keys, own: scripts.configure(keys, own, consumer=consumer, options=text)
        )
        self._forget(queue)

    def touch(self, queue: str, *, consumer: str) -> Operation[int]:
        """See ``store.FanoutStore.touch``."""
        keys, _ = self._own_keys(queue, consumer)
        seen_ms: int = yield from _ask(scripts.touch(keys, consumer=consumer, now_ms=self._now()))
        return seen_ms

    def unregister(
        self, queue: str, *, consumer: str, force: bool = False, begun: bool = False, dry_run: bool = False
    ) -> Operation[UnregisterReport]:
        """See ``store.FanoutStore.unregister``."""
        if dry_run:
            view = yield from self._consumer_view(queue, consumer, sample=0)
            if begun and view.options is not None:
                raise UnknownConsumer(f"consumer {consumer!r} is registered, and is not being removed")
            if view.leased > view.overdue and view.options is not None and not force:
                raise HasLeases(f"somebody works on messages of consumer {consumer}")
            owed = view.ready + view.leased + view.delayed + view.dead
            return UnregisterReport(queue=queue, consumer=consumer, released=owed, freed=None, dry_run=True)
        report = yield from self._unregister(queue, consumer, force=force, begun=begun)
        assert report is not None
        return report

    def unregister_idle(
        self, queue: str, *, idle_expiry_ms: int | None = None, dry_run: bool = False
    ) -> Operation[list[UnregisterReport]]:
        """See ``store.FanoutStore.unregister_idle``."""
        if idle_expiry_ms is not None:
            check_integer("idle_expiry_ms", idle_expiry_ms, 1, MAX_MS)
        membership = yield from self._membership(queue, fresh=True)
        now_ms = membership.now_ms if self._clock is None else self._clock()
        reports: list[UnregisterReport] = []
        for consumer, member in membership.members.items():
            # One that is on its way out needs nobody's leave.
            idle_ms = 0 if member.options is None else member.options.idle_expiry_ms or idle_expiry_ms
            if idle_ms is None or member.last_seen_ms > now_ms - idle_ms:
                continue
            with suppress(HasLeases, UnknownConsumer):
                if dry_run:
                    reports.append((yield from self.unregister(queue, consumer=consumer, dry_run=True)))
                else:
                    report = yield from self._unregister(
                        queue, consumer, unseen_since_ms=now_ms - idle_ms + 1, begun=member.options is None
                    )
                    reports += [report] if report is not None else []
        return reports

    def _unregister(
        self,
        queue: str,
        consumer: str,
        *,
        force: bool = False,
        begun: bool = False,
        unseen_since_ms: int | None = None,
    ) -> Steps[UnregisterReport | None]:
        """Remove a consumer; none when it was seen since."""
        released = freed = pages = 0
        more = 1

        def call(keys: FanoutKeys, own: FanoutConsumerKeys) -> lua.Call:
            return scripts.unregister(
                keys,
                own,
                consumer=consumer,
                force=int(force),
                unseen_since_ms="" if unseen_since_ms is None else unseen_since_ms,
                limit=IDS_PER_CALL,
                # Between pages others may finish the removal, and a new consumer of the name register: that one stays.
                begun=int(begun or pages > 0),
                now_ms=self._now(),
            )

        while more:
            try:
                reply = yield from self._ask_with_lanes(queue, consumer, call)
            except UnknownConsumer:
                if not pages:
                    raise
                break
            if reply.word == "seen":
                return None
            released += reply.released
            freed += reply.freed
            more = 0 if self._counts_only else reply.more
            pages += 1
        self._forget(queue)
        return UnregisterReport(queue=queue, consumer=consumer, released=released, freed=freed, dry_run=False)

    # Messages.

    def publish(
        self, queue: str, messages: Sequence[NewMessage], *, to: str | None = None
    ) -> Operation[list[PublishReport]]:
        """See ``store.FanoutStore.publish``."""
        keys = self._keys(queue)
        if to is not None:
            check_consumer(to)
        for message in messages:
            check_body(message, self._rules)
        records = [write_record(message) for message in messages]
        reports: list[PublishReport] = []
        most = MESSAGES_PER_CALL
        tries = 0
        while len(reports) < len(messages):
            at = len(reports)
            try:
                is_known = to is None or self._recent_member(queue, to) is not None
                membership = yield from self._membership(queue, fresh=bool(tries) or not is_known)
                end = _end_of_chunk(records, at, min(most, REFERENCES_PER_CALL // max(1, membership.joined)))
                reply = yield from self._publish_chunk(keys, membership, messages[at:end], records[at:end], to=to)
            except MembershipChanged as error:
                tries += 1
                if tries > TRIES:
                    return _given_up(reports, len(messages), error)
            except QueueFull as error:
                if end == at + 1:
                    return _given_up(reports, len(messages), error)
                # Those that there is room for are published all the same, in order.
                most = 1
            except QueuekeeperError as error:
                return _given_up(reports, len(messages), error)
            else:
                tries = 0
                reports += reply
        return reports

    def _publish_chunk(
        self,
        keys: FanoutKeys,
        membership: _Membership,
        messages: Sequence[NewMessage],
        records: Sequence[bytes],
        *,
        to: str | None,
    ) -> Steps[list[PublishReport]]:
        order_hashes = [crc32(each.order_key.encode()) if each.order_key is not None else 0 for each in messages]
        if to is None:
            count = membership.joined
            consumer_keys, consumer_args = membership.keys_of_all(order_hashes), membership.publish_args
        else:
            member = membership.members.get(to)
            if member is None or member.options is None:
                raise UnknownConsumer(
                    f"no consumer {to!r} is registered with the queue: register it first, or publish to all"
                )
            count, consumer_keys = 1, _publish_keys(member, order_hashes)
            consumer_args = [to, _written(member.options)]
        values: list[lua.Value] = [*consumer_args]
        for message, order_hash, record in zip(messages, order_hashes, records, strict=True):
            remembered_ms = "" if message.deduplication_ms is None else message.deduplication_ms
            values += (message.ttl_ms, order_hash, message.deduplication_id or "", remembered_ms, record)
        reply = yield from _ask(
            scripts.publish(
                keys,
                consumer_keys=consumer_keys,
                membership=membership.number,
                to=to or "",
                now_ms=self._now(),
                consumers=count,
                values=values,
            )
        )
        last = len(reply.messages) - 1
        return [
            PublishReport(
                id=int(published.id),
                consumers=published.consumers,
                held=published.consumers == 0,
                duplicate=bool(published.is_duplicate),
                # What a call has dropped is said of its last message.
                dropped=reply.dropped if position == last else 0,
            )
            for position, published in enumerate(reply.messages)
        ]

    def claim(
        self,
        queue: str,
        *,
        consumer: str,
        count: int = 1,
        lease_ms: int = DEFAULT_LEASE_MS,
        max_stalls: int = DEFAULT_MAX_STALLS,
    ) -> Operation[Claimed]:
        """See ``store.FanoutStore.claim``."""
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
        dead = reply.dead
        messages = []
        for raw_id, attempt, stalls, raw in reply.messages:
            message = _message(queue, consumer, int(raw_id), raw, attempt=attempt, stalls=stalls)
            if message is not None:
                messages.append(message)
                continue
            # Nobody will be able to read it later, either. The others are leased by now: they are not lost with a lost
            # connection, and this one comes again.
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
        """See ``store.FanoutStore.ack``."""
        keys, own = self._own_keys(queue, consumer)
        acked = freed = stale = 0
        for part in _parts(ids):
            reply = yield from _ask(scripts.ack(keys, own, token=token, ids=part))
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
        """See ``store.FanoutStore.nack``."""
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
        """See ``store.FanoutStore.extend``."""
        check_integer("lease_ms", lease_ms, 1, MAX_MS)
        keys, own = self._own_keys(queue, consumer)
        deadline_ms = 0
        stale: list[int] = []
        for part in _parts(ids):
            reply = yield from _ask(
                scripts.extend(keys, own, token=token, lease_ms=lease_ms, now_ms=self._now(), ids=part)
            )
            deadline_ms = int(reply.deadline_ms)
            stale += map(int, reply.stale)
        return ExtendReport(deadline_ms=deadline_ms, stale=tuple(stale))

    def return_claimed(self, queue: str, *, consumer: str, token: str, ids: Sequence[int]) -> Operation[ReturnReport]:
        """See ``store.FanoutStore.return_claimed``."""
        returned = stale = 0

        def call(part: Sequence[int], _: FanoutKeys, own: FanoutConsumerKeys) -> lua.Call:
            return scripts.return_claimed(own, token=token, ids=part)

        # The first ones last, since each part goes to the head.
        for part in reversed(_parts(sorted(ids))):
            reply = yield from self._ask_with_lanes(queue, consumer, partial(call, part))
            returned += reply.returned
            stale += len(reply.stale)
        return ReturnReport(returned=returned, stale=stale)

    def reap(self, queue: str, *, consumer: str, max_stalls: int = DEFAULT_MAX_STALLS) -> Operation[ReapReport]:
        """See ``store.FanoutStore.reap``."""
        return (yield from self._reap(queue, consumer, max_stalls, "all"))

    def reap_leases(self, queue: str, *, consumer: str, max_stalls: int) -> Operation[ReapReport]:
        """End leases that have run out and put retries in line; lists are not looked through."""
        return (yield from self._reap(queue, consumer, max_stalls, "leases"))

    def reap_lists(self, queue: str, *, consumer: str, lives_on: Collection[int] = ()) -> Operation[ReapReport]:
        """Take ids off lists whose messages are gone, or over as an ``expire`` finds them.

        :param lives_on: messages whose time is over and that ``reap_leases`` has made dead letters, or would have.
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
                limit=IDS_PER_CALL,
                lane=lane,
                offset=offset,
                now_ms=self._now(),
                part=part,
                behind=behind if self._counts_only else "",
                ids=lives_on,
            )

        while more:
            reply = yield from self._ask_with_lanes(queue, consumer, call)
            requeued += reply.requeued
            dead += reply.dead
            skipped += reply.skipped
            unseen += reply.unseen
            revived += map(int, reply.revived)
            more, lane, offset = reply.more, reply.lane, reply.offset
            behind += IDS_PER_CALL
            offset += reply.here if self._counts_only else 0
        return ReapReport(requeued=requeued, dead=dead, skipped=skipped, gone_in_line=unseen, revived=tuple(revived))

    # Dead letters.

    def list_dead(
        self, queue: str, *, consumer: str, offset: int = 0, limit: int = DEFAULT_PAGE
    ) -> Operation[DeadPage]:
        """See ``store.FanoutStore.list_dead``."""
        _check_page(offset, limit)
        keys, own = self._own_keys(queue, consumer)
        yield from self._member(queue, consumer)
        reply = yield from _ask(scripts.list_dead(keys, own, offset=offset, limit=limit))
        letters = tuple(
            DeadLetter(
                id=int(letter.id),
                died_ms=int(letter.died_ms),
                reason=letter.reason.decode("utf-8", "replace"),
                attempts=letter.attempts,
                stalls=letter.stalls,
                message=_message(
                    queue, consumer, int(letter.id), letter.message, attempt=letter.attempts, stalls=letter.stalls
                ),
            )
            for letter in reply.letters
            # Whatever others put there is no letter.
            if letter.id.isdigit()
        )
        reached = offset + len(reply.letters)
        goes_on = reply.letters and reached < reply.total
        return DeadPage(letters=letters, total=reply.total, next_offset=reached if goes_on else None)

    def retry_dead(self, queue: str, *, consumer: str, ids: Sequence[int] | None = None) -> Operation[RetryReport]:
        """See ``store.FanoutStore.retry_dead``."""
        member = yield from self._member(queue, consumer)
        wanted = sorted((yield from _walk(member.keys.dead)) if ids is None else ids)
        parts = _parts(wanted, IDS_PER_CALL)
        if member.options is not None and member.options.mode is Mode.ORDERED:
            # Each part goes to the head.
            parts.reverse()
        retried = missing = 0

        def call(part: Sequence[int], keys: FanoutKeys, own: FanoutConsumerKeys) -> lua.Call:
            return scripts.retry_dead(keys, own, consumer=consumer, now_ms=self._now(), ids=part)

        for part in parts:
            reply = yield from self._ask_with_lanes(queue, consumer, partial(call, part))
            retried += reply.retried
            missing += len(reply.missing)
        return RetryReport(retried=retried, missing=missing)

    def purge_dead(
        self, queue: str, *, consumer: str, ids: Sequence[int] | None = None, dry_run: bool = False
    ) -> Operation[PurgeReport]:
        """See ``store.FanoutStore.purge_dead``."""
        parts = _parts(ids or (), IDS_PER_CALL)
        member = yield from self._member(queue, consumer)
        if dry_run:
            dead = set((yield from _walk(member.keys.dead)))
            return PurgeReport(released=len(dead if ids is None else dead.intersection(ids)), freed=None, dry_run=True)
        if ids is None:
            return (yield from self._purge_dead(queue, consumer))
        released = freed = 0
        for part in parts:
            report = yield from self._purge_dead(queue, consumer, ids=part)
            released += report.released
            freed += report.freed or 0
        return PurgeReport(released=released, freed=freed)

    def _purge_dead(
        self, queue: str, consumer: str, *, died_before_ms: int | None = None, ids: Sequence[int] = ()
    ) -> Steps[PurgeReport]:
        """Give up the dead letters that are named, or else all of a time."""
        keys, own = self._own_keys(queue, consumer)
        released = freed = behind = 0
        more = 1
        while more:
            reply = yield from _ask(
                scripts.purge_dead(
                    keys,
                    own,
                    died_before_ms="" if died_before_ms is None else died_before_ms,
                    limit=IDS_PER_CALL,
                    behind=behind,
                    ids=ids,
                )
            )
            released += reply.purged
            freed += reply.freed
            more = reply.more
            behind += reply.purged if self._counts_only else 0
        return PurgeReport(released=released, freed=freed)

    # Upkeep.

    def expire(self, queue: str, *, messages_first: bool = False) -> Operation[ExpireReport]:
        """See ``store.FanoutStore.expire``.

        :param messages_first: a message that ends together with its last dead letter counts as expired, too.
        """
        membership = yield from self._membership(queue, fresh=True)
        expired = (yield from self._expire_messages(queue)) if messages_first else 0
        now_ms = membership.now_ms if self._clock is None else self._clock()
        dead = 0
        for consumer, member in membership.members.items():
            if member.options is not None:
                before_ms = max(0, now_ms - member.options.dead_retention_ms + 1)
                dead += (yield from self._purge_dead(queue, consumer, died_before_ms=before_ms)).released
        if not messages_first:
            expired = yield from self._expire_messages(queue)
        return ExpireReport(expired=expired, dead=dead)

    def _expire_messages(self, queue: str) -> Steps[int]:
        keys = self._keys(queue)
        expired = held_at = behind = 0
        more = 1
        while more:
            reply = yield from _ask(
                scripts.expire(keys, limit=IDS_PER_CALL, held_at=held_at, now_ms=self._now(), behind=behind)
            )
            expired += reply.expired
            more, held_at = reply.more, reply.held_at
            if self._counts_only:
                held_at += reply.here
                behind += IDS_PER_CALL
        return expired

    def purge(self, queue: str, *, consumer: str | None = None, dry_run: bool = False) -> Operation[PurgeReport]:
        """See ``store.FanoutStore.purge``."""
        keys = self._keys(queue)
        if consumer is None:
            membership = yield from self._membership(queue, fresh=True)
            members = membership.members
        else:
            members = {consumer: (yield from self._member(queue, consumer))}
        released = freed = 0
        for name, member in members.items():
            if dry_run:
                view = yield from self._consumer_view(queue, name, sample=0)
                released += view.ready + view.delayed
                continue
            report = yield from _drained(scripts.purge(keys, member.keys, limit=IDS_PER_CALL))
            released += report.released
            freed += report.freed or 0
        if consumer is None and dry_run:
            released += (yield from self._queue_facts(queue)).held
        elif consumer is None:
            report = yield from _drained(scripts.purge_held(keys, limit=IDS_PER_CALL))
            released += report.released
            freed += report.freed or 0
        return PurgeReport(released=released, freed=None if dry_run else freed, dry_run=dry_run)

    def pause(self, queue: str, *, consumer: str | None = None) -> Operation[bool]:
        """See ``store.FanoutStore.pause``."""
        keys, paused = self._pausable(queue, consumer)
        return bool((yield from _ask(scripts.pause(keys, paused=paused, consumer=consumer or ""))))

    def resume(self, queue: str, *, consumer: str | None = None) -> Operation[bool]:
        """See ``store.FanoutStore.resume``."""
        keys, paused = self._pausable(queue, consumer)
        if consumer is None:
            membership = yield from self._membership(queue, fresh=True)
            wakes = [member.keys.wake for member in membership.members.values()]
        else:
            wakes = [self._own_keys(queue, consumer)[1].wake]
        return bool((yield from _ask(scripts.resume(keys, paused=paused, wakes=wakes, consumer=consumer or ""))))

    def _pausable(self, queue: str, consumer: str | None) -> tuple[FanoutKeys, str]:
        """Return the keys of a queue, and the one that notes a pause."""
        if consumer is None:
            keys = self._keys(queue)
            return keys, keys.state
        keys, own = self._own_keys(queue, consumer)
        return keys, own.details

    def await_wake(self, queue: str, *, consumer: str, timeout_s: float) -> Operation[bool]:
        """See ``store.FanoutStore.await_wake``."""
        _, own = self._own_keys(queue, consumer)
        if not 0 < timeout_s <= MAX_WAIT_S:
            raise UsageError(f"timeout_s is {timeout_s}: it must be more than 0, and {MAX_WAIT_S:g} at most")
        woken: bool = yield Wake(own.wake, timeout_s)
        return woken

    # Looking.

    def peek(
        self, queue: str, *, consumer: str, offset: int = 0, limit: int = DEFAULT_PAGE, lane: int = 0
    ) -> Operation[tuple[FanoutMessage, ...]]:
        """See ``store.FanoutStore.peek``."""
        _check_page(offset, limit)
        keys = self._keys(queue)
        member = yield from self._member(queue, consumer)
        own = member.keys
        check_integer("lane", lane, 0, len(own.ready) - 1)
        reply = yield from _ask(scripts.peek(keys, own, ready=own.ready[lane], offset=offset, limit=limit))
        messages = (
            _message(queue, consumer, int(found.id), found.message, attempt=found.attempts, stalls=found.stalls)
            for found in reply.messages
            if found.id.isdigit()
        )
        return tuple(message for message in messages if message is not None)

    def size(self, queue: str, *, consumer: str | None = None) -> Operation[int]:
        """See ``store.FanoutStore.size``."""
        if consumer is None:
            return (yield from self._queue_facts(queue)).messages
        view = yield from self._consumer_view(queue, consumer, sample=0)
        return view.ready + view.leased + view.delayed

    def inspect(self, queue: str) -> Operation[QueueView]:
        """See ``store.FanoutStore.inspect``."""
        facts = yield from self._queue_facts(queue)
        membership = yield from self._membership(queue, fresh=True)
        views: list[ConsumerView] = []
        for consumer in sorted(membership.members):
            with suppress(UnknownConsumer):
                views.append((yield from self._consumer_view(queue, consumer, sample=SAMPLE)))
        return replace(facts, consumers=tuple(views))

    def verify(self, queue: str, *, findings: int = DEFAULT_FINDINGS) -> Operation[VerifyReport]:
        """See ``store.FanoutStore.verify``."""
        check_integer("findings", findings, 0, MAX_FINDINGS)
        walk = yield from self._walk_through(queue)
        named: list[Finding] = []
        counts: Counter[Problem] = Counter()
        at = 0
        while at < len(walk.suspects):
            found = yield from self._judge(queue, walk, walk.suspects[at : at + SUSPECTS_PER_CALL])
            at += found.judged
            counts.update(finding.problem for finding in found.findings)
            named += found.findings[: findings - len(named)]
        return VerifyReport(
            checked=walk.messages,
            findings=tuple(named),
            counts=dict(counts),
            expired_references=walk.expired_references,
        )

    def repair(self, queue: str, *, dry_run: bool = True, over_too: bool = True) -> Operation[RepairReport]:
        """See ``store.FanoutStore.repair``.

        :param over_too: also messages whose time is over; else they are left to an ``expire``.
        """
        membership = yield from self._membership(queue, fresh=True)
        over_ms = -1 if over_too else membership.now_ms if self._clock is None else self._clock()
        walk = yield from self._walk_through(queue)
        counts: Counter[Problem] = Counter()
        freed = at = tries = 0
        while at < len(walk.suspects):
            found = yield from self._judge(queue, walk, walk.suspects[at : at + SUSPECTS_PER_CALL], over_ms=over_ms)
            try:
                freed += 0 if dry_run else (yield from self._mend(queue, found))
            except MembershipChanged:
                # What was mended is found to be right next time.
                tries += 1
                if tries > TRIES:
                    raise
                continue
            tries = 0
            at += found.judged
            counts.update(finding.problem for finding in found.findings)
        return RepairReport(checked=walk.messages, repaired=dict(counts), freed=freed, dry_run=dry_run)

    def _walk_through(self, queue: str) -> Steps[_Walk]:
        """Walk through all of a queue, and return of which ids something looks wrong.

        Others go on meanwhile, so that what looks wrong need not be.
        """
        keys = self._keys(queue)
        facts = yield from self._queue_facts(queue)
        membership = yield from self._membership(queue, fresh=True)
        # The server takes the messages along when it walks through their ids.
        limit = max(1, min(IDS_PER_WALK, BYTES_PER_CALL * facts.messages // max(1, facts.stored_bytes)))
        messages = set((yield from _walk(keys.messages, limit=limit)))
        expiries = set((yield from _walk(keys.expiries)))
        references = yield from _walk_values(keys.references)
        held = yield from _walk(keys.held)
        owed = Counter(held)
        lengths: dict[str, int] = {}
        expired_references = 0
        suspects: set[int] = set()
        for name, member in membership.members.items():
            own = member.keys
            leased = yield from _walk(own.leases)
            ready: list[int] = []
            for key in own.ready:
                ready += yield from _walk(key)
            lengths[name] = len(ready)
            # What was published since the beginning is among them.
            expired_references += sum(
                one <= facts.last_id and one not in messages and one not in references for one in ready
            )
            places = Counter(leased)
            places.update(ready)
            for key in (own.delayed, own.dead):
                places.update((yield from _walk(key)))
            notes = yield from _walk_values(own.details)
            noted = {*notes, *(yield from _walk(own.details))}
            owed.update(places.keys())
            suspects |= {message_id for message_id, count in places.items() if count > 1}
            suspects |= {message_id for message_id in leased if notes.get(message_id, b"-").endswith(b"-")}
            suspects |= noted - places.keys()
        for message_id in messages:
            if references.get(message_id) != b"%d" % owed[message_id] or message_id not in expiries:
                suspects.add(message_id)
        suspects |= (expiries | references.keys()) - messages
        return _Walk(len(messages), sorted(suspects), len(held), lengths, expired_references)

    def _judge(self, queue: str, walk: _Walk, ids: Sequence[int], *, over_ms: int = -1) -> Steps[_Judged]:
        """Look at ids in all places, and return what is wrong.

        That is one call where it can be. Where the lists are too long for one, each consumer is looked at in one, and
        an id of which anything has changed from call to call is being worked on, and not judged.

        :param over_ms: messages whose life ended by then are right as they are.
        """
        for tries in range(TRIES + 1):
            membership = yield from self._membership(queue, fresh=bool(tries))
            groups = _groups(membership, walk)
            wanted = list(ids)
            answers: list[dict[int, Any]] = []
            try:
                for group in groups:
                    reply = yield from self._ask_group(queue, scripts.verify, membership, group, wanted)
                    answers.append({int(row.id): row for row in reply.rows})
                    # There may be fewer than were asked about.
                    wanted = wanted[: len(answers[-1])]
            except MembershipChanged:
                if tries == TRIES:
                    raise
                continue
            judged = [_judged(one, groups, [answer[one] for answer in answers], over_ms) for one in wanted]
            return _Judged(len(wanted), membership, groups, [one for one in judged if one is not None and one.findings])
        raise AssertionError("unreachable")

    def _mend(self, queue: str, found: _Judged) -> Steps[int]:
        """Set right what is wrong, in the lists of one group of consumers after the other; return what was freed."""
        freed = 0
        for number, group in enumerate(found.groups):
            wrong = found.wrong
            is_last = number == len(found.groups) - 1
            while wrong:
                values: list[lua.Value] = []
                for one in wrong:
                    # The count is right when the last group is.
                    elsewhere: lua.Value = sum(one.owed) - one.owed[number] if is_last else "-"
                    values += (one.id, elsewhere, "" if len(found.groups) == 1 else one.references)
                reply = yield from self._ask_group(queue, scripts.repair, found.membership, group, values)
                wrong = wrong[reply.looked_at :]
                freed += reply.freed
        return freed

    def _ask_group(
        self, queue: str, script: Bound, membership: _Membership, group: Sequence[str], values: Sequence[lua.Value]
    ) -> Steps[Reply]:
        """Ask what needs the keys of several consumers, those that are being removed, too.

        :param script: ``verify`` or ``repair``.
        """
        keys = self._keys(queue)
        consumer_keys: list[str] = []
        lanes: list[int] = []
        for name in group:
            member = membership.members[name]
            own = member.keys
            consumer_keys += (own.leases, own.delayed, own.dead, own.details, *own.ready)
            is_fifo = member.options is None or member.options.mode is Mode.FIFO
            lanes.append(0 if is_fifo and len(own.ready) == 1 else len(own.ready))
        return (
            yield from _ask(
                script(
                    keys,
                    consumer_keys=consumer_keys,
                    membership=membership.number,
                    now_ms=self._now(),
                    consumers=len(lanes),
                    values=[*lanes, *values],
                )
            )
        )

    # What several operations do.

    def _now(self) -> lua.Value:
        return "" if self._clock is None else self._clock()

    def _keys(self, queue: str) -> FanoutKeys:
        check_queue(queue)
        return self._keys_of(queue)

    def _own_keys(self, queue: str, consumer: str) -> tuple[FanoutKeys, FanoutConsumerKeys]:
        """Return the keys of a queue and of a consumer, for those who need no lanes."""
        check_consumer(consumer)
        return self._keys(queue), self._own_keys_of(queue, consumer)

    def _ask_with_lanes(self, queue: str, consumer: str, make: _ConsumerCall) -> Steps[Reply]:
        """Ask what needs the list of every lane of a consumer; how many it has is read when it was not known."""
        keys, own = self._own_keys(queue, consumer)
        for tries in range(TRIES + 1):
            # One that nothing is known of most likely has one lane, and to read all members may take long.
            member = self._recent_member(queue, consumer)
            if tries:
                member = (yield from self._membership(queue, fresh=True)).members.get(consumer)
            try:
                return (yield from _ask(make(keys, own if member is None else member.keys)))
            except MembershipChanged:
                if tries == TRIES:
                    raise
        raise AssertionError("unreachable")

    def _recent_member(self, queue: str, consumer: str) -> _Member | None:
        with self._lock:
            membership = self._memberships.get(queue)
        return None if membership is None else membership.members.get(consumer)

    def _membership(self, queue: str, *, fresh: bool = False) -> Steps[_Membership]:
        """Return who is registered, as far as this process knows.

        :param fresh: ask the server.
        """
        if not fresh:
            with self._lock:
                known = self._memberships.get(queue)
                if known is not None:
                    self._memberships.move_to_end(queue)
                    return known
        keys = self._keys(queue)
        reply = yield from _ask(scripts.list_consumers(keys))
        members: dict[str, _Member] = {}
        publish_args: list[str] = []
        for raw_name, text, last_seen_ms in reply.members:
            name = raw_name.decode()
            own = fanout_consumer_keys(queue, name, lanes=_lanes(text), prefix=self._prefix)
            member = members[name] = _Member(_read_options(text), last_seen_ms, own)
            if member.options is not None:
                publish_args += (name, text.decode())
        joined = [member for member in members.values() if member.options is not None]
        is_plain = all(len(member.keys.ready) == 1 for member in joined)
        publish_keys = [key for member in joined for key in _publish_keys(member)] if is_plain else None
        found = _Membership(reply.membership, reply.now_ms, members, len(joined), publish_keys, publish_args)
        with self._lock:
            self._memberships[queue] = found
            self._memberships.move_to_end(queue)
            if len(self._memberships) > RECENT_QUEUES:
                self._memberships.popitem(last=False)
        return found

    def _member(self, queue: str, consumer: str) -> Steps[_Member]:
        """Return a consumer as it is now.

        :raises UnknownConsumer: when there is none of this name; ``UnknownQueue`` when there is no queue either.
        """
        check_consumer(consumer)
        member = (yield from self._membership(queue, fresh=True)).members.get(consumer)
        if member is not None:
            return member
        yield from self._consumer_view(queue, consumer, sample=0)
        # Registered just now.
        return (yield from self._member(queue, consumer))

    def _queue_facts(self, queue: str) -> Steps[QueueView]:
        """Describe a queue without its consumers."""
        keys = self._keys(queue)
        reply = yield from _ask(scripts.inspect(keys))
        state = _pairs(reply.fields)
        chosen = {name: state.pop(name) for name in ("when_nobody", "max_held", "deduplication_ms") if name in state}
        for name in ("version", "members"):
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
        """Return what the script says of a consumer."""
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
        """Describe a consumer.

        :param sample: messages next in line to look at for ``only_holder``.
        """
        reply = yield from self._consumer_facts(queue, consumer, sample=sample)
        details = _pairs(reply.fields)
        lengths, published_ms, states = reply.lanes[::3], reply.lanes[1::3], reply.lanes[2::3]
        blocked_ms = [int(state.split()[1]) for state in states if state.startswith(b"blocked ")]
        del details["registered_ms"]
        return ConsumerView(
            consumer=consumer,
            options=_read_options(reply.options),
            paused=bool(details.pop("paused")),
            adopting=bool(details.pop("adopting")),
            last_seen_ms=reply.last_seen_ms,
            ready=sum(lengths),
            leased=reply.leased,
            overdue=reply.overdue,
            delayed=reply.delayed,
            dead=reply.dead,
            oldest_ready_ms=min((instant for instant in published_ms if instant), default=None),
            next_deadline_ms=reply.deadline_ms or None,
            next_due_ms=reply.due_ms or None,
            oldest_dead_ms=reply.oldest_dead_ms or None,
            blocked_until_ms=min(blocked_ms, default=None),
            sampled=reply.sampled,
            only_holder=reply.only_holder,
            counters={name: int(value or 0) for name, value in details.items()},
        )

    def _forget(self, queue: str) -> None:
        """Have the membership read again, since it has changed."""
        with self._lock:
            self._memberships.pop(queue, None)


def _ask(call: lua.Call) -> Steps[Reply]:
    """Return the reply of one call by the names of its header, or raise what stands in its place."""
    [reply] = yield [call]
    if isinstance(reply, QueuekeeperError):
        raise reply
    return call.script.read(reply)


def _given_up(reports: list[PublishReport], count: int, error: QueuekeeperError) -> list[PublishReport]:
    """Return the reports with the error for those messages that have none; raise it when nothing was published."""
    if not reports:
        raise error
    return [*reports, *[PublishReport(error=error)] * (count - len(reports))]


def _end_of_chunk(records: Sequence[bytes], start: int, most: int) -> int:
    """Return the position behind the last record of a call."""
    size_bytes = len(records[start])
    end = start + 1
    while end < min(len(records), start + most) and size_bytes + len(records[end]) <= BYTES_PER_CALL:
        size_bytes += len(records[end])
        end += 1
    return end


def _parts(ids: Sequence[int], most: int = MAX_CLAIM) -> list[Sequence[int]]:
    """Return ids as calls take them.

    :raises UsageError: when one is no id.
    """
    for message_id in ids:
        check_integer("id", message_id, 1, MAX_ID)
    return [ids[start : start + most] for start in range(0, len(ids), most)]


def _pairs(values: Sequence[bytes]) -> dict[str, str]:
    """Return the fields of a hash as scripts answer them, names and values in turn."""
    return {name.decode(): value.decode() for name, value in zip(values[::2], values[1::2], strict=True)}


def _check_page(offset: int, limit: int) -> None:
    check_integer("offset", offset, 0, MAX_ID)
    check_integer("limit", limit, 1, MAX_PAGE)


def _drained(call: lua.Call) -> Steps[PurgeReport]:
    """Repeat a call that gives messages up until there are no more."""
    released = freed = 0
    more = 1
    while more:
        reply = yield from _ask(call)
        released += reply.released
        freed += reply.freed
        more = reply.more
    return PurgeReport(released=released, freed=freed)


def _walk(key: str, *, limit: int = IDS_PER_WALK) -> Steps[list[int]]:
    """Return the ids that a key holds."""
    found: list[int] = []
    cursor: lua.Value = 0
    while True:
        reply = yield from _ask(scripts.list_ids(holder=key, cursor=cursor, limit=limit, with_values=0))
        cursor = reply.cursor
        found += map(int, reply.ids)
        if cursor == b"0":
            return found


def _walk_values(key: str) -> Steps[dict[int, bytes]]:
    """Return what a hash has of each id."""
    found: dict[int, bytes] = {}
    cursor: lua.Value = 0
    while True:
        reply = yield from _ask(scripts.list_ids(holder=key, cursor=cursor, limit=IDS_PER_WALK, with_values=1))
        cursor = reply.cursor
        found.update((int(raw_id), value) for raw_id, value in zip(reply.ids[::2], reply.ids[1::2], strict=True))
        if cursor == b"0":
            return found


def _groups(membership: _Membership, walk: _Walk) -> list[list[str]]:
    """Return the consumers in groups whose lists can be looked through in one call, as far as is known."""
    groups: list[list[str]] = [[]]
    entries = keys = 0
    for name, member in membership.members.items():
        length, width = walk.lengths.get(name, 0), len(member.keys.ready) + 4
        # Half of what a call does: they may grow.
        if groups[-1] and (walk.held + entries + length > ENTRIES_PER_CALL // 2 or keys + width > KEYS_PER_CALL):
            groups.append([])
            entries = keys = 0
        groups[-1].append(name)
        entries += length
        keys += width
    return groups


def _judged(message_id: int, groups: Sequence[Sequence[str]], rows: Sequence[Any], over_ms: int) -> _Verdict | None:
    """Return what is wrong with one message; none when it has changed from call to call.

    :param rows: what the script says of it, group by group. In each the places have a word per consumer that has
        something of it: its position in the group, from 1, and a letter per place; ``0h`` when it is held.
    :param over_ms: messages whose life ended by then are right as they are.
    """
    places: list[tuple[str | None, str]] = []
    owed: list[int] = []
    facts: set[tuple[Any, ...]] = set()
    for names, row in zip(groups, rows, strict=True):
        words = row.places.decode().split()
        is_held = "0h" in words
        facts.add((row.has_message, row.references, row.expires_at_ms, is_held))
        kinds = [(names[position - 1], kind) for position, kind in map(_place, words) if position]
        places += kinds
        owed.append(sum(kind != "n" for _, kind in kinds))
    if len(facts) > 1:
        return None
    [(has_message, references, expires_at_ms, is_held)] = facts
    if 0 <= float(expires_at_ms) <= over_ms:
        return _Verdict(message_id, references, owed, ())
    has_expiry = float(expires_at_ms) >= 0
    findings = tuple(_findings(message_id, bool(has_message), references, has_expiry, sum(owed) + is_held, places))
    return _Verdict(message_id, references, owed, findings)


def _place(word: str) -> tuple[int, str]:
    kind = word.lstrip("0123456789")
    return int(word[: -len(kind)]), kind


def _findings(
    message_id: int,
    has_message: bool,
    references: int,
    has_expiry: bool,
    owed: int,
    places: Sequence[tuple[str | None, str]],
) -> Iterator[Finding]:
    """Return what is wrong with one message.

    :param references: how many owe an ack as far as is counted; less than 0 when nothing is counted.
    :param owed: how many have it.
    :param places: a letter per place of each consumer that has something of it.
    """
    for consumer, kinds in places:
        if kinds == "n":
            yield Finding(problem=Problem.LEFT_NOTES, id=message_id, consumer=consumer)
        elif len(kinds) > 1:
            yield Finding(problem=Problem.DOUBLED, id=message_id, consumer=consumer)
        if "u" in kinds:
            yield Finding(problem=Problem.LOST_LEASE, id=message_id, consumer=consumer)
    counted = None if references < 0 else references
    if not has_message:
        if counted is not None:
            yield Finding(problem=Problem.MISSING_PAYLOAD, id=message_id, found=counted)
        elif has_expiry:
            yield Finding(problem=Problem.WRONG_EXPIRY, id=message_id)
    elif not owed:
        yield Finding(problem=Problem.UNREFERENCED_PAYLOAD, id=message_id, found=counted, expected=0)
    else:
        if counted != owed:
            yield Finding(problem=Problem.WRONG_COUNT, id=message_id, found=counted, expected=owed)
        if not has_expiry:
            yield Finding(problem=Problem.WRONG_EXPIRY, id=message_id)


def _publish_keys(member: _Member, order_hashes: Sequence[int] = (0,)) -> list[str]:
    own = member.keys
    lanes = len(own.ready)
    ready = own.ready if lanes == 1 else [own.ready[lane] for lane in sorted({each % lanes for each in order_hashes})]
    bounds = [own.details, own.delayed] if member.options is not None and member.options.max_length else []
    return [own.wake, *ready, *bounds]


def _written(options: ConsumerOptions) -> str:
    """Return options as the membership has them."""
    return (
        f"{options.mode} {options.when_failed} {options.lanes} {options.max_length or 0} {options.when_full} "
        f"{options.dead_retention_ms} {options.idle_expiry_ms or 0}"
    )


def _lanes(text: bytes) -> int:
    return int(text.split()[2])


def _read_options(text: bytes) -> ConsumerOptions | None:
    """Return the options of a member; none while it is being removed."""
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


def _message(
    queue: str, consumer: str, message_id: int, raw: bytes, *, attempt: int, stalls: int
) -> FanoutMessage | None:
    """Return a message as its consumer gets it; none when nobody can read it."""
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


def _cut(reason: str) -> bytes:
    """Return a reason as far as a dead letter keeps it."""
    return reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore").encode()

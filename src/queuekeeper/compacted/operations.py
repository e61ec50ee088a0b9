"""The operations of compacted queues, as steps of script calls.

A step is a list of calls; its answer is the list of their replies, in order, with an exception in the place of a reply
that is an error. The calls of one queue are never in flight together.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from queuekeeper import lua
from queuekeeper.checks import check_integer
from queuekeeper.clock import Clock
from queuekeeper.compacted.model import (
    FETCH_BYTES,
    MAX_ACKS,
    MAX_LEASE_MS,
    MAX_PAGE,
    MAX_SEQUENCE,
    MAX_VALUE_BYTES,
    MAX_VIOLATIONS,
    MAX_WINDOW,
    PRODUCER_MS,
    AckReport,
    Append,
    AppendReport,
    CollectReport,
    CompactedMessage,
    DropReport,
    DuePage,
    DueRow,
    Fence,
    Fetched,
    Heartbeat,
    Position,
    Purge,
    PurgeReport,
    QueueRules,
    QueueView,
    Refill,
    RepairReport,
    RestoreReport,
    Retention,
    RetentionPolicy,
    RewindReport,
    Subscription,
    VerifyReport,
    Violation,
    check_appends,
    check_key,
    check_name,
    chosen,
)
from queuekeeper.compacted.records import HEADED_KINDS, RECORD_KINDS, digest_of, is_head, message_of, record_of
from queuekeeper.errors import StaleEpoch, UnknownQueue, UsageError
from queuekeeper.keyspace import (
    CompactedKeys,
    check_client_id,
    check_prefix,
    check_served,
    compacted_keys,
    compacted_registry_key,
)
from queuekeeper.lua.scripts import compacted as scripts
from queuekeeper.operation import Operation, errors_name

ENTRIES_PER_CALL = 200
ROWS_PER_CALL = 100
"""Most rows that a call looks at, removes or brings back: a slow server is kept from all others for about 2 ms."""

FETCHED_PER_CALL = 100
"""Most messages of one call, likewise; larger fetches take several."""

BYTES_PER_CALL = 1_000_000
"""Most bytes of values that one call stores or returns; a single larger one goes alone."""

DUE_BYTES_PER_CALL = 262_144
"""Most bytes of keys and values that one call finds due, or removes; more would keep the server for over 2 ms."""

SAMPLES = 20
"""Members of each key that its memory is estimated by."""

PARTS = ("state", "order", "times", "values", "tombstones", "in_flight")
STRAY_IN_FLIGHT = "stray_in_flight"
UNREADABLE = "unreadable"
_HEAD = b"head"
_GOING_ON = "going_on"
REPAIR_ROUNDS = 3

COUNTERS = (
    "appended",
    "compacted",
    "evicted",
    "evicted_unacked",
    "expired",
    "expired_unacked",
    "tombstones_collected",
    "purged",
    "purged_unacked",
    "restored",
    "delivered",
    "redelivered",
    "acks",
    "repeated_acks",
    "skipped",
    "rewinds",
)

NOTED_QUEUES = 100_000
NOTED_FOR_S = 3_600.0
"""How long it is taken for granted that the collector knows of a queue."""

T = TypeVar("T")

Step: TypeAlias = list[lua.Call]
Steps: TypeAlias = Generator[Step, lua.Replies, T]


@dataclass
class _Survey:
    """What a look at all of a queue has found.

    :ivar wrong_bytes: bytes that the queue says it has and those that it has; none when they agree or are not known.
    """

    checked: int
    violations: list[Violation]
    wrong_bytes: tuple[int, int] | None


class _Noted:
    """Queues that the collector knows of; each is believed for a while only, as a server may lose what it was told."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._until_s: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, client_id: str) -> bool:
        with self._lock:
            return self._until_s.get(client_id, 0.0) > time.monotonic()

    def forget(self, client_id: str) -> None:
        with self._lock:
            self._until_s.pop(client_id, None)

    def add(self, client_id: str) -> None:
        with self._lock:
            self._until_s[client_id] = time.monotonic() + NOTED_FOR_S
            self._until_s.move_to_end(client_id)
            if len(self._until_s) > self._most:
                self._until_s.popitem(last=False)


@errors_name(UnknownQueue, StaleEpoch, client_id="queue of client")
class CompactedOperations:
    """What ``store.QueueOperations`` says. An instance may be shared by threads.

    :param prefix: put before every key.
    :param rules: bounds of each queue.
    :param clock: none for the server's time.
    :param noted_queues: queues that are remembered to be known to the collector; each takes about 200 bytes.
    :param is_cluster: whether keys lie where their hash slot is; then an id that it cannot serve is refused before the
        collector is told of it.
    :raises UsageError: for a prefix with a brace, or a number that is out of range.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        rules: QueueRules | None = None,
        clock: Clock | None = None,
        noted_queues: int = NOTED_QUEUES,
        is_cluster: bool = False,
    ) -> None:
        check_integer("noted_queues", noted_queues, 1, 10_000_000, "each takes about 200 bytes")
        self._prefix = check_prefix(prefix)
        self._rules = rules or QueueRules()
        self._clock = clock
        self._is_cluster = is_cluster
        self._noted = _Noted(noted_queues)

    def wake_key(self, client_id: str) -> str:
        """Return the key that a consumer with nothing to do waits for."""
        return self._keys(client_id).wake

    # Producing

    def append(
        self, client_id: str, appends: Sequence[Append], *, producer: str | None = None, number: int | None = None
    ) -> Operation[AppendReport]:
        """See ``store.QueueOperations.append``."""
        check_appends(appends, self._rules)
        if (producer is None) != (number is None):
            raise UsageError("producer and number go together: name both or neither")
        if producer is not None:
            check_name("producer", producer)
            check_integer("number", number, 0, MAX_SEQUENCE, "a number of the producer's, which grows")
        keys = self._keys(client_id)
        was_known = yield from self._note(client_id, "new")
        reports: list[AppendReport] = []
        for part, entries in enumerate(_parts(_entries(appends))):
            # Each part is an append of its own to the script, so that each is recognised when it is repeated.
            name = "" if producer is None else f"{producer}\0{part}" if part else producer
            # So is one that is another append under a number that was used before.
            numbered = "" if number is None else f"{number}:{digest_of(entries)}"
            call = scripts.append(
                keys,
                max_keys=self._rules.max_keys,
                max_bytes=self._rules.max_bytes,
                policy=self._rules.when_full,
                producer=name,
                number=numbered,
                now=self._now(),
                entries=entries,
            )
            replies = (yield [call]).or_raise()
            report, is_first = _append_report(call.script.read(replies[0]), len(entries) // 4, replies.replicated[0])
            if was_known and is_first:
                # The queue was lost since the collector was told of it, and with it, maybe, what the collector knew.
                self._noted.forget(client_id)
                was_known = yield from self._note(client_id, "new")
            reports.append(report)
            if report.is_forgotten:
                # The producer has gone on: what comes behind would be stored late, and said not to be.
                break
        return reports[0] if len(reports) == 1 else _together(reports)

    def _note(self, client_id: str, which: str) -> Steps[bool]:
        """Tell the collector of a queue; before anything is appended to it, so that none is ever missed.

        :returns: whether it was taken for granted that the collector knows of it.
        """
        if which == "new" and client_id in self._noted:
            return True
        registry = compacted_registry_key(client_id, prefix=self._prefix)
        yield from _ask(scripts.register(registry=registry, now=self._now(), which=which, client_ids=[client_id]))
        self._noted.add(client_id)
        return False

    # Consuming

    def subscribe(
        self,
        client_id: str,
        *,
        session: str,
        takeover: bool = True,
        lease_ms: int = 60_000,
        start: Position | None = None,
    ) -> Operation[Subscription]:
        """See ``store.QueueOperations.subscribe``."""
        check_name("session", session)
        _check_lease(lease_ms)
        keys = self._keys(client_id)
        reply = yield from _ask(
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
        """See ``store.QueueOperations.fetch``."""
        check_integer("window", window, 1, MAX_WINDOW, "messages in flight")
        check_integer("limit", limit, 1, window, "at most the window")
        check_integer("max_bytes", max_bytes, 1, MAX_VALUE_BYTES, "one message comes whatever its size")
        refill = chosen(Refill, "refill", refill)
        _check_sequences(acks, least=0)
        keys = self._keys(client_id)
        _check_fence(fence)

        def part(most: int, left_bytes: int, how: str, redeliver: bool, acks: Sequence[int]) -> Steps[Any]:
            return (
                yield from _ask(
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
        left_bytes = max_bytes - _fetched_bytes(rows)
        # What one call would keep the server too long for comes by several, as long as the last has brought new ones.
        while again and not again[-1] and reply.lag and reply.in_flight < window and left > 0 and left_bytes > 0:
            reply = yield from part(left, left_bytes, _GOING_ON, False, ())
            if not reply.messages and left > 1 and left_bytes > BYTES_PER_CALL:
                reply = yield from part(1, left_bytes, _GOING_ON, False, ())
            if not reply.messages:
                break
            again += _come_again(reply)
            rows += reply.messages
            left -= len(reply.messages)
            left_bytes -= _fetched_bytes(reply.messages)
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
        """See ``store.QueueOperations.ack``."""
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
        return _ack_report((yield from _ask(call)))

    def heartbeat(self, client_id: str, *, fence: Fence, lease_ms: int = 60_000) -> Operation[Heartbeat]:
        """See ``store.QueueOperations.heartbeat``."""
        _check_lease(lease_ms)
        keys = self._keys(client_id)
        _check_fence(fence)
        reply = yield from _ask(
            scripts.heartbeat(
                keys, incarnation=fence.incarnation, epoch=fence.epoch, lease_ms=lease_ms, now=self._now()
            )
        )
        return Heartbeat(lag=reply.lag, in_flight=reply.in_flight)

    def release(self, client_id: str, *, fence: Fence) -> Operation[bool]:
        """See ``store.QueueOperations.release``."""
        keys = self._keys(client_id)
        _check_fence(fence)
        return bool((yield from _ask(scripts.release(keys, incarnation=fence.incarnation, epoch=fence.epoch))))

    def rewind(self, client_id: str, *, to: Position, fence: Fence | None = None) -> Operation[RewindReport]:
        """See ``store.QueueOperations.rewind``."""
        keys = self._keys(client_id)
        if fence is not None:
            _check_fence(fence)
        reply = yield from _ask(
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
        """See ``store.QueueOperations.skip``."""
        _check_sequences([sequence], least=1)
        keys = self._keys(client_id)
        return _ack_report((yield from _ask(scripts.skip(keys, sequence=sequence, now=self._now()))))

    # Looking

    def get(self, client_id: str, *, key: bytes) -> Operation[CompactedMessage | None]:
        """See ``store.QueueOperations.get``."""
        check_key(key)
        found = yield from _ask(scripts.get(self._keys(client_id), key=key))
        return None if found is None else _message(client_id, key, found)

    def peek(
        self, client_id: str, *, after_sequence: int = 0, limit: int = 100
    ) -> Operation[tuple[CompactedMessage, ...]]:
        """See ``store.QueueOperations.peek``."""
        check_integer("after_sequence", after_sequence, 0, MAX_SEQUENCE, "the number of a message, or 0")
        check_integer("limit", limit, 1, MAX_PAGE, "read longer queues page by page")
        keys = self._keys(client_id)
        rows: Sequence[Any] = ()
        while not rows and after_sequence != -1:
            call = scripts.peek(keys, after_sequence=after_sequence, limit=limit, max_bytes=BYTES_PER_CALL)
            reply = yield from _ask(call)
            after_sequence, rows = reply.next_after_sequence, reply.messages
        return tuple(_message(client_id, row.key, row) for row in rows)

    def inspect(self, client_id: str) -> Operation[QueueView]:
        """See ``store.QueueOperations.inspect``."""
        reply = yield from _ask(scripts.inspect(self._keys(client_id), samples=SAMPLES, now=self._now()))
        return QueueView(client_id=client_id, exists=False) if reply is None else _view(client_id, reply)

    # Keeping house

    def configure(self, client_id: str, *, retention: Retention | None) -> Operation[None]:
        """See ``store.QueueOperations.configure``."""
        keys = self._keys(client_id)
        if retention is None:
            call = scripts.configure(keys, policy="", retention_ms="", tombstone_ms="")
        else:
            _check_retention(retention)
            call = scripts.configure(
                keys,
                policy=retention.policy,
                retention_ms=retention.retention_ms,
                tombstone_ms=retention.tombstone_ms,
            )
        yield from _ask(call)
        # What is due has changed, also for a queue that the collector meant to leave alone for long.
        yield from self._note(client_id, "earlier")

    def purge(self, client_id: str, *, what: Purge, dry_run: bool = False) -> Operation[PurgeReport]:
        """See ``store.QueueOperations.purge``."""
        if type(what) is not Purge:
            raise UsageError(f"what to purge is {what!r}: it must be a Purge")
        up_to = what.sequence if what.sequence is not None else (yield from self.inspect(client_id)).sequence
        keys = self._keys(client_id)
        messages = unacked = tombstones = size_bytes = after = 0
        more = 1
        while more:
            reply = yield from _ask(
                scripts.purge(
                    keys,
                    what="acked" if what.kind == "acked" else "up_to",
                    up_to_sequence=up_to,
                    after_sequence=after,
                    limit=ROWS_PER_CALL,
                    dry_run=int(dry_run),
                )
            )
            messages += reply.deleted
            unacked += reply.unacked
            tombstones += reply.tombstones
            size_bytes += reply.bytes
            more, after = reply.more, reply.next_after_sequence
        return PurgeReport(
            client_id=client_id,
            messages=messages,
            unacked=unacked,
            tombstones=tombstones,
            size_bytes=size_bytes,
            dry_run=dry_run,
        )

    def drop(self, client_id: str, *, dry_run: bool = False, incarnation: int | None = None) -> Operation[DropReport]:
        """See ``store.QueueOperations.drop``."""
        reply = yield from _ask(
            scripts.drop(
                self._keys(client_id), incarnation="" if incarnation is None else incarnation, dry_run=int(dry_run)
            )
        )
        return DropReport(
            client_id=client_id,
            existed=bool(reply.existed),
            messages=reply.live,
            lag=reply.lag,
            in_flight=reply.in_flight,
            size_bytes=reply.bytes,
            incarnation=reply.incarnation or None,
            dry_run=dry_run,
        )

    def verify(self, client_id: str) -> Operation[VerifyReport]:
        """See ``store.QueueOperations.verify``."""
        survey = yield from self._survey(client_id)
        return VerifyReport(
            client_id=client_id,
            checked=survey.checked,
            violations=tuple(survey.violations[:MAX_VIOLATIONS]),
            found=len(survey.violations),
        )

    def repair(self, client_id: str, *, dry_run: bool = True) -> Operation[RepairReport]:
        """See ``store.QueueOperations.repair``."""
        survey = yield from self._survey(client_id)
        found = len(survey.violations)
        indexed = dropped = strays = numbers = 0
        # What a key took with it shows only when the bytes are counted again.
        rounds = 0 if dry_run else REPAIR_ROUNDS
        while survey.violations and rounds:
            rounds -= 1
            for reply in (yield from self._repair(client_id, survey)):
                indexed += reply.indexed
                dropped += reply.dropped
                strays += reply.strays
                numbers += reply.numbers
            survey = yield from self._survey(client_id)
        return RepairReport(
            client_id=client_id,
            found=found,
            indexed=indexed,
            dropped=dropped,
            strays=strays,
            numbers=numbers,
            remaining=len(survey.violations),
            dry_run=dry_run,
        )

    def _repair(self, client_id: str, survey: _Survey) -> Steps[list[Any]]:
        keys = self._keys(client_id)
        names: dict[tuple[str, bytes], None] = {}
        for violation in survey.violations:
            # What only its producer can put right stays.
            if violation.key is not None and violation.rule != UNREADABLE:
                names["in_flight" if violation.rule == STRAY_IN_FLIGHT else "key", violation.key] = None
        wrong_bytes, size_bytes = survey.wrong_bytes or ("", "")
        replies: list[Any] = []
        left = list(names)
        while left or not replies:
            part, left = left[:ROWS_PER_CALL], left[ROWS_PER_CALL:]
            violations = (text for name in part for text in name)
            call = scripts.repair(keys, wrong_bytes=wrong_bytes, bytes=size_bytes, violations=violations)
            replies.append((yield from _ask(call)))
        return replies

    def _survey(self, client_id: str) -> Steps[_Survey]:
        """Look at all of a queue. Bytes are compared only when it has stood still meanwhile."""
        keys = self._keys(client_id)
        before = yield from self.inspect(client_id)
        survey = _Survey(checked=0, violations=[], wrong_bytes=None)
        counted = 0
        for part in PARTS:
            cursor: lua.Value = 0
            while True:
                call = scripts.verify(
                    keys, part=part, cursor=cursor, limit=ROWS_PER_CALL, kinds=RECORD_KINDS, headed=HEADED_KINDS
                )
                reply = yield from _ask(call)
                cursor = reply.next_cursor
                survey.checked += reply.looked_at
                counted += reply.bytes if part == "order" else 0
                survey.violations += (
                    Violation(
                        rule=UNREADABLE if found.rule == _HEAD else found.rule.decode(),
                        key=None if part == "state" else found.key,
                        sequence=_or_none(found.sequence),
                    )
                    for found in reply.violations
                    if found.rule != _HEAD or not is_head(found.head)
                )
                if int(cursor) == 0:
                    break
        after = yield from self.inspect(client_id)
        if after.size_bytes != counted and _standing(before) == _standing(after):
            survey.violations.append(Violation(rule="wrong_bytes"))
            survey.wrong_bytes = after.size_bytes, counted
        return survey

    # Retention

    def find_due(
        self,
        client_id: str,
        *,
        retention: Retention,
        override: bool = False,
        after_sequence: int = 0,
        limit: int = 100,
        with_values: bool = False,
        now_ms: int | None = None,
    ) -> Operation[DuePage]:
        """See ``store.QueueOperations.find_due``."""
        check_integer("after_sequence", after_sequence, 0, MAX_SEQUENCE, "from the page before, or 0")
        check_integer("limit", limit, 1, MAX_PAGE, "rows of a page")
        _check_retention(retention)
        reply = yield from _ask(
            scripts.find_due(
                self._keys(client_id),
                policy=retention.policy,
                retention_ms=retention.retention_ms,
                tombstone_ms=retention.tombstone_ms,
                override=int(override),
                after_sequence=after_sequence,
                limit=limit,
                with_values=int(with_values),
                max_bytes=DUE_BYTES_PER_CALL,
                now=self._now(now_ms),
            )
        )
        return DuePage(
            rows=tuple(
                DueRow(
                    key=row.key,
                    sequence=row.sequence,
                    appended_ms=row.ms,
                    tombstone=bool(row.is_tombstone),
                    size_bytes=row.bytes,
                    acked=bool(row.is_acked),
                    stored=row.value if with_values else None,
                )
                for row in reply.rows
            ),
            retention=_retention(reply.policy, reply.retention_ms, reply.tombstone_ms),
            more=bool(reply.more),
            next_after_sequence=reply.next_after_sequence,
            looked_at=reply.looked_at,
            next_due_ms=_or_none(reply.next_due_ms),
        )

    def collect(
        self,
        client_id: str,
        *,
        retention: Retention,
        rows: Sequence[DueRow],
        override: bool = False,
        producer_ms: int = PRODUCER_MS,
        now_ms: int | None = None,
    ) -> Operation[CollectReport]:
        """See ``store.QueueOperations.collect``."""
        check_integer("producer_ms", producer_ms, 0, MAX_SEQUENCE, "an age in milliseconds")
        _check_retention(retention)
        keys = self._keys(client_id)
        collected = unacked = tombstones = size_bytes = kept = producers = live = 0
        next_due_ms: int | None = None
        stayed: list[int] = []
        for part in _removable(rows):
            reply = yield from _ask(
                scripts.collect(
                    keys,
                    policy=retention.policy,
                    retention_ms=retention.retention_ms,
                    tombstone_ms=retention.tombstone_ms,
                    override=int(override),
                    producer_ms=producer_ms,
                    now=self._now(now_ms),
                    rows=(text for row in part for text in (row.key, row.sequence)),
                )
            )
            collected += reply.deleted
            unacked += reply.unacked
            tombstones += reply.tombstones
            size_bytes += reply.bytes
            kept += reply.kept
            producers += reply.producers
            live, next_due_ms = reply.live, _or_none(reply.next_due_ms)
            stayed += reply.stayed
        return CollectReport(
            collected=collected,
            kept=kept,
            kept_sequences=tuple(stayed),
            unacked=unacked,
            tombstones=tombstones,
            size_bytes=size_bytes,
            producers=producers,
            live=live,
            next_due_ms=next_due_ms,
        )

    def restore(
        self, client_id: str, *, rows: Sequence[DueRow], incarnation: int | None = None
    ) -> Operation[RestoreReport]:
        """See ``store.QueueOperations.restore``."""
        keys = self._keys(client_id)
        values: list[tuple[lua.Value, ...]] = []
        for row in rows:
            if row.stored is None:
                raise UsageError(f"row {row.sequence} has no value: find what is to be restored with_values")
            values.append((row.key, row.sequence, row.appended_ms, row.stored))
        restored = present = refused = to_deliver = 0
        for part in _parts(values, most=ROWS_PER_CALL):
            call = scripts.restore(keys, incarnation="" if incarnation is None else incarnation, rows=part)
            reply = yield from _ask(call)
            restored += reply.restored
            present += reply.present
            refused += reply.refused
            to_deliver += reply.to_deliver
        if restored:
            # What is due again shall not wait for what the collector meant to do when it was gone.
            yield from self._note(client_id, "earlier")
        return RestoreReport(restored=restored, present=present, refused=refused, to_deliver=to_deliver)

    # What all share

    def _keys(self, client_id: str) -> CompactedKeys:
        check_client_id(client_id)
        keys = compacted_keys(client_id, prefix=self._prefix)
        if self._is_cluster:
            check_served(keys)
        return keys

    def _now(self, given_ms: int | None = None) -> lua.Value:
        """Return what a script takes as now: empty for the server's time."""
        if given_ms is not None:
            check_integer("now_ms", given_ms, 0, MAX_SEQUENCE, "milliseconds since 1970")
            return given_ms
        return "" if self._clock is None else self._clock()


def _ask(call: lua.Call) -> Steps[Any]:
    """Return the reply of one call, by the names in the script's header."""
    return call.script.read((yield [call]).or_raise()[0])


def _entries(appends: Iterable[Append]) -> Iterator[tuple[lua.Value, ...]]:
    """Return what a script takes of each entry."""
    for append in appends:
        expected = append.expected_sequence
        yield append.key, record_of(append), int(append.tombstone), "" if expected is None else expected


def _removable(rows: Sequence[DueRow]) -> Iterator[Sequence[DueRow]]:
    """Cut rows into what a call may remove, by number and size; one empty part of none."""
    start = size_bytes = 0
    for at, row in enumerate(rows):
        if at > start and (at - start == ROWS_PER_CALL or size_bytes + row.size_bytes > DUE_BYTES_PER_CALL):
            yield rows[start:at]
            start, size_bytes = at, 0
        size_bytes += row.size_bytes
    yield rows[start:]


def _parts(rows: Iterable[tuple[lua.Value, ...]], *, most: int = ENTRIES_PER_CALL) -> Iterator[list[lua.Value]]:
    """Cut rows into the arguments of calls, in the same way whenever it is repeated."""
    part: list[lua.Value] = []
    count = size_bytes = 0
    for row in rows:
        row_bytes = sum(len(text) for text in row if isinstance(text, bytes))
        if part and (count == most or size_bytes + row_bytes > BYTES_PER_CALL):
            yield part
            part, count, size_bytes = [], 0, 0
        part += row
        count += 1
        size_bytes += row_bytes
    if part:
        yield part


def _append_report(reply: Any, count: int, replicated: bool | None) -> tuple[AppendReport, bool]:
    """Return what became of an append, and whether nothing had been appended to the queue before."""
    if type(reply) is not bytes:
        if reply.word == "forgotten":
            return AppendReport(sequences=(), replaced=(), live=None, is_replay=True, is_forgotten=True), False
        sequences = tuple(range(reply.first_sequence, reply.last_sequence + 1))
        return AppendReport(sequences=sequences, replaced=(), live=None, is_replay=True), False
    first, live, evicted, evicted_unacked, is_consumed, is_first, *replaced = map(int, reply.split())
    report = AppendReport(
        sequences=tuple(range(first, first + count)),
        replaced=tuple(sequence or None for sequence in replaced),
        live=live,
        evicted=evicted,
        evicted_unacked=evicted_unacked,
        is_consumed=bool(is_consumed),
        replicated=replicated,
    )
    return report, bool(is_first)


def _together(reports: Sequence[AppendReport]) -> AppendReport:
    """Return what became of the parts of one append."""
    is_forgotten = any(report.is_forgotten for report in reports)
    is_known = not any(report.is_replay for report in reports)
    written = [report for report in reports if not report.is_replay]
    return AppendReport(
        sequences=() if is_forgotten else tuple(number for report in reports for number in report.sequences),
        replaced=tuple(number for report in reports for number in report.replaced) if is_known else (),
        live=written[-1].live if written else None,
        evicted=sum(report.evicted for report in reports),
        evicted_unacked=sum(report.evicted_unacked for report in reports),
        is_consumed=any(report.is_consumed for report in reports),
        is_replay=not written,
        is_forgotten=is_forgotten,
        replicated=all(report.replicated for report in written)
        if written and written[0].replicated is not None
        else None,
    )


def _message(client_id: str, key: bytes, row: Any) -> CompactedMessage:
    """Return a message that was only looked at."""
    return message_of(
        client_id, key=key, sequence=row.sequence, appended_ms=row.ms, redelivered=False, stored=row.value
    )


def _come_again(reply: Any) -> list[bool]:
    """Tell of each message of a fetch whether it was delivered before."""
    return [place < reply.redelivered for place in range(len(reply.messages))]


def _fetched_bytes(rows: Sequence[Any]) -> int:
    """Return what messages of a fetch count for against its limit: keys, and values as they are stored."""
    return sum(len(row.key) + len(row.value) for row in rows)


def _or_none(number: int) -> int | None:
    """Return a number of a script, where -1 stands for none."""
    return None if number == -1 else number


def _ack_report(reply: Any) -> AckReport:
    return AckReport(acked=reply.acked_now, unknown=reply.unknown, acked_up_to=reply.acked, in_flight=reply.in_flight)


def _check_retention(retention: Any) -> None:
    if type(retention) is not Retention:
        raise UsageError(f"retention is {retention!r}: it must be a Retention")


def _retention(policy: bytes, retention_ms: Any, tombstone_ms: Any) -> Retention:
    return Retention(
        policy=RetentionPolicy(policy.decode()), retention_ms=int(retention_ms), tombstone_ms=int(tombstone_ms)
    )


def _view(client_id: str, reply: Any) -> QueueView:
    def age_ms(instant_ms: int) -> int | None:
        return None if instant_ms == -1 else reply.now - instant_ms

    fields = dict(reply.fields)

    def number(name: bytes) -> int:
        return int(fields.get(name, b"0"))

    return QueueView(
        client_id=client_id,
        exists=True,
        incarnation=number(b"incarnation"),
        epoch=number(b"epoch"),
        sequence=number(b"sequence"),
        sent=number(b"sent"),
        acked=number(b"acked"),
        acked_ms=number(b"acked_ms") or None,
        live=reply.live,
        tombstones=reply.tombstones,
        lag=reply.lag,
        in_flight=reply.in_flight,
        size_bytes=number(b"bytes"),
        oldest_sequence=_or_none(reply.oldest_sequence),
        oldest_age_ms=age_ms(reply.oldest_ms),
        newest_age_ms=age_ms(reply.newest_ms),
        oldest_undelivered_age_ms=age_ms(reply.oldest_undelivered_ms),
        oldest_unacked_age_ms=age_ms(reply.oldest_unacked_ms),
        session=fields.get(b"session", b"").decode() or None,
        lease_left_ms=max(0, number(b"lease_until_ms") - reply.now),
        counters={name: number(name.encode()) for name in COUNTERS},
        last_lost_sequence=number(b"last_lost_sequence") or None,
        retention=_retention(fields[b"retention_policy"], fields[b"retention_ms"], fields[b"tombstone_ms"])
        if b"retention_policy" in fields
        else None,
        estimated_memory_bytes=reply.memory_bytes,
    )


def _standing(view: QueueView) -> tuple[Any, ...]:
    """Return what changes whenever a message comes or goes."""
    return view.incarnation, view.sequence, view.live, view.size_bytes, dict(view.counters)


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
    for sequence in sequences:
        check_integer("sequence", sequence, 0, MAX_SEQUENCE, "the number of a message")

"""Whatever is done to a compacted queue, in whatever order, Redis holds what the model holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from queuekeeper.compacted.model import (
    Append,
    Fence,
    Position,
    Purge,
    QueueRules,
    Refill,
    Retention,
    RetentionPolicy,
    WhenFull,
)
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.compacted.reports import CompactedMessage, DueRow
from queuekeeper.errors import LUA_ERRORS, StaleEpoch, UnknownQueue
from queuekeeper.keyspace import compacted_keys
from queuekeeper.redis_client import connect
from tests.conformance.compacted_worlds import SteppedClock
from tests.property.compacted_model import ModelQueue, Refused, Row
from tests.property.run_machine import run_machine

C = "{meter} {7}"
KEYS = (b"", b"a", b"b/1", b"\xff\0", b"c", b"d")
HOUR_MS = 3_600_000
RULES = (
    QueueRules(),
    QueueRules(max_keys=4),
    QueueRules(max_keys=4, when_full=WhenFull.DROP_OLDEST),
    QueueRules(max_bytes=60),
    QueueRules(max_bytes=60, when_full=WhenFull.DROP_OLDEST),
)

new_entries = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.binary(max_size=12),
        st.sampled_from([False, False, True]),
        # Whether the entry has a condition, and one that holds.
        st.sampled_from([None, None, None, True, True, False]),
    ),
    min_size=1,
    max_size=4,
)
sequences = st.lists(st.integers(0, 12), max_size=4)
"""Numbers counted back from the one given out last; some were never given out."""

positions = st.one_of(
    st.just(("earliest", 0)), st.just(("latest", 0)), st.tuples(st.sampled_from(["sequence", "time_ms"]), st.integers())
)
retentions = st.builds(
    Retention,
    policy=st.sampled_from(RetentionPolicy),
    retention_ms=st.sampled_from([0, HOUR_MS, 8 * HOUR_MS]),
    tombstone_ms=st.sampled_from([0, HOUR_MS]),
)


class CompactedMachine(RuleBasedStateMachine):
    """A queue, its model, and every fence that anybody has ever got."""

    client: Any

    def __init__(self) -> None:
        super().__init__()
        self.clock = SteppedClock()
        self.numbers = 0
        self.fence: Fence | None = None
        self.old_fences: list[Fence] = []
        self.last_appends: dict[str, tuple[int, list[Append]]] = {}
        self.collected: dict[int, tuple[DueRow, Row]] = {}

    @initialize(rules=st.sampled_from(RULES))
    def start(self, rules: QueueRules) -> None:
        self.client.flushall()
        self.queues = CompactedQueues(self.client, rules=rules, clock=self.clock)
        self.model = ModelQueue(rules)
        self.exists = False

    # Producing

    @rule(step_ms=st.sampled_from([1, 1_000, HOUR_MS, 5 * HOUR_MS, -HOUR_MS]))
    def time_passes(self, step_ms: int) -> None:
        """Also back, as a clock does that is set right."""
        self.clock.now_ms += step_ms

    @rule(entries=new_entries, producer=st.sampled_from([None, None, "p0", "p1"]))
    def append(self, entries: list[tuple[bytes, bytes, bool, bool | None]], producer: str | None) -> None:
        self.numbers += 1
        batch = []
        for key, value, tombstone, holds in entries:
            row = self.model.rows.get(key)
            expected = None if holds is None else (row.sequence if row else 0) + (not holds)
            batch.append(
                Append(key=key, value=b"" if tombstone else value, tombstone=tombstone, expected_sequence=expected)
            )
        self._append(batch, producer, self.numbers)

    @precondition(lambda self: self.last_appends)
    @rule(data=st.data(), age=st.sampled_from([0, 0, 1]))
    def retry(self, data: st.DataObject, age: int) -> None:
        """Repeat the last append of a producer, or one before it."""
        producer = data.draw(st.sampled_from(sorted(self.last_appends)))
        number, batch = self.last_appends[producer]
        self._append(batch, producer, number - age)

    def _append(self, batch: list[Append], producer: str | None, number: int) -> None:
        def call() -> Any:
            return self.queues.append(C, batch, producer=producer, number=None if producer is None else number)

        before = self.model.sequence
        try:
            replaced = self.model.append(batch, self.clock.now_ms, producer, number)
        except Refused as refusal:
            word = str(refusal)
            if word in LUA_ERRORS:
                self._is_refused(word, call)
                return
            report = call()
            assert (report.is_replay, report.is_forgotten) == (True, word == "forgotten")
            if word == "replayed":
                assert producer is not None
                assert (report.first_sequence, report.last_sequence) == self.model.producers[producer][1:]
            return
        evicted = self.model.evict()
        report = call()
        self.exists = True
        assert report.sequences == tuple(range(before + 1, before + len(batch) + 1))
        assert report.replaced == tuple(replaced)
        assert (report.live, (report.evicted, report.evicted_unacked)) == (len(self.model.rows), evicted)
        assert report.is_consumed is (self.model.session != "" and self.model.lease_until_ms > self.clock.now_ms)
        assert not report.is_replay
        if producer is not None:
            self.last_appends[producer] = number, batch

    # Consuming

    @rule(
        session=st.sampled_from(["s0", "s1"]),
        takeover=st.booleans(),
        lease_ms=st.sampled_from([1, HOUR_MS]),
        start=st.one_of(st.none(), st.none(), positions),
    )
    def subscribe(self, session: str, takeover: bool, lease_ms: int, start: tuple[str, int] | None) -> None:
        position = None if start is None else self._position(start)
        previous = self.model.session or None

        def call() -> Any:
            return self.queues.subscribe(C, session=session, takeover=takeover, lease_ms=lease_ms, start=position)

        try:
            self.model.subscribe(
                session, takeover=takeover, lease_ms=lease_ms, now_ms=self.clock.now_ms, start=position
            )
        except Refused as refusal:
            self._is_refused(str(refusal), call)
            return
        found = call()
        self.exists = True
        assert (found.sequence, found.sent, found.acked) == (self.model.sequence, self.model.sent, self.model.acked)
        assert (found.lag, found.in_flight) == (self.model.lag, len(self.model.in_flight))
        assert found.previous_session == previous
        self._renew(found.fence)

    @precondition(lambda self: self.fence is not None)
    @rule(
        limit=st.integers(1, 4),
        room=st.integers(0, 2),
        max_bytes=st.sampled_from([1, 20, 40, 10_000]),
        refill=st.sampled_from(Refill),
        redeliver=st.sampled_from([False, False, False, True]),
        acks=sequences,
    )
    def fetch(self, limit: int, room: int, max_bytes: int, refill: Refill, redeliver: bool, acks: list[int]) -> None:
        assert self.fence is not None
        named = self._named(acks)
        window = limit + room
        options: dict[str, Any] = {
            "limit": limit,
            "window": window,
            "max_bytes": max_bytes,
            "refill": refill,
            "redeliver": redeliver,
        }
        acked = self.model.ack(named, is_alone=False)
        expected = self.model.fetch(**options)
        found = self.queues.fetch(C, fence=self.fence, acks=named, **options)
        assert [(_row_of(m), m.redelivered) for m in found.messages] == [(_bare(row), again) for row, again in expected]
        assert (found.acks.acked, found.acks.unknown) == acked
        assert found.acks.acked_up_to == self.model.acked
        assert (found.lag, found.in_flight) == (self.model.lag, len(self.model.in_flight))
        assert len(found.messages) <= limit

    @precondition(lambda self: self.fence is not None)
    @rule(acks=sequences.filter(bool), up_to=st.booleans())
    def ack(self, acks: list[int], up_to: bool) -> None:
        assert self.fence is not None
        named = self._named(acks)
        before = self.model.acked
        expected = self.model.ack(named, up_to=up_to)
        report = self.queues.ack(C, fence=self.fence, sequences=named, up_to=up_to)
        assert (report.acked, report.unknown) == expected
        assert (report.acked_up_to, report.in_flight) == (self.model.acked, len(self.model.in_flight))
        assert report.acked_up_to >= before

    @precondition(lambda self: self.model.in_flight)
    @rule(data=st.data())
    def skip(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.in_flight)))
        assert self.queues.skip(C, sequence=number).acked == self.model.ack([number])[0]

    @precondition(lambda self: self.fence is not None)
    @rule(release=st.booleans())
    def hold_or_release(self, release: bool) -> None:
        assert self.fence is not None
        if release:
            assert self.queues.release(C, fence=self.fence) is True
            self.model.session, self.model.lease_until_ms = "", 0
        else:
            found = self.queues.heartbeat(C, fence=self.fence, lease_ms=HOUR_MS)
            assert (found.lag, found.in_flight) == (self.model.lag, len(self.model.in_flight))
            self.model.lease_until_ms = self.clock.now_ms + HOUR_MS

    @rule(to=positions, as_consumer=st.booleans())
    def rewind(self, to: tuple[str, int], as_consumer: bool) -> None:
        position = self._position(to)
        if not self.exists:
            with pytest.raises(UnknownQueue):
                self.queues.rewind(C, to=position)
            return
        old_acked = self.model.acked
        self.model.rewind(position)
        report = self.queues.rewind(C, to=position, fence=self.fence if as_consumer else None)
        assert (report.old_acked, report.new_acked) == (old_acked, self.model.acked)
        assert report.to_deliver == self.model.lag
        self._renew(report.fence)

    @precondition(lambda self: self.old_fences)
    @rule(data=st.data(), name=st.sampled_from(["fetch", "ack", "heartbeat", "rewind", "release"]))
    def come_late(self, data: st.DataObject, name: str) -> None:
        """Whoever has an old fence changes nothing."""
        fence = data.draw(st.sampled_from(self.old_fences))
        more: dict[str, dict[str, Any]] = {"ack": {"sequences": [1]}, "rewind": {"to": Position.earliest()}}
        if name == "release":
            assert self.queues.release(C, fence=fence) is False
            return
        with pytest.raises(StaleEpoch):
            getattr(self.queues, name)(C, fence=fence, **more.get(name, {}))

    # Keeping house

    @rule(retention=retentions, limit=st.integers(1, 3), meanwhile=st.one_of(st.none(), new_entries))
    def collect(
        self, retention: Retention, limit: int, meanwhile: list[tuple[bytes, bytes, bool, bool | None]] | None
    ) -> None:
        """Find page by page what is due, then collect it, sometimes after something else has come."""
        due = [row for row in self.model.ordered() if self.model.is_due(row, retention, self.clock.now_ms)]
        found: list[DueRow] = []
        after, more = 0, True
        while more:
            page = self.queues.find_due(C, retention=retention, after_sequence=after, limit=limit, with_values=True)
            assert len(page.rows) <= limit
            after, more = page.next_after_sequence, page.more
            found += page.rows
        assert [(row.key, row.sequence, row.appended_ms, row.tombstone, row.size_bytes) for row in found] == [
            (row.key, row.sequence, row.ms, row.tombstone, row.size) for row in due
        ]
        assert [row.acked for row in found] == [self.model.is_acked(row.sequence) for row in due]
        if meanwhile is not None:
            self.append(meanwhile, None)
        going = [row for row in due if self.model.rows.get(row.key) == row]
        report = self.queues.collect(C, retention=retention, rows=found)
        assert (report.collected, report.kept) == (len(going), len(due) - len(going))
        assert report.tombstones == sum(row.tombstone for row in going)
        assert report.unacked == self.model.remove(going)
        assert (report.live, report.size_bytes) == (len(self.model.rows), sum(row.size for row in going))
        self.collected |= {row.sequence: (stored, row) for stored, row in zip(found, due, strict=True) if row in going}
        # Nothing falls due before the collector is told to come back, which may be an hour late where a tombstone is
        # old enough and waits for an acknowledgement.
        until_ms = self.clock.now_ms + 100 * HOUR_MS if report.next_due_ms is None else report.next_due_ms - 1
        if retention.policy is RetentionPolicy.COMPACT and report.next_due_ms is not None:
            until_ms -= HOUR_MS
        assert not any(self.model.is_due(row, retention, until_ms) for row in self.model.ordered())

    @precondition(lambda self: self.collected)
    @rule()
    def restore(self) -> None:
        rows = list(self.collected.values())
        back = self.model.restore([row for _, row in rows])
        report = self.queues.restore(C, rows=[stored for stored, _ in rows])
        assert (report.restored, report.present, report.refused) == (len(back), len(rows) - len(back), 0)
        assert report.to_deliver == sum(row.sequence > self.model.sent for row in back)
        self.collected.clear()

    @rule(kind=st.sampled_from(["all", "acked", "up_to"]), back=st.integers(0, 8), dry_run=st.booleans())
    def purge(self, kind: str, back: int, dry_run: bool) -> None:
        number = max(1, self.model.sequence - back)
        what = {"all": Purge.everything(), "acked": Purge.acked(), "up_to": Purge.up_to(number)}[kind]
        going = [
            row
            for row in self.model.ordered()
            if kind == "all" or (self.model.is_acked(row.sequence) if kind == "acked" else row.sequence <= number)
        ]
        unacked = sum(not self.model.is_acked(row.sequence) for row in going)
        if not dry_run:
            self.model.remove(going)
        report = self.queues.purge(C, what=what, dry_run=dry_run)
        assert (report.messages, report.unacked, report.size_bytes) == (
            len(going),
            unacked,
            sum(row.size for row in going),
        )

    @rule(sure=st.sampled_from([False, False, False, True]))
    def drop(self, sure: bool) -> None:
        report = self.queues.drop(C, dry_run=not sure)
        assert (report.existed, report.messages, report.lag) == (self.exists, len(self.model.rows), self.model.lag)
        if sure:
            self.model = ModelQueue(self.model.rules)
            self.exists = False
            self._renew(None)
            self.last_appends.clear()
            self.collected.clear()

    # What always holds

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "queues"):
            return
        model, keys = self.model, compacted_keys(C)
        with self.client.pipeline(transaction=False) as pipe:
            for key in (keys.order, keys.times, keys.tombstones, keys.in_flight):
                pipe.zrange(key, 0, -1, withscores=True)
            pipe.hgetall(keys.values)
            pipe.hgetall(keys.state)
            order, times, tombstones, in_flight, values, state = pipe.execute()
        assert [(key, int(score)) for key, score in order] == [(row.key, row.sequence) for row in model.ordered()]
        assert dict(times) == {row.key: row.ms for row in model.ordered()}
        assert dict(tombstones) == {row.key: row.sequence for row in model.ordered() if row.tombstone}
        assert {key: len(key) + len(value) for key, value in values.items()} == {
            row.key: row.size for row in model.ordered()
        }
        assert all(int(score) == int(member) for member, score in in_flight)
        assert {int(score) for _, score in in_flight} == model.in_flight
        assert all(model.acked < number <= model.sent for number in model.in_flight)
        assert bool(state) is self.exists
        if self.exists:
            numbers = {name: int(state.get(name, 0)) for name in (b"sequence", b"sent", b"acked", b"bytes")}
            assert list(numbers.values()) == [model.sequence, model.sent, model.acked, model.size]
            assert int(state.get(b"last_lost_sequence", 0)) == model.last_lost
        assert model.acked <= model.sent <= model.sequence

    def teardown(self) -> None:
        """Read all of it: the final value of each key, in order, and nothing else."""
        if not hasattr(self, "queues"):
            return
        assert self.queues.verify(C).violations == ()
        expected = [_bare(row) for row in self.model.ordered()]
        assert [_row_of(message) for message in self.queues.peek(C)] == expected
        for key in KEYS:
            message = self.queues.get(C, key=key)
            row = self.model.rows.get(key)
            assert (message and _row_of(message)) == (row and _bare(row))
        fence = self.queues.subscribe(C, session="last", start=Position.earliest()).fence
        found: list[CompactedMessage] = []
        acks: Sequence[int] = ()
        while page := self.queues.fetch(C, fence=fence, limit=3, acks=acks).messages:
            found += page
            acks = [message.sequence for message in page]
        assert [_row_of(message) for message in found] == expected
        assert not any(message.redelivered for message in found)

    # Helpers

    def _renew(self, fence: Fence | None) -> None:
        """Take the fence that is good now; it is greater than all before."""
        if self.fence is not None:
            self.old_fences.append(self.fence)
        if fence is not None:
            assert all((fence.incarnation, fence.epoch) > (old.incarnation, old.epoch) for old in self.old_fences)
        self.fence = fence

    def _named(self, acks: Sequence[int]) -> list[int]:
        return list(dict.fromkeys(max(0, self.model.sequence + 2 - back) for back in acks))

    def _position(self, drawn: tuple[str, int]) -> Position:
        kind, number = drawn
        if kind == "sequence":
            return Position.sequence(number % (self.model.sequence + 3))
        if kind == "time_ms":
            return Position.time_ms(self.clock.now_ms - number % (6 * HOUR_MS))
        return Position(kind=kind)

    def _is_refused(self, word: str, call: Callable[[], object]) -> None:
        with pytest.raises(LUA_ERRORS[word]):
            call()


def _bare(row: Row) -> tuple[bytes, int, int, bytes, bool]:
    return row.key, row.sequence, row.ms, row.value, row.tombstone


def _row_of(message: CompactedMessage) -> tuple[bytes, int, int, bytes, bool]:
    return message.key, message.sequence, message.appended_ms, message.value, message.tombstone


@pytest.mark.parametrize(
    ("server", "examples"), [("valkey_url", 50), ("redis_cluster_url", 10)], ids=["single", "cluster"]
)
def test_queue_holds_what_the_model_holds(request: pytest.FixtureRequest, server: str, examples: int) -> None:
    with connect(request.getfixturevalue(server)) as client:
        run_machine(CompactedMachine, examples=examples, client=client)

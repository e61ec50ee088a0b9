"""A fan-out queue does what a model of it says, whatever its consumers do and however time passes."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from queuekeeper.errors import HasLeases
from queuekeeper.fanout.model import ConsumerOptions, Mode, NewMessage, Start, WhenFailed
from tests.conformance.fanout_worlds import START_MS, FanoutWorld
from tests.fanout_lists import lanes_of_log
from tests.property.fanout_model import QueueModel
from tests.property.run_machine import run_machine

pytestmark = pytest.mark.property

Q = "q"
RETENTION_MS = 2_000
OPTIONS = {
    "fifo": ConsumerOptions(dead_retention_ms=RETENTION_MS),
    "another": ConsumerOptions(dead_retention_ms=5 * RETENTION_MS),
    "ordered": ConsumerOptions(mode=Mode.ORDERED, dead_retention_ms=RETENTION_MS),
    "halting": ConsumerOptions(mode=Mode.ORDERED, when_failed=WhenFailed.HALT, dead_retention_ms=RETENTION_MS),
    "lanes": ConsumerOptions(mode=Mode.ORDERED, lanes=3, dead_retention_ms=RETENTION_MS),
}
MAX_STALLS = 1
WORKERS = 2

names = st.sampled_from(sorted(OPTIONS))
leases_ms = st.sampled_from([100, 1_000])
places = st.integers(0, 5)
lates = st.sampled_from([False, False, False, True])


class FanoutMachine(RuleBasedStateMachine):
    """Two processes that know the queue, its consumers, and the model.

    :ivar claims: consumer -> token and ids of each of its claims.
    :ivar finished: consumer and lane -> messages in the order in which they were ended.
    :ivar revived: messages that were dead letters once: their place in the order is lost.
    :ivar later: messages that were published for later, and whose place is that of their time.
    :ivar handed_out: messages in the order in which a consumer got them, as long as nothing has failed.
    """

    world: FanoutWorld

    @initialize(first=st.sets(names, min_size=1, max_size=2))
    def start(self, first: set[str]) -> None:
        self.world.erase()
        self.world.now_ms = START_MS
        self.queues = [self.world.queues() for _ in range(WORKERS)]
        self.model = QueueModel()
        self.claims: dict[str, list[tuple[str, list[int]]]] = {}
        self.finished: dict[tuple[str, int], list[int]] = {}
        self.revived: set[int] = set()
        self.later: set[int] = set()
        self.handed_out: dict[str, list[int] | None] = {}
        self.number = 0
        for name in sorted(first):
            self.register(name=name, worker=0, start=Start.NEW)
        self._publish(0, 5, order_key=None, ttl_ms=10**9, delay_ms=0, repeat=False, to=None)

    def teardown(self) -> None:
        if hasattr(self, "queues"):
            self.drain()

    # Publishing and registering.

    @rule(name=names, worker=st.integers(0, 1), start=st.sampled_from(Start))
    def register(self, name: str, worker: int, start: Start) -> None:
        known = name in self.model.consumers
        report = self.queues[worker].register(Q, consumer=name, options=OPTIONS[name], start=start)
        assert report.created == (not known)
        assert report.options == OPTIONS[name]
        if not known:
            assert report.adopted == self.model.register(name, OPTIONS[name], start, now=self.now)
            self.claims[name] = []
            self.handed_out[name] = []
            self.finished = {place: ids for place, ids in self.finished.items() if place[0] != name}

    @rule(
        worker=st.integers(0, 1),
        count=st.integers(1, 4),
        order_key=st.sampled_from([None, "a", "b", "c"]),
        ttl_ms=st.sampled_from([150, 3_000, 10**9, 10**9]),
        delay_ms=st.sampled_from([0, 0, 0, 60, 500]),
        repeat=st.sampled_from([False, False, True]),
        alone=st.sampled_from([False, False, False, True]),
        data=st.data(),
    )
    def publish(
        self,
        worker: int,
        count: int,
        order_key: str | None,
        ttl_ms: int,
        delay_ms: int,
        repeat: bool,
        alone: bool,
        data: st.DataObject,
    ) -> None:
        to = self._a_consumer(data) if alone and self.model.consumers else None
        self._publish(worker, count, order_key=order_key, ttl_ms=ttl_ms, delay_ms=delay_ms, repeat=repeat, to=to)

    @precondition(lambda self: len(self.model.consumers) > 1)
    @rule(worker=st.integers(0, 1), force=st.booleans(), data=st.data())
    def unregister(self, worker: int, force: bool, data: st.DataObject) -> None:
        name = self._a_consumer(data)
        leased = any(deadline > self.now for deadline in self.model.consumers[name].leases.values())
        if leased and not force:
            with pytest.raises(HasLeases):
                self.queues[worker].unregister(Q, consumer=name)
            return
        report = self.queues[worker].unregister(Q, consumer=name, force=force)
        assert (report.released, report.freed) == self.model.unregister(name)

    # Working.

    @precondition(lambda self: self.model.consumers)
    @rule(worker=st.integers(0, 1), count=st.integers(1, 5), lease_ms=leases_ms, data=st.data())
    def claim(self, worker: int, count: int, lease_ms: int, data: st.DataObject) -> None:
        self._claim(worker, self._a_consumer(data), count=count, lease_ms=lease_ms)

    @precondition(lambda self: self.anything_is_leased())
    @rule(worker=st.integers(0, 1), late=lates, data=st.data())
    def ack(self, worker: int, late: bool, data: st.DataObject) -> None:
        name, token, ids = self._a_claim(data, late=late)
        self._ack(worker, name, token, ids)

    @precondition(lambda self: self.anything_is_leased())
    @rule(
        worker=st.integers(0, 1),
        delay_ms=st.sampled_from([0, 50, 500]),
        max_attempts=st.sampled_from([None, 1, 2]),
        late=lates,
        data=st.data(),
    )
    def nack(self, worker: int, delay_ms: int, max_attempts: int | None, late: bool, data: st.DataObject) -> None:
        name, token, ids = self._a_claim(data, late=late)
        self.handed_out[name] = None
        options: dict[str, Any] = {"delay_ms": delay_ms, "max_attempts": max_attempts}
        report = self.queues[worker].nack(Q, consumer=name, token=token, message_id=ids[0], **options)
        assert report.outcome == self.model.nack(name, token, ids[0], now=self.now, **options)

    @precondition(lambda self: self.anything_is_leased())
    @rule(worker=st.integers(0, 1), lease_ms=st.sampled_from([None, None, 100, 1_000]), late=lates, data=st.data())
    def extend_or_return(self, worker: int, lease_ms: int | None, late: bool, data: st.DataObject) -> None:
        name, token, ids = self._a_claim(data, late=late)
        if lease_ms is not None:
            extended = self.queues[worker].extend(Q, consumer=name, token=token, ids=ids, lease_ms=lease_ms)
            assert list(extended.stale) == self.model.extend(name, token, ids, lease_ms=lease_ms, now=self.now)
            return
        self.handed_out[name] = None
        report = self.queues[worker].return_claimed(Q, consumer=name, token=token, ids=ids)
        assert report.returned == self.model.return_claimed(name, token, ids)

    # Upkeep, and time.

    @rule(milliseconds=st.sampled_from([1, 60, 100, 100, 1_000, 2_500, 601_000]))
    def pass_time(self, milliseconds: int) -> None:
        self.world.pass_ms(milliseconds)

    @precondition(lambda self: self.anything_is_dead())
    @rule(worker=st.integers(0, 1), data=st.data(), which=st.sampled_from(["all", "one"]))
    def retry_dead(self, worker: int, data: st.DataObject, which: str) -> None:
        name = data.draw(st.sampled_from(sorted(c.name for c in self.model.consumers.values() if c.dead)))
        dead = sorted(self.model.consumers[name].dead)
        ids = dead if which == "all" else [data.draw(st.sampled_from(dead))]
        letters = self.queues[worker].list_dead(Q, consumer=name).letters
        assert {letter.id for letter in letters} == set(dead)
        report = self.queues[worker].retry_dead(Q, consumer=name, ids=None if which == "all" else ids)
        revived = self.model.retry_dead(name, ids, now=self.now)
        assert (report.retried, report.missing) == (len(revived), len(ids) - len(revived))
        self.revived.update(revived)
        self.handed_out[name] = None

    @precondition(lambda self: self.model.consumers)
    @rule(
        worker=st.integers(0, 1),
        what=st.sampled_from(["reap", "expire", "verify", "pause", "plan", "purge", "purge_dead", "reap", "expire"]),
        data=st.data(),
    )
    def keep_up(self, worker: int, what: str, data: st.DataObject) -> None:
        name = self._a_consumer(data)
        consumer = self.model.consumers[name]
        queues = self.queues[worker]
        if consumer.paused:
            assert queues.resume(Q, consumer=name)
            consumer.paused = False
        elif what == "reap":
            self._note_stalls(name)
            reaped = queues.reap(Q, consumer=name, max_stalls=MAX_STALLS)
            assert (reaped.requeued, reaped.dead) == self.model.reap(name, max_stalls=MAX_STALLS, now=self.now)
        elif what == "expire":
            expired = queues.expire(Q)
            assert (expired.expired, expired.dead) == self.model.expire(now=self.now)
        elif what == "pause":
            assert queues.pause(Q, consumer=name)
            consumer.paused = True
        elif what == "plan":
            waiting = len(consumer.delayed) + sum(map(len, consumer.ready))
            assert queues.purge(Q, consumer=name, dry_run=True).released == waiting
        elif what == "purge":
            purged = queues.purge(Q, consumer=name)
            assert (purged.released, purged.freed) == self.model.purge(name)
        elif what == "purge_dead":
            purged = queues.purge_dead(Q, consumer=name)
            assert (purged.released, purged.freed) == self.model.purge_dead(name)
        else:
            self._verify()

    # What holds after every step.

    @invariant()
    def the_server_has_what_the_model_has(self) -> None:
        if not hasattr(self, "model"):
            return
        keys = self.world.keys(Q)
        consumers = list(self.model.consumers.values())
        pipeline = self.world.client.pipeline(transaction=False)
        pipeline.hkeys(keys.messages).hgetall(keys.references).zrange(keys.expiries, 0, -1, withscores=True)
        pipeline.lrange(keys.held, 0, -1).xrange(keys.log).zrange(keys.cursors, 0, -1, withscores=True)
        for consumer in consumers:
            own = self.world.consumer_keys(Q, consumer.name, lanes=consumer.options.lanes)
            for scores in (own.leases, own.delayed, own.dead):
                pipeline.zrange(scores, 0, -1, withscores=True)
            for ready in own.ready:
                pipeline.lrange(ready, 0, -1)
        stored, references, expiries, held, log, cursors, *rest = pipeline.execute()
        messages = self.model.messages
        # A payload is there as long as somebody owes an ack, and no longer.
        assert {int(one) for one in stored} == messages.keys()
        assert {int(one): int(count) for one, count in references.items()} == {
            one: len(message.owed_by) for one, message in messages.items()
        }
        assert scored(expiries) == {one: message.kept_until_ms for one, message in messages.items()}
        assert [int(one) for one in held] == self.model.held
        found = iter(rest)
        for consumer in consumers:
            assert scored(next(found)) == consumer.leases, consumer
            assert scored(next(found)) == consumer.delayed, consumer
            assert scored(next(found)) == consumer.dead, consumer
            cursor = dict(cursors).get(consumer.name.encode(), float("inf"))
            in_log = lanes_of_log(log, cursor, consumer.options.lanes)
            for lane, unread in zip(consumer.ready, in_log, strict=True):
                assert [*map(int, next(found)), *unread] == lane, consumer

    @invariant()
    def order_is_kept(self) -> None:
        if not hasattr(self, "model"):
            return
        for ids in self.finished.values():
            kept = [one for one in ids if one not in self.revived | self.later]
            assert kept == sorted(set(kept))
        for given in self.handed_out.values():
            assert given is None or given == sorted(set(given))

    def drain(self) -> None:
        """Have everybody work until nothing is left, and see that each has got everything."""
        queues = self.queues[0]
        for consumer in list(self.model.consumers.values()):
            if consumer.paused:
                queues.resume(Q, consumer=consumer.name)
                consumer.paused = False
            self.world.pass_ms(1_000)
            owed = {one for one, message in self.model.messages.items() if consumer.name in message.owed_by}
            got: set[int] = set()
            for _ in range(500):
                self._revive(consumer.name)
                token, ids = self._claim(0, consumer.name, count=5, lease_ms=100)
                got.update(ids)
                self._ack(0, consumer.name, token, ids)
                if not consumer.everything():
                    break
                self.world.pass_ms(0 if ids else 100)
            assert not consumer.everything()
            unseen = {one for one in owed - got if self._lives(one)}
            assert not unseen, unseen
        self.the_server_has_what_the_model_has()
        self.order_is_kept()
        queues.expire(Q)
        self.model.expire(now=self.now)
        for message in self.model.messages.values():
            assert message.owed_by <= {"(held)"}
        self._verify()

    # What the rules share.

    def _verify(self) -> None:
        report = self.queues[0].verify(Q)
        assert report.healthy, report
        assert report.checked == len(self.model.messages)

    @property
    def now(self) -> int:
        return self.world.now_ms

    def anything_is_leased(self) -> bool:
        """Return whether somebody has claimed something."""
        return any(self.claims[name] for name in self.model.consumers)

    def anything_is_dead(self) -> bool:
        """Return whether there is a dead letter."""
        return any(consumer.dead for consumer in self.model.consumers.values())

    def _a_consumer(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.model.consumers)))

    def _a_claim(self, data: st.DataObject, *, late: bool) -> tuple[str, str, list[int]]:
        """Return a consumer with the token of its last claim, or of an earlier one, and some of the ids."""
        name = data.draw(st.sampled_from(sorted(name for name in self.model.consumers if self.claims[name])))
        claims = self.claims[name]
        token, ids = claims[data.draw(places) % len(claims)] if late else claims[-1]
        count = data.draw(st.integers(1, len(ids)))
        return name, token, ids[:count]

    def _publish(self, worker: int, count: int, *, repeat: bool, to: str | None, **fields: Any) -> None:
        """Publish messages with these fields."""
        new = []
        for _ in range(count):
            self.number += 1
            number = max(1, self.number - 3) if repeat else self.number
            new.append(NewMessage(body=b"%d" % self.number, deduplication_id=f"d{number}", **fields))
        reports = self.queues[worker].publish(Q, new, to=to)
        for message, report in zip(new, reports, strict=True):
            expected = self.model.publish(
                message.body, deduplication_id=message.deduplication_id, to=to, now=self.now, **fields
            )
            assert (report.id, report.duplicate) == expected
            self.later |= {expected[0]} if fields["delay_ms"] else set()
        turns = sum(report.id % 16 == 0 for report in reports if not report.duplicate)
        self.model.remove_over(most=32 * turns, now=self.now)

    def _claim(self, worker: int, name: str, *, count: int, lease_ms: int) -> tuple[str, list[int]]:
        self._note_stalls(name)
        claimed = self.queues[worker].claim(Q, consumer=name, count=count, lease_ms=lease_ms, max_stalls=MAX_STALLS)
        expected = self.model.claim(
            name, count=count, lease_ms=lease_ms, max_stalls=MAX_STALLS, token=claimed.token, now=self.now
        )
        assert [(m.id, m.attempt, m.stalls, m.body) for m in claimed.messages] == expected
        ids = [message.id for message in claimed.messages]
        if ids:
            self.claims[name].append((claimed.token, ids))
        given = self.handed_out[name]
        if given is not None and OPTIONS[name].lanes == 1:
            given += [one for one in ids if one not in self.later]
        return claimed.token, ids

    def _ack(self, worker: int, name: str, token: str, ids: list[int]) -> None:
        consumer = self.model.consumers[name]
        if consumer.is_ordered:
            for one in ids:
                if one in consumer.leases and consumer.notes[one].token == token:
                    self.finished.setdefault((name, consumer.notes[one].lane), []).append(one)
        report = self.queues[worker].ack(Q, consumer=name, token=token, ids=ids)
        assert (report.acked, report.stale, report.freed) == self.model.ack(name, token, ids)

    def _note_stalls(self, name: str) -> None:
        if any(deadline <= self.now for deadline in self.model.consumers[name].leases.values()):
            self.handed_out[name] = None

    def _revive(self, name: str) -> None:
        """Give dead letters another chance, and go on behind them."""
        consumer = self.model.consumers[name]
        if consumer.dead:
            self.queues[0].retry_dead(Q, consumer=name)
            self.revived.update(self.model.retry_dead(name, sorted(consumer.dead), now=self.now))
            self.handed_out[name] = None
        if consumer.paused:
            self.queues[0].resume(Q, consumer=name)
            consumer.paused = False

    def _lives(self, message_id: int) -> bool:
        message = self.model.messages.get(message_id)
        return message is not None and message.expires_at_ms > self.now


def scored(pairs: list[tuple[bytes, float]]) -> dict[int, int]:
    return {int(one): int(score) for one, score in pairs}


@pytest.mark.parametrize(
    ("server", "examples"),
    [("valkey_url", 50), ("redis_cluster_url", 5), pytest.param("valkey_url", 100, marks=pytest.mark.nightly)],
)
def test_a_queue_does_what_the_model_says(request: pytest.FixtureRequest, server: str, examples: int) -> None:
    with closing(FanoutWorld(request.getfixturevalue(server), awaited=False)) as world:
        run_machine(FanoutMachine, examples=examples, world=world)

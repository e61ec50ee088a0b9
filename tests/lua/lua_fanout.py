"""What the tests of fan-out queues' scripts share: a queue, and every script as a call on it, at a given instant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from script_replies import Reply, reply_of

from queuekeeper import lua
from queuekeeper.keyspace import FanoutConsumerKeys, FanoutKeys, fanout_consumer_keys, fanout_keys
from queuekeeper.lua import ScriptCaller
from queuekeeper.lua.bind import Bound
from queuekeeper.lua.scripts import fanout as scripts
from queuekeeper.redis_client import RedisClient

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
REAPED = ("requeued", "dead", "skipped", "more", "lane", "offset")
"""What a reap has done, and where the next one goes on."""
IN_ORDER = dict.fromkeys(("missing", "freed", "recounted", "leases", "doubled", "notes", "expiries"), 0)
"""What repair says besides how many ids it has looked at, where nothing is wrong."""


class Claimed(NamedTuple):
    """One message as claim hands it out."""

    id: int
    attempt: int
    stalls: int
    record: bytes


class Placed(NamedTuple):
    """What verify tells of one id."""

    has_message: int
    references: int
    has_expiry: int
    places: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What claim answers."""

    deadline_ms: int
    wait_until_ms: int
    more: int
    skipped: int
    stalled: int
    dead: int
    messages: list[Claimed]

    @property
    def ids(self) -> list[int]:
        return [message.id for message in self.messages]

    @property
    def records(self) -> list[bytes]:
        return [message.record for message in self.messages]


def taken(*ids: int, consumers: int, is_duplicate: Sequence[int] = (), dropped: int = 0) -> dict[str, Any]:
    """Return what publish answers when each message goes to so many consumers."""
    messages = [
        {"id": b"%d" % one, "consumers": consumers, "is_duplicate": again}
        for one, again in zip(ids, is_duplicate or [0] * len(ids), strict=True)
    ]
    return {"dropped": dropped, "messages": tuple(messages)}


def options(
    mode: str = "fifo",
    *,
    when_failed: str = "skip",
    lanes: int = 1,
    max_length: int = 0,
    when_full: str = "reject",
    dead_retention_ms: int = 7 * DAY_MS,
    idle_expiry_ms: int = 0,
) -> str:
    """Return a consumer's options as scripts take them."""
    return f"{mode} {when_failed} {lanes} {max_length} {when_full} {dead_retention_ms} {idle_expiry_ms}"


@dataclass(kw_only=True)
class Queue:
    """A fan-out queue, and its scripts.

    :ivar now: instant that scripts are told; empty for the server's time.
    :ivar members: consumer -> options, as a publisher knows them.
    """

    client: RedisClient
    name: str = "orders"
    now: int | str = NOW_MS
    membership: int = 0
    members: dict[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> FanoutKeys:
        return fanout_keys(self.name)

    def lanes(self, consumer: str) -> int:
        return int(self.members.get(consumer, "fifo skip 1").split()[2])

    def is_bounded(self, consumer: str) -> bool:
        """Return whether a consumer has a maximum length: then it has no cursor, and publishers name it."""
        return self.members[consumer].split()[3] != "0"

    def of(self, consumer: str) -> FanoutConsumerKeys:
        return fanout_consumer_keys(self.name, consumer, lanes=self.lanes(consumer))

    def run(self, call: lua.Call) -> Any:
        return ScriptCaller(self.client).call(*call)

    def ask(self, call: lua.Call) -> Any:
        """Run a script; its answer has the names that its header gives."""
        return reply_of(call, self.run(call))

    def register(self, consumer: str, chosen: str | None = None, *, start: str = "new") -> Reply:
        text = chosen or options()
        reply: Reply = self.ask(
            scripts.register(
                self.keys, self.of(consumer), consumer=consumer, options=text, start=start, now_ms=self.now
            )
        )
        self.membership = reply.membership
        self.members[consumer] = reply.options.decode()
        return reply

    def publish(
        self,
        *records: str | bytes,
        to: str = "",
        ttl_ms: int | Sequence[int] = DAY_MS,
        order_hashes: Sequence[int] = (),
        deduplication_ids: Sequence[str] = (),
        remembered_ms: int | str = "",
        due: Sequence[int | str] = (),
        membership: int | None = None,
    ) -> Any:
        names = [to] if to else [name for name in self.members if any(due) or self.is_bounded(name)]
        keys: list[str] = []
        values: list[lua.Value] = []
        for name in names:
            own = self.of(name)
            keys += [own.wakes, own.details, own.delayed, *own.ready]
            values += [name, self.members[name]]
        for position, record in enumerate(records):
            order_hash = order_hashes[position] if order_hashes else 0
            deduplication_id = deduplication_ids[position] if deduplication_ids else ""
            life_ms = ttl_ms if isinstance(ttl_ms, int) else ttl_ms[position]
            instant = due[position] if due else ""
            values += [life_ms, order_hash, deduplication_id, remembered_ms, instant, record]
        return self.ask(
            scripts.publish(
                self.keys,
                consumer_keys=keys,
                membership=self.membership if membership is None else membership,
                to=to,
                now_ms=self.now,
                consumers=len(names),
                values=values,
            )
        )

    def cancel(self, message_id: int, *, membership: int | None = None) -> Any:
        return self.ask(
            scripts.cancel(
                self.keys,
                delayed_sets=[self.of(name).delayed for name in self.members],
                membership=self.membership if membership is None else membership,
                id=message_id,
                now_ms=self.now,
            )
        )

    def claim(
        self, consumer: str, token: str = "t1", *, count: int = 1, lease_ms: int = 30_000, max_stalls: int = 3
    ) -> Claim:
        call = scripts.claim(
            self.keys,
            self.of(consumer),
            consumer=consumer,
            token=token,
            lease_ms=lease_ms,
            count=count,
            max_stalls=max_stalls,
            now_ms=self.now,
        )
        reply = self.ask(call)
        messages = [
            Claimed(int(each.id), each.attempt, each.stalls, each.message.split(b":", 3)[3]) for each in reply.messages
        ]
        return Claim(
            deadline_ms=int(reply.deadline_ms),
            wait_until_ms=reply.wait_until_ms,
            more=reply.more,
            skipped=reply.skipped,
            stalled=reply.stalled,
            dead=reply.dead,
            messages=messages,
        )

    def ack(self, consumer: str, *ids: int, token: str = "t1") -> Any:
        return self.ask(scripts.ack(self.keys, self.of(consumer), token=token, ids=ids))

    def nack(
        self,
        consumer: str,
        message_id: int,
        *,
        token: str = "t1",
        delay_ms: int = 0,
        max_attempts: int | str = "",
        reason: str = "failed",
        position: str = "tail",
    ) -> Any:
        return self.ask(
            scripts.nack(
                self.keys,
                self.of(consumer),
                consumer=consumer,
                token=token,
                id=message_id,
                delay_ms=delay_ms,
                max_attempts=max_attempts,
                reason=reason,
                position=position,
                now_ms=self.now,
            )
        )

    def extend(self, consumer: str, *ids: int, token: str = "t1", lease_ms: int = 30_000) -> Any:
        return self.ask(
            scripts.extend(self.keys, self.of(consumer), token=token, lease_ms=lease_ms, now_ms=self.now, ids=ids)
        )

    def list_consumers(self) -> Any:
        return self.ask(scripts.list_consumers(self.keys))

    def configure(self, consumer: str, chosen: str) -> Any:
        self.membership = self.ask(scripts.configure(self.keys, self.of(consumer), consumer=consumer, options=chosen))
        self.members[consumer] = chosen
        return self.membership

    def configure_queue(self, when_nobody: str = "hold", *, max_held: int = 100, deduplication_ms: int = 60_000) -> Any:
        return self.ask(
            scripts.configure_queue(
                self.keys, when_nobody=when_nobody, max_held=max_held, deduplication_ms=deduplication_ms
            )
        )

    def touch(self, consumer: str) -> Any:
        return self.ask(scripts.touch(self.keys, consumer=consumer, now_ms=self.now))

    def adopt(self, consumer: str, *ids: int, limit: int = 500, is_last: bool = True) -> Any:
        return self.ask(
            scripts.adopt(
                self.keys,
                self.of(consumer),
                consumer=consumer,
                limit=limit,
                is_last=int(is_last),
                now_ms=self.now,
                ids=ids,
            )
        )

    def unregister(
        self,
        consumer: str,
        *,
        force: bool = False,
        unseen_since_ms: int | str = "",
        limit: int = 1_000,
        begun: bool = False,
    ) -> Any:
        return self.ask(
            scripts.unregister(
                self.keys,
                self.of(consumer),
                consumer=consumer,
                force=int(force),
                unseen_since_ms=unseen_since_ms,
                limit=limit,
                begun=int(begun),
                now_ms=self.now,
            )
        )

    def refresh(self) -> None:
        """Read the membership again, as a publisher does that is told VERSION."""
        reply = self.list_consumers()
        self.membership = reply.membership
        self.members = {
            member.consumer.decode(): member.options.decode()
            for member in reply.members
            if not member.options.startswith(b"leaving")
        }

    def pull(self, consumer: str, *, limit: int = 1_000) -> Any:
        return self.ask(scripts.pull(self.keys, self.of(consumer), consumer=consumer, limit=limit))

    def take_over(self, *, dry_run: bool = False) -> Any:
        return self.ask(scripts.take_over(self.keys, dry_run=int(dry_run)))

    def return_claimed(self, consumer: str, *ids: int, token: str = "t1") -> Any:
        return self.ask(scripts.return_claimed(self.of(consumer), token=token, ids=ids))

    def reap(self, consumer: str, *, max_stalls: int = 3, limit: int = 1_000, lane: int = 1, offset: int = 0) -> Any:
        call = scripts.reap(
            self.keys,
            self.of(consumer),
            consumer=consumer,
            max_stalls=max_stalls,
            limit=limit,
            lane=lane,
            offset=offset,
            now_ms=self.now,
            part="all",
            behind="",
            ids=[],
        )
        return self.ask(call)

    def list_dead(self, consumer: str, *, offset: int = 0, limit: int = 100) -> Any:
        return self.ask(scripts.list_dead(self.keys, self.of(consumer), offset=offset, limit=limit))

    def retry_dead(self, consumer: str, *ids: int) -> Any:
        return self.ask(scripts.retry_dead(self.keys, self.of(consumer), consumer=consumer, now_ms=self.now, ids=ids))

    def purge_dead(self, consumer: str, *ids: int, died_before_ms: int | str = "", limit: int = 500) -> Any:
        return self.ask(
            scripts.purge_dead(
                self.keys, self.of(consumer), died_before_ms=died_before_ms, limit=limit, behind=0, ids=ids
            )
        )

    def expire(self, *, limit: int = 1_000, held_at: int = 0) -> Any:
        return self.ask(scripts.expire(self.keys, limit=limit, held_at=held_at, now_ms=self.now, behind=0))

    def purge(self, consumer: str, *, limit: int = 1_000) -> Any:
        return self.ask(scripts.purge(self.keys, self.of(consumer), consumer=consumer, limit=limit))

    def purge_held(self, *, limit: int = 1_000) -> Any:
        return self.ask(scripts.purge_held(self.keys, limit=limit))

    def pause(self, consumer: str = "") -> Any:
        noted = self.of(consumer).details if consumer else self.keys.state
        return self.ask(scripts.pause(self.keys, paused=noted, consumer=consumer))

    def resume(self, consumer: str = "") -> Any:
        noted = self.of(consumer).details if consumer else self.keys.state
        wakes = [self.of(name).wakes for name in ([consumer] if consumer else self.members)]
        return self.ask(scripts.resume(self.keys, paused=noted, wakes=wakes, consumer=consumer))

    def peek(self, consumer: str, *, lane: int = 0, offset: int = 0, limit: int = 100) -> Any:
        own = self.of(consumer)
        place: dict[str, Any] = {"ready": own.ready[lane], "lane": lane + 1, "lanes": len(own.ready)}
        return self.ask(scripts.peek(self.keys, own, offset=offset, limit=limit, consumer=consumer, **place))

    def waiting(self, consumer: str, *, lane: int = 0) -> list[int]:
        """Return the ids at the head of a list, as peek shows them."""
        return [int(message.id) for message in self.peek(consumer, lane=lane).messages]

    def inspect(self) -> Any:
        return self.ask(scripts.inspect(self.keys))

    def inspect_consumer(self, consumer: str, *, sample: int = 100) -> dict[str, Any]:
        call = scripts.inspect_consumer(self.keys, self.of(consumer), consumer=consumer, sample=sample, now_ms=self.now)
        found: dict[str, Any] = self.ask(call)._asdict()
        return found | {"fields": dict(found["fields"]), "lanes": list(found["lanes"])}

    def list_ids(self, key: str, *, cursor: int = 0, limit: int = 1_000) -> Any:
        return self.ask(scripts.list_ids(holder=key, cursor=cursor, limit=limit, with_values=0))

    def _of_all(self, script: Bound, values: Sequence[lua.Value]) -> Any:
        """Run what takes the keys of all consumers."""
        keys: list[str] = []
        named: list[lua.Value] = []
        for name, text in self.members.items():
            own = self.of(name)
            keys += [own.leases, own.delayed, own.dead, own.details, *own.ready]
            named += [name, 0 if text.startswith("fifo") else self.lanes(name)]
        return self.ask(
            script(
                self.keys,
                consumer_keys=keys,
                membership=self.membership,
                now_ms=self.now,
                consumers=len(self.members),
                values=[*named, *values],
            )
        )

    def verify(self, *ids: int) -> dict[int, Placed]:
        """Return what is where, by id."""
        reply = self._of_all(scripts.verify, ids)
        return {
            int(row.id): Placed(
                row.has_message, row.references, int(float(row.expires_at_ms) >= 0), row.places.decode()
            )
            for row in reply.rows
        }

    def repair(self, *ids: int, elsewhere: int | str = 0, told: int | str = "") -> Any:
        """Set ids right.

        :param elsewhere: consumers that are not named and have them; a hyphen leaves count and message alone.
        :param told: the count by which they were told; empty when nobody is left out.
        """
        return self._of_all(scripts.repair, [value for one in ids for value in (one, elsewhere, told)])

    def at(self, now: int) -> Queue:
        """Return the same queue at another instant."""
        return replace(self, now=now)

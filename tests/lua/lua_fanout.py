"""What the tests of fan-out queues' scripts share: a queue, and every script as a call on it, at a given instant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from queuekeeper import lua
from queuekeeper.keyspace import FanoutConsumerKeys, FanoutKeys, fanout_consumer_keys, fanout_keys
from queuekeeper.lua import ScriptCaller
from queuekeeper.redis_client import RedisClient

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
INSPECTED = "options last_seen_ms leased overdue delayed dead deadline_ms due_ms oldest_dead_ms sampled only_holder"
"""What inspect_consumer answers first, in order."""


class Claimed(NamedTuple):
    """One message as claim hands it out."""

    id: int
    attempt: int
    stalls: int
    record: bytes


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

    def of(self, consumer: str) -> FanoutConsumerKeys:
        return fanout_consumer_keys(self.name, consumer, lanes=self.lanes(consumer))

    def call(self, script: str, keys: Sequence[lua.Value], args: Sequence[lua.Value]) -> Any:
        return ScriptCaller(self.client).call(lua.load(f"fanout/{script}"), keys, args)

    def register(self, consumer: str, chosen: str | None = None, *, start: str = "new") -> Any:
        text = chosen or options()
        keys = [self.keys.state, self.keys.options, self.keys.consumers, self.of(consumer).details]
        reply = self.call("register", keys, [consumer, text, start, self.now])
        self.membership = reply[1]
        self.members[consumer] = reply[3].decode()
        return reply

    def publish(
        self,
        *records: str | bytes,
        to: str = "",
        ttl_ms: int | Sequence[int] = DAY_MS,
        order_hashes: Sequence[int] = (),
        deduplication_ids: Sequence[str] = (),
        remembered_ms: int | str = "",
        membership: int | None = None,
    ) -> Any:
        names = [to] if to else list(self.members)
        shared = self.keys
        keys = [
            shared.state,
            shared.messages,
            shared.references,
            shared.expiries,
            shared.held,
            shared.remembered,
            shared.deduplications,
        ]
        args: list[lua.Value] = [
            self.membership if membership is None else membership,
            to,
            self.now,
            len(names),
        ]
        for name in names:
            own = self.of(name)
            lanes = sorted({order_hash % len(own.ready) for order_hash in order_hashes or [0]})
            keys += [own.wake, *(own.ready[lane] for lane in lanes)]
            keys += [own.details, own.delayed] if self.members[name].split()[3] != "0" else []
            args += [name, self.members[name]]
        for position, record in enumerate(records):
            order_hash = order_hashes[position] if order_hashes else 0
            deduplication_id = deduplication_ids[position] if deduplication_ids else ""
            life_ms = ttl_ms if isinstance(ttl_ms, int) else ttl_ms[position]
            args += [life_ms, order_hash, deduplication_id, remembered_ms, record]
        return self.call("publish", keys, args)

    def claim(
        self, consumer: str, token: str = "t1", *, count: int = 1, lease_ms: int = 30_000, max_stalls: int = 3
    ) -> Claim:
        shared, own = self.keys, self.of(consumer)
        keys = [
            shared.state,
            shared.options,
            shared.consumers,
            shared.messages,
            shared.references,
            shared.expiries,
            own.leases,
            own.delayed,
            own.dead,
            own.details,
            own.wake,
            *own.ready,
        ]
        reply = self.call("claim", keys, [consumer, token, lease_ms, count, max_stalls, self.now])
        messages = [
            Claimed(int(reply[n]), reply[n + 1], reply[n + 2], reply[n + 3].split(b":", 3)[3])
            for n in range(6, len(reply), 4)
        ]
        return Claim(
            deadline_ms=int(reply[0]),
            wait_until_ms=reply[1],
            more=reply[2],
            skipped=reply[3],
            stalled=reply[4],
            dead=reply[5],
            messages=messages,
        )

    def ack(self, consumer: str, *ids: int, token: str = "t1") -> Any:
        shared, own = self.keys, self.of(consumer)
        keys = [shared.state, shared.messages, shared.references, shared.expiries, own.leases, own.details, own.wake]
        return self.call("ack", keys, [token, *ids])

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
        shared, own = self.keys, self.of(consumer)
        keys = [
            shared.state,
            shared.options,
            shared.messages,
            shared.expiries,
            own.leases,
            own.delayed,
            own.dead,
            own.details,
            own.wake,
            *own.ready,
        ]
        return self.call(
            "nack", keys, [consumer, token, message_id, delay_ms, max_attempts, reason, position, self.now]
        )

    def extend(self, consumer: str, *ids: int, token: str = "t1", lease_ms: int = 30_000) -> Any:
        own = self.of(consumer)
        keys = [self.keys.messages, self.keys.expiries, own.leases, own.details]
        return self.call("extend", keys, [token, lease_ms, self.now, *ids])

    def list_consumers(self) -> Any:
        return self.call("list_consumers", [self.keys.state, self.keys.options, self.keys.consumers], [])

    def configure(self, consumer: str, chosen: str) -> Any:
        shared, own = self.keys, self.of(consumer)
        keys = [shared.state, shared.options, own.leases, own.delayed, own.details, *own.ready]
        self.membership = self.call("configure", keys, [consumer, chosen])
        self.members[consumer] = chosen
        return self.membership

    def configure_queue(self, when_nobody: str = "hold", *, max_held: int = 100, deduplication_ms: int = 60_000) -> Any:
        return self.call("configure_queue", [self.keys.state], [when_nobody, max_held, deduplication_ms])

    def touch(self, consumer: str) -> Any:
        shared = self.keys
        return self.call("touch", [shared.state, shared.options, shared.consumers], [consumer, self.now])

    def adopt(self, consumer: str, *ids: int, limit: int = 500, is_last: bool = True) -> Any:
        shared, own = self.keys, self.of(consumer)
        keys = [
            shared.state,
            shared.options,
            shared.messages,
            shared.references,
            shared.expiries,
            shared.held,
            own.details,
            own.wake,
            *own.ready,
        ]
        return self.call("adopt", keys, [consumer, limit, int(is_last), self.now, *ids])

    def unregister(
        self,
        consumer: str,
        *,
        force: bool = False,
        unseen_since_ms: int | str = "",
        limit: int = 1_000,
        begun: bool = False,
    ) -> Any:
        shared, own = self.keys, self.of(consumer)
        keys = [
            shared.state,
            shared.options,
            shared.consumers,
            shared.messages,
            shared.references,
            shared.expiries,
            own.leases,
            own.delayed,
            own.dead,
            own.details,
            own.wake,
            *own.ready,
        ]
        args: list[lua.Value] = [consumer, int(force), unseen_since_ms, limit, int(begun), self.now]
        return self.call("unregister", keys, args)

    def refresh(self) -> None:
        """Read the membership again, as a publisher does that is told VERSION."""
        reply = self.list_consumers()
        self.membership = reply[0]
        self.members = {
            reply[n].decode(): reply[n + 1].decode()
            for n in range(2, len(reply), 3)
            if not reply[n + 1].startswith(b"leaving")
        }

    def return_claimed(self, consumer: str, *ids: int, token: str = "t1") -> Any:
        own = self.of(consumer)
        return self.call("return_claimed", [own.leases, own.details, own.wake, *own.ready], [token, *ids])

    def reap(self, consumer: str, *, max_stalls: int = 3, limit: int = 1_000, lane: int = 1, offset: int = 0) -> Any:
        shared, own = self.keys, self.of(consumer)
        keys = [
            shared.state,
            shared.options,
            shared.messages,
            shared.references,
            shared.expiries,
            own.leases,
            own.delayed,
            own.dead,
            own.details,
            own.wake,
            *own.ready,
        ]
        return self.call("reap", keys, [consumer, max_stalls, limit, lane, offset, self.now, "all", ""])[:6]

    def list_dead(self, consumer: str, *, offset: int = 0, limit: int = 100) -> Any:
        own = self.of(consumer)
        return self.call("list_dead", [self.keys.messages, own.dead, own.details], [offset, limit])

    def retry_dead(self, consumer: str, *ids: int) -> Any:
        shared, own = self.keys, self.of(consumer)
        keys = [
            shared.state,
            shared.options,
            shared.messages,
            shared.expiries,
            own.dead,
            own.details,
            own.wake,
            *own.ready,
        ]
        return self.call("retry_dead", keys, [consumer, self.now, *ids])

    def purge_dead(self, consumer: str, *ids: int, died_before_ms: int | str = "", limit: int = 500) -> Any:
        shared, own = self.keys, self.of(consumer)
        keys = [shared.state, shared.messages, shared.references, shared.expiries, own.dead, own.details]
        return self.call("purge_dead", keys, [died_before_ms, limit, 0, *ids])

    def expire(self, *, limit: int = 1_000, held_at: int = 0) -> Any:
        shared = self.keys
        keys = [
            shared.state,
            shared.messages,
            shared.references,
            shared.expiries,
            shared.held,
            shared.remembered,
            shared.deduplications,
        ]
        return self.call("expire", keys, [limit, held_at, self.now, 0])[:3]

    def purge(self, consumer: str, *, limit: int = 1_000) -> Any:
        shared, own = self.keys, self.of(consumer)
        keys = [
            shared.state,
            shared.messages,
            shared.references,
            shared.expiries,
            own.delayed,
            own.details,
            *own.ready,
        ]
        return self.call("purge", keys, [limit])

    def purge_held(self, *, limit: int = 1_000) -> Any:
        shared = self.keys
        keys = [shared.state, shared.messages, shared.references, shared.expiries, shared.held]
        return self.call("purge_held", keys, [limit])

    def pause(self, consumer: str = "") -> Any:
        shared = self.keys
        noted = self.of(consumer).details if consumer else shared.state
        return self.call("pause", [shared.state, shared.options, noted], [consumer])

    def resume(self, consumer: str = "") -> Any:
        shared = self.keys
        noted = self.of(consumer).details if consumer else shared.state
        wakes = [self.of(name).wake for name in ([consumer] if consumer else self.members)]
        return self.call("resume", [shared.state, shared.options, noted, *wakes], [consumer])

    def peek(self, consumer: str, *, lane: int = 0, offset: int = 0, limit: int = 100) -> Any:
        own = self.of(consumer)
        return self.call("peek", [self.keys.messages, own.details, own.ready[lane]], [offset, limit])

    def inspect(self) -> Any:
        shared = self.keys
        return self.call(
            "inspect",
            [shared.state, shared.messages, shared.references, shared.expiries, shared.held, shared.remembered],
            [],
        )

    def inspect_consumer(self, consumer: str, *, sample: int = 100) -> dict[str, Any]:
        shared, own = self.keys, self.of(consumer)
        keys = [
            shared.state,
            shared.options,
            shared.consumers,
            shared.messages,
            shared.references,
            own.leases,
            own.delayed,
            own.dead,
            own.details,
            *own.ready,
        ]
        reply = self.call("inspect_consumer", keys, [consumer, sample, self.now])
        names = INSPECTED.split()
        found = dict(zip(names, reply, strict=False))
        found["fields"] = dict(zip(reply[11][::2], reply[11][1::2], strict=True))
        found["lanes"] = [tuple(reply[12][n : n + 3]) for n in range(0, len(reply[12]), 3)]
        return found

    def list_ids(self, key: str, *, cursor: int = 0, limit: int = 1_000) -> Any:
        return self.call("list_ids", [key], [cursor, limit, 0])

    def _of_all(self) -> tuple[list[str], list[lua.Value]]:
        shared = self.keys
        keys = [shared.state, shared.messages, shared.references, shared.expiries, shared.held]
        args: list[lua.Value] = [self.membership, self.now, len(self.members)]
        for name, text in self.members.items():
            own = self.of(name)
            keys += [own.leases, own.delayed, own.dead, own.details, *own.ready]
            args.append(0 if text.startswith("fifo") else self.lanes(name))
        return keys, args

    def verify(self, *ids: int) -> dict[int, tuple[int, int, int, str]]:
        """Return by id: whether there is a message, the count, whether there is an expiry, and the places."""
        keys, args = self._of_all()
        reply = self.call("verify", keys, [*args, *ids])
        return {
            int(reply[n]): (reply[n + 1], reply[n + 2], int(float(reply[n + 3]) >= 0), reply[n + 4].decode())
            for n in range(0, len(reply), 5)
        }

    def repair(self, *ids: int, elsewhere: int | str = 0, told: int | str = "") -> Any:
        """Set ids right.

        :param elsewhere: consumers that are not named and have them; a hyphen leaves count and message alone.
        :param told: the count by which they were told; empty when nobody is left out.
        """
        keys, args = self._of_all()
        return self.call("repair", keys, [*args, *(value for one in ids for value in (one, elsewhere, told))])

    def at(self, now: int) -> Queue:
        """Return the same queue at another instant."""
        return replace(self, now=now)

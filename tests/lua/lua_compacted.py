"""What the tests of compacted queues' scripts share: a queue, and every script as a call on it, at a test's instant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from script_replies import Reply, reply_of

from queuekeeper import lua
from queuekeeper.keyspace import CompactedKeys, compacted_keys
from queuekeeper.lua import scripts
from queuekeeper.redis_client import RedisClient

DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000
PLENTY = 100_000_000


class Entry(NamedTuple):
    """One entry as append takes it."""

    key: bytes
    record: bytes = b"value"
    tombstone: int = 0
    expected: int | str = ""


class Fence(NamedTuple):
    """What a consumer's calls carry."""

    incarnation: int
    epoch: int

    @classmethod
    def of(cls, reply: Reply) -> Fence:
        """Return the fence that an answer tells."""
        return cls(reply.incarnation, reply.epoch)


def appended(*, replaced: Sequence[int], **numbers: int) -> dict[str, Any]:
    """Return what append answers when it has stored something; a number that is not given is 0."""
    known = dict.fromkeys(("evicted", "evicted_unacked", "is_consumed", "is_first"), 0) | numbers
    return {name: b"%d" % number for name, number in known.items()} | {
        "replaced": tuple(b"%d" % each for each in replaced)
    }


class Delivered(NamedTuple):
    """One message as fetch hands it out."""

    key: bytes
    ms: int
    sequence: int
    value: bytes
    redelivered: bool

    @property
    def record(self) -> bytes:
        return self.value.split(b" ", 2)[2]


class Fetched(NamedTuple):
    """What fetch answers."""

    acked_now: int
    unknown: int
    acked: int
    in_flight: int
    lag: int
    more_to_resend: int
    messages: list[Delivered]

    @property
    def sequences(self) -> list[int]:
        return [message.sequence for message in self.messages]


class Due(NamedTuple):
    """One row that find_due names."""

    key: bytes
    sequence: int
    ms: int
    tombstone: int
    size: int
    acked: int
    value: bytes


class DuePage(NamedTuple):
    """What find_due answers."""

    more: int
    next_after_sequence: int
    next_due_ms: int
    policy: bytes
    retention_ms: int
    tombstone_ms: int
    looked_at: int
    rows: list[Due]

    @property
    def sequences(self) -> list[int]:
        return [row.sequence for row in self.rows]


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The compacted queue of one client."""

    client: RedisClient
    client_id: str = "meter-7"

    @property
    def keys(self) -> CompactedKeys:
        return compacted_keys(self.client_id)

    def call(self, script: str, **named: Any) -> Any:
        """Run a script on the queue, with what its header names; so has its answer."""
        call = getattr(scripts.compacted, script)(self.keys, **named)
        return reply_of(call, self.run(call))

    def send(self, script: str, *args: lua.Value) -> Any:
        """Run a script with arguments as they are, also such as nobody can name: too few, or too many."""
        loaded = lua.load(f"compacted/{script}")
        names = self.keys._asdict()
        return self.run(lua.Call(loaded, [names[parameter.name] for parameter in loaded.keys], args))

    def run(self, call: lua.Call) -> Any:
        return lua.ScriptCaller(self.client).call(*call)

    def append(
        self,
        *entries: Entry,
        max_keys: int | str = 0,
        max_bytes: int | str = 0,
        policy: str = "reject",
        producer: str = "",
        number: int | str = "",
        now: int | str = NOW_MS,
    ) -> Reply:
        values = [value for entry in entries for value in entry]
        reply: Reply = self.call(
            "append",
            max_keys=max_keys,
            max_bytes=max_bytes,
            policy=policy,
            producer=producer,
            number=number,
            now=now,
            entries=values,
        )
        return reply

    def fill(self, *keys: bytes, now: int = NOW_MS) -> None:
        self.append(*(Entry(key, b"value of " + key) for key in keys), now=now)

    def subscribe(
        self,
        session: str = "s",
        *,
        mode: str = "takeover",
        lease_ms: int | str = 60_000,
        now: int | str = NOW_MS,
        start: str = "",
    ) -> Reply:
        reply: Reply = self.call("subscribe", session=session, mode=mode, lease_ms=lease_ms, now=now, start=start)
        return reply

    def fence(self, session: str = "s", **options: Any) -> Fence:
        return Fence.of(self.subscribe(session, **options))

    def fetch(
        self,
        fence: Fence,
        *acks: int | str,
        window: int = 5,
        limit: int = 5,
        max_bytes: int = PLENTY,
        refill: str = "on_empty",
        redeliver: int = 0,
        now: int = NOW_MS,
    ) -> Fetched:
        reply = self.call(
            "fetch",
            incarnation=fence.incarnation,
            epoch=fence.epoch,
            window=window,
            limit=limit,
            max_bytes=max_bytes,
            refill=refill,
            redeliver=redeliver,
            now=now,
            sequences=acks,
        )
        messages = [
            Delivered(each.key, each.ms, each.sequence, each.value, place < reply.redelivered)
            for place, each in enumerate(reply.messages)
        ]
        return Fetched(
            acked_now=reply.acked_now,
            unknown=reply.unknown,
            acked=reply.acked,
            in_flight=reply.in_flight,
            lag=reply.lag,
            more_to_resend=reply.more_to_resend,
            messages=messages,
        )

    def ack(self, fence: Fence, *sequences: int | str, mode: str = "each", now: int | str = NOW_MS) -> Reply:
        reply: Reply = self.call(
            "ack", incarnation=fence.incarnation, epoch=fence.epoch, mode=mode, now=now, sequences=sequences
        )
        return reply

    def consume(self, count: int) -> Fence:
        """Deliver and acknowledge that many messages."""
        fence = self.fence()
        messages = self.fetch(fence, window=count, limit=count).messages
        assert len(messages) == count
        self.ack(fence, *(message.sequence for message in messages))
        return fence

    def find_due(
        self,
        policy: str = "delete",
        *,
        retention_ms: int = 7 * DAY_MS,
        tombstone_ms: int = DAY_MS,
        override: int = 0,
        after: int = 0,
        limit: int = 200,
        with_values: int = 0,
        max_bytes: int = PLENTY,
        now: int | str = NOW_MS,
    ) -> DuePage:
        reply = self.call(
            "find_due",
            policy=policy,
            retention_ms=retention_ms,
            tombstone_ms=tombstone_ms,
            override=override,
            after_sequence=after,
            limit=limit,
            with_values=with_values,
            max_bytes=max_bytes,
            now=now,
        )
        rows = [
            Due(row.key, row.sequence, row.ms, row.is_tombstone, row.bytes, row.is_acked, row.value)
            for row in reply.rows
        ]
        return DuePage(**(reply._asdict() | {"rows": rows}))

    def collect(
        self,
        *rows: tuple[bytes, int | str],
        policy: str = "delete",
        retention_ms: int = 7 * DAY_MS,
        tombstone_ms: int = DAY_MS,
        override: int = 0,
        producer_ms: int | str = "",
        now: int | str = NOW_MS,
    ) -> Reply:
        values = [value for row in rows for value in row]
        reply: Reply = self.call(
            "collect",
            policy=policy,
            retention_ms=retention_ms,
            tombstone_ms=tombstone_ms,
            override=override,
            producer_ms=producer_ms,
            now=now,
            rows=values,
        )
        return reply

    def peek(self, after: int = 0, limit: int = 500) -> list[tuple[bytes, int, bytes]]:
        reply = self.call("peek", after_sequence=after, limit=limit, max_bytes=PLENTY)
        return [(each.key, each.ms, each.value) for each in reply.messages]

    def state(self) -> dict[str, str]:
        client: Any = self.client
        return {name.decode(): value.decode() for name, value in client.hgetall(self.keys.state).items()}

    def order(self) -> dict[bytes, int]:
        client: Any = self.client
        return {key: int(score) for key, score in client.zrange(self.keys.order, 0, -1, withscores=True)}

    def in_flight(self) -> list[int]:
        client: Any = self.client
        return [int(member) for member in client.zrange(self.keys.in_flight, 0, -1)]

    def is_woken(self) -> bool:
        """Take the wake-up, if there is one."""
        client: Any = self.client
        return bool(client.zpopmin(self.keys.wake))

    def violations(self, *, limit: int = 100) -> list[tuple[str, bytes, int]]:
        """Return what verify finds in all parts, and that bytes and entries do not add up."""
        found: list[tuple[str, bytes, int]] = []
        totals: dict[str, int] = {}
        for part in ("state", "order", "times", "values", "tombstones", "in_flight"):
            cursor, totals[part] = b"0", 0
            while True:
                reply = self.call("verify", part=part, cursor=cursor, limit=limit, kinds="", headed="")
                totals[part] += reply.bytes
                found += [(each.rule.decode(), each.key, each.sequence) for each in reply.violations]
                cursor = reply.next_cursor
                if cursor == b"0":
                    break
        if totals["state"] != totals["order"]:
            found.append(("bytes", b"", totals["state"] - totals["order"]))
        state = {name: int(value) for name, value in self.state().items() if value.isdigit()}
        came = state.get("appended", 0) + state.get("restored", 0)
        went = ("compacted", "evicted", "expired", "tombstones_collected", "purged")
        missing = came - sum(state.get(name, 0) for name in went) - len(self.order())
        if missing:
            found.append(("entries", b"", missing))
        return found

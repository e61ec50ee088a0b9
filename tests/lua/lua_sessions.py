"""What the tests of the Lua scripts share: sessions and the calls on them, and all that a server holds, to compare."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import redis
from script_replies import Reply, reply_of

from queuekeeper import lua
from queuekeeper.keyspace import SessionKeys, is_scattered, payload_key, session_keys
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.redis_client import RedisClient, is_cluster, nodes

HOSTILE_IDS = (
    "meter-7",
    "}brace first",
    "%percent",
    "in{the}middle",
    "{}",
    "{",
    "glob*?[a-z]^\\",
    "смарт-😀-メーター",
    "<script>alert(1)</script>",
    "line\nbreak",
    "i" * 255,
)


def served_by(client: Any) -> list[str]:
    """Return those of the hostile ids that a server serves: a cluster refuses one that begins with a brace."""
    return [each for each in HOSTILE_IDS if not (is_cluster(client) and is_scattered(each))]


HOUR_MS = 3_600_000

KEPT_MS = 2**52
"""Expiry by which an import knows its last packet id again."""


class Message(NamedTuple):
    """One message as ``import_session`` takes it; ``save_messages`` gives it a serial itself."""

    packet_id: int
    serial: int
    expires_at_ms: int
    json: str


def now_ms() -> int:
    """Return this machine's time, which is the server's too."""
    return time.time_ns() // 1_000_000


def command(client: Any, *words: str | bytes | int) -> Any:
    """Send any command; redis-py's own method has no types."""
    return client.execute_command(*words)


def stored(*, first_serial: int, references: int, expired: bytes = b"", replaced: Sequence[int] = ()) -> dict[str, Any]:
    """Return what save_messages answers when it has stored something."""
    numbers = {"first_serial": b"%d" % first_serial, "references": b"%d" % references, "expired": expired}
    return numbers | ({"replaced": tuple(b"%d" % position for position in replaced)} if replaced else {})


def messages(count: int, *, first: int = 1, expires_at_ms: int | None = None) -> list[Message]:
    """Return messages with packet ids and serials that count up."""
    until = expires_at_ms or now_ms() + 3_600_000
    return [
        Message(first + n, 1_000 + first + n, until + n, f'{{"packetId":{first + n},"subscriptionIds":[]}}')
        for n in range(count)
    ]


FAR_MS = 4_000_000_000_000


def readable(client_id: str, packet_id: int, *, expires_at_ms: int = FAR_MS, **fields: Any) -> Message:
    """Return a message that brokers can read; all have the same content unless told otherwise."""
    record = {
        "clientId": client_id,
        "topicName": "t",
        "time": 1_800_000_000_000,
        "qos": 1,
        "packetId": packet_id,
        "packetType": "PUBLISH",
        "payload": "cGF5bG9hZA==",
        "retained": False,
    }
    return Message(packet_id, 0, expires_at_ms, json.dumps({**record, **fields}))


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session and the calls of the scripts on it.

    :param epoch: under which a plan imports and drivers change owners.
    :param claims: under which epoch the store's scripts know the session; empty when they know nothing of owners.
    """

    client: RedisClient
    client_id: str = "meter-7"
    plan: str = "plan-a"
    epoch: int = 1
    prefix: str = ""
    claims: int | str = ""

    @classmethod
    def saved(cls, client: RedisClient, count: int) -> Self:
        """Return a session of so many messages, whose serials and packet ids begin at 1."""
        found = cls(client=client)
        found.save_messages(messages(count))
        return found

    @property
    def keys(self) -> SessionKeys:
        """Names of the session's keys."""
        return session_keys(self.client_id, prefix=self.prefix)

    def payload(self, packet_id: int) -> str:
        """Return the name of a payload key."""
        return payload_key(self.client_id, packet_id, prefix=self.prefix)

    def import_call(
        self,
        batch: Sequence[Message],
        *,
        chunk: int | str = 0,
        last: bool = True,
        last_packet_id: int | str = "",
        last_serial: int | str = "",
        owner: str = "redis",
    ) -> lua.Call:
        """Return one call of ``import_session``."""
        return scripts.import_session(
            self.keys,
            payloads=self._payloads(batch),
            plan=self.plan,
            epoch=self.epoch,
            owner=owner,
            chunk=chunk,
            last=int(last),
            last_packet_id=last_packet_id,
            last_serial=last_serial,
            messages=_triples(batch),
        )

    def import_session(self, batch: Sequence[Message], **options: Any) -> Reply:
        """Import one chunk."""
        return self._ask(self.import_call(batch, **options))

    def import_chunks(self, chunks: Sequence[Sequence[Message]], *, last_packet_id: int | str = "") -> None:
        """Import a whole session."""
        for number, chunk in enumerate(chunks):
            last = number == len(chunks) - 1
            self.import_session(chunk, chunk=number, last=last, last_packet_id=last_packet_id)

    def drop_import(self, packet_ids: Sequence[int] = ()) -> Reply:
        """Drop the import of the messages with these packet ids."""
        return self._ask(scripts.drop_import(self.keys, payloads=map(self.payload, packet_ids), plan=self.plan))

    def export_messages(self, packet_ids: Sequence[int], max_bytes: int | str = "") -> Reply:
        """Read messages and their expiry."""
        return self._ask(scripts.export_messages(payloads=map(self.payload, packet_ids), max_bytes=max_bytes))

    def replay_message(self, message: Message, *, expected: int | str = "", last_packet_id: int | str = "") -> Reply:
        """Add one repaired message."""
        return self._ask(
            scripts.replay_message(
                self.keys,
                payload=self.payload(message.packet_id),
                plan=self.plan,
                epoch=self.epoch,
                expected=expected,
                last_packet_id=last_packet_id,
                serial=message.serial,
                expires_at_ms=message.expires_at_ms,
                message=message.json,
            )
        )

    def read_session(self) -> Reply:
        """Read what the session says about itself."""
        return self._ask(scripts.read_session(self.keys))

    def list_references(self, by: str, start: int | str, limit: int = 1_000) -> list[tuple[str, int]]:
        """Read a page of references."""
        call = scripts.list_references(self.keys, by=by, start=start, limit=limit)
        return [(each.member.decode(), int(each.score)) for each in self._ask(call).references]

    def fetch_messages(self, packet_ids: Sequence[int], *, max_bytes: int = 1_000_000) -> Reply:
        """Read messages and their expiry, as many as fit."""
        return self._ask(scripts.fetch_messages(payloads=map(self.payload, packet_ids), max_bytes=max_bytes))

    def save_call(
        self,
        batch: Sequence[Message],
        *,
        expected: int | str = "",
        last_packet_id: int | str | None = None,
        source: str = "",
        offset: int | str = 0,
        chunk: int | str = 0,
        packet_ids: str = "",
        session_expiry_ms: int | str = HOUR_MS,
        refused: int | str = 0,
        over: int | str = 0,
        callers_now_ms: int | None = None,
        until_ms: int | str | None = None,
        soon: str | None = None,
    ) -> lua.Call:
        """Return one call of ``save_messages``; the messages' serials play no part."""
        if last_packet_id is None:
            last_packet_id = batch[-1].packet_id if batch else ""
        ends_ms = [message.expires_at_ms for message in batch]
        if until_ms is None:
            until_ms = "" if session_expiry_ms == "" or not batch else max(ends_ms) + int(session_expiry_ms)
        if soon is None:
            known_ms = now_ms() if callers_now_ms is None else callers_now_ms
            soon = "1" if batch and min(ends_ms) <= known_ms + HOUR_MS else ""
        told = ""
        if source or refused or over:
            told = scripts.save_messages.forms.batch(
                refused=refused,
                over=over,
                offset=offset if source else "",
                chunk=chunk if source else "",
                packet_ids=packet_ids,
                source=source,
            )
        return scripts.save_messages(
            self.keys,
            payloads=self._payloads(batch),
            epoch=self.claims,
            expected=expected,
            last_packet_id=last_packet_id,
            until_ms=until_ms,
            soon=soon,
            batch=told,
            messages=[value for message in batch for value in (message.expires_at_ms, message.json)],
        )

    def save_messages(self, batch: Sequence[Message], **options: Any) -> Reply:
        """Store messages."""
        return self._ask(self.save_call(batch, **options))

    def remove_dead_references(
        self, packet_ids: Sequence[int], *, earliest_expiry_ms: int | str = "", complete_for: int | str = ""
    ) -> Reply:
        """Remove the references of these packet ids that lead to no message."""
        return self._ask(
            scripts.remove_dead_references(
                self.keys,
                payloads=map(self.payload, packet_ids),
                epoch=self.claims,
                earliest_expiry_ms=earliest_expiry_ms,
                complete_for=complete_for,
            )
        )

    def trim_messages(self, candidates: Sequence[tuple[int, int | str]], *, limit: int | str) -> Reply:
        """Remove messages, given as packet id and serial, while there are more than the limit."""
        return self._ask(
            scripts.trim_messages(
                self.keys,
                payloads=(self.payload(packet_id) for packet_id, _ in candidates),
                epoch=self.claims,
                limit=limit,
                serials=(serial for _, serial in candidates),
            )
        )

    def ack(self, *acks: tuple[int, int | str]) -> Reply:
        """Remove messages, given as packet id and serial."""
        return self._ask(
            scripts.ack(
                self.keys,
                payloads=(self.payload(packet_id) for packet_id, _ in acks),
                epoch=self.claims,
                serials=(serial for _, serial in acks),
            )
        )

    def mark_released(self, packet_id: int, serial: int | str = "") -> bytes:
        """Note a PUBREC."""
        call = scripts.mark_released(self.keys, payload=self.payload(packet_id), epoch=self.claims, serial=serial)
        reply: bytes = self._call(call)
        return reply

    def mark_delivered(self, serial: int | str, *, keep_ms: int | str = "") -> int:
        """Note that messages up to a serial have been sent."""
        reply: int = self._call(scripts.mark_delivered(self.keys, epoch=self.claims, serial=serial, keep_ms=keep_ms))
        return reply

    def purge_session(
        self, packet_ids: Sequence[int] = (), *, up_to_serial: int | str, members: Sequence[str] = ()
    ) -> Reply:
        """Remove messages, and with the last one the session."""
        return self._ask(
            scripts.purge_session(
                self.keys,
                payloads=map(self.payload, packet_ids),
                epoch=self.claims,
                up_to_serial=up_to_serial,
                members=members,
            )
        )

    def reserve_packet_ids(
        self, packet_ids: Sequence[int], *, expected: int | str = "", keep_ms: int | str = ""
    ) -> Reply:
        """Give out packet ids."""
        return self._ask(
            scripts.reserve_packet_ids(
                self.keys,
                payloads=map(self.payload, packet_ids),
                epoch=self.claims,
                expected=expected,
                last_packet_id=packet_ids[-1],
                keep_ms=keep_ms,
            )
        )

    def set_last_packet_id(self, packet_id: int | str, *, expected: int | str = "", keep_ms: int | str = "") -> int:
        """Set the packet id given out last."""
        reply: int = self._call(
            scripts.set_last_packet_id(
                self.keys, epoch=self.claims, expected=expected, last_packet_id=packet_id, keep_ms=keep_ms
            )
        )
        return reply

    def quarantined(self, serial: int) -> str:
        """Return the name under which an unreadable record is kept."""
        return f"{self.keys.messages.removesuffix('messages')}quarantined_{serial}"

    def quarantine_message(
        self, packet_id: int, serial: int | str, *, keep_ms: int | str = 60_000, client_id: str = ""
    ) -> int:
        """Move an unreadable record out of the session."""
        reply: int = self._call(
            scripts.quarantine_message(
                self.keys,
                payload=self.payload(packet_id),
                quarantined=self.quarantined(int(serial)),
                epoch=self.claims,
                serial=serial,
                keep_ms=keep_ms,
                client_id=client_id,
            )
        )
        return reply

    def orphan(self, packet_id: int) -> str:
        """Return the name under which a record without reference is kept."""
        return f"{self.keys.messages.removesuffix('messages')}orphan_{packet_id}"

    def judge_messages(self, packet_ids: Sequence[int], *, max_bytes: int | str = 1_000_000) -> list[Any]:
        """Have records judged."""
        payloads = map(self.payload, packet_ids)
        call = scripts.judge_messages(payloads=payloads, client_id=self.client_id, max_bytes=max_bytes)
        return list(self._ask(call).verdicts)

    def set_expiry(self, *changes: tuple[int, int | str, int | str, int | str], may_lengthen: int | str = 0) -> Reply:
        """Set instants, given as packet id, serial, instant before and after."""
        return self._ask(
            scripts.set_expiry(
                self.keys,
                payloads=(self.payload(change[0]) for change in changes),
                may_lengthen=may_lengthen,
                lives=(value for change in changes for value in change[1:]),
            )
        )

    def reorder_messages(
        self,
        *moves: tuple[int, int | str, int | str],
        highest: int | str,
        delivered_serial: int | str = "",
        references: int | str = "",
        last_score: int | str = "",
    ) -> Any:
        """Give references other serials, given as packet id, old and new serial."""
        call = scripts.reorder_messages(
            self.keys,
            payloads=(self.payload(move[0]) for move in moves),
            highest=highest,
            delivered_serial=delivered_serial,
            references=references,
            last_score=last_score,
            serials=(value for move in moves for value in move[1:]),
        )
        return reply_of(call, self._call(call))

    def find_orphans(self, packet_ids: Sequence[int]) -> Reply:
        """Look for records that no reference names."""
        return self._ask(scripts.find_orphans(self.keys, payloads=map(self.payload, packet_ids)))

    def find_missing(self, packet_ids: Sequence[int]) -> Reply:
        """Look for messages that have expired."""
        return self._ask(scripts.find_missing(payloads=map(self.payload, packet_ids)))

    def unlink_orphan(
        self, packet_id: int, *, keep_ms: int | str = 60_000, expires_at_ms: int = FAR_MS, grace_ms: int = 60_000
    ) -> int:
        """Take a record without reference out of its session."""
        reply: int = self._call(
            scripts.unlink_orphan(
                self.keys,
                payload=self.payload(packet_id),
                orphan=self.orphan(packet_id),
                keep_ms=keep_ms,
                expires_at_ms=expires_at_ms,
                grace_ms=grace_ms,
            )
        )
        return reply

    def quarantine_duplicate(
        self,
        kept: tuple[int, int | str],
        going: tuple[int, int | str],
        *,
        keep_ms: int | str = 60_000,
        tolerance_ms: int | str = 0,
    ) -> int:
        """Take a message out of the session that another one repeats; each is given as packet id and serial."""
        aside = f"{self.keys.messages.removesuffix('messages')}quarantined_{going[1]}"
        reply: int = self._call(
            scripts.quarantine_duplicate(
                self.keys,
                kept=self.payload(kept[0]),
                payload=self.payload(going[0]),
                quarantined=aside,
                kept_serial=kept[1],
                serial=going[1],
                keep_ms=keep_ms,
                tolerance_ms=tolerance_ms,
            )
        )
        return reply

    def restore_message(
        self, aside: str, packet_id: int, *, serial: int | str = "", expires_at_ms: int | str = "", client_id: str = ""
    ) -> bytes:
        """Put a record back that was set aside."""
        reply: bytes = self._call(
            scripts.restore_message(
                self.keys,
                aside=aside,
                payload=self.payload(packet_id),
                serial=serial,
                expires_at_ms=expires_at_ms,
                client_id=client_id,
            )
        )
        return reply

    def rekey_messages(self, batch: Sequence[Message], *, last_packet_id: int | str = "") -> Reply:
        """Write messages that had other keys."""
        return self._ask(
            scripts.rekey_messages(
                self.keys,
                payloads=self._payloads(batch),
                last_packet_id=last_packet_id,
                messages=_triples(batch),
            )
        )

    def finish_rekey(self) -> int:
        """Note that nothing is left under other keys."""
        reply: int = self._call(scripts.finish_rekey(self.keys, fields=()))
        return reply

    def unlink_copied(self, key: str, digest: str) -> int:
        """Remove a key whose content is known."""
        reply: int = self._call(scripts.unlink_copied(copied=key, digest=digest))
        return reply

    def remove_references(self, *pairs: tuple[str, int | str]) -> int:
        """Remove references, given as member and score."""
        reply: int = self._call(
            scripts.remove_references(self.keys, references=(text for pair in pairs for text in pair))
        )
        return reply

    def set_owner(self, owner: str, *, epoch: int | str | None = None, mirror: int | str = 0) -> bytes:
        """Note which store owns the session."""
        reply: bytes = self._call(
            scripts.set_owner(self.keys, epoch=self.epoch if epoch is None else epoch, owner=owner, mirror=mirror)
        )
        return reply

    def sync_call(
        self,
        batch: Sequence[Message] = (),
        *,
        removed: Sequence[int] = (),
        epoch: int | str | None = None,
        last_packet_id: int | str = "",
        last_serial: int | str = "",
        delivered_serial: int | str = "",
        sources: Sequence[tuple[str, int | str]] = (),
    ) -> lua.Call:
        """Return one call of ``sync_session``."""
        return scripts.sync_session(
            self.keys,
            payloads=[*map(self.payload, removed), *self._payloads(batch)],
            epoch=self.epoch if epoch is None else epoch,
            removed=len(removed),
            last_packet_id=last_packet_id,
            last_serial=last_serial,
            delivered_serial=delivered_serial,
            sources=len(sources),
            values=[*(value for source in sources for value in source), *_triples(batch)],
        )

    def sync_session(self, batch: Sequence[Message] = (), **options: Any) -> Reply:
        """Write messages of a session that PostgreSQL owns, and remove others."""
        return self._ask(self.sync_call(batch, **options))

    def trim_outbox(self, version: int | str, *, epoch: int | str | None = None, read_ms: int | str = 0) -> int:
        """Forget changes that the other store has."""
        known = self.epoch if epoch is None else epoch
        reply: int = self._call(scripts.trim_outbox(self.keys, epoch=known, outbox_version=version, read_ms=read_ms))
        return reply

    def state(self) -> dict[str, str]:
        """Return the session hash as text."""
        fields: dict[bytes, bytes] = command(self.client, "HGETALL", self.keys.session)
        return {name.decode(): value.decode() for name, value in fields.items()}

    def references(self) -> list[tuple[str, float]]:
        """Return the names of the payload keys with their scores, in order."""
        client: Any = self.client
        found: list[tuple[bytes, float]] = client.zrange(self.keys.messages, 0, -1, withscores=True)
        return [(member.decode(), score) for member, score in found]

    def _payloads(self, batch: Sequence[Message]) -> list[str]:
        return [self.payload(message.packet_id) for message in batch]

    def _ask(self, call: lua.Call) -> Reply:
        """Return an answer that has names."""
        reply = reply_of(call, self._call(call))
        assert isinstance(reply, Reply)
        return reply

    def _call(self, call: lua.Call) -> Any:
        """Return what the server answers, as it does."""
        return lua.ScriptCaller(self.client).call(*call)


def _triples(batch: Sequence[Message]) -> list[str | int]:
    return [value for message in batch for value in (message.serial, message.expires_at_ms, message.json)]


def contents(client: RedisClient) -> dict[str, tuple[Any, int]]:
    """Return value and instant of expiry of every key of every master."""
    found: dict[str, tuple[Any, int]] = {}
    for _, node in nodes(client):
        for key in node.scan_iter(count=1_000):
            found[key.decode()] = (value_of(node, key), int(node.pexpiretime(key)))
    return found


@contextmanager
def unchanged(client: RedisClient) -> Iterator[None]:
    """Assert that a block changes nothing that the server holds."""
    before = contents(client)
    yield
    assert contents(client) == before


def value_of(node: redis.Redis, key: bytes) -> Any:
    """Return what a key holds."""
    match node.type(key):
        case b"string":
            return node.get(key)
        case b"hash":
            return node.hgetall(key)
        case b"zset":
            return node.zrange(key, 0, -1, withscores=True)
        case b"list":
            return node.lrange(key, 0, -1)
        case b"stream":
            return node.xrange(key)
        case other:
            raise AssertionError(f"{key!r} is a {other!r}, which no script writes")

"""Sessions in every state that a cleanup has to tell apart, written as TBMQ's own scripts write them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from queuekeeper import schema_migrations
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.model import Outcome, ShareReport
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.maintenance.cleanup.expired_references import Cleanup, CleanupPlan
from queuekeeper.maintenance.cleanup.model import CleanupCounts, CleanupFound, CleanupParameters, UndoReport
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import RedisClient, nodes

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

# TBMQ's ADD, retold: one atomic step per pack that makes the names of the payload keys itself.
ADD = """
local id = tonumber(redis.call('GET', KEYS[2]) or '0')
local newest = redis.call('ZRANGE', KEYS[1], '0', '0', 'REV', 'WITHSCORES')
local score = tonumber(newest[2] or id)
for at = 2, #ARGV do
    id = id % 65535 + 1
    score = score + 1
    local key = KEYS[1] .. '_' .. id
    local text = string.gsub(ARGV[at], '"packetId":0', '"packetId":' .. id)
    redis.call('SET', key, text, 'PX', ARGV[1])
    redis.call('ZADD', KEYS[1], score, key)
end
redis.call('SET', KEYS[2], id)
return id
"""
ACKNOWLEDGE = """
redis.call('ZREM', KEYS[1], KEYS[1] .. '_' .. ARGV[1])
redis.call('DEL', KEYS[1] .. '_' .. ARGV[1])
return 'OK'
"""
RECEIVED = """
local key = KEYS[1] .. '_' .. ARGV[1]
local text = redis.call('GET', key)
if text then
    redis.call('SET', key, (string.gsub(text, '"PUBLISH"', '"PUBREL"')))
end
return 'OK'
"""


def now_ms() -> int:
    """Return this machine's time, which is the servers' too."""
    return time.time_ns() // 1_000_000


def record(client_id: str, *, time_ms: int, interval_s: int | None = None, packet_id: int = 0, size: int = 20) -> str:
    """Return the JSON of one message."""
    fields: dict[str, Any] = {
        "clientId": client_id,
        "topicName": "t/1",
        "time": time_ms,
        "qos": 2,
        "packetId": packet_id,
        "packetType": "PUBLISH",
        "payload": "A" * size,
        "retained": False,
    }
    if interval_s is not None:
        fields["msgExpiryInterval"] = interval_s
    return json.dumps(fields, separators=(",", ":"))


@dataclass(frozen=True)
class Device:
    """One session, and what a broker does to it."""

    client: Any
    client_id: str
    prefix: str = ""

    @property
    def keys(self) -> Any:
        return session_keys(self.client_id, prefix=self.prefix)

    def payload(self, packet_id: int) -> str:
        return payload_key(self.client_id, packet_id, prefix=self.prefix)

    def add(
        self, count: int = 1, *, life_ms: int = HOUR_MS, time_ms: int | None = None, interval_s: int | None = None
    ) -> int:
        """Store messages; return the last packet id."""
        text = record(self.client_id, time_ms=now_ms() if time_ms is None else time_ms, interval_s=interval_s)
        keys = (self.keys.messages, self.keys.last_packet_id)
        return int(self.client.eval(ADD, 2, *keys, life_ms, *[text] * count))

    def expire(self, *packet_ids: int) -> None:
        """Let messages expire now; their references stay."""
        if packet_ids:
            self.client.delete(*map(self.payload, packet_ids))

    def acknowledge(self, packet_id: int) -> None:
        self.client.eval(ACKNOWLEDGE, 1, self.keys.messages, packet_id)

    def received(self, packet_id: int) -> None:
        """Note a PUBREC: the record has no expiry from then on."""
        self.client.eval(RECEIVED, 1, self.keys.messages, packet_id)

    def orphan(self, packet_id: int, *, age_ms: int, life_ms: int | None = None) -> None:
        """Leave a message that no reference names."""
        text = record(self.client_id, time_ms=now_ms() - age_ms, packet_id=packet_id)
        self.client.set(self.payload(packet_id), text, px=life_ms)

    def references(self) -> list[int]:
        """Return the packet ids that are referred to, in order."""
        found = self.client.zrange(self.keys.messages, 0, -1)
        return [int(member.rpartition(b"_")[2]) for member in found]

    def live(self) -> list[int]:
        """Return the packet ids of the messages that would be delivered, in order."""
        referred = self.references()
        with self.client.pipeline(transaction=False) as pipeline:
            for packet_id in referred:
                pipeline.exists(self.payload(packet_id))
            return [packet_id for packet_id, exists in zip(referred, pipeline.execute(), strict=True) if exists]


@dataclass(frozen=True)
class World:
    """A store to clean, and where the records of cleanups are kept."""

    client: RedisClient
    connection: Connection
    undo: Any

    @property
    def runs(self) -> MaintenanceRuns:
        return MaintenanceRuns(self.connection)

    def device(self, client_id: str, *, prefix: str = "") -> Device:
        return Device(self.client, client_id, prefix)

    def engine(self, **options: Any) -> Engine:
        return Engine(job=Cleanup, client=self.client, undo_directory=self.undo, **options)

    def plan(self, **parameters: Any) -> CleanupCounts:
        """Return what a cleanup would do."""
        counts: CleanupCounts = self.engine().plan(CleanupParameters(**parameters)).counts
        return counts

    def planned(self, **parameters: Any) -> tuple[str, CleanupPlan]:
        """Plan, and return the run."""
        plan = self.engine().plan(CleanupParameters(**parameters))
        return self.engine().save(self.runs, plan).maintenance_run_id, plan

    def approved(self, **parameters: Any) -> tuple[str, Sequence[str]]:
        """Plan and approve; return run and shares."""
        run_id, plan = self.planned(**parameters)
        self.runs.approve(run_id, "ada")
        return run_id, plan.share_names()

    def apply(self, run_id: str, share: str, **options: Any) -> ShareReport[CleanupCounts]:
        return self.engine(**options).apply(self.runs, run_id, share)

    def report(self, run_id: str) -> Outcome[CleanupParameters, CleanupCounts, CleanupFound]:
        return self.engine().report(self.runs, run_id, dry_run=False)

    def take_back(self, run_id: str, *, dry_run: bool = False) -> UndoReport:
        found: UndoReport = self.engine().undo(run_id=run_id, parameters=CleanupParameters(), dry_run=dry_run)
        return found

    def clean(self, **parameters: Any) -> tuple[str, CleanupCounts]:
        """Plan, approve and apply; return the run and what was done."""
        run_id, shards = self.approved(**parameters)
        total = CleanupCounts()
        for shard in shards:
            report = self.apply(run_id, shard)
            assert report.done
            total.add(report.counts)
        return run_id, total

    def contents(self) -> dict[bytes, tuple[bytes | None, int]]:
        """Return every key with its serialised value and its instant of expiry."""
        return {
            key: (node.dump(key), int(node.pexpiretime(key)))
            for _, node in nodes(self.client)
            for key in node.scan_iter(count=1_000)
        }


def with_records(connection: Connection) -> Connection:
    """Bring the control schema into a database."""
    schema_migrations.migrate(connection)
    return connection

"""Compacted queues of every age, and the collector that goes over them, by a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from queuekeeper.compacted.model import Append, Fence, Purge
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.model import ShareReport
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.keyspace import CompactedKeys, compacted_keys, compacted_registry_key
from queuekeeper.maintenance.compacted.collection import Collection, CollectionOutcome, CollectionPlan
from queuekeeper.maintenance.compacted.model import CollectionCounts, CollectionParameters, Restoration
from queuekeeper.maintenance.compacted.registry import Registry
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import RedisClient

START_MS = 1_800_000_000_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


@dataclass(kw_only=True)
class World:
    """A store with compacted queues; time stands still until a test moves it."""

    client: RedisClient
    connection: Connection
    undo: Path
    prefix: str = ""
    now_ms: int = START_MS
    queues: CompactedQueues = field(init=False)

    def __post_init__(self) -> None:
        self.queues = CompactedQueues(self.client, self.prefix, clock=self.clock)
        self.runs = MaintenanceRuns(self.connection)
        self.registry = Registry(self.client, self.prefix)

    def clock(self) -> int:
        return self.now_ms

    def keys(self, client_id: str) -> CompactedKeys:
        return compacted_keys(client_id, prefix=self.prefix)

    def append(self, client_id: str, *keys: bytes | str, tombstone: bool = False) -> None:
        """Append a value, or a tombstone, for each key."""
        raw = [key.encode() if isinstance(key, str) else key for key in keys]
        self.queues.append(
            client_id, [Append(key=key, value=b"" if tombstone else b"value", tombstone=tombstone) for key in raw]
        )

    def consume(self, client_id: str, *, acks: int | None = None) -> Fence:
        """Subscribe, fetch everything, and acknowledge all of it or the first so many."""
        fence = self.queues.subscribe(client_id, session="consumer").fence
        found = self.queues.fetch(client_id, fence=fence, limit=100, window=100)
        sequences = [message.sequence for message in found.messages][:acks]
        if sequences:
            self.queues.ack(client_id, fence=fence, sequences=sequences)
        return fence

    def live(self, client_id: str) -> list[bytes]:
        """Return the keys that are left, oldest first."""
        return [message.key for message in self.queues.peek(client_id)]

    def due_ms(self, client_id: str) -> int | None:
        """Return when the registry says that a queue is due."""
        anything: Any = self.client
        found = anything.zscore(compacted_registry_key(client_id, prefix=self.prefix), client_id)
        return None if found is None else int(found)

    def engine(self, say: Callable[[str], None] = lambda _: None, **others: Any) -> Engine:
        return Engine(job=Collection, client=self.client, clock=self.clock, undo_directory=self.undo, say=say, **others)

    def plan(self, **wishes: Any) -> CollectionPlan:
        return self.engine().plan(CollectionParameters(**self._wishes(wishes)))

    def planned(self, **wishes: Any) -> tuple[str, list[str]]:
        """Return run and shares of a plan that was saved."""
        plan = self.plan(**wishes)
        return self.engine().save(self.runs, plan).maintenance_run_id, plan.share_names()

    def collect(
        self, run_id: str, share: str, say: Callable[[str], None] = lambda _: None, **others: Any
    ) -> ShareReport[CollectionCounts]:
        return self.engine(say, **others).apply(self.runs, run_id, share)

    def collected(self, **wishes: Any) -> CollectionOutcome:
        """Plan, collect and look again."""
        run_id, shares = self.planned(**wishes)
        for share in shares:
            self.collect(run_id, share)
        return self.report(run_id)

    def report(self, run_id: str, *, dry_run: bool = False) -> CollectionOutcome:
        return self.engine().report(self.runs, run_id, dry_run=dry_run)

    def take_back(self, run_id: str, *, dry_run: bool = False) -> Restoration:
        parameters = CollectionParameters(key_prefix=self.prefix)
        restored: Restoration = self.engine().undo(run_id=run_id, parameters=parameters, dry_run=dry_run)
        return restored

    def purge(self, client_id: str) -> None:
        self.queues.purge(client_id, what=Purge.everything())

    def _wishes(self, wishes: dict[str, Any]) -> dict[str, Any]:
        return {"key_prefix": self.prefix, "shares": 1, "max_operations_per_s": None, "max_jitter_s": 0} | wishes

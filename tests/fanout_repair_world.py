"""Fan-out queues that others have broken or left, and the repair that goes over them, by a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from queuekeeper.fanout.model import ConsumerOptions, NewMessage
from queuekeeper.fanout.queue import FanoutQueues
from queuekeeper.fanout.reports import Claimed
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.model import ShareReport
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.keyspace import FanoutConsumerKeys, FanoutKeys, fanout_consumer_keys, fanout_keys
from queuekeeper.maintenance.fanout.model import FanoutRepairCounts, FanoutRepairParameters
from queuekeeper.maintenance.fanout.repair import FanoutRepair, FanoutRepairOutcome, FanoutRepairPlan
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import RedisClient, nodes

START_MS = 1_800_000_000_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
LEASE_MS = 30_000


@dataclass(kw_only=True)
class World:
    """A server with fan-out queues; time stands still until a test moves it."""

    client: RedisClient
    connection: Connection
    prefix: str = ""
    now_ms: int = START_MS
    queues: FanoutQueues = field(init=False)

    def __post_init__(self) -> None:
        self.queues = FanoutQueues(self.client, self.prefix, clock=self.clock)
        self.runs = MaintenanceRuns(self.connection)

    def clock(self) -> int:
        return self.now_ms

    def keys(self, queue: str) -> FanoutKeys:
        return fanout_keys(queue, prefix=self.prefix)

    def consumer_keys(self, queue: str, consumer: str) -> FanoutConsumerKeys:
        return fanout_consumer_keys(queue, consumer, prefix=self.prefix)

    def register(self, queue: str, *consumers: str, options: ConsumerOptions | None = None) -> None:
        for consumer in consumers:
            self.queues.register(queue, consumer=consumer, options=options)

    def publish(self, queue: str, count: int = 1, *, ttl_ms: int = 7 * DAY_MS) -> list[int]:
        """Publish messages and return their ids."""
        reports = self.queues.publish(queue, [NewMessage(body=b"message", ttl_ms=ttl_ms)] * count)
        return [report.id or 0 for report in reports]

    def claim(self, queue: str, consumer: str, count: int = 1) -> Claimed:
        return self.queues.claim(queue, consumer=consumer, count=count, lease_ms=LEASE_MS)

    def process(self, queue: str, consumer: str, count: int = 1) -> list[int]:
        """Claim and acknowledge messages and return their ids."""
        claimed = self.claim(queue, consumer, count)
        ids = [message.id for message in claimed.messages]
        self.queues.ack(queue, consumer=consumer, token=claimed.token, ids=ids)
        return ids

    def kill(self, queue: str, consumer: str, count: int = 1) -> list[int]:
        """Let a consumer claim messages and never be heard of again; return their ids."""
        return [message.id for message in self.claim(queue, consumer, count).messages]

    def contents(self) -> dict[bytes, Any]:
        """Return all there is."""
        return {key: node.dump(key) for _, node in nodes(self.client) for key in node.scan_iter()}

    def engine(self, say: Callable[[str], None] = lambda _: None) -> Engine:
        return Engine(job=FanoutRepair, client=self.client, clock=self.clock, say=say)

    def plan(self, **wishes: Any) -> FanoutRepairPlan:
        return self.engine().plan(FanoutRepairParameters(**self._wishes(wishes)))

    def planned(self, **wishes: Any) -> tuple[str, list[str]]:
        """Return run and shares of a plan that was saved."""
        plan = self.plan(**wishes)
        return self.engine().save(self.runs, plan).maintenance_run_id, plan.share_names()

    def repair(
        self, run_id: str, share: str, say: Callable[[str], None] = lambda _: None
    ) -> ShareReport[FanoutRepairCounts]:
        return self.engine(say).apply(self.runs, run_id, share)

    def repaired(self, **wishes: Any) -> FanoutRepairOutcome:
        """Plan, repair and look again."""
        run_id, shares = self.planned(**wishes)
        for share in shares:
            self.repair(run_id, share)
        return self.report(run_id)

    def report(self, run_id: str, *, dry_run: bool = False) -> FanoutRepairOutcome:
        return self.engine().report(self.runs, run_id, dry_run=dry_run)

    def _wishes(self, wishes: dict[str, Any]) -> dict[str, Any]:
        return {"key_prefix": self.prefix, "shares": 1, "max_operations_per_s": None} | wishes

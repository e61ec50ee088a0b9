"""The registry of compacted queues for the collector: due queues, locks, and records of complete collections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from queuekeeper import lua
from queuekeeper.compacted.model import Retention, RetentionPolicy
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.errors import ScriptError, UsageError
from queuekeeper.jobs.shares import scan_names
from queuekeeper.keyspace import (
    COMPACTED_REGISTRIES,
    compacted_client_id,
    compacted_collector_keys,
    compacted_registry_key,
    compacted_registry_keys,
    compacted_scan_pattern,
)
from queuekeeper.lua import scripts
from queuekeeper.maintenance.compacted.model import PartHeartbeat, RebuildReport, RegistryStatus
from queuekeeper.redis_client import RedisClient, address_of, redis_errors, through_failover
from queuekeeper.redis_names import in_place

QUEUES_PER_STEP = 100
SORTED_QUEUES_PER_PART = 1_000
LOOKED_AT_QUEUES = 100
LEASE_MS = 60_000

T = TypeVar("T")


class Registry:
    """The registry with its parts; each part lists queues, and one collector at a time works on it.

    :param prefix: prefix of every key.
    """

    def __init__(self, client: RedisClient, prefix: str) -> None:
        self._client: Any = client
        self._address = address_of(client)
        self._due_keys = compacted_registry_keys(prefix=prefix)
        self._collector_keys = compacted_collector_keys(prefix=prefix)
        self._caller = lua.ScriptCaller(client)

    def count(self, part: int) -> int:
        """Return how many queues a part knows."""
        return int(self._asked(lambda: self._client.zcard(self._due_keys[part])))

    def every(
        self, part: int, *, count: Callable[[], int] = lambda: QUEUES_PER_STEP
    ) -> Iterator[list[tuple[bytes, int]]]:
        """Yield all queues of a part in steps, with the times at which they are due.

        :param count: returns the size of the next step.
        """
        key = self._due_keys[part]
        seen = set[bytes]()

        def pages() -> Iterator[list[tuple[bytes, int]]]:
            cursor = 0
            while True:
                most = count()
                with redis_errors(self._address):
                    cursor, found = self._client.zscan(key, cursor, count=most)
                found = [(client_id, int(due_ms)) for client_id, due_ms in found if client_id not in seen]
                seen.update(client_id for client_id, _ in found)
                # The server returns a small set as a whole.
                yield from (found[at : at + most] for at in range(0, len(found), most))
                if cursor == 0:
                    return

        # A cursor is not valid on the server that the part has moved to, and would skip queues there.
        yield from in_place(self._client, key, pages)

    def hold(self, part: int, token: str) -> bool:
        """Lock a part, or extend the lock; return false when another collector has it."""
        call = scripts.maintenance.hold_registry(collector=self._collector_keys[part], token=token, lease_ms=LEASE_MS)
        return bool(self._caller.call(*call))

    def rearm(self, part: int, token: str, queues: Sequence[tuple[bytes, int, int]]) -> None:
        """Set when queues are due again.

        :param queues: client id, previous due time and new due time of each queue.
        :raises StaleEpoch: when another collector has locked the part by now.
        """
        if queues:
            call = scripts.maintenance.rearm_queues(
                due=self._due_keys[part],
                collector=self._collector_keys[part],
                token=token,
                queues=[value for queue in queues for value in queue],
            )
            self._caller.call(*call)

    def finish(self, part: int, token: str, facts: Mapping[str, str | int]) -> None:
        """Unlock a part.

        :param facts: record of a complete collection; empty for an incomplete one.
        """
        fields = [value for fact in facts.items() for value in fact]
        call = scripts.maintenance.finish_registry(collector=self._collector_keys[part], token=token, fields=fields)
        self._caller.call(*call)

    def heartbeat(self, part: int) -> PartHeartbeat | None:
        """Return the record of a part's last complete collection; none if there was none."""
        raw: dict[bytes, bytes] = self._asked(lambda: self._client.hgetall(self._collector_keys[part]))
        facts = {name.decode(): value.decode() for name, value in raw.items()}
        if "finished_ms" not in facts:
            return None
        return PartHeartbeat(
            finished_ms=int(facts["finished_ms"]),
            maintenance_run_id=facts["maintenance_run_id"],
            retention=Retention(
                policy=RetentionPolicy(facts["policy"]),
                retention_ms=int(facts["retention_ms"]),
                tombstone_ms=int(facts["tombstone_ms"]),
            ),
            queues=int(facts["queues"]),
            messages=int(facts["messages"]),
            unacked=int(facts["unacked"]),
        )

    def _asked(self, ask: Callable[[], T]) -> T:
        def asked() -> T:
            with redis_errors(self._address):
                return ask()

        return through_failover(self._client, asked)

    def finished_ms(self) -> int | None:
        """Return the earliest of all parts' last complete collections; none if a part was never collected."""
        beats = [self.heartbeat(part) for part in range(COMPACTED_REGISTRIES)]
        return None if None in beats else min(beat.finished_ms for beat in beats if beat is not None)


def registry_status(client: RedisClient, *, prefix: str) -> RegistryStatus:
    """Count the queues that the registry knows, and find the first and the last queue by name with messages.

    Up to 1,000 queues of each part are sorted, and up to 100 of these are read from either end.
    """
    registry, queues = Registry(client, prefix), CompactedQueues(client, prefix)
    counts = [registry.count(part) for part in range(COMPACTED_REGISTRIES)]
    names = sorted(
        {
            name
            for part in range(COMPACTED_REGISTRIES)
            for step in islice(registry.every(part), SORTED_QUEUES_PER_PART // QUEUES_PER_STEP)
            for name, _ in step
        }
    )

    def edge(ordered: list[bytes]) -> str | None:
        return next((text for name in ordered[:LOOKED_AT_QUEUES] if (text := _with_messages(queues, name))), None)

    first, last = edge(names), edge(names[::-1])
    return RegistryStatus(
        queues=sum(counts),
        first_client_id=first,
        last_client_id=last,
        is_complete=len(names) >= sum(counts) and (None not in (first, last) or len(names) <= LOOKED_AT_QUEUES),
    )


def _with_messages(queues: CompactedQueues, name: bytes) -> str | None:
    """Return the client of a queue with messages; none for an empty or unreadable queue."""
    try:
        client_id = name.decode()
        return client_id if queues.inspect(client_id).live else None
    except (UnicodeDecodeError, ScriptError, UsageError):
        return None


def scan_queues(client: RedisClient, *, prefix: str) -> Iterator[list[str]]:
    """Yield pages of the clients of all compacted queues, by a SCAN of all keys; a client may come twice."""
    for keys in scan_names(client, compacted_scan_pattern(prefix), of_type="hash"):
        yield [compacted_client_id(key, prefix=prefix) for key in keys]


def rebuild_registry(
    client: RedisClient, *, prefix: str, now_ms: int, dry_run: bool, pace: Callable[[int], None] = lambda _: None
) -> RebuildReport:
    """Find queues by a SCAN of all keys, and register those that are missing in the registry as due at once.

    :param pace: called with the number of queues found before they are looked up; may wait.
    """
    caller = lua.ScriptCaller(client)
    redis: Any = client
    queues = registered = 0
    for client_ids in scan_queues(client, prefix=prefix):
        pace(len(client_ids))
        for client_id in client_ids:
            key = compacted_registry_key(client_id, prefix=prefix)
            queues += 1
            if dry_run:
                with redis_errors(address_of(client)):
                    registered += redis.zscore(key, client_id) is None
            else:
                call = scripts.compacted.register(registry=key, now=now_ms, which="new", client_ids=[client_id])
                registered += int(caller.call(*call))
    return RebuildReport(queues=queues, registered=registered, dry_run=dry_run)

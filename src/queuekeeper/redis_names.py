"""Reads the names of keys on a server or a cluster, completely even while slots move or another process takes over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import redis

from queuekeeper.clock import Backoff
from queuekeeper.errors import ServerUnavailable
from queuekeeper.keyspace import SLOTS, format_cohorts, hash_slot
from queuekeeper.redis_client import RedisClient, demoted, nodes, read_topology, redis_errors, through_failover

KEYS_PER_PAGE = 1_000

READINGS = 5
"""Number of times that slots which move while they are read are read again."""

ALL_SLOTS = frozenset(range(SLOTS))

_REST = Backoff(first_s=0.2, longest_s=5.0)

T = TypeVar("T")


class Page(NamedTuple):
    """A page of key names.

    :ivar cursor: position from which a reading continues after this page.
    """

    cursor: str
    names: list[bytes]


@dataclass(frozen=True, kw_only=True)
class Master:
    """A master of a cluster, as it describes itself, or a single server, which holds all slots.

    :param mark: mark that changes when a slot has come to the master, or another process is the master.
    :param slots: slots that the master holds.
    :param leaving: slots among them that are moving to another master.
    """

    address: str
    node: redis.Redis
    mark: str
    slots: frozenset[int]
    leaving: frozenset[int]

    @property
    def process(self) -> str:
        """Id of the process, which lasts as long as it runs."""
        return self.mark.partition(".")[0]


def masters(client: RedisClient) -> list[Master]:
    """Return the masters of a cluster by their addresses, or a single server; wait while replicas take over.

    :raises ServerUnavailable: when a master cannot be reached for longer than a failover takes.
    """

    def ask() -> list[Master]:
        if not isinstance(client, redis.RedisCluster):
            return [_single(address, node) for address, node in nodes(client)]
        read_topology(client)
        return [_described(address, node) for address, node in nodes(client)]

    return through_failover(client, ask)


def stayed(before: Iterable[Master], after: Iterable[Master]) -> frozenset[int]:
    """Return the slots that stayed with their master between two readings of the masters.

    A master that takes over a slot, or takes over from another master, gets the highest epoch. By it, a slot that moved
    away and came back is told from a slot that stayed.
    """
    then = {master.mark: master for master in before}
    return frozenset().union(
        *(
            then[master.mark].slots & master.slots - then[master.mark].leaving - master.leaving
            for master in after
            if master.mark in then
        )
    )


def replaced(before: Iterable[Master], after: Iterable[Master]) -> frozenset[int]:
    """Return the slots that a different process holds now, which may lack writes that the earlier master confirmed.

    A replica that takes over has what it had received, and a restarted server has what was on its disk.
    """
    before, after = list(before), list(after)
    known, living = ({master.process for master in each} for each in (before, after))
    changed = [master for master in before if master.process not in living]
    changed += [master for master in after if master.process not in known]
    return frozenset().union(*(master.slots for master in changed))


def readings(most: int = READINGS) -> Iterator[bool]:
    """Yield before each reading whether it is the last one, with a pause between readings."""
    for reading in range(most):
        if reading:
            time.sleep(_REST.after(reading - 1))
        yield reading == most - 1


def in_place(client: RedisClient, key: str, pages: Callable[[], Iterator[T]]) -> Iterator[T]:
    """Yield the contents of one key page by page; start again if its slot has moved, or its server was started again.

    :param pages: function that reads the pages.
    :raises ServerUnavailable: at the end, when contents may be missing because that happened each time.
    """
    slot = hash_slot(key)
    for _ in readings():
        before, lost = _holder(client, slot), False
        try:
            yield from pages()
        except ServerUnavailable:
            if not isinstance(client, redis.RedisCluster):
                raise
            lost = True
        if not lost and slot in stayed([before], [_holder(client, slot)]):
            return
    raise restless({slot})


def restless(slots: Iterable[int]) -> ServerUnavailable:
    """Return the error for slots whose keys could not be read completely."""
    found = sorted(slots)
    some = f"hash slots {format_cohorts(found[:10])}{' and others' if len(found) > 10 else ''}"
    return ServerUnavailable(
        f"{'all hash slots' if len(found) == len(ALL_SLOTS) else some} were moved, or had no master, or their server "
        "was started again, each time that their keys were read: some may be missing. Repeat this when no slots are "
        "moved and no server is started again"
    )


class Names:
    """The names of the keys of a pattern, in pages; a name may come twice.

    All keys that exist from the first page to the last are found. Slots that have moved, have another master or whose
    server was started again since they were read are read again, at most ``readings`` times.

    :param slots: slots whose keys are read.
    :param of_type: type of the keys, such as ``hash``; ``None`` means all types.
    :param count: returns the number of keys that the next page looks at.
    :ivar unsettled: slots that moved each time; empty until the last page.
    """

    def __init__(
        self,
        client: RedisClient,
        pattern: str,
        *,
        slots: frozenset[int] = ALL_SLOTS,
        of_type: str | None = None,
        count: Callable[[], int] = lambda: KEYS_PER_PAGE,
        readings: int = READINGS,
    ) -> None:
        self.unsettled: frozenset[int] = frozenset()
        self._client = client
        self._pattern = pattern
        self._slots = slots
        self._of_type = of_type
        self._count = count
        self._readings = readings

    def pages(self, after: str = "") -> Iterator[Page]:
        """Yield the names.

        :param after: cursor of the last page that was seen; empty to begin.
        """
        wanted = self._slots
        for _ in readings(self._readings):
            before = masters(self._client)
            holders = [master for master in before if master.slots & wanted]
            # A cursor behind the last page does not tell which masters were read to the end.
            behind = after if len(holders) == 1 else ""
            lost: set[str] = set()
            for master in holders:
                try:
                    # Names of slots that are moving to this master come twice; names of its own slots need no check.
                    slots = ALL_SLOTS if master.slots <= wanted else wanted
                    yield from self._of_server(master.node, master.address, mark=master.mark, slots=slots, after=behind)
                except ServerUnavailable:
                    if not isinstance(self._client, redis.RedisCluster):
                        raise
                    lost.add(master.mark)
            after = ""
            wanted -= stayed([master for master in before if master.mark not in lost], masters(self._client))
            if not wanted:
                break
        self.unsettled = wanted

    def all_pages(self) -> Iterator[Page]:
        """Yield the names.

        :raises ServerUnavailable: at the end, when some may be missing.
        """
        yield from self.pages()
        if self.unsettled:
            raise restless(self.unsettled)

    def _of_server(
        self, node: redis.Redis, address: str, *, mark: str, slots: frozenset[int], after: str
    ) -> Iterator[Page]:
        # A cursor is valid only for the process that returned it: a new process has its keys in another order.
        known, _, cursor = after.rpartition("/")
        if known == mark and cursor == "0":
            return
        at = int(cursor) if known == mark else 0
        while True:
            count = self._count()
            with redis_errors(address):
                answer: Any = node.scan(at, match=self._pattern, count=count, _type=self._of_type)
            at, names = answer
            if len(slots) < SLOTS:
                names = [name for name in names if hash_slot(name) in slots]
            yield Page(f"{mark}/{at}", names)
            if at == 0:
                return


def _holder(client: RedisClient, slot: int) -> Master:
    def ask() -> Master:
        if not isinstance(client, redis.RedisCluster):
            return masters(client)[0]
        known = client.nodes_manager.slots_cache.get(slot)
        if not known:
            raise restless({slot})
        holder = _described(str(known[0].name), client.get_redis_connection(known[0]))
        if slot not in holder.slots:
            raise restless({slot})
        return holder

    return through_failover(client, ask)


def _described(address: str, node: redis.Redis) -> Master:
    with redis_errors(address):
        known: dict[str, Any] = node.execute_command("CLUSTER NODES")  # type: ignore[no-untyped-call]
        run_id = _run_id(node)
    own = next(each for each in known.values() if "myself" in each["flags"])
    if "master" not in own["flags"]:
        raise demoted(address)
    return Master(
        address=address,
        node=node,
        mark=f"{run_id}.{own['epoch']}",
        slots=frozenset(slot for bounds in own["slots"] for slot in range(int(bounds[0]), int(bounds[-1]) + 1)),
        leaving=frozenset(int(each["slot"]) for each in own["migrations"] if each["state"] == "migrating"),
    )


def _single(address: str, node: redis.Redis) -> Master:
    with redis_errors(address):
        return Master(address=address, node=node, mark=_run_id(node), slots=ALL_SLOTS, leaving=frozenset())


def _run_id(node: redis.Redis) -> str:
    found: Any = node.info("server")
    return str(found["run_id"])

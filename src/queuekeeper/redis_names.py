"""Names of keys on a server or a cluster: slots that move and replicas that take over meanwhile hide none of them."""

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
"""How often slots are read that move while they are read."""

ALL_SLOTS = frozenset(range(SLOTS))

_REST = Backoff(first_s=0.2, longest_s=5.0)

T = TypeVar("T")


class Page(NamedTuple):
    """Some names of keys.

    :ivar cursor: where a reading goes on that has seen these.
    """

    cursor: str
    names: list[bytes]


@dataclass(frozen=True, kw_only=True)
class Master:
    """A master of a cluster, as it describes itself.

    :param mark: another one as soon as a slot has come to the master, or another process is the master.
    :param slots: that it holds.
    :param leaving: those of them that are on their way to another master.
    """

    address: str
    node: redis.Redis
    mark: str
    slots: frozenset[int]
    leaving: frozenset[int]

    @property
    def process(self) -> str:
        """Its id for as long as it runs."""
        return self.mark.partition(".")[0]


def masters(client: redis.RedisCluster) -> list[Master]:
    """Return the masters of a cluster by their addresses; while replicas take over, it waits for them.

    :raises ServerUnavailable: when one cannot be reached for longer than a failover takes.
    """

    def ask() -> list[Master]:
        read_topology(client)
        return [_described(address, node) for address, node in nodes(client)]

    return through_failover(client, ask)


def stayed(before: Iterable[Master], after: Iterable[Master]) -> frozenset[int]:
    """Return the slots that no key has come to or left between two readings of the masters.

    Who takes a slot over, or takes over from a master, gets a greater epoch than all others have: a slot that has left
    and come back is told from one that has stayed.
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
    """Return the slots that another process holds than those that were masters: it may lack what those had answered.

    A replica that takes over has what it has received, and a server that is started again what was on its disk.
    """
    before, after = list(before), list(after)
    known, living = ({master.process for master in each} for each in (before, after))
    changed = [master for master in before if master.process not in living]
    changed += [master for master in after if master.process not in known]
    return frozenset().union(*(master.slots for master in changed))


def readings(most: int = READINGS) -> Iterator[bool]:
    """Yield before each reading of what may move, with a rest in between, whether it is the last one."""
    for reading in range(most):
        if reading:
            time.sleep(_REST.after(reading - 1))
        yield reading == most - 1


def in_place(client: RedisClient, key: str, pages: Callable[[], Iterator[T]]) -> Iterator[T]:
    """Yield what is read of one key page by page; of a cluster, again from the first page where its slot has moved.

    :param pages: reads it.
    :raises ServerUnavailable: at the end, when some may be missing since the slot moves on and on.
    """
    if not isinstance(client, redis.RedisCluster):
        yield from pages()
        return
    slot = hash_slot(key)
    for _ in readings():
        before, lost = _holder(client, slot), False
        try:
            yield from pages()
        except ServerUnavailable:
            lost = True
        if not lost and slot in stayed([before], [_holder(client, slot)]):
            return
    raise restless({slot})


def restless(slots: Iterable[int]) -> ServerUnavailable:
    """Return the error for slots whose keys cannot be read as a whole."""
    found = sorted(slots)
    return ServerUnavailable(
        f"hash slots {format_cohorts(found[:10])}{' and others' if len(found) > 10 else ''} were moved, or had no "
        "master, as often as their keys were read: some may be missing. Repeat it when the slots stay where they are"
    )


class Names:
    """The names of the keys of a pattern, in pages; a name may come twice.

    Whatever is there from the first page to the last is shown. In a cluster, slots that have moved or have another
    master since they were read are read again, so often at most.

    :param slots: of whose keys the names are wanted.
    :param of_type: type of the keys, such as ``hash``; None means all.
    :param count: says how many keys the next page looks at.
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
        if isinstance(self._client, redis.RedisCluster):
            yield from self._of_cluster(self._client, after)
            return
        ((address, node),) = nodes(self._client)
        with redis_errors(address):
            mark = _run_id(node)
        yield from self._of_server(node, address, mark=mark, slots=self._slots, after=after)

    def all_pages(self) -> Iterator[Page]:
        """Yield the names.

        :raises ServerUnavailable: at the end, when some may be missing.
        """
        yield from self.pages()
        if self.unsettled:
            raise restless(self.unsettled)

    def _of_cluster(self, client: redis.RedisCluster, after: str) -> Iterator[Page]:
        wanted = self._slots
        for _ in readings(self._readings):
            before = masters(client)
            holders = [master for master in before if master.slots & wanted]
            # Behind the last page of several masters nobody knows which of them were read to the end.
            behind = after if len(holders) == 1 else ""
            lost: set[str] = set()
            for master in holders:
                try:
                    # Names of slots that are on their way to it come twice; those of its own need no look.
                    slots = ALL_SLOTS if master.slots <= wanted else wanted
                    yield from self._of_server(master.node, master.address, mark=master.mark, slots=slots, after=behind)
                except ServerUnavailable:
                    lost.add(master.mark)
            after = ""
            wanted -= stayed([master for master in before if master.mark not in lost], masters(client))
            if not wanted:
                break
        self.unsettled = wanted

    def _of_server(
        self, node: redis.Redis, address: str, *, mark: str, slots: frozenset[int], after: str
    ) -> Iterator[Page]:
        # A cursor is good for the process that gave it: one that was started since sees its keys in another order.
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


def _holder(client: redis.RedisCluster, slot: int) -> Master:
    def ask() -> Master:
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


def _run_id(node: redis.Redis) -> str:
    found: Any = node.info("server")
    return str(found["run_id"])

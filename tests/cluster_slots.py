"""Moving a hash slot of a cluster by hand, stage by stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from lua_sessions import command

from queuekeeper.keyspace import client_slot
from queuekeeper.redis_client import connect, nodes
from tests.patience import PATIENCE_S


class Slot:
    """A slot of the cluster, and two masters: its holder and another, who change places when it has moved.

    :param client: of the cluster.
    :param key: client id whose slot it is.
    """

    def __init__(self, client: Any, key: str) -> None:
        self.number = client_slot(key)
        self.masters = [node for _, node in nodes(client)]
        holder = self._agree()
        self.source = next(node for node in self.masters if self.name(node) == holder)
        self.target = next(node for node in self.masters if self.name(node) != holder)
        client.nodes_manager.initialize()

    @staticmethod
    def name(node: redis.Redis) -> str:
        """Return the id of a node."""
        return str(command(node, "CLUSTER MYID").decode())

    def begin(self) -> None:
        """Let the slot be on its way to the other master."""
        command(self.target, "CLUSTER SETSLOT", self.number, "IMPORTING", self.name(self.source))
        command(self.source, "CLUSTER SETSLOT", self.number, "MIGRATING", self.name(self.target))

    def move_keys(self, *keys: str | bytes) -> None:
        """Move some of its keys."""
        options = self.target.connection_pool.connection_kwargs
        address = (options["host"], options["port"], "", 0, 5_000)
        command(self.source, "MIGRATE", *address, "AUTH", options["password"], "KEYS", *keys)

    def finish(self) -> None:
        """Make the other master its holder."""
        for node in (self.target, self.source, *self.masters):
            command(node, "CLUSTER SETSLOT", self.number, "NODE", self.name(self.target))
        self.source, self.target = self.target, self.source
        self._agree()

    def _agree(self) -> str:
        """Wait until all masters tell the same of each other; return the id of the holder.

        A master that has not heard of the newest epoch yet still believes whoever held the slot before.
        """
        # They tell each other of changes about once a second, less often on a busy machine.
        until_s = time.monotonic() + PATIENCE_S
        while True:
            told = [self._told(node) for node in self.masters]
            holders = [name for name, (_, holds) in told[0].items() if holds]
            epochs = [epoch for epoch, _ in told[0].values()]
            if all(one == told[0] for one in told) and len(holders) == 1 and len(set(epochs)) == len(epochs):
                return holders[0]
            assert time.monotonic() < until_s, f"the masters do not agree on slot {self.number}: {told}"
            time.sleep(0.02)

    def _told(self, node: redis.Redis) -> dict[str, tuple[int, bool]]:
        """Return what a node knows of each master: its epoch, and whether it holds the slot."""
        names = {self.name(master) for master in self.masters}
        known = command(node, "CLUSTER NODES").values()
        return {
            each["node_id"]: (
                int(each["epoch"]),
                any(int(part[0]) <= self.number <= int(part[-1]) for part in each["slots"]),
            )
            for each in known
            if each["node_id"] in names
        }

    def move(self, *, keys_at_once: int = 1_000) -> int:
        """Move the slot with all its keys, as ``redis-cli --cluster reshard`` does; return how many there were."""
        self.begin()
        moved = 0
        while keys := command(self.source, "CLUSTER GETKEYSINSLOT", self.number, keys_at_once):
            self.move_keys(*keys)
            moved += len(keys)
        self.finish()
        return moved

    def move_at_once(self) -> None:
        """Move the slot with all its keys in one atomic step, as Valkey does from release 9 on."""
        command(
            self.source, "CLUSTER MIGRATESLOTS", "SLOTSRANGE", self.number, self.number, "NODE", self.name(self.target)
        )
        self.source, self.target = self.target, self.source
        name = self.name(self.source)
        until_s = time.monotonic() + PATIENCE_S
        while self._agree() != name:
            assert time.monotonic() < until_s, f"slot {self.number} stays where it is"
            time.sleep(0.02)


@contextmanager
def slot_of(url: str, key: str) -> Iterator[Slot]:
    """Find the slot of a client id."""
    with connect(url) as client:
        yield Slot(client, key)

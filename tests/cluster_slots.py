"""Moving a hash slot of a cluster by hand, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from lua_sessions import command

from queuekeeper.keyspace import client_slot
from queuekeeper.redis_client import connect, nodes


class Slot:
    """A slot of the cluster, and two masters: its holder and another.

    :param client: of the cluster.
    :param key: client id whose slot it is.
    """

    def __init__(self, client: Any, key: str) -> None:
        masters = dict(nodes(client))
        self.number = client_slot(key)
        client.nodes_manager.initialize()
        holder = client.nodes_manager.get_node_from_slot(self.number).name
        self.source = masters[holder]
        self.target = next(node for name, node in masters.items() if name != holder)
        self.masters = list(masters.values())

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

    def move(self, *, keys_at_once: int = 1_000) -> int:
        """Move the slot with all its keys, as ``redis-cli --cluster reshard`` does; return how many there were."""
        self.begin()
        moved = 0
        while keys := command(self.source, "CLUSTER GETKEYSINSLOT", self.number, keys_at_once):
            self.move_keys(*keys)
            moved += len(keys)
        self.finish()
        return moved

    def give_back(self) -> None:
        """Move the slot back to where it was."""
        self.source, self.target = self.target, self.source
        self.move()


@contextmanager
def slot_of(url: str, key: str) -> Iterator[Slot]:
    """Find the slot of a client id."""
    with connect(url) as client:
        yield Slot(client, key)

"""Forecasts the Redis memory of imported sessions as a DataFrame expression.

Strings, sets and hashes are sums of allocations, and an allocator hands out sizes from a list. The constants were
measured on Redis 7.0 with jemalloc and Valkey 9.1 with the C library's allocator (``docs/performance.md``).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from queuekeeper.redis_client import RedisClient, nodes
from queuekeeper.sessions.pages import Layout

_LISTPACK_ENTRIES = 128  # zset-max-listpack-entries, default of Redis and Valkey
_LISTPACK_VALUE = 64  # zset-max-listpack-value


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """Costs of the structures that a session consists of, in bytes.

    :param is_valkey: Valkey 9 keeps key, expiry and object in one allocation; Redis has a dictionary entry for each.
    :param is_jemalloc: whether the allocator is jemalloc, which hands out sizes of its own.
    """

    is_valkey: bool
    is_jemalloc: bool

    def allocation(self, size: Column) -> Column:
        """Return the bytes that the allocator hands out for a size."""
        if not self.is_jemalloc:
            return F.greatest(F.lit(24), F.ceil((size + 8) / 16) * 16 - 8)
        # Four classes for each doubling, and steps of 16 below 128.
        step = F.pow(F.lit(2.0), F.floor(F.log2(F.greatest(size, F.lit(129)) - 1)) - 2)
        return F.when(size <= 128, F.ceil(size / 16) * 16).otherwise(F.ceil(size / step) * step).cast("bigint")

    def message(self, *, key_bytes: Column, value_bytes: Column) -> Column:
        """Return the cost of one payload key with its expiry."""
        if self.is_valkey:
            return self.allocation(value_bytes + 4) + self.allocation(key_bytes + 45) + 17
        return self.allocation(value_bytes + 6) + self.allocation(key_bytes + 4) + 113

    def references(self, *, count: Column, key_bytes: Column) -> Column:
        """Return the cost of the sorted set.

        :param key_bytes: length of the longest member.
        """
        node = (67 if self.is_valkey else 103) + self.allocation(key_bytes + 4)
        fixed = 450 if self.is_valkey else 900
        compact = (count <= _LISTPACK_ENTRIES) & (key_bytes <= _LISTPACK_VALUE)
        return (
            F.when(count == 0, F.lit(0))
            .when(compact, self.allocation(count * (key_bytes + 8)) + 100)
            .otherwise(count * node + fixed)
            .cast("bigint")
        )

    @property
    def session_bytes(self) -> int:
        """The cost of the session hash and the packet id counter."""
        return 250 if self.is_valkey else 300


class PackedMemoryModel(MemoryModel):
    """The same for packed sessions; a record or the state is always too long for a compact hash."""

    def message(self, *, key_bytes: Column, value_bytes: Column) -> Column:
        """Return the cost of a field with its record."""
        return self.allocation(value_bytes + 4) + 44 if self.is_valkey else self.allocation(value_bytes + 6) + 49

    def references(self, *, count: Column, key_bytes: Column) -> Column:
        """Return no cost: there is no sorted set."""
        return F.lit(0).cast("bigint")

    @property
    def session_bytes(self) -> int:
        """The cost of the hash without its messages."""
        return 660 if self.is_valkey else 950


def memory_model(client: RedisClient, *, layout: Layout) -> MemoryModel:
    """Return the memory model of the server that will hold the sessions."""
    _, node = nodes(client)[0]
    model = MemoryModel if layout is Layout.TBMQ else PackedMemoryModel
    return model(
        is_valkey="valkey_version" in node.info("server"),
        is_jemalloc="jemalloc" in str(node.info("memory").get("mem_allocator", "jemalloc")),
    )

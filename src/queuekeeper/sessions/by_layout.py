"""The operations of sessions in Redis, by the layout of their keys."""

from __future__ import annotations

from typing import TypeAlias

from queuekeeper.clock import Clock, system_clock
from queuekeeper.sessions.layouts import RECENT_SESSIONS
from queuekeeper.sessions.model import EpochOf, StoreRules
from queuekeeper.sessions.packed_operations import PackedSessionOperations
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_operations import RedisSessionOperations

RedisOperations: TypeAlias = RedisSessionOperations | PackedSessionOperations


def operations_of(
    layout: Layout,
    *,
    prefix: str = "",
    rules: StoreRules | None = None,
    recent_sessions: int = RECENT_SESSIONS,
    epoch_of: EpochOf | None = None,
    clock: Clock = system_clock,
) -> RedisOperations:
    """Return the operations of a layout; for the parameters see ``RedisSessionOperations``."""
    kind = PackedSessionOperations if layout is Layout.PACKED else RedisSessionOperations
    return kind(prefix=prefix, rules=rules, recent_sessions=recent_sessions, epoch_of=epoch_of, clock=clock)

"""The stores of sessions and their layouts by name, and how much of a session one call reads."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

STORES: Mapping[str, str] = {"redis": "Redis", "postgres": "PostgreSQL"}
"""Stores of sessions, by their names in records and commands."""


class Layout(StrEnum):
    """How a session's keys in Redis are laid out."""

    TBMQ = "tbmq"  # the keys that TBMQ 2.x reads and writes
    PACKED = "packed"  # one hash per session, for brokers that are not TBMQ


LAYOUTS: Mapping[str, str] = {Layout.TBMQ: "sessions in TBMQ's layout", Layout.PACKED: "packed sessions"}
"""Sessions in Redis, by the name of their layout."""

DEFAULT_PAGE = 500
MAX_PAGE = 10_000
"""Most messages of one inspection; read longer queues page by page."""
DEFAULT_EXPLAINED = 1_000
"""Messages of each store that an explanation reads, the oldest first."""

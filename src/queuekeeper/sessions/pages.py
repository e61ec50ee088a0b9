"""The stores of sessions by name, and how much of a session one call reads."""

from __future__ import annotations

from collections.abc import Mapping

STORES: Mapping[str, str] = {"redis": "Redis", "postgres": "PostgreSQL"}
"""Stores of sessions, by their names in records and commands."""

LAYOUTS: Mapping[str, str] = {"tbmq": "sessions in TBMQ's layout", "packed": "packed sessions"}
"""Sessions in Redis, by the name of their layout."""

DEFAULT_PAGE = 500
MAX_PAGE = 10_000
"""Most messages of one inspection; read longer queues page by page."""
DEFAULT_EXPLAINED = 1_000
"""Messages of each store that an explanation reads, the oldest first."""

"""Profiles written by hand, healthy but for what a test plants."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from queuekeeper.postgres import connect

AS_OF_MS = 1_750_000_000_000
NOW = datetime.fromtimestamp(AS_OF_MS / 1_000, UTC)

_PROFILE: dict[str, Any] = {
    "store": "redis", "target": "127.0.0.1:6379/0", "mode": "full", "contents": True, "cohort_count": 4,
    "cohorts": [0, 1, 2, 3], "sample_percent": 100,
    "session_limit": 100, "default_ttl_s": 604_800, "max_payload_bytes": 1_048_576, "as_of_ms": AS_OF_MS,
    "queues": 0, "messages": 0, "started_at": NOW, "finished_at": NOW,
}  # fmt: skip

_QUEUE: dict[str, Any] = {
    "cohort": 0, "slot": 7, "shard": "127.0.0.1:6379", "messages": 3, "live": 3, "dead": 0, "over_limit": 0,
    "dead_crowding": 0, "lowest_serial": 10.0, "highest_serial": 12.0, "serial_gaps": 0, "tied_serials": 0,
    "bad_serials": 0, "step_errors": 0, "bad_packet_ids": 0, "duplicate_packet_ids": 0, "duplicate_messages": 0,
    "foreign_references": 0, "orphans": 0, "last_packet_id": 12, "counter_missing": 0, "counter_invalid": 0,
    "counter_behind": 0, "without_ttl": 0, "ttl_too_long": 0, "payload_bytes": 300, "largest_bytes": 100,
    "oversized": 0, "unreadable": 0, "mismatched": 0, "bad_qos": 0, "qos_0": 0, "bad_packet_types": 0,
    "wrong_type_keys": 0, "bad_tag": 0, "odd_characters": 0, "idle_keys": 0, "missing_session": 0,
    "earliest_expires_at_ms": AS_OF_MS + 3_600_000, "latest_expires_at_ms": AS_OF_MS + 7_200_000, "next_in_use": None,
    "layout": "tbmq", "state_faults": None, "in_both_layouts": None,
}  # fmt: skip


def hash_of(client_id: str) -> str:
    """Return the hash under which these rows name a client."""
    return hashlib.sha256(client_id.encode()).hexdigest()[:16]


def queue(client_id: str, **changes: Any) -> dict[str, Any]:
    """Return the row of a healthy queue, but for what is changed."""
    return {"client_id": client_id, "client_hash": hash_of(client_id), **_QUEUE, **changes}


def save_profile(url: str, *queues: dict[str, Any], profile_id: str = "redis-1", **changes: Any) -> str:
    """Write a profile with these queues, and return its id."""
    totals = {"queues": len(queues), "messages": sum(row["messages"] for row in queues)}
    with connect(url) as connection:
        _insert(connection, "profiles", {"profile_id": profile_id, **_PROFILE, **totals, **changes})
        for row in queues:
            _insert(connection, "queue_profiles", {"profile_id": profile_id, **row})
    return profile_id


def save_expiry_hours(url: str, profile_id: str, hours: dict[int, tuple[int, int]]) -> None:
    """Write when the messages of a profile expire."""
    with connect(url) as connection:
        for hour_ms, (messages, payload_bytes) in hours.items():
            row = {"hour_ms": hour_ms, "messages": messages, "payload_bytes": payload_bytes}
            _insert(connection, "expiry_hours", {"profile_id": profile_id, **row})


def _insert(connection: Any, table: str, row: dict[str, Any]) -> None:
    names = ", ".join(row)
    values = ", ".join(f"%({name})s" for name in row)
    connection.execute(f"INSERT INTO queuekeeper.{table} ({names}) VALUES ({values})", row)

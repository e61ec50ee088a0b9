"""Writes profiles to the schema ``queuekeeper``, and declares the columns of a queue's row."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv

from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.quality.profile.model import ProfileParameters, Store
from queuekeeper.sql_statements import statement

ODD_CHARACTERS = r"[*?\[\]\\<>&\"'\x00-\x1F\x7F]"
"""Glob, control and HTML characters, as both RE2 and Java's patterns write them."""

_TEXTS = {"client_id", "client_hash", "shard", "layout"}
_SMALL = {
    "cohort", "slot", "dead_crowding", "counter_missing", "counter_invalid", "counter_behind", "bad_tag",
    "odd_characters", "missing_session", "next_in_use", "in_both_layouts",
}  # fmt: skip
_COLUMNS = (
    "client_id", "client_hash", "cohort", "slot", "shard", "messages", "live", "dead", "over_limit", "dead_crowding",
    "lowest_serial", "highest_serial", "serial_gaps", "tied_serials", "bad_serials", "step_errors", "bad_packet_ids",
    "duplicate_packet_ids", "duplicate_messages", "foreign_references", "orphans", "last_packet_id",
    "counter_missing", "counter_invalid", "counter_behind", "without_ttl", "ttl_too_long", "payload_bytes",
    "largest_bytes", "oversized", "unreadable", "mismatched", "bad_qos", "qos_0", "bad_packet_types",
    "wrong_type_keys", "bad_tag", "odd_characters", "idle_keys", "missing_session", "earliest_expires_at_ms",
    "latest_expires_at_ms", "next_in_use", "layout", "state_faults", "in_both_layouts",
)  # fmt: skip


def _kind(name: str) -> pa.DataType:
    if name in _TEXTS:
        return pa.string()
    if name in _SMALL:
        return pa.int32()
    return pa.float64() if name in {"lowest_serial", "highest_serial"} else pa.int64()


HOURS = pa.schema([("hour_ms", pa.int64()), ("messages", pa.int64()), ("payload_bytes", pa.int64())])
"""When messages expire: start of the hour (0 for never), number of messages, bytes of their payloads."""

QUEUE_ROWS = pa.schema([(name, _kind(name)) for name in _COLUMNS])
"""Columns of ``queue_profiles`` without the profile's id, in its order."""

ROWS = QUEUE_ROWS.append(pa.field("hours", pa.list_(pa.struct(HOURS))))
"""The same with the hours in which messages expire; one row may carry the hours of several queues."""

_SPARK_KINDS = {pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint", pa.float64(): "double"}
SPARK_HOURS = "hour_ms bigint, messages bigint, payload_bytes bigint"
SPARK_COLUMNS = {name: _SPARK_KINDS[_kind(name)] for name in _COLUMNS} | {
    "hours": "array<struct<hour_ms: bigint, messages: bigint, payload_bytes: bigint>>"
}
"""Column of :data:`ROWS` -> Spark type."""

SPARK_ROWS = ", ".join(f"{name} {kind}" for name, kind in SPARK_COLUMNS.items())


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over all queues of a profile."""

    queues: int
    messages: int
    live: int
    faulty_queues: int


class ProfileTables:
    """Writes profiles; every method is one transaction.

    :param connection: connection with ``autocommit``, so that other sessions see a profile when it begins. The one that
        begins a profile stays open until the end, since a profile without it counts as abandoned.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(
        self,
        profile_id: str,
        *,
        store: Store,
        target: str,
        parameters: ProfileParameters,
        cohorts: Sequence[int],
        as_of_ms: int,
    ) -> None:
        """Record the start of a profile.

        An earlier profile of the same id is deleted first, and profiles of the target that ended before their time.

        :param target: address and prefix of keys, without a password.
        """
        values = {
            "profile_id": profile_id,
            "store": store,
            "target": target,
            "mode": parameters.mode,
            "contents": parameters.contents,
            "cohort_count": parameters.cohort_count,
            "cohorts": list(cohorts),
            "sample_percent": parameters.sample_percent,
            "session_limit": parameters.limit,
            "default_ttl_s": parameters.default_ttl_s,
            "max_payload_bytes": parameters.max_payload_bytes,
            "as_of_ms": as_of_ms,
        }
        with translated_errors(self._connection), self._connection.transaction():
            self._connection.execute(statement("quality/hold_profile"), values)
            self._connection.execute(statement("quality/delete_abandoned_profiles"), values)
            self._connection.execute(statement("quality/delete_profile"), values)
            self._connection.execute(statement("quality/save_profile"), values)

    def replace_queues(self, profile_id: str, cohorts: Sequence[int], batches: Iterable[pa.RecordBatch]) -> None:
        """Replace the rows of the queues of some cohorts in one transaction, those of an earlier attempt included.

        :param batches: see :data:`ROWS`.
        """
        with translated_errors(self._connection), self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.execute(
                statement("quality/delete_queue_profiles"), {"profile_id": profile_id, "cohorts": list(cohorts)}
            )
            with cursor.copy(statement("quality/load_queue_profiles")) as copy:
                for batch in batches:
                    rows = batch.select(_COLUMNS).add_column(
                        0, "profile_id", pa.array([profile_id] * batch.num_rows, pa.string())
                    )
                    buffer = io.BytesIO()
                    # Texts are quoted and missing values are not; by this COPY tells "" from null.
                    pyarrow.csv.write_csv(rows, buffer, pyarrow.csv.WriteOptions(include_header=False))
                    copy.write(buffer.getvalue())

    def finish(
        self,
        profile_id: str,
        *,
        shards: Sequence[str],
        hours: Iterable[tuple[int, int, int]],
        keep_profiles: int,
    ) -> Totals:
        """Record a profile's sums by cohort and hour, mark it complete, and delete the queue rows of old profiles.

        :param shards: address of the server of each cohort.
        :param hours: start of the hour (0 for never), number of messages that expire in it, bytes of their payloads.
        :param keep_profiles: number of profiles of the same target, mode, cohorts and sample that keep their rows.
        """
        values = {"profile_id": profile_id}
        with translated_errors(self._connection), self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.execute(statement("quality/sum_cohorts"), values | {"shards": list(shards)})
            with cursor.copy(statement("quality/load_expiry_hours")) as copy:
                for row in hours:
                    copy.write_row((profile_id, *row))
            found = cursor.execute(statement("quality/finish_profile"), values).fetchone()
            cursor.execute(statement("quality/forget_queue_profiles"), values | {"keep_profiles": keep_profiles})
        assert found is not None
        return Totals(**dict(zip(("queues", "messages", "live", "faulty_queues"), found, strict=True)))

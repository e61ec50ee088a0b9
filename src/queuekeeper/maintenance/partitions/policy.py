"""What a table's partitions should be like, and the check of a policy against its table; no input or output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from queuekeeper.errors import InvalidPolicy
from queuekeeper.maintenance.partitions.keys import Key, Span, parse_span, parse_step
from queuekeeper.maintenance.partitions.names import NAME_BYTES

_STORAGE_NAME = re.compile(r"[a-z_]+(\.[a-z_]+)?")
_STORAGE_VALUE = re.compile(r"[A-Za-z0-9_.\-]+")
_LIMITS = {
    "quarantine_days": (0, 3_650),
    "lock_timeout_ms": (10, 60_000),
    "deadline_s": (1, 86_400),
    "at_most": (1, 10_000),
}


@dataclass(frozen=True, kw_only=True)
class PartitionPolicy:
    """How one table is to be partitioned, how far ahead, and when its partitions go.

    Spans are a number and a unit, such as ``1 month``; for tables partitioned by an integer a number of keys.

    :param table: ``schema.name``.
    :param step: length of a partition: '1 day', '1 month', or a number of keys. Edges lie on the calendar in UTC.
    :param ahead: how far beyond clock and data partitions reach.
    :param retention: how long keys are kept; for ever if left out.
    :param far_future: how far ahead a row may lie for partitions to be created up to it. Default: as far as ``ahead``.
    :param lowest_needed_sql: query that answers the lowest key that a consumer still needs, or null when none waits.
    :param archive: drop only what was archived and verified.
    :param quarantine_schema: where retired partitions wait.
    :param quarantine_days: days until a retired partition may be dropped.
    :param blocking_detach: where a DEFAULT partition asks for it, detach by a lock that others wait for.
    :param storage: storage parameters of new partitions, such as autovacuum_vacuum_insert_scale_factor.
    :param lock_timeout_ms: longest wait for a lock, and so the longest that anybody waits behind it.
    :param deadline_s: seconds after which one apply stops trying.
    :param at_most: partitions that one plan creates.
    """

    table: str
    step: str
    ahead: str
    retention: str | None = None
    far_future: str | None = None
    lowest_needed_sql: str | None = None
    archive: bool = True
    quarantine_schema: str = "queuekeeper_retired"
    quarantine_days: int = 7
    blocking_detach: bool = False
    storage: Mapping[str, str] = field(default_factory=dict)
    lock_timeout_ms: int = 1_000
    deadline_s: int = 300
    at_most: int = 400

    def __post_init__(self) -> None:
        for name, (lowest, highest) in _LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not lowest <= value <= highest:
                raise InvalidPolicy(f"{name} is {value!r}: it must be an integer from {lowest:,} to {highest:,}")
        schema, dot, name = self.table.partition(".")
        if not (schema and dot and name):
            raise InvalidPolicy(f"table is {self.table!r}: write it with its schema, such as public.{self.table}")
        if self.quarantine_schema == schema:
            raise InvalidPolicy(f"quarantine_schema is {schema!r}, the table's own: name another one")
        if not self.quarantine_schema or len(self.quarantine_schema.encode()) > NAME_BYTES:
            raise InvalidPolicy(f"quarantine_schema is {self.quarantine_schema!r}: name a schema")
        if self.quarantine_schema.startswith("pg_") or self.quarantine_schema == "information_schema":
            raise InvalidPolicy(f"quarantine_schema is {self.quarantine_schema!r}: that belongs to PostgreSQL")
        for option, value in self.storage.items():
            if not _STORAGE_NAME.fullmatch(option) or not _STORAGE_VALUE.fullmatch(value):
                raise InvalidPolicy(f"storage holds {option}={value}: write such as autovacuum_enabled=true")


@dataclass(frozen=True, kw_only=True)
class Spans:
    """The spans of a policy, in positions of its table's key.

    :param retention: none for ever.
    """

    step: Span
    ahead: Span
    far_future: Span
    retention: Span | None


def spans(policy: PartitionPolicy, key: Key) -> Spans:
    """Return what a policy means for a table.

    :raises InvalidPolicy: when a span is negative, does not divide, or does not suit the key.
    """
    kind = key.kind
    step = parse_step(policy.step, kind=kind)
    key.check_step(step, policy.step)
    ahead = parse_span(policy.ahead, kind=kind, what="ahead")
    return Spans(
        step=step,
        ahead=ahead,
        far_future=ahead if policy.far_future is None else parse_span(policy.far_future, kind=kind, what="far_future"),
        retention=None if policy.retention is None else parse_span(policy.retention, kind=kind, what="retention"),
    )

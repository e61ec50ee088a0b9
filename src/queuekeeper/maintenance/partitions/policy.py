"""Policies for the partitions of a table, and the check of a policy against its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import model_validator

from queuekeeper.errors import InvalidPolicy
from queuekeeper.jobs.parameters import Parameters, days, needed, parameter, seconds
from queuekeeper.maintenance.partitions.keys import Key, Span, parse_span, parse_step
from queuekeeper.maintenance.partitions.names import NAME_BYTES

_SPAN: dict[str, Any] = {"rule": "it must be a number and a unit, such as 1 day, or for an integer a number of keys"}


def step(**said: Any) -> Any:
    """Declare the length of a partition."""
    return parameter(
        "",
        title="Step",
        help="Length of a partition: '1 day', '1 month', or a number of keys. Edges lie on the calendar in UTC.",
        examples=["1 day", "1 month", "1000000"],
        **_SPAN,
        **said,
    )


def ahead(**said: Any) -> Any:
    """Declare how far partitions reach."""
    return parameter(
        "",
        title="Ahead",
        help="How far beyond clock and data partitions reach.",
        examples=["7 days"],
        **_SPAN,
        **said,
    )


def table(**said: Any) -> Any:
    """Declare the name of a table."""
    return needed(
        title="Table",
        help="Name of the table with its schema, as SQL writes it.",
        rule="it must be the name of a table with its schema, such as public.readings",
        examples=["public.readings"],
        **said,
    )


class PartitionRules(Parameters):
    """Rules for the partitions of a table: their length, how far ahead they reach, and when they are retired.

    Spans are a number and a unit, such as ``1 month``; for tables partitioned by an integer, a number of keys.
    """

    step: str = step(needed=True)
    ahead: str = ahead(needed=True)
    retention: str | None = parameter(
        None, title="Retention", help="How long keys are kept.", unset="for ever", examples=[None, "30 days"], **_SPAN
    )
    far_future: str | None = parameter(
        None,
        title="Far future",
        help="How far ahead of the clock a row may lie. No partitions are created for rows further ahead.",
        unset="as far as partitions reach",
        **_SPAN,
    )
    lowest_needed_sql: str | None = parameter(
        None,
        title="Query of what is needed",
        help="Query that returns the lowest key that a consumer still needs, or NULL when no consumer waits.",
        unset="no consumer is asked about",
    )
    archive: bool = parameter(True, title="Archive first", help="Drop only partitions that were archived and verified.")
    register_archives: bool = parameter(
        False,
        title="Register archives",
        help="Have partition_maintenance name archives in the Iceberg catalog. Its tasks then need the extra iceberg.",
    )
    quarantine_schema: str = parameter(
        "queuekeeper_retired", title="Schema of the quarantine", help="Where retired partitions wait."
    )
    quarantine_days: int = days(7, title="Quarantine", help="Days until a retired partition may be dropped.", least=0)
    blocking_detach: bool = parameter(
        False,
        title="Detach by a lock",
        help="Detach with a lock that other sessions wait for, where a DEFAULT partition rules out detaching without "
        "one.",
    )
    storage: tuple[str, ...] = parameter(
        (),
        title="Storage parameters",
        help="Storage parameters of new partitions, name=value.",
        noun="NAME=VALUE",
        pattern=r"^[a-z_]+(\.[a-z_]+)?=[A-Za-z0-9_.\-]+$",
        rule="each must be a storage parameter and its value, such as autovacuum_enabled=true",
        examples=[["autovacuum_vacuum_insert_scale_factor=0.05"]],
    )
    lock_timeout_ms: int = parameter(
        1_000,
        title="Wait for a lock (milliseconds)",
        help="Longest wait for a lock in milliseconds. Other sessions wait behind it no longer than that.",
        least=10,
        most=60_000,
    )
    deadline_s: int = seconds(300, title="Deadline", help="Seconds after which one apply stops trying.", most=86_400)
    at_most: int = parameter(
        400, title="Most partitions", help="Most partitions that one plan creates.", least=1, most=10_000
    )

    def __init__(self, **values: Any) -> None:
        storage = values.get("storage")
        if isinstance(storage, Mapping) and all(isinstance(value, str) for value in storage.values()):
            # Stored policies, and plans of earlier releases, have lists.
            values["storage"] = tuple(f"{name}={value}" for name, value in storage.items())
        super().__init__(**values)

    @model_validator(mode="after")
    def _quarantine_can_be_created(self) -> Self:
        if not self.quarantine_schema or len(self.quarantine_schema.encode()) > NAME_BYTES:
            raise InvalidPolicy(f"quarantine_schema is {self.quarantine_schema!r}: name a schema")
        if self.quarantine_schema.startswith("pg_") or self.quarantine_schema == "information_schema":
            raise InvalidPolicy(f"quarantine_schema is {self.quarantine_schema!r}: that belongs to PostgreSQL")
        return self

    @model_validator(mode="after")
    def _archives_are_registered(self) -> Self:
        if self.register_archives and not self.archive:
            raise InvalidPolicy("register_archives is on and archive is off: there would be no archive to register")
        return self


class PartitionPolicy(PartitionRules):
    """Policy of one table."""

    table: str = table()

    @model_validator(mode="after")
    def _schemas_are_two(self) -> Self:
        schema, dot, name = self.table.partition(".")
        if not (schema and dot and name):
            raise InvalidPolicy(f"table is {self.table!r}: write it with its schema, such as public.{self.table}")
        if self.quarantine_schema == schema:
            raise InvalidPolicy(f"quarantine_schema is {schema!r}, the table's own: name another one")
        return self


@dataclass(frozen=True, kw_only=True)
class Spans:
    """The spans of a policy, in positions of its table's key.

    :param retention: none where keys are kept for ever.
    """

    step: Span
    ahead: Span
    far_future: Span
    retention: Span | None


def spans(policy: PartitionPolicy, key: Key) -> Spans:
    """Return the spans of a policy for a table.

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

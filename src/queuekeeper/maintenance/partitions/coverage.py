"""Reports the state of a table under its policy: what is covered, for how long, and what is wrong."""

from __future__ import annotations

from queuekeeper.maintenance.partitions.findings import FindingKind, finding
from queuekeeper.maintenance.partitions.head_room import prepared_until
from queuekeeper.maintenance.partitions.keys import Span
from queuekeeper.maintenance.partitions.model import Coverage, RetiredState
from queuekeeper.maintenance.partitions.plan import judged
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.ranges import Range
from queuekeeper.maintenance.partitions.retired import retired_partitions
from queuekeeper.maintenance.partitions.survey import Survey
from queuekeeper.postgres import Connection
from queuekeeper.sql_statements import statement

_QUERIES = "maintenance/partitions/"
_HOUR_S = 3_600.0
_MONTH_S = 30 * 86_400.0


def coverage(connection: Connection, *, policy: PartitionPolicy, now_ms: int, only_read: bool = False) -> Coverage:
    """Report on one table.

    :param only_read: see :func:`~queuekeeper.maintenance.partitions.survey.survey`.
    :raises UnknownTable: when there is no such table.
    :raises NotPartitioned: when it is not partitioned by ranges of one column.
    :raises InvalidPolicy: when the policy does not suit it.
    """
    with judged(connection, policy=policy, now_ms=now_ms, only_read=only_read) as (seen, found):
        observed = connection.execute(statement(f"{_QUERIES}load_observations"), {"table": seen.table.name}).fetchall()
        retired = retired_partitions(connection, table=seen.table.name)
    table, key = seen.table, seen.table.key
    # Keys that follow the clock need partitions for the clock's keys; data ahead of the clock need more.
    present = seen.base if seen.now is None else seen.now
    until = seen.covered(present)
    rate = _keys_per_hour(seen, [(int(at_ms), text) for at_ms, text in observed])
    overflow = table.overflow
    prepared = prepared_until(table, present)
    met = prepared is None or prepared >= _needed(seen, present)
    if not met:
        reached = "nothing" if prepared is None else key.text(prepared)
        found.append(
            finding(
                FindingKind.SHORT,
                table=table.name,
                subject=table.name,
                words=f"partitions reach to {reached}, too little for {policy.ahead} ahead: apply a plan of creation",
            )
        )
    waiting = [each for each in retired if each.state in {RetiredState.QUARANTINED, RetiredState.RESTORING}]
    for each in waiting:
        if each.drained_default:
            continue
        own = Range(
            lower=None if each.lower is None else key.position(each.lower),
            upper=None if each.upper is None else key.position(each.upper),
        )
        if any(own.overlaps(other) for other in table.ranges):
            found.append(
                finding(
                    FindingKind.QUARANTINE_OVERLAP,
                    table=table.name,
                    subject=f"{each.quarantine_schema}.{each.partition_name}",
                    words="its range has other partitions now: detach them before it is attached again",
                )
            )
    bounded = [each.range.lower for each in table.partitions if each.range and each.range.lower is not None]
    return Coverage(
        table=table.name,
        table_oid=table.oid,
        key_kind=key.kind.value,
        key_column=key.column,
        as_of_ms=now_ms,
        partitions=len(table.partitions),
        bytes=sum(each.bytes for each in table.partitions) + (table.default.bytes if table.default else 0),
        lowest=key.text(min(bounded)) if bounded else None,
        covered_until=None if until is None else key.text(until),
        inserts_fail_in_s=None if table.default else _reached_in_s(seen, until, rate),
        head_room_s=_reached_in_s(seen, prepared, rate),
        interval_s=_interval_s(seen, rate),
        keys_per_hour=rate,
        head_room_met=met,
        has_overflow=overflow is not None,
        overflow_rows=seen.overflow_rows,
        has_default=table.default is not None,
        default_rows=bool(seen.default_steps),
        pending_detaches=tuple(each.name for each in table.partitions if each.pending),
        quarantined=len(waiting),
        quarantined_bytes=sum(each.bytes for each in waiting),
        observed_at_ms=int(observed[0][0]) if observed else None,
        findings=tuple(found),
    )


def _needed(seen: Survey, present: int) -> int:
    """Return how far partitions must reach: a step less than the policy asks, or half of it where that is shorter.

    At the end of each step they reach less far than the policy asks until maintenance runs again.
    """
    asked = seen.spans.ahead.after(present)
    step = seen.spans.step.after(present) - present
    return min(asked - min(step, (asked - present) // 2), seen.end)


def _reached_in_s(seen: Survey, end: int | None, keys_per_hour: float | None) -> float | None:
    """Return the seconds until new keys reach an end; none for no end or unknown."""
    if end is None:
        return None
    if seen.now is not None:
        return seen.table.key.seconds(end - seen.now)
    if seen.highest is None or not keys_per_hour:
        return None
    return (end - seen.highest) / keys_per_hour * _HOUR_S


def _interval_s(seen: Survey, keys_per_hour: float | None) -> float | None:
    """Return the length of a step in seconds; none for integers whose rate is not known yet."""
    step_s, ahead_s = (_seconds(seen, each, keys_per_hour) for each in (seen.spans.step, seen.spans.ahead))
    # With head-room of one step or less, maintenance is less than a step ahead most of the time.
    return None if step_s is None or ahead_s is None else min(step_s, ahead_s / 2)


def _seconds(seen: Survey, span: Span, keys_per_hour: float | None) -> float | None:
    if span.months:
        return span.months * _MONTH_S
    if seen.now is not None:
        return seen.table.key.seconds(span.size)
    return _HOUR_S * span.size / keys_per_hour if keys_per_hour else None


def _keys_per_hour(seen: Survey, observed: list[tuple[int, str | None]]) -> float | None:
    """Return how many integer keys were used per hour since the earliest of the last observations."""
    if seen.now is not None or seen.highest is None:
        return None
    past = [(at_ms, seen.table.key.position(text)) for at_ms, text in observed if text is not None]
    if not past:
        return None
    at_ms, key = past[-1]
    hours = (seen.as_of_ms - at_ms) / 1_000 / _HOUR_S
    # Where the newest rows were taken out, their keys tell nothing.
    return (seen.highest - key) / hours if hours > 0 and seen.highest > key else None

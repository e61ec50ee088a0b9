"""Timeline of one partitioned table: live, premade, missing and retired ranges, and the positions of consumers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from queuekeeper.errors import QueuekeeperError
from queuekeeper.maintenance.partitions.keys import KeyKind
from queuekeeper.maintenance.partitions.model import RetiredState
from queuekeeper.maintenance.partitions.plan import judged
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.ranges import Range, gaps
from queuekeeper.maintenance.partitions.retired import retired_partitions
from queuekeeper.maintenance.partitions.survey import Survey, lowest_needed
from queuekeeper.postgres import Connection

BARS = 300
"""Most bars of one table; where there are more, neighbours of the same state are drawn as one."""


class BarState(StrEnum):
    """State of a range of keys."""

    LIVE = "live"  # a partition with keys of the present or the past
    PREMADE = "premade"  # a partition ahead of the present
    GAP = "gap"  # no partition takes these keys: inserts fail
    RETIRED = "retired"  # detached, and kept in quarantine


class MarkKind(StrEnum):
    """Kind of a position."""

    NOW = "now"
    HIGHEST = "highest key"
    RETENTION = "end of retention"
    CURSOR = "slowest consumer"
    WANTED = "end of desired head-room"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A range of keys.

    :param lower: lower bound as a position, cut to the visible part, as is ``upper``.
    :param lower_text: lower bound in words.
    :param partitions: number of partitions in the range; 0 for a gap.
    :param rows: the planner's estimate; none without statistics.
    """

    state: BarState
    lower: int
    upper: int
    lower_text: str
    upper_text: str
    partitions: int
    rows: int | None
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A marked position."""

    kind: MarkKind
    position: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Timeline of one table.

    :param seconds_per_position: seconds between two positions of a key that is, or begins with, a time; none for
        integers.
    :param cursor_problem: why the position of the slowest consumer is unknown; empty when it is known, or the policy
        asks no consumer.
    """

    table: str
    key_column: str
    key_kind: KeyKind
    seconds_per_position: float | None
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    cursor_problem: str


def table_timeline(
    connection: Connection, *, policy: PartitionPolicy, now_ms: int, only_read: bool = False
) -> Timeline:
    """Return the timeline of one table.

    :param only_read: see :func:`~queuekeeper.maintenance.partitions.survey.survey`.
    :raises UnknownTable: when there is no such table.
    :raises NotPartitioned: when it is not partitioned by ranges of one column.
    :raises InvalidPolicy: when the policy does not suit it.
    """
    with judged(connection, policy=policy, now_ms=now_ms, only_read=only_read) as (seen, _):
        retired = [
            Range(
                lower=None if each.lower is None else seen.table.key.position(each.lower),
                upper=None if each.upper is None else seen.table.key.position(each.upper),
            )
            for each in retired_partitions(connection, table=seen.table.name)
            if each.state is RetiredState.QUARANTINED and not each.drained_default
        ]
        cursor, problem = _cursor(connection, seen)
    marks = _marks(seen, cursor)
    bounds = [each for at in seen.table.ranges + retired for each in (at.lower, at.upper) if each is not None]
    bounds += [each.position for each in marks] + [seen.start, seen.end]
    first, last = min(bounds), max(bounds)
    bars = [_bar(seen, BarState.RETIRED, each, first, last) for each in retired]
    present = seen.base if seen.now is None else seen.now
    for each in seen.table.partitions:
        if each.range is not None and not each.pending:
            state = BarState.PREMADE if each.range.start > max(present, seen.highest or present) else BarState.LIVE
            bars.append(_bar(seen, state, each.range, first, last, rows=each.rows, size_bytes=each.bytes))
    missing = gaps(seen.table.ranges, start=seen.start, end=seen.end)
    bars += [_bar(seen, BarState.GAP, gap, first, last) for gap in missing]
    return Timeline(
        table=seen.table.name,
        key_column=seen.table.key.column,
        key_kind=seen.table.key.kind,
        seconds_per_position=seen.table.key.seconds(1),
        bars=tuple(joined(bars)),
        marks=tuple(marks),
        cursor_problem=problem,
    )


def _cursor(connection: Connection, seen: Survey) -> tuple[int | None, str]:
    try:
        return lowest_needed(connection, seen, override_consumers=False), ""
    except QueuekeeperError as error:
        return None, str(error)


def _marks(seen: Survey, cursor: int | None) -> list[Mark]:
    positions = {
        MarkKind.NOW: seen.now,
        MarkKind.HIGHEST: seen.highest,
        MarkKind.RETENTION: seen.limit,
        MarkKind.CURSOR: cursor,
        MarkKind.WANTED: seen.end,
    }
    key = seen.table.key
    return [
        Mark(kind=kind, position=position, text=key.text(position))
        for kind, position in positions.items()
        if position is not None
    ]


def _bar(
    seen: Survey,
    state: BarState,
    found: Range,
    first: int,
    last: int,
    *,
    rows: int | None = None,
    size_bytes: int = 0,
) -> Bar:
    key = seen.table.key
    return Bar(
        state=state,
        lower=max(found.start, first),
        upper=min(found.end, last),
        lower_text="MINVALUE" if found.lower is None else key.text(found.lower),
        upper_text="MAXVALUE" if found.upper is None else key.text(found.upper),
        partitions=0 if state is BarState.GAP else 1,
        rows=rows,
        bytes=size_bytes,
    )


def joined(bars: list[Bar], *, most: int = BARS) -> list[Bar]:
    """Return the bars in order; where there are too many, neighbours of the same state are joined."""
    ordered = sorted(bars, key=lambda bar: (bar.state, bar.lower))
    if len(ordered) <= most:
        return ordered
    found: list[Bar] = []
    for bar in ordered:
        before = found[-1] if found else None
        if before is None or before.state is not bar.state or before.upper != bar.lower:
            found.append(bar)
            continue
        rows = None if before.rows is None or bar.rows is None else before.rows + bar.rows
        found[-1] = Bar(
            state=bar.state,
            lower=before.lower,
            upper=bar.upper,
            lower_text=before.lower_text,
            upper_text=bar.upper_text,
            partitions=before.partitions + bar.partitions,
            rows=rows,
            bytes=before.bytes + bar.bytes,
        )
    return found

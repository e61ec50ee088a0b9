"""Arithmetic of partition keys: bounds as whole numbers, spans of time or of integers, edges.

Every bound becomes one integer, its *position*: the microseconds since 1970-01-01 UTC of a time, an integer itself, or
the number of an event id's 22 hexadecimal digits. So one arithmetic serves all tables, and time zones do not matter.
"""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from queuekeeper.clock import EPOCH, MICROSECOND
from queuekeeper.errors import InvalidPolicy, UsageError
from queuekeeper.jobs.parameters import MAX_DIGITS, digits_of, shown

_DAY = 86_400_000_000
_UNITS = {"second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000, "day": _DAY, "week": 7 * _DAY}
_MONTHS = {"month": 1, "year": 12}
_MONDAY = 10_959 * _DAY
"""2000-01-03, a Monday: weeks begin on Mondays, and steps shorter than a day begin at midnight, both in UTC."""

# Positions below and above every date.
_INFINITY = 10**24
# The Gregorian calendar repeats after 400 years. Python has the years 1 to 9999, PostgreSQL earlier and later ones.
_CYCLE_YEARS = 400
_CYCLE = 146_097 * _DAY

_SPAN = re.compile(rf"(-?\d{{1,{MAX_DIGITS}}}) (second|minute|hour|day|week|month|year)s?")
_SPAN_OF_KEYS = re.compile(rf"-?\d{{1,{MAX_DIGITS}}}")
_INTEGER = re.compile(r"-?\d+")
_INSTANT = re.compile(r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?(?:\+00(?::00)?)?( BC)?")
_EVENT_ID = re.compile(r"pm([0-9a-f]{13,22})")
_EVENT_ID_DIGITS = 22
_EVENT_ID_SCALE = 1 << 36
"""Number of ids in one microsecond: nine hexadecimal digits."""


class KeyKind(StrEnum):
    """Kind of a partition key."""

    TIME = "time"  # date, timestamp (taken as UTC) or timestamptz
    INTEGER = "integer"
    EVENT_ID = "event_id"  # text ids of the event broker, which begin with their time


_KINDS = {
    "date": KeyKind.TIME,
    "timestamp without time zone": KeyKind.TIME,
    "timestamp with time zone": KeyKind.TIME,
    "smallint": KeyKind.INTEGER,
    "integer": KeyKind.INTEGER,
    "bigint": KeyKind.INTEGER,
    "text": KeyKind.EVENT_ID,
    "character varying": KeyKind.EVENT_ID,
}
_WIDTHS = {"smallint": 16, "integer": 32, "bigint": 64}


def _to_position(year: int, month: int, day: int, rest: timedelta) -> int:
    # Every year has a twin in the cycle of 400 years that begins with 2000.
    cycles, within = divmod(year - 2000, _CYCLE_YEARS)
    moment = datetime(2000 + within, month, day, tzinfo=UTC) + rest
    return cycles * _CYCLE + (moment - EPOCH) // MICROSECOND


def _from_position(position: int) -> tuple[int, datetime]:
    """Return the year, and an instant of its twin among the years from 2000 to 2399."""
    start = 10_957 * _DAY
    cycles, within = divmod(position - start, _CYCLE)
    twin = EPOCH + (start + within) * MICROSECOND
    return twin.year + cycles * _CYCLE_YEARS, twin


def _add_months(position: int, months: int) -> int:
    year, twin = _from_position(position)
    month = year * 12 + twin.month - 1 + months
    midnight = twin.replace(hour=0, minute=0, second=0, microsecond=0)
    target_year, target_month = month // 12, month % 12 + 1
    last = monthrange(2000 + (target_year - 2000) % _CYCLE_YEARS, target_month)[1]
    return _to_position(target_year, target_month, min(twin.day, last), twin - midnight)


@dataclass(frozen=True, kw_only=True)
class Span:
    """A span of keys: a step of the partitions, a retention, a head-room.

    :param months: calendar months; 0 for all other spans.
    :param size: number of positions; 0 for months.
    :param scale: positions per microsecond; more than 1 for event ids, and without meaning for integers.
    """

    months: int = 0
    size: int = 0
    scale: int = 1

    def floor(self, position: int) -> int:
        """Return the edge at or before a position, when the span is used as a step."""
        if self.months:
            year, twin = _from_position(position // self.scale)
            month = (year * 12 + twin.month - 1) // self.months * self.months
            return _to_position(month // 12, month % 12 + 1, 1, timedelta()) * self.scale
        return position - (position - self._anchor) % self.size

    def next(self, position: int) -> int:
        """Return the first edge after a position, when the span is used as a step."""
        edge = self.floor(position)
        return _add_months(edge // self.scale, self.months) * self.scale if self.months else edge + self.size

    def ceiling(self, position: int) -> int:
        """Return the edge at or after a position, when the span is used as a step."""
        edge = self.floor(position)
        return edge if edge == position else self.next(position)

    def after(self, position: int) -> int:
        """Return the position that lies one span later; a month's end stays a month's end."""
        return self._moved(position, 1)

    def before(self, position: int) -> int:
        """Return the position that lies one span earlier."""
        return self._moved(position, -1)

    @property
    def _anchor(self) -> int:
        return 0 if self.scale == 0 else _MONDAY * self.scale

    def _moved(self, position: int, sign: int) -> int:
        if not self.months:
            return position + sign * self.size
        whole, rest = divmod(position, self.scale)
        return _add_months(whole, sign * self.months) * self.scale + rest


def parse_span(text: str, *, kind: KeyKind, what: str) -> Span:
    """Return the span that a policy names: ``7 days``, ``1 month``, or for integers ``1000000``.

    :param what: name of the setting, for the error.
    :raises InvalidPolicy: when the text is no span, or the span is not positive.
    """
    if kind is KeyKind.INTEGER:
        digits = digits_of(text)
        if not _SPAN_OF_KEYS.fullmatch(digits):
            raise InvalidPolicy(
                f"{what} is {shown(text)}: write a number of keys, such as 1000000: the key is an integer"
            )
        amount, found = int(digits), Span(size=int(digits), scale=0)
    else:
        match = _SPAN.fullmatch(text.strip())
        if match is None:
            raise InvalidPolicy(
                f"{what} is {shown(text)}: write a number and a unit (second, minute, hour, day, week, month, year), "
                "such as 7 days"
            )
        amount, unit = int(match[1]), match[2]
        scale = _EVENT_ID_SCALE if kind is KeyKind.EVENT_ID else 1
        found = (
            Span(months=amount * _MONTHS[unit], scale=scale)
            if unit in _MONTHS
            else Span(size=amount * _UNITS[unit] * scale, scale=scale)
        )
    if amount <= 0:
        raise InvalidPolicy(f"{what} is {text!r}: it must be more than nothing")
    return found


def parse_step(text: str, *, kind: KeyKind) -> Span:
    """Return the step of the partitions.

    :raises InvalidPolicy: when it does not divide a day or a year, so that edges would move from day to day or from
        year to year.
    """
    step = parse_span(text, kind=kind, what="step")
    if kind is KeyKind.INTEGER:
        return step
    if step.months and 12 % step.months and step.months % 12:
        raise InvalidPolicy(
            f"step is {text!r}: it does not divide a year; write 1, 2, 3, 4 or 6 months, or whole years"
        )
    microseconds = step.size // step.scale
    if not step.months and _DAY % microseconds and microseconds % _DAY:
        raise InvalidPolicy(f"step is {text!r}: it does not divide a day; write such as 15 minutes, 6 hours or 2 days")
    return step


@dataclass(frozen=True, kw_only=True)
class Key:
    """The column that a table is partitioned by, and how its bounds are written.

    :param type_name: type as ``format_type`` writes it, without a length.
    """

    column: str
    type_name: str

    @property
    def kind(self) -> KeyKind:
        """Kind of the key.

        :raises UsageError: when partitions of its type are not supported.
        """
        try:
            return _KINDS[self.type_name]
        except KeyError:
            raise UsageError(
                f"column {self.column} is of type {self.type_name}: partitions are kept by date, timestamp, integer or "
                "event id only"
            ) from None

    def position(self, text: str) -> int:
        """Return the position of a bound or value as PostgreSQL writes it in UTC.

        :raises UsageError: when the text is no value of the key's kind.
        """
        kind = self.kind
        if kind is KeyKind.INTEGER and _INTEGER.fullmatch(text):
            return int(text)
        if kind is KeyKind.EVENT_ID and (match := _EVENT_ID.fullmatch(text)):
            return int(match[1].ljust(_EVENT_ID_DIGITS, "0"), 16)
        if kind is KeyKind.TIME:
            if text.removeprefix("-") == "infinity":
                return -_INFINITY if text.startswith("-") else _INFINITY
            if match := _INSTANT.fullmatch(text):
                year = 1 - int(match[1]) if match[8] else int(match[1])
                rest = timedelta(
                    hours=int(match[4] or 0),
                    minutes=int(match[5] or 0),
                    seconds=int(match[6] or 0),
                    microseconds=int((match[7] or "0").ljust(6, "0")),
                )
                return _to_position(year, int(match[2]), int(match[3]), rest)
        raise UsageError(f"{text!r} is no {kind.value.replace('_', ' ')} of column {self.column}")

    def text(self, position: int) -> str:
        """Return the position as the text of a bound."""
        kind = self.kind
        if kind is KeyKind.INTEGER:
            return str(position)
        if kind is KeyKind.EVENT_ID:
            return f"pm{position:0{_EVENT_ID_DIGITS}x}"
        if abs(position) == _INFINITY:
            return "infinity" if position > 0 else "-infinity"
        year, twin = _from_position(position)
        era = "" if year > 0 else " BC"
        day = f"{year if year > 0 else 1 - year:04d}-{twin:%m-%d}"
        if self.type_name == "date":
            return f"{day}{era}"
        fraction = f".{twin.microsecond:06d}".rstrip("0") if twin.microsecond else ""
        zone = "+00" if self.type_name == "timestamp with time zone" else ""
        return f"{day} {twin:%H:%M:%S}{fraction}{zone}{era}"

    def clock(self, now_ms: int) -> int | None:
        """Return the position of an instant; none for integers, which do not follow the clock."""
        if self.kind is KeyKind.INTEGER:
            return None
        return now_ms * 1_000 * (_EVENT_ID_SCALE if self.kind is KeyKind.EVENT_ID else 1)

    def seconds(self, size: int) -> float | None:
        """Return the seconds between two positions at a distance; none for integers."""
        if self.kind is KeyKind.INTEGER:
            return None
        return size / (_EVENT_ID_SCALE if self.kind is KeyKind.EVENT_ID else 1) / 1_000_000

    def check_step(self, step: Span, text: str) -> None:
        """Refuse a step whose edges the column cannot hold.

        :raises InvalidPolicy: when a date would be cut inside a day, or an integer is too small for one step.
        """
        if self.type_name == "date" and not step.months and step.size % _DAY:
            raise InvalidPolicy(f"step is {text!r}: column {self.column} is a date; write whole days, weeks or months")
        width = _WIDTHS.get(self.type_name)
        if width and step.size >= 1 << (width - 1):
            raise InvalidPolicy(f"step is {text!r}: it does not fit into the {self.type_name} column {self.column}")

    def edge_before(self, step: Span, position: int) -> int:
        """Return the edge of a step at or before a position, or the lowest value of the type where that is higher."""
        width = _WIDTHS.get(self.type_name)
        edge = step.floor(position)
        return max(edge, -(1 << (width - 1))) if width else edge

    def last_edge(self) -> int | None:
        """Return the highest bound of an integer type; none for other types."""
        width = _WIDTHS.get(self.type_name)
        if width:
            return (1 << (width - 1)) - 1
        return (1 << (4 * _EVENT_ID_DIGITS)) - 1 if self.kind is KeyKind.EVENT_ID else None

    def name_part(self, position: int) -> str:
        """Return the part of a new partition's name for its lower bound, for people only."""
        if self.kind is KeyKind.INTEGER:
            return f"p{position}" if position >= 0 else f"m{-position}"
        microseconds = position // (_EVENT_ID_SCALE if self.kind is KeyKind.EVENT_ID else 1)
        year, twin = _from_position(microseconds)
        day = f"p{year:04d}{twin:%m%d}" if year > 0 else f"b{1 - year:04d}{twin:%m%d}"
        if microseconds % _DAY == 0:
            return day
        return f"{day}t{twin:%H%M}" if microseconds % 60_000_000 == 0 else f"{day}t{twin:%H%M%S%f}"

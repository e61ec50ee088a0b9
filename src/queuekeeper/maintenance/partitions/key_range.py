"""Reads the rows of a range of keys from an Iceberg table, also where its archives hold the keys as text."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    Reference,
)
from pyiceberg.table import Table
from pyiceberg.types import StringType

from queuekeeper.clock import EPOCH, MICROSECOND
from queuekeeper.maintenance.partitions.keys import Key, KeyKind

_BOUNDS = {
    "first": (operator.ge, GreaterThanOrEqual),
    "last": (operator.le, LessThanOrEqual),
    "end": (operator.lt, LessThan),
}
_YEARS = ("0001-01-01", "9999-12-31")
"""Times that Python can tell; what archives hold as times lies between them, and all else as text."""


@dataclass(frozen=True, kw_only=True)
class KeyRange:
    """A range of keys; each bound is as PostgreSQL writes it in UTC, and none where there is no bound.

    :param first: least key.
    :param last: greatest key.
    :param end: first key behind the range.
    """

    key: Key
    first: str | None = None
    last: str | None = None
    end: str | None = None

    def rows(self, table: Table, *, columns: Sequence[str] = ("*",)) -> pa.RecordBatchReader:
        """Return the rows of the range.

        :param columns: the key's among them.
        """
        if not self._is_text(table):
            return table.scan(row_filter=self._filter(), selected_fields=tuple(columns)).to_arrow_batch_reader()
        found = table.scan(selected_fields=tuple(columns)).to_arrow_batch_reader()
        return pa.RecordBatchReader.from_batches(found.schema, self._within(found))

    def count(self, table: Table) -> int:
        """Return how many rows are in the range."""
        if not self._is_text(table):
            return int(table.scan(row_filter=self._filter()).count())
        return sum(batch.num_rows for batch in self.rows(table, columns=(self.key.column,)))

    def _is_text(self, table: Table) -> bool:
        """Whether archives hold keys as text whose order is another one than theirs, such as years before Christ."""
        held = table.schema().find_type(self.key.column)
        return self.key.kind is not KeyKind.EVENT_ID and isinstance(held, StringType)

    @cached_property
    def _positions(self) -> dict[str, int | str]:
        texts = {name: text for name in _BOUNDS if (text := getattr(self, name)) is not None}
        return {name: self._position(text) for name, text in texts.items()}

    def _position(self, text: str) -> int | str:
        return text if self.key.kind is KeyKind.EVENT_ID else self.key.position(text)

    def _filter(self) -> BooleanExpression:
        found: BooleanExpression = AlwaysTrue()
        for name, position in self._positions.items():
            found = And(found, _BOUNDS[name][1](term=Reference(self.key.column), value=self._value(position)))
        return found

    def _value(self, position: int | str) -> int | str:
        """Return a key as filters of Iceberg take it."""
        if isinstance(position, str) or self.key.kind is KeyKind.INTEGER:
            return position
        least, most = (Key(column="", type_name="date").position(day) for day in _YEARS)
        at = EPOCH + min(max(position, least), most) * MICROSECOND
        if self.key.type_name == "date":
            return at.date().isoformat()
        return (at if self.key.type_name == "timestamp with time zone" else at.replace(tzinfo=None)).isoformat()

    def _within(self, batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        tests = [(_BOUNDS[name][0], position) for name, position in self._positions.items()]
        for batch in batches:
            keys = [self._position(text) for text in batch.column(self.key.column).to_pylist()]
            yield batch.filter(pa.array([all(holds(key, bound) for holds, bound in tests) for key in keys], pa.bool_()))

"""Reads a TBMQ 1.x database into Spark as Arrow batches of one snapshot."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession

from queuekeeper.keyspace import Cohort, client_slot
from queuekeeper.migration.offline import transforms
from queuekeeper.migration.offline.fates import COLUMNS, decided
from queuekeeper.migration.offline.judging import PLACE, Step
from queuekeeper.migration.offline.transforms import MESSAGE, SESSION
from queuekeeper.migration.servers import MESSAGES, SESSIONS, SOURCE_TABLES
from queuekeeper.migration.spark.slices import SliceReader, export_snapshot, reading
from queuekeeper.postgres import Connection, connect
from queuekeeper.sql_statements import statement

# `packet_id` and friends stay 32 bit here and are widened where arithmetic needs it.
_SPARK_TYPES = {
    "bigint": "bigint",
    "boolean": "boolean",
    "bytea": "binary",
    "character varying": "string",
    "integer": "int",
}

ARROW_TYPES = {
    "string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "boolean": pa.bool_(), "binary": pa.binary()
}  # fmt: skip
"""Arrow's types by Spark's names."""

_WORD = 0xFFFFFFFF

_SAMPLE_BYTES = 8 * 2**20
"""How much of the source is read to find out where ranges begin."""


def schema_of(columns: Mapping[str, str]) -> str:
    """Return columns as Spark reads a schema."""
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _columns(table: str, *left_out: str) -> dict[str, str]:
    return {name: _SPARK_TYPES[column.type] for name, column in SOURCE_TABLES[table].items() if name not in left_out}


MESSAGE_COLUMNS = _columns(MESSAGES)
SESSION_COLUMNS = _columns(SESSIONS, "last_updated_time")


def part_name(cohorts: Sequence[int]) -> str:
    """Return the name of cohorts in the record of progress."""
    return f"{cohorts[0]:05d}-{cohorts[-1]:05d}"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How clients are spread over cohorts and Spark tasks.

    A client's slot determines its cohort, and the cohort its task. Spark's hash partitioning sends each task's label to
    a partition of its own, so that rows partitioned by label stay partitioned by client for windows and joins, and a
    task talks to one shard.

    :param slot_firsts: first slot of each cohort, ascending.
    :param labels: task label of each cohort; -1 for a cohort that is not wanted, whose rows are dropped on reading.
    :param groups: cohorts of each task, in the order of Spark's partitions.
    """

    slot_firsts: tuple[int, ...]
    labels: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def tasks(self) -> int:
        """Number of tasks, each with one partition."""
        return len(self.groups)

    def place(self, client_id: str) -> tuple[int, int]:
        """Return cohort and task label of a client."""
        cohort = bisect_right(self.slot_firsts, client_slot(client_id)) - 1
        return cohort, self.labels[cohort]


def layout(*, cohorts: Sequence[Cohort], wanted: Sequence[int], tasks: int) -> Layout:
    """Group the wanted cohorts into tasks, each within one shard.

    :param cohorts: all cohorts in order.
    :param wanted: numbers of the cohorts to read.
    :param tasks: how many tasks to aim for; at least one per shard is made.
    """
    chosen = [cohort for cohort in cohorts if cohort.cohort in set(wanted)]
    shards: dict[str, list[Cohort]] = {}
    for cohort in chosen:
        shards.setdefault(cohort.shard, []).append(cohort)
    groups: list[list[int]] = []
    for members in shards.values():
        pieces = min(len(members), max(1, round(tasks * len(members) / len(chosen))))
        for piece in range(pieces):
            part = members[len(members) * piece // pieces : len(members) * (piece + 1) // pieces]
            groups.append([cohort.cohort for cohort in part])
    labels = _labels(len(groups))
    label_of = {number: labels[index] for index, group in enumerate(groups) for number in group}
    return Layout(
        slot_firsts=tuple(cohort.slot_first for cohort in cohorts),
        labels=tuple(label_of.get(cohort.cohort, -1) for cohort in cohorts),
        groups=tuple(tuple(group) for group in groups),
    )


def _labels(count: int) -> list[int]:
    """Return, for each partition, a number that Spark's hash partitioning sends there."""
    found: dict[int, int] = {}
    numbers = itertools.count()
    while len(found) < count:
        label = next(numbers)
        found.setdefault(_spark_hash(label) % count, label)
    return [found[part] for part in range(count)]


def _spark_hash(number: int) -> int:
    """Return what Spark's ``hash`` gives for an int of 0 or more: Murmur3 of one block of four bytes, with seed 42.

    To ask Spark is its first query, which takes seconds after its start.
    """
    word = number * 0xCC9E2D51 & _WORD
    word = (word << 15 | word >> 17) * 0x1B873593 & _WORD
    found = 42 ^ word
    found = ((found << 13 | found >> 19) & _WORD) * 5 + 0xE6546B64 & _WORD
    found ^= 4
    found = (found ^ found >> 16) * 0x85EBCA6B & _WORD
    found = (found ^ found >> 13) * 0xC2B2AE35 & _WORD
    found ^= found >> 16
    return found - 2**32 if found >> 31 else found


def _placed(batch: pa.RecordBatch, layout: Layout, step: Step | None) -> pa.RecordBatch:
    """Add slot, cohort and task to a batch, drop the rows of cohorts that are not wanted, and take the step."""
    encoded = batch.column("client_id").dictionary_encode()
    names = encoded.dictionary.to_pylist()
    slots = np.fromiter((client_slot(name) if name else 0 for name in names), np.int32, len(names))
    cohorts = (np.searchsorted(np.asarray(layout.slot_firsts), slots, side="right") - 1).astype(np.int32)
    tasks = np.asarray(layout.labels, np.int32)[cohorts]
    index = encoded.indices.to_numpy(zero_copy_only=False)
    placed = batch
    for name, values in zip(PLACE, (slots, cohorts, tasks), strict=True):
        placed = placed.append_column(name, pa.array(values[index]))
    keep = tasks[index] >= 0
    if not keep.all():
        placed = placed.filter(pa.array(keep))
    return placed if step is None else step.work(placed).select([*step.columns, *PLACE])


@dataclass(frozen=True, kw_only=True)
class _Reader(SliceReader):
    """Adds to each row where its client belongs, and leaves out the rows of cohorts that are not wanted."""

    layout: Layout
    step: Step | None = None

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch as Spark was told that it looks, after the step."""
        return super().shape(_placed(batch, self.layout, self.step))


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is read of a table.

    :param columns: column name -> Spark type.
    :param step: what becomes of each batch in the worker that has read it.
    :param expressions: SQL that PostgreSQL evaluates in place of some of the columns.
    """

    columns: dict[str, str]
    step: Step
    expressions: dict[str, str] = field(default_factory=dict)

    @property
    def result(self) -> dict[str, str]:
        """Columns of the rows, with Spark's types."""
        return self.step.columns | PLACE


def _selected(columns: Iterable[str], expressions: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{expressions[name]} AS {name}" if name in expressions else name for name in columns)


@dataclass(frozen=True, kw_only=True)
class _QueueReader:
    """Reads whole queues in the order of the primary key, a range of clients at a time.

    PostgreSQL chooses between index and sort. It looks at the bounds again for each row that an index has found, so
    that a client has rows in one range only, whatever the index is like; :func:`fates.decided` looks at the order.

    :param bounds: first client of each range but the first, in PostgreSQL's order.
    """

    url: str = field(repr=False)
    snapshot: str
    layout: Layout
    messages: Wanted
    sessions: Wanted
    bounds: tuple[str, ...]

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range: of each client its newest message first, and its session last."""
        with reading(self.url, snapshot=self.snapshot) as cursor:
            cursor.execute(self._query(SESSIONS, self.sessions, number))
            (found,) = cursor.fetch_arrow_table().combine_chunks().to_batches() or [_none(self.sessions.columns)]
            sessions = _Sessions(_placed(found, self.layout, self.sessions.step), _none(self.messages.result))
            cursor.execute(
                self._query(MESSAGES, self.messages, number) + " ORDER BY client_id DESC, serial_number DESC"
            )
            for batch in cursor.fetch_record_batch():
                yield sessions.behind(_placed(batch, self.layout, self.messages.step))
            yield sessions.rest()

    def _query(self, table: str, wanted: Wanted, number: int) -> str:
        edges = [None, *(sql.Literal(bound).as_string(None) for bound in self.bounds), None]
        limits = [("client_id >= ", edges[number]), ("client_id < ", edges[number + 1])]
        inside = " AND ".join(f"{words}{edge}" for words, edge in limits if edge is not None)
        names = ", ".join(_selected(wanted.columns, wanted.expressions))
        where = f" WHERE {inside} AND ({inside}) IS NOT FALSE" if inside else ""
        return f"SELECT {names} FROM {table}{where}"  # noqa: S608 - the bounds are quoted


class _Sessions:
    """Sessions of a range, each of which is put behind the last message of its client.

    :param none: a batch of messages without any.
    """

    def __init__(self, batch: pa.RecordBatch, none: pa.RecordBatch) -> None:
        self._batch = batch.append_column("kind", pa.repeat(SESSION, batch.num_rows))
        self._none = none
        self._names = batch.column("client_id")
        self._left = np.ones(batch.num_rows, np.bool_)
        self._open: str | None = None

    def behind(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """Return messages with the sessions of those clients that end before the batch does.

        Whether its last client ends there is seen by the next batch.
        """
        if not messages.num_rows:
            return self._joined(messages, [], [])
        runs = pc.run_end_encode(messages.column("client_id"))
        clients, ends = runs.values.to_pylist(), runs.run_ends.to_pylist()
        if self._open is not None and self._open != clients[0]:
            clients, ends = [self._open, *clients], [0, *ends]
        self._open = clients[-1]
        found = pc.index_in(pa.array(clients[:-1], pa.string()), self._names)
        has = pc.is_valid(found)
        return self._joined(messages, pa.array(ends[:-1], pa.int64()).filter(has), found.filter(has))

    def rest(self) -> pa.RecordBatch:
        """Return the other sessions, that of the last client first."""
        left = np.flatnonzero(self._left)
        last = pc.equal(self._names.take(pa.array(left)), pa.scalar(self._open, pa.string()))
        last = pc.fill_null(last, fill_value=False).to_numpy(zero_copy_only=False)
        return self._joined(self._none, np.zeros(len(left), np.int64), np.concatenate([left[last], left[~last]]))

    def _joined(self, messages: pa.RecordBatch, places: Any, chosen: Any) -> pa.RecordBatch:
        """Return messages with sessions between them.

        :param places: behind how many messages each session comes.
        :param chosen: number of each of these sessions.
        """
        places, chosen = np.asarray(places, np.int64), np.asarray(chosen, np.int64)
        self._left[chosen] = False
        total = messages.num_rows + len(chosen)
        is_session = np.zeros(total, np.bool_)
        is_session[places + np.arange(len(places))] = True
        of_message = pa.array(np.cumsum(~is_session) - 1, mask=is_session)
        session = np.zeros(total, np.int64)
        session[is_session] = chosen
        of_session = pa.array(session, mask=~is_session)
        messages = messages.append_column("kind", pa.repeat(MESSAGE, messages.num_rows))
        columns: dict[str, pa.Array] = {}
        for name in dict.fromkeys([*messages.schema.names, *self._batch.schema.names]):
            parts = [
                rows.column(name).take(index)
                for rows, index in ((messages, of_message), (self._batch, of_session))
                if name in rows.schema.names
            ]
            columns[name] = pc.coalesce(*parts)
        return pa.RecordBatch.from_pydict(columns)


def _none(columns: Mapping[str, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: pa.array([], ARROW_TYPES[kind]) for name, kind in columns.items()})


class Part(NamedTuple):
    """What one task works on.

    :param name: in the record of progress.
    :param cohorts: of which it may have clients.
    :param total: number of messages, as far as it is known.
    """

    name: str
    cohorts: tuple[int, ...]
    total: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """One consistent view of the source database.

    :param connection: the transaction that holds the view; statements on it see the same rows as Spark.
    :param postgres_url: address of the database, for Spark's workers.
    :param snapshot: name of the exported snapshot; it lives as long as :func:`open_source`'s block.
    :param bounds: where the ranges begin in which queues are read in the order of the key, all but the first; none:
        they are not read so.
    """

    spark: SparkSession
    connection: Connection
    postgres_url: str = field(repr=False)
    snapshot: str
    layout: Layout
    bounds: tuple[str, ...] | None = None

    def read(
        self,
        table: str,
        columns: dict[str, str],
        *,
        expressions: dict[str, str] | None = None,
        function: str = "",
        step: Step | None = None,
    ) -> DataFrame:
        """Return a table's rows with their ``slot``, ``cohort`` and ``task``.

        :param columns: column name -> Spark type.
        :param expressions: SQL that PostgreSQL evaluates in place of some of the columns.
        :param function: a function of PostgreSQL that returns the table's rows between two places, for a user who may
            not read the table itself.
        :param step: what becomes of each batch in the worker that has read it, before Spark has rows of it.
        """
        returned = columns if step is None else step.columns
        reader = _Reader(
            url=self.postgres_url,
            table=table,
            expressions=_selected(columns, expressions or {}),
            snapshot=self.snapshot,
            function=function,
            layout=self.layout,
            step=step,
        )
        return reader.rows(self.spark, schema_of(returned | PLACE))

    def queues(
        self,
        *,
        messages: Wanted,
        sessions: Wanted,
        each: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: str,
    ) -> DataFrame:
        """Return what becomes of queues: a task gets whole ones, row by row in the order of :mod:`fates`.

        Where the source is read in the order of its key, that is done by the task that reads it. Where not, rows are
        sent to the task of their cohort and sorted there.

        :param each: what a task does with its rows.
        :param schema: of the rows that come of it.
        """
        if self.bounds is None:
            rows = transforms.rows(
                self.read(MESSAGES, messages.columns, expressions=messages.expressions, step=messages.step),
                self.read(SESSIONS, sessions.columns, expressions=sessions.expressions, step=sessions.step),
            )
            return transforms.ordered(self.partitioned(rows)).mapInArrow(each, schema)
        reader = _QueueReader(
            url=self.postgres_url, snapshot=self.snapshot, layout=self.layout, messages=messages, sessions=sessions,
            bounds=self.bounds,
        )  # fmt: skip

        def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from each(reader.read(number))

        count = len(self.bounds) + 1
        return self.spark.range(0, count, 1, count).mapInArrow(read, schema)

    def fates(self, *, messages: Wanted, sessions: Wanted, limit: int, as_of_ms: int) -> DataFrame:
        """Return all rows with what :func:`fates.decided` decides."""
        columns = messages.result | sessions.result | {"kind": "string"} | COLUMNS

        def decide(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return (batch.select(list(columns)) for batch in decided(batches, limit=limit, as_of_ms=as_of_ms))

        return self.queues(messages=messages, sessions=sessions, each=decide, schema=schema_of(columns))

    def parts(self, total_of: Callable[[Iterable[int]], int]) -> list[Part]:
        """Return what each task of :meth:`queues` works on: all cohorts where it has a range of clients.

        :param total_of: returns how many messages there are to deal with in some cohorts.
        """
        groups = self.layout.groups
        if self.bounds is None:
            return [Part(part_name(group), group, total_of(group)) for group in groups]
        cohorts, count = tuple(sorted(itertools.chain(*groups))), len(self.bounds) + 1
        whole = total_of(cohorts)
        return [
            Part(f"{part_name(cohorts)}-{at:05d}", cohorts, whole * (at + 1) // count - whole * at // count)
            for at in range(count)
        ]

    def partitioned(self, rows: DataFrame) -> DataFrame:
        """Return the rows partitioned by task: one partition per task, in hash slot order."""
        return rows.repartition(self.layout.tasks, "task")


@contextmanager
def open_source(
    spark: SparkSession, *, postgres_url: str, placement: Layout, ranges: int | None = None
) -> Iterator[Source]:
    """Hold one snapshot of the source open while Spark reads it.

    :param placement: see :func:`layout`.
    :param ranges: in how many ranges queues are read in the order of the key, where the source is fit for that and a
        quarter of its cohorts is wanted: for fewer, the order of all costs more than the exchange of some. None: they
        are not.
    """
    with connect(postgres_url) as connection:
        snapshot = export_snapshot(connection)
        wanted = sum(label >= 0 for label in placement.labels)
        few = 4 * wanted < len(placement.labels)
        yield Source(
            spark=spark,
            connection=connection,
            postgres_url=postgres_url,
            snapshot=snapshot,
            layout=placement,
            bounds=None if ranges is None or few else _bounds(connection, ranges),
        )


def _bounds(connection: Connection, ranges: int) -> tuple[str, ...] | None:
    """Return where ranges of about as many rows begin; none where queues are not to be read in the order of the key."""
    row = connection.execute(statement("sessions/key_order")).fetchone()
    assert row is not None
    may_be_read, size_bytes = row
    if not may_be_read:
        return None
    sample = {
        "shares": [number / ranges for number in range(1, ranges)],
        "percent": 100 * min(1.0, _SAMPLE_BYTES / max(1, size_bytes)),
    }
    row = connection.execute(statement("sessions/key_bounds"), sample).fetchone()
    assert row is not None
    return tuple(dict.fromkeys(row[0] or ()))


def counting(batches: Iterator[pa.RecordBatch], read: dict[int, int]) -> Iterator[pa.RecordBatch]:
    """Pass batches on, and count their rows by cohort in ``read``."""
    for batch in batches:
        for found in pc.value_counts(batch.column("cohort")).to_pylist():
            read[found["values"]] = read.get(found["values"], 0) + found["counts"]
        yield batch

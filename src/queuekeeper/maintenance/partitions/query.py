"""Answers SQL over a table's partitions and the archives of those that have left it, as one table.

Rows are copied into a database of DuckDB in a temporary folder: those of archives as the Iceberg catalog names them,
and those of PostgreSQL in one snapshot that is taken after the catalog was read. What is in the catalog had left its
table by then, and what has been registered since is read from its quarantine, so each row is read once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from math import isfinite
from pathlib import Path
from shlex import quote
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
from psycopg import sql
from pyiceberg.table import Table as IcebergTable

from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.maintenance.partitions.catalog import read_table, relations
from queuekeeper.maintenance.partitions.iceberg import catalog_of, find_iceberg_table, registration_of
from queuekeeper.maintenance.partitions.key_range import KeyRange
from queuekeeper.maintenance.partitions.keys import Key
from queuekeeper.maintenance.partitions.manifest import archived_columns, pin_texts
from queuekeeper.maintenance.partitions.model import RetiredState
from queuekeeper.maintenance.partitions.restore import retired_name
from queuekeeper.maintenance.partitions.retired import retired_partitions
from queuekeeper.migration.spark.slices import export_snapshot, reading
from queuekeeper.postgres import Connection, connect, server_words
from queuekeeper.sql_statements import statement

_COPIES = "queuekeeper_copies"
"""Schema of the copies: in the table's own, they could have its name."""


@dataclass(frozen=True, kw_only=True)
class QueryReport:
    """Answer to a query.

    :param hot_rows: rows that were read from PostgreSQL.
    :param cold_rows: rows that were read from archives.
    :param is_cut: whether there were more than were asked for.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    hot_rows: int
    cold_rows: int
    is_cut: bool


def query(
    *,
    postgres_url: str,
    table: str,
    text: str,
    directory: Path | str,
    lower: str | None = None,
    upper: str | None = None,
    limit: int = 1_000,
) -> QueryReport:
    """Answer a query over all rows of a table, those of archived partitions too.

    :param table: as its policy names it; the query names it like this, or without its schema.
    :param text: the query, in the SQL of DuckDB. Values of types that archives hold as text are text.
    :param directory: folder of archives, in which metadata are where no catalog is configured.
    :param lower: least key to read, as SQL writes it; all from the beginning if left out.
    :param upper: first key not to read; all to the end if left out.
    :param limit: largest number of rows of the answer.
    :raises UsageError: when there is no such table, a bound is no key, or the query is wrong.
    :raises RefusedError: when a dropped partition's archive is not registered.
    """
    with (
        tempfile.TemporaryDirectory(prefix="queuekeeper-query-") as folder,
        duckdb.connect(f"{folder}/rows.duckdb") as answering,
    ):
        answering.execute(f"SET TimeZone = 'UTC'; CREATE SCHEMA {_COPIES}")
        hot, cold, name = _load(
            answering, postgres_url=postgres_url, table=table, directory=directory, lower=lower, upper=upper
        )
        # The query reads what was copied, and no file.
        answering.execute("SET enable_external_access = false; SET lock_configuration = true")
        try:
            # A text without a statement has no answer, whatever its type says.
            asked: duckdb.DuckDBPyConnection | None = answering.execute(text)
            if asked is None:
                raise UsageError(f"the query is refused: it is empty; the table is called {name} in it")
            columns = tuple(str(each[0]) for each in asked.description or ())
            rows = asked.fetchmany(limit + 1)
        except duckdb.Error as error:
            words = " ".join(str(error).split())
            raise UsageError(f"the query is refused: {words}; the table is called {name} in it") from error
    return QueryReport(
        columns=columns,
        rows=tuple(tuple(map(_told, row)) for row in rows[:limit]),
        hot_rows=hot,
        cold_rows=cold,
        is_cut=len(rows) > limit,
    )


def _told(value: Any) -> Any:
    """Return a value of DuckDB as JSON can hold it, or as the text that people know it by."""
    match value:
        case None | bool() | int() | str() | date():
            return value
        case float() if isfinite(value):
            return value
        case bytes():
            return f"\\x{value.hex()}"
        case list() | tuple():
            return [_told(each) for each in value]
        case dict():
            return {str(name): _told(each) for name, each in value.items()}
    return str(value)


def _load(
    answering: duckdb.DuckDBPyConnection,
    *,
    postgres_url: str,
    table: str,
    directory: Path | str,
    lower: str | None,
    upper: str | None,
) -> tuple[int, int, str]:
    """Copy the rows, and make the view; return how many are of PostgreSQL and of archives, and the view's name."""
    with connect(postgres_url) as connection:
        pin_texts(connection)
        seen = read_table(connection, table, only_read=True)
        first, end = (None if each is None else _key_text(connection, seen.key, each) for each in (lower, upper))
        within = KeyRange(key=seen.key, first=first, end=end)
        with catalog_of(connection, postgres_url=postgres_url, directory=directory) as catalog:
            iceberg_table = find_iceberg_table(connection, catalog, table=table)
            connection.commit()
            # A detach waits for whoever holds the table, so no partition leaves it while others read in the snapshot.
            connection.execute(f"LOCK TABLE {seen.name} IN ACCESS SHARE MODE")
            snapshot = export_snapshot(connection)
            pin_texts(connection)
            parts = []
            for number, relation in enumerate([seen.name, *_outside(connection, iceberg_table, table=table)]):
                for_key = [
                    sql.SQL("{} {} {}").format(sql.Identifier(seen.key.column), sql.SQL(sign), sql.Literal(value))
                    for sign, value in ((">=", first), ("<", end))
                    if value is not None
                ]
                with reading(postgres_url, snapshot=snapshot, pin=statement("maintenance/pin_texts")) as cursor:
                    cursor.execute(_selection(connection, relation, for_key))
                    parts.append(_copy(answering, f"hot_{number}", cursor.fetch_record_batch()))
            cold = 0
            if iceberg_table is not None:
                cold = _copy(answering, "cold", within.rows(iceberg_table))
    names = [f"hot_{number}" for number in range(len(parts))] + (["cold"] if iceberg_table is not None else [])
    union = " UNION ALL BY NAME ".join(f"SELECT * FROM {_COPIES}.{each}" for each in names)  # noqa: S608 - ours
    schema, name = (_quoted(each) for each in (seen.schema_name, seen.relation_name))
    answering.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}; CREATE VIEW {schema}.{name} AS {union}")
    path = schema.replace("'", "''")
    answering.execute(f"SET search_path = '{path}'")
    return sum(parts), cold, f"{schema}.{name}"


def _key_text(connection: Connection, key: Key, text: str) -> str:
    """Return a key as PostgreSQL writes it.

    :param text: as SQL writes it.
    :raises UsageError: when it is none.
    """
    cast = sql.SQL("SELECT {}::{}::text").format(sql.Literal(text), sql.SQL(key.type_name))
    try:
        with connection.transaction():
            row = connection.execute(cast).fetchone()
    except psycopg.DataError as error:
        raise UsageError(f"{text!r} is no key of column {key.column}: {server_words(error)}") from error
    assert row is not None
    return str(row[0])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _outside(connection: Connection, iceberg_table: IcebergTable | None, *, table: str) -> list[str]:
    """Return the tables that are not read through their parent, and whose rows no archive of the catalog has.

    :raises RefusedError: when rows are in archives alone that the catalog does not name, or in both.
    """
    known = registration_of(connection, iceberg_table, table=table)
    missing, returned = known.missing.values(), known.returned.values()
    gone = [each.partition_name for each in missing if each.state is not RetiredState.QUARANTINED]
    gone += [each.partition_name for each in returned]
    if gone:
        raise RefusedError(
            f"the catalog does not name the archives of {table} as they are ({', '.join(dict.fromkeys(gone))}): "
            f"`queuekeeper partitions register {quote(table)}` puts that right"
        )
    unregistered = {each.retired_id for each in missing}
    # Rows of a drained DEFAULT partition are in other partitions.
    retired = [each for each in retired_partitions(connection, table=table) if not each.drained_default]
    detaching = [each.partition_oid for each in retired if each.state is RetiredState.DETACHING]
    return [
        # A detach that was interrupted hides the rows from whoever reads the parent.
        *(each.name for each in read_table(connection, table, only_read=True).partitions if each.pending),
        *(
            sql.Identifier(each.schema_name, each.relation_name).as_string(connection)
            for each in relations(connection, detaching).values()
            if not each.is_partition
        ),
        *(
            retired_name(connection, each)
            for each in retired
            # One that was restored has the rows of its archive, which the catalog may name, and needs another.
            if each.state is RetiredState.QUARANTINED and (each.archive is None or each.retired_id in unregistered)
        ),
    ]


def _selection(connection: Connection, relation: str, where: Sequence[sql.Composable]) -> str:
    """Return the query for a table's rows, as archives have them."""
    found = connection.execute(statement("maintenance/archived_table"), {"table_name": relation}).fetchone()
    if found is None:
        raise RefusedError(f"{relation} is on record as retired, and is gone: bring it back, or restore its archive")
    oid, name, schema, bare_name, *_ = found
    columns = archived_columns(connection, oid=oid, schema=schema, name=bare_name)
    return (
        sql.SQL("SELECT {} FROM {}{}")
        .format(
            sql.SQL(", ").join(
                sql.SQL("{} AS {}").format(each.expression, sql.Identifier(each.name)) for each in columns
            ),
            sql.SQL(name),
            sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(where)) if where else sql.SQL(""),
        )
        .as_string(connection)
    )


def _copy(answering: duckdb.DuckDBPyConnection, name: str, rows: pa.RecordBatchReader) -> int:
    known: dict[str, str] = {}
    for column in rows.schema.names:
        if (other := known.setdefault(column.lower(), column)) != column:
            raise RefusedError(
                f"columns {other} and {column} have the same name in the SQL of DuckDB, which does not tell capitals "
                "from small letters: rename one, or read the archives with an engine that does"
            )
    answering.register("arriving", rows)
    answering.execute(f"CREATE TABLE {_COPIES}.{name} AS SELECT * FROM arriving")  # noqa: S608 - names of ours
    answering.unregister("arriving")
    ((count,),) = answering.execute(f"SELECT count(*) FROM {_COPIES}.{name}").fetchall()  # noqa: S608
    return int(count)

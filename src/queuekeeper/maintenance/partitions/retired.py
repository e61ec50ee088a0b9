"""The record of retired partitions, from detach to drop or return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.maintenance.partitions.catalog import any_row, read_table, relations, schema_rights, taken_names
from queuekeeper.maintenance.partitions.manifest import archive_place
from queuekeeper.maintenance.partitions.model import RetiredPartition, RetiredState
from queuekeeper.maintenance.partitions.names import cut_name
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.statements import check_constraint, create_like
from queuekeeper.maintenance.partitions.survey import names_free_in
from queuekeeper.postgres import Connection, rows_of, translated_errors
from queuekeeper.sql_statements import statement

FORMER = "former"
"""What a record of an archive has of the archives before it: their places and files."""

_QUERIES = "maintenance/partitions/"


def retired_partitions(
    connection: Connection, *, table: str | None = None, retired_id: int | None = None
) -> list[RetiredPartition]:
    """Return the records of retired partitions, oldest first, also of those that were dropped or attached again.

    :param table: only partitions of this table, named as in its policy.
    """
    rows = rows_of(connection, f"{_QUERIES}retired_partitions", {"table": table, "retired_id": retired_id})
    names = [each.name for each in fields(RetiredPartition)]
    records = [dict(zip(names, row, strict=True)) for row in rows]
    return [RetiredPartition(**each | {"state": RetiredState(each["state"])}) for each in records]


def without_archive(connection: Connection, policy: PartitionPolicy) -> list[RetiredPartition]:
    """Return the partitions in quarantine that need an archive by the policy of their table, and have none."""
    return [
        each
        for each in retired_partitions(connection, table=policy.table)
        if policy.archive
        and each.state is RetiredState.QUARANTINED
        and each.archived_at is None
        and not each.drained_default
    ]


def load_retired(connection: Connection, retired_id: int) -> RetiredPartition:
    """Return one record.

    :raises UsageError: when there is none.
    """
    found = retired_partitions(connection, retired_id=retired_id)
    if not found:
        raise UsageError(f"no retired partition {retired_id}: `queuekeeper partitions retired` lists them")
    return found[0]


def record_archive(connection: Connection, *, retired_id: int, archive: Mapping[str, Any]) -> None:
    """Record the verified archive of a retired partition, which may then be dropped when its days are up.

    The files of a former archive stay on record: the Iceberg catalog may name them.

    :param archive: manifest as JSON values, without payloads.
    :raises RefusedError: when the partition is not in quarantine.
    """
    before = load_retired(connection, retired_id).archive or {}
    former = list(before.get(FORMER, ()))
    if before and before["path"] != archive["path"]:
        former.append({"path": before["path"], "files": before["files"]})
    if former:
        archive = {**archive, FORMER: former}
    with translated_errors(connection):
        row = connection.execute(
            statement(f"{_QUERIES}record_archive"), {"retired_id": retired_id, "archive": Jsonb(dict(archive))}
        ).fetchone()
    if row is None:
        raise RefusedError(_wrong_state(load_retired(connection, retired_id), "an archive is noted"))


def bounds_text(record: RetiredPartition) -> str:
    """Return the bounds of a retired partition as PostgreSQL writes them."""
    if record.drained_default:
        return "DEFAULT"
    lower, upper = (
        word if bound is None else f"'{bound}'"
        for bound, word in ((record.lower, "MINVALUE"), (record.upper, "MAXVALUE"))
    )
    return f"FOR VALUES FROM ({lower}) TO ({upper})"


def archive_folder(record: RetiredPartition) -> Path:
    """Return the folder of a retired partition's archive.

    :raises RefusedError: when the partition has no archive.
    :raises UsageError: when no installed package opens the archive's object store.
    """
    if not record.archive:
        raise RefusedError(
            f"retired partition {record.retired_id} ({record.partition_name} of {record.table}) has no archive"
        )
    return archive_place(record.archive["path"], name="the record of its archive")


def recreate_retired(connection: Connection, *, retired_id: int) -> RetiredPartition:
    """Create a dropped partition again, empty and in the quarantine schema, for a load of its archive.

    The table accepts only keys of its range. :func:`finish_restore` follows the load, then a plan of reattachment.

    :raises RefusedError: when the partition was not dropped.
    """
    record = load_retired(connection, retired_id)
    if record.state is not RetiredState.DROPPED:
        raise RefusedError(_wrong_state(record, "it is recreated"))
    table = read_table(connection, record.table)
    name = _free_name(connection, record)
    target = sql.Identifier(record.quarantine_schema, name)
    with translated_errors(connection), connection.transaction():
        if not schema_rights(connection, record.quarantine_schema)[0]:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(record.quarantine_schema)))
        connection.execute(create_like(table, target))
        # Quoted by PostgreSQL.
        connection.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(target, sql.SQL(table.owner)))
        connection.execute(check_constraint(table, target, record.lower, record.upper, name=name))
        connection.execute(
            statement(f"{_QUERIES}set_restoring"),
            {
                "retired_id": retired_id,
                "table_oid": table.oid,
                "partition_name": name,
                "relation": target.as_string(connection),
            },
        )
    return load_retired(connection, retired_id)


def _free_name(connection: Connection, record: RetiredPartition) -> str:
    """Return the name of a retired partition, or one like it where another table has taken that meanwhile."""
    schemas = {"schema_name": record.schema_name, "quarantine_schema": record.quarantine_schema}
    if not taken_names(connection, names=[record.partition_name], **schemas):
        return record.partition_name
    return names_free_in(connection, [cut_name(record.partition_name, room=3)], **schemas)[0]


def abandon_restore(connection: Connection, record: RetiredPartition, *, now_ms: int) -> None:
    """Remove a recreated partition that could not be loaded, unless it holds rows; its archive is as it was."""
    target = sql.Identifier(record.quarantine_schema, record.partition_name)
    with translated_errors(connection), connection.transaction():
        if record.partition_oid in relations(connection, [record.partition_oid]):
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(target))
            if any_row(connection, target):
                return
            connection.execute(sql.SQL("DROP TABLE {}").format(target))
        connection.execute(
            statement(f"{_QUERIES}end_retired"),
            {
                "table": record.table,
                "partition_oid": record.partition_oid,
                "former": [RetiredState.RESTORING.value],
                "state": RetiredState.DROPPED.value,
                "now_ms": now_ms,
            },
        )


def finish_restore(connection: Connection, *, retired_id: int, quarantine_days: int, now_ms: int) -> RetiredPartition:
    """Record that a recreated partition holds its rows again; its days in quarantine begin anew.

    :raises RefusedError: when the partition is not being restored.
    """
    with translated_errors(connection):
        row = connection.execute(
            statement(f"{_QUERIES}finish_restore"),
            {"retired_id": retired_id, "quarantine_days": quarantine_days, "now_ms": now_ms},
        ).fetchone()
    found = load_retired(connection, retired_id)
    if row is None:
        raise RefusedError(_wrong_state(found, "a restore ends"))
    return found


def _wrong_state(record: RetiredPartition, what: str) -> str:
    wanted = {
        "an archive is noted": "quarantined or restoring",
        "it is recreated": "dropped",
        "a restore ends": "restoring",
    }[what]
    return (
        f"retired partition {record.retired_id} ({record.partition_name} of {record.table}) is {record.state.value}, "
        f"not {wanted}, which it has to be when {what}"
    )

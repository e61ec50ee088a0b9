"""The statements of an adoption, with the locks they take. A plan shows them; the work sends them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import LiteralString

from psycopg import sql

from queuekeeper.maintenance.partitions.adoption.model import AdoptionParameters
from queuekeeper.maintenance.partitions.adoption.table import Sequence, Table, definitions, room_of
from queuekeeper.maintenance.partitions.keys import Key
from queuekeeper.maintenance.partitions.statements import Writer, set_schema
from queuekeeper.postgres import Connection

RowKey = tuple[str, ...] | None
"""A primary key as texts; none for no bound."""

Said = tuple[str, str]
"""A statement, and the lock that it takes on a table in use; an empty text where nobody waits."""

READS = "ACCESS SHARE on the table; nobody waits"
SHORT = "ACCESS EXCLUSIVE on the table; readers and writers wait, bounded by exchange_ms"
_TRIGGER = "SHARE ROW EXCLUSIVE on the table; writers wait, bounded by exchange_ms"

_ROW: LiteralString = "queuekeeper_row"
"""Alias of a row; a column of a user's table would hide a shorter one."""


@dataclass(frozen=True, kw_only=True)
class Statements:
    """Writes the statements for one table.

    :param table: the table, as it was when the adoption began or as it is now.
    :param old_oid: OID of the plain table.
    """

    table: Table
    key: Key
    old_oid: int

    # --- names ---------------------------------------------------------------------------------------------------

    @property
    def room(self) -> str:
        """Schema of what notes changes."""
        return room_of(self.old_oid)

    @property
    def new_room(self) -> str:
        """Schema in which the new table stands aside."""
        return f"{self.room}_new"

    @property
    def old_room(self) -> str:
        """Schema in which the old table stands aside."""
        return f"{self.room}_old"

    @property
    def rooms(self) -> tuple[str, str, str]:
        """All these schemas, in the order in which they are dropped."""
        return self.new_room, self.old_room, self.room

    @property
    def serving(self) -> sql.Identifier:
        """The table that programs use."""
        return sql.Identifier(self.table.schema_name, self.table.relation_name)

    @property
    def copy(self) -> sql.Identifier:
        """The partitioned table while the old one serves."""
        return sql.Identifier(self.new_room, self.table.relation_name)

    @property
    def old(self) -> sql.Identifier:
        """The plain table while the new one serves."""
        return sql.Identifier(self.old_room, self.table.relation_name)

    @property
    def changes(self) -> sql.Identifier:
        """Table of the keys of rows that have changed."""
        return sql.Identifier(self.room, "changes")

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Columns that identify a row in both tables: the primary key of the new one."""
        own = self.table.keys
        return own if self.key.column in own else (*own, self.key.column)

    def definitions_of(self, connection: Connection, oid: int, asked: AdoptionParameters) -> list[tuple[str, str]]:
        """Return what defines one of the two tables besides its storage."""
        return definitions(connection, oid, asked, place=self.table.schema_name, room=self.new_room)

    # --- preparation ---------------------------------------------------------------------------------------------

    def preparation(
        self, definitions: Iterable[tuple[str, str]], partitions: Iterable[Said], *, asked: str
    ) -> list[Said]:
        """Return the statements that make the copy and note changes from then on; one transaction.

        :param asked: parameters of the run as JSON, for whoever goes on.
        """
        owner = self.table.owner
        is_other = self.table.role != owner
        behind = sql.SQL(" AUTHORIZATION " + owner if is_other else "")  # quoted by PostgreSQL
        made = [self._say("DROP SCHEMA IF EXISTS {} CASCADE", sql.Identifier(each)) for each in self.rooms]
        made += [self._say("CREATE SCHEMA {}{}", sql.Identifier(each), behind) for each in self.rooms]
        made.append(
            self._say(
                "CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES) PARTITION BY RANGE ({})",
                self.copy, self.serving, sql.Identifier(self.key.column), lock=READS,
            )
        )  # fmt: skip
        if is_other:
            made.append(self._own("TABLE", self.copy))
        made += [(words, "") for moment, words in definitions if moment == "copy"]
        made += partitions
        body = sql.SQL(
            "BEGIN IF TG_OP = 'TRUNCATE' THEN RAISE EXCEPTION USING ERRCODE = 'object_in_use', "
            "MESSAGE = TG_RELID::regclass || ' is being adopted: it cannot be truncated now', "
            "HINT = 'Delete the rows, or end the adoption: queuekeeper partitions adopt TABLE --act commit, or --act "
            "back'; END IF; "
            "IF TG_OP <> 'INSERT' THEN INSERT INTO {changes} ({keys}) VALUES ({old}); END IF; "
            "IF TG_OP <> 'DELETE' THEN INSERT INTO {changes} ({keys}) VALUES ({new}); END IF; "
            "RETURN NULL; END"
        ).format(changes=self.changes, keys=_list(self.keys), old=_list(self.keys, "OLD"), new=_list(self.keys, "NEW"))
        note = sql.Identifier(self.room, "note")
        made += [
            self._say(
                "CREATE TABLE {} AS SELECT {} FROM {} WITH NO DATA", self.changes, _list(self.keys), self.serving
            ),
            self._say(
                "ALTER TABLE {} ADD COLUMN queuekeeper_change bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
                self.changes,
            ),
            self._say("CREATE TABLE {} AS SELECT {}::jsonb AS parameters", self._asked, sql.Literal(asked)),
            self._say(
                "CREATE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
                "SET search_path TO pg_catalog, pg_temp AS {}", note, sql.Literal(body.as_string(None)),
            ),
        ]  # fmt: skip
        if is_other:
            made += [self._own("TABLE", self.changes), self._own("TABLE", self._asked)]
            made.append(self._say("ALTER FUNCTION {}() OWNER TO {}", note, sql.SQL(owner)))
        return [*made, *self.noting()]

    @property
    def _asked(self) -> sql.Identifier:
        return sql.Identifier(self.room, "asked")

    def parameters(self) -> sql.Composed:
        """Return the query of the parameters of the run that made the copy."""
        return sql.SQL("SELECT parameters FROM {}").format(self._asked)

    def noting(self) -> list[Said]:
        """Return the statements that have the changes of the table that serves noted, also those of replication."""
        note = sql.Identifier(self.room, "note")
        return [
            self._say(
                "CREATE TRIGGER queuekeeper_adoption AFTER INSERT OR UPDATE OR DELETE ON {} "
                "FOR EACH ROW EXECUTE FUNCTION {}()", self.serving, note, lock=_TRIGGER,
            ),
            self._say(
                "CREATE TRIGGER queuekeeper_adoption_truncate BEFORE TRUNCATE ON {} "
                "FOR EACH STATEMENT EXECUTE FUNCTION {}()", self.serving, note,
            ),
            *(
                self._say("ALTER TABLE {} ENABLE ALWAYS TRIGGER {}", self.serving, sql.Identifier(name))
                for name in ("queuekeeper_adoption", "queuekeeper_adoption_truncate")
            ),
        ]  # fmt: skip

    def silence(self) -> list[Said]:
        """Return the statements that end the noting of changes."""
        names = ("queuekeeper_adoption", "queuekeeper_adoption_truncate")
        return [self._say("DROP TRIGGER {} ON {}", sql.Identifier(name), self.serving, lock=SHORT) for name in names]

    def creation(self, writer: Writer, ranges: Iterable[tuple[str, str, str]]) -> list[Said]:
        """Return the statements that create partitions of the copy, in the schema of the table that serves.

        :param ranges: name, lower and upper bound of each.
        """
        return [
            (each.sql, "")
            for name, lower, upper in ranges
            for each in writer.creation(self.table.schema_name, name, lower, upper)
        ]

    # --- rows ----------------------------------------------------------------------------------------------------

    def batch(self, after: RowKey, batch_rows: int) -> sql.Composed:
        """Return the query of the last key of a batch, as texts, and of its number of rows.

        :param after: key behind which the batch begins; none for the first one.
        """
        keys = self.table.keys
        return sql.SQL(
            "SELECT {texts}, queuekeeper_number FROM (SELECT {keys}, row_number() OVER (ORDER BY {keys}) "
            "AS queuekeeper_number FROM {table} WHERE {after} ORDER BY {keys} LIMIT {batch_rows}) AS batch "
            "ORDER BY queuekeeper_number DESC LIMIT 1"
        ).format(
            texts=sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(each)) for each in keys),
            keys=_list(keys),
            table=self.serving,
            after=self._within(after, None),
            batch_rows=batch_rows,
        )

    def within(self, after: RowKey, until: RowKey) -> sql.Composed:
        """Return the WHERE clause of the rows of a batch."""
        return sql.SQL(" WHERE ") + self._within(after, until)

    def copying(self, after: RowKey, until: RowKey) -> sql.Composed:
        """Return the statement that copies the rows of a batch.

        A row that is there already was changed since, or copied before a crash: its key is noted, to be repeated.
        """
        return sql.SQL(
            "WITH copied AS (INSERT INTO {copy} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {table} "
            "WHERE {within} ON CONFLICT DO NOTHING RETURNING {keys}), "
            "passed AS (INSERT INTO {changes} ({keys}) SELECT {keys} FROM {table} AS theirs WHERE {within} "
            "AND NOT EXISTS (SELECT FROM copied WHERE {same})) "
            "SELECT count(*) FROM copied"
        ).format(
            copy=self.copy,
            columns=_list(self.table.columns),
            table=self.serving,
            within=self._within(after, until),
            keys=_list(self.keys),
            changes=self.changes,
            same=_same(self.keys, "copied", "theirs"),
        )

    def comparison(self, aside: sql.Identifier, after: RowKey, until: RowKey) -> sql.Composed:
        """Return the query of a batch's number of rows, and of those that differ though no change was noted.

        :param aside: the table that does not serve.
        """
        one, other = (
            sql.SQL("(SELECT {}, md5({}::text) AS queuekeeper_hash FROM {} AS {} WHERE {})").format(
                _list(self.keys), sql.SQL(_ROW), each, sql.SQL(_ROW), self._within(after, until)
            )
            for each in (self.serving, aside)
        )
        noted = (sql.SQL("noted.{0} = coalesce(one.{0}, other.{0})").format(sql.Identifier(each)) for each in self.keys)
        return sql.SQL(
            "SELECT count(*), count(*) FILTER (WHERE one.queuekeeper_hash IS DISTINCT FROM other.queuekeeper_hash "
            "AND NOT EXISTS (SELECT FROM {changes} AS noted WHERE {noted})) "
            "FROM {one} AS one FULL JOIN {other} AS other USING ({keys})"
        ).format(changes=self.changes, noted=sql.SQL(" AND ").join(noted), one=one, other=other, keys=_list(self.keys))

    def _within(self, after: RowKey, until: RowKey) -> sql.Composed:
        """Return the condition that the primary key of the old table lies behind a key, and up to another one."""
        bounds = [
            sql.SQL("({}) {} ({})").format(
                _list(self.table.keys),
                sql.SQL(sign),
                sql.SQL(", ").join(
                    # The type's name is PostgreSQL's own.
                    sql.SQL("{}::" + type_name).format(sql.Literal(value))
                    for value, type_name in zip(bound, self.table.key_types, strict=True)
                ),
            )
            for sign, bound in ((">", after), ("<=", until))
            if bound is not None
        ]
        return sql.SQL(" AND ").join(bounds or [sql.SQL("TRUE").format()])

    # --- changes -------------------------------------------------------------------------------------------------

    def last_change(self, batch_rows: int | None) -> sql.Composed:
        """Return the query of the last of some noted changes.

        :param batch_rows: how many changes are taken, in the order in which they were noted; none for all.
        """
        return sql.SQL(
            "SELECT max(queuekeeper_change) FROM (SELECT * FROM {} ORDER BY queuekeeper_change{}) AS batch"
        ).format(self.changes, sql.SQL("" if batch_rows is None else f" LIMIT {batch_rows}"))

    def repetition(self, source: sql.Identifier, target: sql.Identifier, last: int) -> list[sql.Composed]:
        """Return the statements that repeat noted changes on a table.

        The last one returns how many it has repeated, and how many rows still differ, since another row is in their
        place. All have to see the same snapshot, so that both sides can be compared.

        :param last: number of the last change.
        """
        keys, columns = _list(self.keys), _list(self.table.columns)
        noted = sql.SQL("(SELECT DISTINCT {} FROM {} WHERE queuekeeper_change <= {}) AS noted").format(
            keys, self.changes, last
        )
        theirs = sql.SQL(", ").join(sql.SQL("theirs.{}").format(sql.Identifier(each)) for each in self.table.columns)
        here = _same(self.keys, "theirs", "noted")
        return [
            sql.SQL("DELETE FROM {} AS theirs USING {} WHERE {}").format(target, noted, here),
            sql.SQL(
                "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} AS theirs INNER JOIN {} ON {} "
                "ON CONFLICT DO NOTHING"
            ).format(target, columns, theirs, source, noted, here),
            sql.SQL(
                "WITH differing AS MATERIALIZED (SELECT {keys} FROM {noted} "
                "WHERE (SELECT md5({row}::text) FROM {source} AS {row} WHERE {here}) IS DISTINCT FROM "
                "(SELECT md5({row}::text) FROM {target} AS {row} WHERE {here})), "
                "repeated AS (DELETE FROM {changes} AS entry WHERE queuekeeper_change <= {last} "
                "AND NOT EXISTS (SELECT FROM differing WHERE {same}) RETURNING 1) "
                "SELECT (SELECT count(*) FROM repeated), (SELECT count(*) FROM differing)"
            ).format(
                keys=keys,
                noted=noted,
                row=sql.SQL(_ROW),
                source=source,
                target=target,
                here=_same(self.keys, _ROW, "noted"),
                changes=self.changes,
                last=last,
                same=_same(self.keys, "differing", "entry"),
            ),
        ]

    # --- exchange ------------------------------------------------------------------------------------------------

    def lock(self, *aside: sql.Identifier) -> Said:
        """Return the statement that keeps others out of the table that serves.

        :param aside: tables that do not serve.
        """
        tables = sql.SQL(", ONLY ").join([self.serving, *aside])
        return self._say("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE", tables, lock=SHORT)

    def exchange(self, definitions: Iterable[tuple[str, str]], sequences: Iterable[Sequence]) -> list[Said]:
        """Return the statements by which the new table takes the place of the old one; they change the catalog only.

        :param definitions: of the old table.
        :param sequences: of the old table.
        """
        definitions, sequences = list(definitions), list(sequences)
        return [
            *self.silence(),
            *((words, "") for moment, words in definitions if moment == "leave"),
            *self._disown(sequences),
            (set_schema(self.serving, self.old_room).as_string(None), SHORT),
            (set_schema(self.copy, self.table.schema_name).as_string(None), ""),
            *self._own_again(sequences, aside=self.old),
            *((words, "") for moment, words in definitions if moment == "arrive"),
            *self.noting(),
        ]

    def exchange_back(self, definitions: Iterable[tuple[str, str]], sequences: Iterable[Sequence]) -> list[Said]:
        """Return the statements by which the old table takes its place again.

        :param definitions: of the new table.
        :param sequences: of the new table.
        """
        sequences = list(sequences)
        return [
            *self.silence(),
            *self._disown(sequences),
            (set_schema(self.serving, self.new_room).as_string(None), SHORT),
            (set_schema(self.old, self.table.schema_name).as_string(None), ""),
            *self._own_again(sequences, aside=self.copy),
            *((words, "") for moment, words in definitions if moment == "wake"),
        ]

    def _disown(self, sequences: Iterable[Sequence]) -> list[Said]:
        return [(f"ALTER SEQUENCE {each.name} OWNED BY NONE", "") for each in sequences if not each.is_identity]

    def _own_again(self, sequences: Iterable[Sequence], *, aside: sql.Identifier) -> list[Said]:
        """Return the statements that give sequences to the table that serves now; an identity goes on where it was."""
        made = []
        for each in sequences:
            column = sql.Identifier(each.column)
            if not each.is_identity:
                made.append(self._say("ALTER SEQUENCE {} OWNED BY {}.{}", sql.SQL(each.name), self.serving, column))
                continue
            made.append(
                self._say(
                    "SELECT setval(pg_get_serial_sequence({}, {}), coalesce(pg_sequence_last_value("
                    "pg_get_serial_sequence({}, {})::regclass), seqstart), "
                    "pg_sequence_last_value(pg_get_serial_sequence({}, {})::regclass) IS NOT NULL) "
                    "FROM pg_sequence WHERE seqrelid = pg_get_serial_sequence({}, {})::regclass",
                    *(
                        sql.Literal(part)
                        for of in (self.serving, aside, aside, aside)
                        for part in (of.as_string(None), each.column)
                    ),
                )
            )
        return made

    def removal(self) -> list[Said]:
        """Return the statements that drop what stands aside, with all that noted changes."""
        return [self._say("DROP SCHEMA IF EXISTS {} CASCADE", sql.Identifier(each)) for each in self.rooms]

    # --- inside --------------------------------------------------------------------------------------------------

    def _own(self, kind: LiteralString, name: sql.Identifier) -> Said:
        return self._say("ALTER {} {} OWNER TO {}", sql.SQL(kind), name, sql.SQL(self.table.owner))

    def _say(self, text: LiteralString, *parts: sql.Composable, lock: str = "") -> Said:
        return sql.SQL(text).format(*parts).as_string(None), lock


def _list(names: Iterable[str], row: LiteralString = "") -> sql.Composed:
    before = sql.SQL(f"{row}." if row else "")
    return sql.SQL(", ").join(before + sql.Identifier(each) for each in names)


def _same(names: Iterable[str], one: LiteralString, other: LiteralString) -> sql.Composed:
    """Return the condition that two rows have the same key."""
    return sql.SQL(" AND ").join(sql.SQL(f"{one}.{{0}} = {other}.{{0}}").format(sql.Identifier(each)) for each in names)

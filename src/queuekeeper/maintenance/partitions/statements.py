"""The statements that change partitioned tables, and the locks each takes.

A plan shows the statements that these functions return, and an apply sends newly written ones, never those of the plan:
an altered plan does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from queuekeeper.maintenance.partitions.catalog import PartitionedTable
from queuekeeper.maintenance.partitions.model import Lock, PlannedStep, Statement, StepKind
from queuekeeper.maintenance.partitions.policy import PartitionPolicy

BEGIN = Statement(sql="BEGIN")
COMMIT = Statement(sql="COMMIT")

READERS_AND_WRITERS = "readers and writers"
WRITERS = "writers"
MAINTENANCE = "VACUUM, ANALYZE and other changes of the table, no readers or writers"
NOBODY = "nobody: no other session sees it"
DIRECT_USE = "those who name the partition itself"


def create_like(table: PartitionedTable, target: sql.Identifier, policy: PartitionPolicy | None = None) -> sql.Composed:
    """Return the statement that creates a table of a partition's shape.

    A partition gets identity columns from its parent when it is attached, and may have none before.
    """
    storage = policy.storage if policy else ()
    return sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING IDENTITY){}").format(
        target,
        table.identifier(),
        sql.SQL(" WITH ({})").format(
            # The policy has checked names and values.
            sql.SQL(", ").join(sql.SQL(each.replace("=", " = ")) for each in storage)
        )
        if storage
        else sql.SQL(""),
    )


def check_constraint(
    table: PartitionedTable,
    target: sql.Identifier,
    lower: str | None,
    upper: str | None,
    *,
    name: str,
    valid: bool = True,
) -> sql.Composed:
    """Return the statement that adds a range check to a table, so that ATTACH need not read the rows.

    :param valid: false to check existing rows by a later VALIDATE, which does not stop writers.
    """
    key = sql.Identifier(table.key.column)
    conditions: list[sql.Composable] = [sql.SQL("{} IS NOT NULL").format(key)]
    if lower is not None:
        conditions.append(sql.SQL("{} >= {}").format(key, sql.Literal(lower)))
    if upper is not None:
        conditions.append(sql.SQL("{} < {}").format(key, sql.Literal(upper)))
    return sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} CHECK ({}){}").format(
        target,
        sql.Identifier(constraint_name(name)),
        sql.SQL(" AND ").join(conditions),
        sql.SQL("" if valid else " NOT VALID"),
    )


def constraint_name(partition_name: str) -> str:
    """Return the name of a partition's range check."""
    return f"{partition_name[:45]}_range_check"


def drop_check(target: sql.Identifier, name: str) -> sql.Composed:
    """Return the statement that removes the range check, which the partition's bounds make redundant."""
    return sql.SQL("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}").format(target, sql.Identifier(constraint_name(name)))


def attach(table: PartitionedTable, target: sql.Identifier, lower: str | None, upper: str | None) -> sql.Composed:
    """Return the statement that makes a table a partition."""
    return _attach_to(table.identifier(), target, lower, upper)


def _attach_to(parent: sql.Identifier, target: sql.Identifier, lower: str | None, upper: str | None) -> sql.Composed:
    return sql.SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
        parent,
        target,
        sql.SQL("MINVALUE") if lower is None else sql.Literal(lower),
        sql.SQL("MAXVALUE") if upper is None else sql.Literal(upper),
    )


def _list(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in names)


def drain_schema(oid: int | None) -> str:
    """Return the schema in which a DEFAULT partition is copied; it holds everything that a killed drain leaves."""
    return f"queuekeeper_drain_{oid}"


def set_schema(target: sql.Identifier, schema: str) -> sql.Composed:
    """Return the statement that moves a table to another schema."""
    return sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(target, sql.Identifier(schema))


def name_in_quarantine(step: PlannedStep) -> str:
    """Return the name that a step's partition has in quarantine."""
    return dict(step.renames).get(step.relation_name, step.relation_name)


class Writer:
    """Writes the statements of steps for one table, with their locks.

    :param foreign_keys: tables connected by foreign keys, each with whether it refers to this table.
    :param role: role that sends the statements; new partitions belong to the table's owner.
    :param as_of_ms: instant of the plan.
    :param columns: writable columns of DEFAULT.
    :param key_columns: columns of its primary key.
    """

    def __init__(
        self,
        table: PartitionedTable,
        policy: PartitionPolicy,
        *,
        foreign_keys: Sequence[tuple[str, bool]],
        role: str,
        as_of_ms: int,
        columns: Sequence[str] = (),
        key_columns: Sequence[str] = (),
    ) -> None:
        self._table = table
        self._policy = policy
        self._foreign_keys = foreign_keys
        self._role = role
        self._as_of_ms = as_of_ms
        self._columns = columns
        self._key_columns = key_columns

    def of(self, step: PlannedStep) -> tuple[Statement, ...]:
        """Return the statements of a step."""
        target = sql.Identifier(step.schema_name, step.relation_name)
        match step.kind:
            case StepKind.CREATE:
                made = self.creation(step.schema_name, step.relation_name, step.lower, step.upper)
                return (BEGIN, *made, COMMIT)
            case StepKind.FINALIZE:
                again = self._say(attach(self._table, target, step.lower, step.upper), *self._attach_locks(target))
                return (BEGIN, self.finalize(target), again, COMMIT)
            case StepKind.DETACH if self._table.default:
                return (self.room(), BEGIN, self.plain_detach(target), *self.quarantine(step), COMMIT)
            case StepKind.DETACH:
                pending = any(each.pending for each in self._table.partitions if each.oid == step.oid)
                first = self.finalize(target) if pending else self.detach(target)
                return (self.room(), first, BEGIN, *self.quarantine(step), COMMIT)
            case StepKind.QUARANTINE:
                return (self.room(), BEGIN, *self.quarantine(step), COMMIT)
            case StepKind.REATTACH:
                return self._reattachment(step)
            case StepKind.DROP:
                return (BEGIN, self._take(target), self._drop(target), COMMIT)
            case StepKind.DRAIN:
                return self.drain(step)
            case StepKind.CLEAR:
                return self.drain_removal(step)
            case StepKind.ADVANCE:
                return self.advance(step)

    # --- parts ---------------------------------------------------------------------------------------------------

    def creation(
        self, schema_name: str, relation_name: str, lower: str | None, upper: str | None
    ) -> tuple[Statement, ...]:
        """Return the statements that create and attach a partition, for a transaction."""
        target = sql.Identifier(schema_name, relation_name)
        return (
            *self.shape(target),
            self._say(check_constraint(self._table, target, lower, upper, name=relation_name), self._new(target)),
            self._say(attach(self._table, target, lower, upper), *self._attach_locks(target)),
            self._say(drop_check(target, relation_name), self._new(target)),
        )

    def shape(self, target: sql.Identifier) -> tuple[Statement, ...]:
        """Return the statements that create an empty table of a partition's shape and owner."""
        made = [
            self._say(
                create_like(self._table, target, self._policy), self._lock("ACCESS SHARE", self._table.name, "nobody")
            )
        ]
        if self._role != self._table.owner:
            owner = sql.SQL("ALTER TABLE {} OWNER TO {}").format(
                target,
                sql.SQL(self._table.owner),  # quoted by PostgreSQL
            )
            made.append(self._say(owner, self._new(target)))
        return tuple(made)

    def detach(self, target: sql.Identifier) -> Statement:
        """Return the concurrent detach, which nobody waits for and which runs outside of transactions."""
        return self._say(
            sql.SQL("ALTER TABLE {} DETACH PARTITION {} CONCURRENTLY").format(self._table.identifier(), target),
            self._lock("SHARE UPDATE EXCLUSIVE", self._table.name, MAINTENANCE),
            self._lock("ACCESS EXCLUSIVE", _name(target), DIRECT_USE),
        )

    def finalize(self, target: sql.Identifier) -> Statement:
        """Return the statement that ends an interrupted detach."""
        return self._say(
            sql.SQL("ALTER TABLE {} DETACH PARTITION {} FINALIZE").format(self._table.identifier(), target),
            self._lock("SHARE UPDATE EXCLUSIVE", self._table.name, MAINTENANCE),
            self._lock("ACCESS EXCLUSIVE", _name(target), DIRECT_USE),
        )

    def attachment(self, step: PlannedStep) -> Statement:
        """Return the statement that attaches a just detached table again, which is still in its schema."""
        target = sql.Identifier(step.schema_name, step.relation_name)
        return self._say(attach(self._table, target, step.lower, step.upper), *self._attach_locks(target))

    def room(self) -> Statement:
        """Return the statement that creates the quarantine schema; it is sent only where the schema is missing."""
        schema = sql.Identifier(self._policy.quarantine_schema)
        return self._say(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))

    def quarantine(self, step: PlannedStep) -> tuple[Statement, ...]:
        """Return the statements that move a detached partition to the quarantine schema, under free names."""
        schema = self._policy.quarantine_schema
        if step.schema_name == schema:
            return ()
        made = []
        for name, free in step.renames:
            target = sql.Identifier(step.schema_name, name)
            kind = sql.SQL("TABLE" if name == step.relation_name else "INDEX")
            rename = sql.SQL("ALTER {} {} RENAME TO {}").format(kind, target, sql.Identifier(free))
            made.append(self._say(rename, self._lock("ACCESS EXCLUSIVE", _name(target), DIRECT_USE)))
        target = sql.Identifier(step.schema_name, name_in_quarantine(step))
        made.append(self._say(set_schema(target, schema), self._lock("ACCESS EXCLUSIVE", _name(target), DIRECT_USE)))
        return tuple(made)

    def plain_detach(self, target: sql.Identifier) -> Statement:
        """Return the plain detach, which readers and writers wait for and which may be part of a transaction."""
        return self._say(
            sql.SQL("ALTER TABLE {} DETACH PARTITION {}").format(self._table.identifier(), target),
            self._lock("ACCESS EXCLUSIVE", self._table.name, READERS_AND_WRITERS),
            self._lock("ACCESS EXCLUSIVE", _name(target), READERS_AND_WRITERS),
            *self._default_lock(),
        )

    def _reattachment(self, step: PlannedStep) -> tuple[Statement, ...]:
        away = sql.Identifier(step.quarantine_schema or self._policy.quarantine_schema, step.relation_name)
        target = sql.Identifier(step.schema_name, step.relation_name)
        name = step.relation_name
        exclusive = self._lock("ACCESS EXCLUSIVE", _name(away), DIRECT_USE)
        return (
            self._say(drop_check(away, name), exclusive),
            self._say(check_constraint(self._table, away, step.lower, step.upper, name=name, valid=False), exclusive),
            self._say(
                sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}").format(away, sql.Identifier(constraint_name(name))),
                self._lock("SHARE UPDATE EXCLUSIVE", _name(away), MAINTENANCE),
            ),
            BEGIN,
            self._take(away),
            self._say(set_schema(away, step.schema_name), exclusive),
            self._say(attach(self._table, target, step.lower, step.upper), *self._attach_locks(target)),
            self._say(drop_check(target, name), self._lock("ACCESS EXCLUSIVE", _name(target), READERS_AND_WRITERS)),
            COMMIT,
        )

    def _take(self, target: sql.Identifier) -> Statement:
        """Return the lock that keeps a table unchanged while it is checked again."""
        return self._say(
            sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(target),
            self._lock("ACCESS EXCLUSIVE", _name(target), DIRECT_USE),
        )

    def _drop(self, target: sql.Identifier) -> Statement:
        return self._say(
            sql.SQL("DROP TABLE {}").format(target),
            self._lock("ACCESS EXCLUSIVE", _name(target), DIRECT_USE),
            *(
                self._lock("ACCESS EXCLUSIVE", other, READERS_AND_WRITERS)
                for other, refers_here in self._foreign_keys
                if not refers_here
            ),
        )

    # --- DEFAULT and MAXVALUE --------------------------------------------------------------------------------------

    def drain(self, step: PlannedStep) -> tuple[Statement, ...]:
        """Return the statements that exchange a DEFAULT partition for partitions with its rows."""
        return (
            self.room(),
            *self.drain_preparation(step),
            self.drain_copy(step, "$1", "$2"),
            BEGIN,
            *self.drain_round(step),
            COMMIT,
            BEGIN,
            self.drain_lock(step),
            *self.drain_round(step),
            self.drain_comparison(step),
            *self.drain_exchange(step),
            COMMIT,
        )

    def drain_preparation(self, step: PlannedStep) -> tuple[Statement, ...]:
        """Return the statements that create the tables of the copy, and the trigger that notes changes of DEFAULT."""
        schema = drain_schema(step.oid)
        old = sql.Identifier(step.schema_name, step.relation_name)
        whole, changes, note = (sql.Identifier(schema, name) for name in ("whole", "changes", "note"))
        made = [
            *self.drain_removal(step),
            self._say(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema))),
            self._say(
                sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING GENERATED) PARTITION BY RANGE ({})").format(
                    whole, self._table.identifier(), sql.Identifier(self._table.key.column)
                )
            ),
        ]
        for piece in step.pieces:
            target = sql.Identifier(schema, piece.relation_name)
            made += self.shape(target)
            if piece.lower is None:
                made.append(self._say(sql.SQL("ALTER TABLE {} ATTACH PARTITION {} DEFAULT").format(whole, target)))
                continue
            made.append(
                self._say(check_constraint(self._table, target, piece.lower, piece.upper, name=piece.relation_name))
            )
            made.append(self._say(_attach_to(whole, target, piece.lower, piece.upper)))
        columns = _list(self._key_columns)
        old_values, new_values = (
            sql.SQL(", ").join(sql.SQL(f"{row}.") + sql.Identifier(name) for name in self._key_columns)
            for row in ("OLD", "NEW")
        )
        made += [
            self._say(
                sql.SQL("CREATE TABLE {} AS SELECT {} FROM {} WITH NO DATA").format(changes, columns, old),
            ),
            self._say(
                sql.SQL(
                    "CREATE FUNCTION {note}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
                    "SET search_path TO pg_catalog, pg_temp AS $body$ BEGIN "
                    "IF TG_OP = 'TRUNCATE' THEN RAISE EXCEPTION USING ERRCODE = 'object_in_use', "
                    "MESSAGE = 'rows of ' || TG_RELID::regclass || ' are being moved to partitions of their own: "
                    "they cannot be truncated now', HINT = 'Let the drain finish, or delete the rows. "
                    "What a drain has left that was killed is removed by: queuekeeper partitions create'; END IF; "
                    "IF TG_OP <> 'INSERT' THEN INSERT INTO {changes} VALUES ({old}); END IF; "
                    "IF TG_OP <> 'DELETE' THEN INSERT INTO {changes} VALUES ({new}); END IF; "
                    "RETURN NULL; END $body$"
                ).format(note=note, changes=changes, old=old_values, new=new_values)
            ),
            BEGIN,
            self._say(
                sql.SQL(
                    "CREATE TRIGGER queuekeeper_drain AFTER INSERT OR UPDATE OR DELETE ON {} "
                    "FOR EACH ROW EXECUTE FUNCTION {}()"
                ).format(old, note),
                self._lock("SHARE ROW EXCLUSIVE", _name(old), WRITERS),
            ),
            # TRUNCATE fires no row trigger, so its rows would come back with the copy.
            self._say(
                sql.SQL(
                    "CREATE TRIGGER queuekeeper_drain_truncate BEFORE TRUNCATE ON {} "
                    "FOR EACH STATEMENT EXECUTE FUNCTION {}()"
                ).format(old, note)
            ),
            # ALWAYS also notes changes by replication.
            self._say(sql.SQL("ALTER TABLE {} ENABLE ALWAYS TRIGGER queuekeeper_drain").format(old)),
            self._say(sql.SQL("ALTER TABLE {} ENABLE ALWAYS TRIGGER queuekeeper_drain_truncate").format(old)),
            COMMIT,
        ]
        return tuple(made)

    def drain_removal(self, step: PlannedStep) -> tuple[Statement, ...]:
        """Return the statements that remove tables and trigger of a drain, also of an interrupted one."""
        old = sql.Identifier(step.schema_name, step.relation_name)
        return (
            self._say(
                sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(drain_schema(step.oid))),
                self._lock("ACCESS EXCLUSIVE", _name(old), READERS_AND_WRITERS),
            ),
        )

    def drain_copy(self, step: PlannedStep, first_block: str, end_block: str) -> Statement:
        """Return the statement that copies the rows of some blocks, a transaction per batch."""
        columns = _list(self._columns)
        return self._say(
            # A row that an UPDATE has moved to a later block may be copied already; the trigger has noted it.
            sql.SQL(
                "INSERT INTO {} ({}) SELECT {} FROM {} WHERE ctid >= '({},0)' AND ctid < '({},0)' "
                "ON CONFLICT DO NOTHING"
            ).format(
                sql.Identifier(drain_schema(step.oid), "whole"),
                columns,
                columns,
                sql.Identifier(step.schema_name, step.relation_name),
                sql.SQL(first_block),
                sql.SQL(end_block),
            ),
            self._lock("ACCESS SHARE", _name(sql.Identifier(step.schema_name, step.relation_name)), "nobody"),
        )

    def drain_round(self, step: PlannedStep) -> tuple[Statement, ...]:
        """Return the statements that repeat the noted changes on the copy."""
        schema = drain_schema(step.oid)
        whole, changes, taken = (sql.Identifier(schema, name) for name in ("whole", "changes", "taken"))
        keys, columns = _list(self._key_columns), _list(self._columns)
        same = sql.SQL("({}) IN (SELECT {} FROM {})").format(keys, keys, taken)
        return (
            self._say(
                sql.SQL("CREATE TABLE {} AS SELECT {}, ctid AS queuekeeper_change FROM {}").format(taken, keys, changes)
            ),
            self._say(
                sql.SQL("DELETE FROM {} WHERE ctid IN (SELECT queuekeeper_change FROM {})").format(changes, taken)
            ),
            self._say(sql.SQL("DELETE FROM {} WHERE {}").format(whole, same)),
            self._say(
                # A row in conflict was changed since, and the next round repeats that change.
                sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE {} ON CONFLICT DO NOTHING").format(
                    whole, columns, columns, sql.Identifier(step.schema_name, step.relation_name), same
                )
            ),
            self._say(sql.SQL("DROP TABLE {}").format(taken)),
        )

    def drain_lock(self, step: PlannedStep) -> Statement:
        """Return the statement that keeps other sessions out during the exchange."""
        old = sql.Identifier(step.schema_name, step.relation_name)
        return self._say(
            sql.SQL("LOCK TABLE ONLY {}, {} IN ACCESS EXCLUSIVE MODE").format(self._table.identifier(), old),
            self._lock("ACCESS EXCLUSIVE", self._table.name, READERS_AND_WRITERS),
            self._lock("ACCESS EXCLUSIVE", _name(old), READERS_AND_WRITERS),
        )

    def drain_comparison(self, step: PlannedStep) -> Statement:
        """Return the statement that counts how many more rows the copy has than the old DEFAULT; 0 is right."""
        return self._say(
            sql.SQL("SELECT (SELECT count(*) FROM {}) - (SELECT count(*) FROM {}) AS surplus").format(
                sql.Identifier(drain_schema(step.oid), "whole"), sql.Identifier(step.schema_name, step.relation_name)
            )
        )

    def drain_exchange(self, step: PlannedStep) -> tuple[Statement, ...]:
        """Return the statements that put the copies in place of the old DEFAULT; they only change the catalog."""
        schema = drain_schema(step.oid)
        whole = sql.Identifier(schema, "whole")
        old = sql.Identifier(step.schema_name, step.relation_name)
        made = [self._say(sql.SQL("ALTER TABLE {} DETACH PARTITION {}").format(self._table.identifier(), old))]
        for piece in step.pieces:
            target = sql.Identifier(step.schema_name, piece.relation_name)
            prepared = sql.Identifier(schema, piece.relation_name)
            made.append(self._say(sql.SQL("ALTER TABLE {} DETACH PARTITION {}").format(whole, prepared)))
            made.append(self._say(set_schema(prepared, step.schema_name)))
            if piece.lower is None:
                made.append(
                    self._say(
                        sql.SQL("ALTER TABLE {} ATTACH PARTITION {} DEFAULT").format(self._table.identifier(), target)
                    )
                )
                continue
            made.append(self._say(attach(self._table, target, piece.lower, piece.upper)))
            made.append(self._say(drop_check(target, piece.relation_name)))
        return (*made, *self.drain_removal(step), *self.quarantine(step))

    def advance(self, step: PlannedStep) -> tuple[Statement, ...]:
        """Return the call of the broker's own function, which moves the overflow."""
        return (
            self._say(
                sql.SQL("SELECT pgmb.extend_partitions({}::regclass, to_timestamp({}))").format(
                    sql.Literal(self._table.name),
                    sql.SQL(str(self._as_of_ms / 1_000)),
                ),
                self._lock("ACCESS EXCLUSIVE", self._table.name, READERS_AND_WRITERS),
                self._lock("ACCESS EXCLUSIVE", _name(sql.Identifier(step.schema_name, step.relation_name)), WRITERS),
            ),
        )

    # --- locks -------------------------------------------------------------------------------------------------

    def _say(self, text: sql.Composed, *locks: Lock) -> Statement:
        return Statement(sql=text.as_string(None), locks=locks)

    def _lock(self, mode: str, relation: str, blocks: str) -> Lock:
        return Lock(mode=mode, relation=relation, blocks=blocks)

    def _new(self, target: sql.Identifier) -> Lock:
        return self._lock("ACCESS EXCLUSIVE", _name(target), NOBODY)

    def _attach_locks(self, target: sql.Identifier) -> tuple[Lock, ...]:
        return (
            self._lock("SHARE UPDATE EXCLUSIVE", self._table.name, MAINTENANCE),
            self._new(target),
            *self._default_lock(),
            *(self._lock("SHARE ROW EXCLUSIVE", other, WRITERS) for other, _ in self._foreign_keys),
        )

    def _default_lock(self) -> tuple[Lock, ...]:
        default = self._table.default
        return (self._lock("ACCESS EXCLUSIVE", default.name, READERS_AND_WRITERS),) if default else ()


def _name(target: sql.Identifier) -> str:
    return target.as_string(None)

"""Tables of other queue systems: recognised by the catalog, and what their shipped policies say of them.

What is known of a system is a file of ``policies/``; nothing else here names one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from functools import cache
from shlex import quote
from types import MappingProxyType
from typing import LiteralString

import psycopg
from psycopg import sql

from queuekeeper import assets
from queuekeeper.errors import RefusedError, UnknownTable, UsageError
from queuekeeper.maintenance.partitions.policy import PartitionPolicy, PartitionRules
from queuekeeper.maintenance.partitions.session import pinned
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.sql_statements import statement

_QUERIES: LiteralString = "maintenance/systems/"
_AREA = "policies"
_LOOK_LOCK_TIMEOUT_MS = 1_000
_GUESSED_MIB = 10_000


class Care(StrEnum):
    """What becomes of a table."""

    KEEP = "keep"  # a shipped policy keeps its partitions
    ADOPT = "adopt"  # it is plain, and is adopted first
    LEAVE = "leave"  # its system or pg_partman looks after it, or a right is missing
    UNLIKE = "unlike"  # it has the name of a system's table, but not its columns


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A kind of table of a system.

    :param name: expression that the whole name of such a table matches.
    :param columns: columns that it has at least, with their types.
    :param form: ``plain``, or how it is partitioned, such as ``range of msg_id``.
    :param holds: what its rows are.
    :param words: who takes rows out of it, or what must hold before a partition leaves.
    :param live: whether its rows are still to be worked on: a partition leaves only when no row is in it or below it.
    :param key: column by which a plain table is adopted.
    :param rules: of the policy that it gets; none where it is left.
    """

    name: str
    columns: Mapping[str, str]
    form: str
    holds: str
    care: Care
    words: str
    live: bool = False
    key: str = ""
    rules: PartitionRules | None = None


@dataclass(frozen=True, kw_only=True)
class System:
    """A queue system, and what its tables look like.

    :param read: its versions whose layout was read.
    :param schema: the only schema in which its tables are; empty where its users choose one.
    :param extension: extension that tells its version; empty where there is none.
    :param version: query of its version, the table that this reads, and what the answer counts; empty without one.
    :param marker: name and columns of a table by which its schema is recognised.
    """

    file: str
    system: str
    read: tuple[str, ...]
    marker: Layout
    layouts: tuple[Layout, ...]
    schema: str = ""
    extension: str = ""
    version: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, kw_only=True)
class TheirLayout:
    """The system that a table belongs to, and its layout."""

    system: str
    layout: Layout


@dataclass(frozen=True, kw_only=True)
class SystemTable:
    """A table that has the name of another system's table.

    :param table: ``schema.name``, quoted where SQL needs it.
    :param version: as the database tells it; none where it does not.
    :param words: why it is cared for so, and what to do.
    :param rules: of the policy that it gets, where it gets one.
    :param command: what to call next; empty where there is nothing to do.
    """

    table: str
    system: str
    version: str | None
    form: str
    holds: str
    live: bool
    care: Care
    words: str
    policy_file: str
    rules: PartitionRules | None
    has_policy: bool
    command: str

    @property
    def sets_policy(self) -> bool:
        """Whether the policy that ships for it can be set as the table is."""
        return self.care is Care.KEEP and not self.has_policy

    def policy(self) -> PartitionPolicy:
        """Return the policy that ships for it."""
        if self.rules is None:
            raise UsageError(f"no policy ships for {self.table}: {self.words}")
        return PartitionPolicy(table=self.table, **asdict(self.rules))


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A table of the catalog whose name some layout has."""

    oid: int
    name: str
    schema_name: str
    relation_name: str
    owner: str
    may_alter: bool
    form: str
    columns: Mapping[str, str]


@cache
def systems() -> tuple[System, ...]:
    """Return the systems that policies ship for, by name."""
    found = [_parsed(path.name, path.read_text("utf-8")) for path in assets.directory(_AREA).glob("*.toml")]
    return tuple(sorted(found, key=lambda each: each.system.lower()))


def _parsed(file: str, text: str) -> System:
    """Return the system that a file describes; a field that there is not is an error."""
    told = tomllib.loads(text)
    columns, marker = told.pop("columns"), told.pop("marker")
    layouts = tuple(
        Layout(
            **entry
            | {
                "columns": columns[entry["columns"]],
                "care": Care(entry["care"]),
                "rules": PartitionRules(**entry["rules"]) if "rules" in entry else None,
            }
        )
        for entry in told.pop("tables")
    )
    first = Layout(form="", holds="", care=Care.LEAVE, words="", **marker)
    return System(file=file, marker=first, layouts=layouts, **told | {"read": tuple(told["read"])})


def systems_named() -> str:
    """Return the names of the systems as a sentence has them."""
    *others, last = (each.system for each in systems())
    return f"{', '.join(others)} or {last}"


def whole_name(connection: Connection, table: str) -> str:
    """Return the name of a table with its schema, quoted where SQL needs it.

    :raises UnknownTable: when there is none.
    """
    try:
        with translated_errors(connection):
            row = connection.execute(statement(f"{_QUERIES}whole_name"), {"table": table}).fetchone()
    except (psycopg.errors.InvalidName, psycopg.errors.SyntaxError, psycopg.errors.FeatureNotSupported):
        row = None
    if row is None:
        raise UnknownTable(f"there is no table {table} in this database: write schema.name, quoted as SQL asks for it")
    return str(row[0])


def recognise(connection: Connection, *, with_policy: Sequence[str] = ()) -> list[SystemTable]:
    """Return the tables of other systems in this database, by name; nothing is written.

    :param with_policy: tables that have a policy.
    """
    names = {layout.name for system in systems() for layout in (system.marker, *system.layouts)}
    candidates = _candidates(connection, names)
    versions: dict[tuple[str, str], str | None] = {}
    found = []
    for each, system, layout, unlike in _matched(candidates):
        place = (system.system, each.schema_name)
        if place not in versions and not unlike:
            versions[place] = _version(connection, system, each.schema_name)
        found.append(_judged(connection, each, system, layout, unlike, versions.get(place), with_policy))
    return found


def layout_of(connection: Connection, *, schema_name: str, relation_name: str) -> TheirLayout | None:
    """Return the system that a table belongs to, with its layout; none for a table of nobody else."""
    if not any(re.fullmatch(layout.name, relation_name) for system in systems() for layout in system.layouts):
        return None  # as with most tables, and at no cost
    names = {re.escape(relation_name), *(system.marker.name for system in systems())}
    for each, system, layout, unlike in _matched(_candidates(connection, names, schema_name)):
        if each.relation_name == relation_name and not unlike:
            return TheirLayout(system=system.system, layout=layout)
    return None


def refuse_to_keep(connection: Connection, theirs: TheirLayout | None, *, parent: str, name: str) -> None:
    """Refuse to maintain partitions that pg_partman or another system makes and drops.

    :param theirs: see :func:`layout_of`.
    :param parent: schema and name of the table, without quotes.
    :param name: its name for people.
    :raises RefusedError: with who does, and what to do.
    """
    if theirs and theirs.layout.care is Care.LEAVE:
        raise RefusedError(f"{name} belongs to {theirs.system}: {theirs.layout.words}")
    if words := _of_partman(connection, parent):
        raise RefusedError(f"{name} {words}")


def words_against_adoption(connection: Connection, *, schema_name: str, relation_name: str) -> str:
    """Return why a table of another system is not adopted; empty when it may be."""
    theirs = layout_of(connection, schema_name=schema_name, relation_name=relation_name)
    if theirs is None or not (theirs.layout.live or theirs.layout.care is Care.LEAVE):
        return ""
    return f"it belongs to {theirs.system} and holds {theirs.layout.holds}: {theirs.layout.words}"


# --- inside -------------------------------------------------------------------------------------------------------


def _candidates(connection: Connection, names: Iterable[str], schema_name: str | None = None) -> list[_Found]:
    """Return the tables whose whole name matches one of some expressions."""
    values = {"names": f"^({'|'.join(sorted(names))})$", "schema_name": schema_name}
    rows = connection.execute(statement(f"{_QUERIES}tables"), values).fetchall()
    return [_Found(**dict(zip((each.name for each in fields(_Found)), row, strict=True))) for row in rows]


def _matched(candidates: Sequence[_Found]) -> Iterator[tuple[_Found, System, Layout, str]]:
    """Yield each table of a system with its layout, and what it is unlike in; empty when it is like it."""
    by_place = {(each.schema_name, each.relation_name): each for each in candidates}
    for each in candidates:
        for system in systems():
            marker = by_place.get((each.schema_name, system.marker.name))
            layouts = [layout for layout in system.layouts if re.fullmatch(layout.name, each.relation_name)]
            if not layouts or marker is None or system.schema not in {"", each.schema_name}:
                continue
            unlike = _unlike(marker, system.marker)
            if unlike and marker is not each:
                unlike = f"beside it, {marker.name} {unlike}"
            unlike = unlike or _unlike(each, layouts[0])
            same_form = [layout for layout in layouts if layout.form == each.form]
            yield each, system, (same_form or layouts)[0], unlike


def _unlike(found: _Found, layout: Layout) -> str:
    """Say in which column a table differs from a layout; nothing when it has all of them."""
    for name, type_name in layout.columns.items():
        has = found.columns.get(name)
        if has is None:
            return f"has no column {name}"
        if has != type_name:
            return f"has a column {name} of type {has}, not {type_name}"
    return ""


def _judged(
    connection: Connection,
    found: _Found,
    system: System,
    layout: Layout,
    unlike: str,
    version: str | None,
    with_policy: Sequence[str],
) -> SystemTable:
    care, words, rules, command = layout.care, layout.words, layout.rules, ""
    has_policy = found.name in with_policy
    if unlike:
        care, words = Care.UNLIKE, f"it has the name of a table of {system.system}, but {unlike}: it is left alone"
    elif layout.form != found.form:
        care = Care.LEAVE
        form = "not partitioned" if found.form == "plain" else f"partitioned by {found.form}"
        words = f"it is {form}, for which no policy ships"
    elif care is not Care.LEAVE and (partman := _of_partman(connection, f"{found.schema_name}.{found.relation_name}")):
        care, words = Care.LEAVE, f"it {partman}"
    elif care is not Care.LEAVE and not found.may_alter:
        care = Care.LEAVE
        user = connection.info.user
        words = f"it belongs to {found.owner}: connect as that role, or grant it: GRANT {found.owner} TO {user}"
    if care not in {Care.KEEP, Care.ADOPT}:
        rules = None
    elif has_policy:
        words, command = f"it has a policy; {words}", f"queuekeeper partitions plan {quote(found.name)}"
    elif care is Care.KEEP:
        command = f"queuekeeper partitions set {quote(found.name)} {_options(rules)}"
    else:
        need_mib = _need_mib(connection, found.oid)
        command = (
            f"queuekeeper partitions adopt {quote(found.name)} --key {layout.key} --widen-keys {_options(rules)} "
            f"--disk-mib {need_mib} --dry-run"
        )
    return SystemTable(
        table=found.name,
        system=system.system,
        version=version,
        form=found.form,
        holds=layout.holds if not unlike else "",
        live=layout.live and not unlike,
        care=care,
        words=words,
        policy_file=f"{_AREA}/{system.file}",
        rules=rules,
        has_policy=has_policy,
        command=command,
    )


def _need_mib(connection: Connection, oid: int) -> int:
    """Return how much disk a copy of a plain table takes; as much as guides say while others have it locked."""
    try:
        with pinned(connection, lock_timeout_ms=_LOOK_LOCK_TIMEOUT_MS):
            row = connection.execute("SELECT pg_total_relation_size(%s::oid)", [oid]).fetchone()
    except psycopg.errors.LockNotAvailable:
        row = None
    return _GUESSED_MIB if row is None or row[0] is None else max(1, -(-row[0] * 11 // 10 // 2**20))


def _options(rules: PartitionRules | None) -> str:
    """Return rules as options of a command, without those that are as they come."""
    said = []
    for each in fields(PartitionRules):
        value = getattr(rules, each.name)
        option = each.name.replace("_", "-")
        if value == PartitionRules.model_fields[each.name].default:
            continue
        said.append(f"--no-{option}" if value is False else f"--{option} {quote(str(value))}")
    return " ".join(said)


def _of_partman(connection: Connection, parent: str) -> str:
    """Say that pg_partman maintains a table, or that nobody may tell; nothing when it does not."""
    for schema, catalog, may_read in connection.execute(statement(f"{_QUERIES}partman_catalogs")).fetchall():
        if not may_read:
            grants = _grants(schema, catalog, connection.info.user)
            return f"may be maintained by pg_partman, and this role cannot read {catalog}, which tells it: {grants}"
        query = f"SELECT EXISTS (SELECT FROM {catalog} WHERE parent_table = %s)"  # noqa: S608 - by format('%I.%I')
        row = connection.execute(query.encode(), [parent]).fetchone()
        if row and row[0]:
            return (
                f"is maintained by pg_partman, as {catalog} says, and two would make and drop its partitions: leave "
                f"that to pg_partman, or first take out the row of {catalog} whose parent_table is '{parent}'"
            )
    return ""


def _version(connection: Connection, system: System, schema_name: str) -> str | None:
    """Return the version of a system as the database tells it; none where it does not, or may not be asked."""
    name = system.version.get("table", "")
    values = {"schema_name": schema_name, "relation_name": name, "extension": system.extension}
    row = connection.execute(statement(f"{_QUERIES}version_sources"), values).fetchone()
    may_read, extension = row or (None, None)
    if extension is not None:
        return f"extension {extension}"
    if may_read is None:
        return None
    table = sql.Identifier(schema_name, name)
    if not may_read:
        grants = _grants(sql.Identifier(schema_name).as_string(), table.as_string(), connection.info.user)
        return f"not told: {grants}"
    answer = connection.execute(sql.SQL(system.version["query"]).format(table=table)).fetchone()
    return None if answer is None or answer[0] is None else f"{system.version['noun']} {answer[0]}"


def _grants(schema: str, table: str, user: str) -> str:
    """Return the statements by which a user may read a table."""
    return f"GRANT USAGE ON SCHEMA {schema} TO {user}; GRANT SELECT ON {table} TO {user}"

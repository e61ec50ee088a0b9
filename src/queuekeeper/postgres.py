"""PostgreSQL connections, statement files and schema migrations."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from textwrap import indent
from typing import Any, LiteralString, TypeVar, cast

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import kwargs_row
from psycopg.types.json import set_json_loads
from pydantic_core import from_json

from queuekeeper import assets, schema_files
from queuekeeper.checks import checked
from queuekeeper.closing import Opening
from queuekeeper.errors import RefusedError, ServerUnavailable, UsageError
from queuekeeper.hosts import is_loopback

T = TypeVar("T")
MIGRATE = "run `queuekeeper database migrate`"
"""What to do when the control database lacks a table or column."""

Connection = psycopg.Connection[tuple[Any, ...]]
"""A connection whose rows are plain tuples."""

AsyncConnection = psycopg.AsyncConnection[tuple[Any, ...]]
"""The same for asyncio."""

APPLICATION_NAME = "queuekeeper"
MINIMUM_SERVER_VERSION = 140_000
"""PostgreSQL 14: ``bit_xor`` and ``hash_record_extended``, on which the fingerprint of the source rests."""

CONNECT_TIMEOUT_S = 10

# Two seconds in all: what the server does not end by then is cancelled as psycopg does it.
_CANCEL_REQUESTS = 20
_CANCEL_PAUSE_S = 0.1

_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"(?=\s*(:)?)|[][{}]|[^][{}",:\s]+')

MIGRATIONS = "migrations"
_MIGRATION_LOCK = int.from_bytes(hashlib.sha256(b"queuekeeper.schema_migrations").digest()[:8], "big", signed=True)
_MIGRATION_NAME = re.compile(r"(\d{4})_[a-z0-9]+(?:_[a-z0-9]+)*\.sql")
_TABLES = "tables"
_CODE = ("functions", "views")
# Lines within a migration: what follows is of these tables; these are made, or replaced, at this point.
_DIRECTIVE = re.compile(r"^-- (changes|makes): (.+)$", re.MULTILINE)
_ALTERS = re.compile(r"^ALTER TABLE queuekeeper\.(\w+)", re.MULTILINE)
_MAKES = re.compile(r"^CREATE TABLE queuekeeper\.(\w+)|^ALTER TABLE .* RENAME TO (\w+)", re.MULTILINE)
_PART = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_INCLUDE = re.compile(r"^( *)-- include: (\w+)$", re.MULTILINE)
_STATEMENT_NAME = re.compile(r"[a-z0-9_]+(?:/[a-z0-9_]+)*")

_DETAILED_CLASSES = frozenset({"0A", "25", "2B", "40", "42", "53", "54", "55", "57", "58"})
"""Classes of SQLSTATE whose DETAIL tells objects, privileges, processes or limits. That of others may hold rows: a
key of a unique violation, the failing row of a check, the place in a JSON text, whatever somebody's function raises."""

# What libpq says, and what helps. The words of a failed connection carry no SQLSTATE, so the text has to do.
_REMEDIES = (
    ("password authentication failed", "check user and password of the connection URL"),
    ("no password supplied", "put the password into the connection URL or PGPASSWORD"),
    ("no pg_hba.conf entry", "allow this machine, user and database in the server's pg_hba.conf"),
    ("does not support SSL", "set sslmode=disable or sslmode=prefer, or switch TLS on at the server"),
    ("certificate", "check sslmode and sslrootcert of the connection URL"),
    ("SSL error", "check sslmode and sslrootcert of the connection URL"),
    ("Connection refused", "start the server, or check host and port"),
    ("could not translate host name", "check the host name"),
    ("failed to resolve host", "check the host name"),
    ("timeout", "check the network and firewall between here and the server"),
    ("too many clients", "close other connections or raise max_connections"),
    ("remaining connection slots", "close other connections or raise max_connections"),
    ("starting up", "wait until the server has recovered, then try again"),
    ("not yet accepting connections", "wait until the server has recovered, then try again"),
    ("in recovery mode", "wait until the server has recovered, then try again"),
    ("shutting down", "wait until the server is up again"),
    ('role "', "check the user of the connection URL"),
    ('database "', "check the database name of the connection URL"),
)


@dataclass(frozen=True, kw_only=True)
class Migration:
    """One file of the path from an empty database to the present schema.

    :param version: number at the start of its name.
    :param checksum: SHA-256 of its text, with line ends normalised.
    """

    version: int
    name: str
    checksum: str
    text: str


@dataclass(frozen=True, kw_only=True)
class MigrationsReport:
    """What a call of :func:`migrate` did.

    :param applied: names of the files applied by this call, in order.
    :param version: version of the schema afterwards.
    """

    applied: tuple[str, ...]
    version: int


def _address(parameters: dict[str, Any]) -> str:
    host = parameters.get("host") or parameters.get("hostaddr") or "localhost"
    return f"{host}:{parameters.get('port') or 5432}"


def _parse(url: str) -> dict[str, Any]:
    """Take a URL apart; no message repeats any part of it, since a misplaced password may stand anywhere."""
    advice = "write postgresql://user:password@host:port/database and percent-encode special characters of the password"
    try:
        parameters = dict(conninfo_to_dict(url))
    except (psycopg.ProgrammingError, UnicodeError):
        raise UsageError(f"the PostgreSQL connection URL does not parse: {advice}") from None
    host, port = str(parameters.get("host") or ""), str(parameters.get("port") or "5432")
    # libpq reads a text up to its first zero character.
    if "\0" in url or "@" in host or not all(_is_port(part) for part in port.split(",") if part):
        raise UsageError(f"the PostgreSQL connection URL does not parse: {advice}")
    return parameters


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65_536


def _unavailable(parameters: dict[str, Any], error: psycopg.Error) -> ServerUnavailable:
    text = str(error)
    password = str(parameters.get("password") or "")
    if password:
        text = text.replace(password, "***")
    text = "; ".join(" ".join(line.split()) for line in text.splitlines() if line.strip()).replace(":; ", ": ")
    remedy = next((advice for words, advice in _REMEDIES if words in text), "check the server's log")
    return ServerUnavailable(f"PostgreSQL at {_address(parameters)} is not available: {text}; {remedy}")


@checked
def connect(url: str, *, autocommit: bool = False) -> Connection:
    """Open a connection whose session speaks UTF-8, thinks in UTC and reads committed rows.

    JSON comes as Python's ``json`` would read it.

    :param url: ``postgresql://user:password@host:port/database``.
    :raises UsageError: when the URL does not parse.
    :raises ServerUnavailable: naming host, port, cause and what helps, never the password.
    :raises RefusedError: when the server is older than PostgreSQL 14.
    """
    parameters, arguments = _arguments(url)
    try:
        connection: Connection = psycopg.Connection.connect(autocommit=True, **arguments)
    except psycopg.OperationalError as error:
        raise _unavailable(parameters, error) from None
    try:
        _check_version(connection, parameters)
        # Not as start-up options: connection poolers refuse those.
        connection.execute(statement("queuekeeper/queries/pin_session"))
        connection.autocommit = autocommit
        set_json_loads(_loads, connection)
    except psycopg.OperationalError as error:
        connection.close()
        raise _unavailable(parameters, error) from None
    except BaseException:
        connection.close()
        raise
    return connection


@checked
def connect_async(url: str, *, autocommit: bool = False) -> Opening[AsyncConnection]:
    """Open a connection for asyncio, as :func:`connect` does.

    ``async with connect_async(url) as connection:`` commits what the block has done, or takes it back after an error,
    and closes the connection; ``connection = await connect_async(url)`` leaves that to you.
    """
    return Opening(partial(_connect_async, url, autocommit=autocommit))


async def _connect_async(url: str, *, autocommit: bool) -> AsyncConnection:
    parameters, arguments = _arguments(url)
    try:
        connection: AsyncConnection = await psycopg.AsyncConnection.connect(autocommit=True, **arguments)
    except psycopg.OperationalError as error:
        raise _unavailable(parameters, error) from None
    try:
        _check_version(connection, parameters)
        await connection.execute(statement("queuekeeper/queries/pin_session"))
        await connection.set_autocommit(autocommit)
        set_json_loads(_loads, connection)
    except psycopg.OperationalError as error:
        await connection.close()
        raise _unavailable(parameters, error) from None
    except BaseException:
        await connection.close()
        raise
    return connection


async def undisturbed(connection: AsyncConnection, work: Coroutine[Any, Any, T]) -> T:
    """Await work on a connection to its end, also when the caller is cancelled.

    Cancelled by itself, psycopg can leave a pipeline half read or a COPY begun, with their transaction open.

    :param work: what the connection does, while nobody else uses it; a caller that is cancelled is not told whether
        it was done.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        ending = asyncio.ensure_future(_end(connection, task))
        while not ending.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([ending])
        raise


async def _end(connection: AsyncConnection, task: asyncio.Future[Any]) -> None:
    """Have the server cancel what a task waits for, such as a lock, until the task is done."""
    for _ in range(_CANCEL_REQUESTS):
        if task.done():
            break
        try:
            # A request that arrives between two statements ends neither.
            await connection.cancel_safe(timeout=CONNECT_TIMEOUT_S)
        except psycopg.Error:
            break
        await asyncio.wait([task], timeout=_CANCEL_PAUSE_S)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        # The caller is told that it was cancelled, whatever has become of the work.
        task.exception()
    if connection.info.transaction_status == TransactionStatus.INERROR:
        # A request that came late has ended the COMMIT or ROLLBACK; a transaction of the caller's own is refused here.
        with suppress(psycopg.Error):
            await connection.rollback()
    if connection.info.transaction_status == TransactionStatus.ACTIVE:
        await connection.close()


def _loads(text: str | bytes) -> Any:
    """Read JSON as :func:`json.loads` does, in a fifth of its time: of an event's way it is a tenth.

    Numbers keep all their digits as there, which is why this is no other parser.
    """
    try:
        return from_json(text)
    except ValueError:
        # Values within more than 200 others, half a character, which type json may hold, and very long numbers.
        return _read_slowly(text if isinstance(text, str) else text.decode())


def _read_slowly(text: str) -> Any:
    """Read whatever JSON PostgreSQL stores: Python's own reader knows an end of digits, and of values within others."""
    found: list[Any] = []
    within: list[Any] = [found]
    name: Any = None
    for token in _JSON_TOKEN.finditer(text):
        word = token[0]
        if word in "]}":
            within.pop()
        elif token[1]:
            name = json.loads(word)
        else:
            value: Any = [] if word == "[" else {} if word == "{" else json.loads(word, parse_int=_exact)
            if isinstance(within[-1], dict):
                within[-1][name] = value
            else:
                within[-1].append(value)
            if word in "[{":
                within.append(value)
    return found[0]


def _exact(digits: str) -> int:
    return int(Decimal(digits))


def _arguments(url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    parameters = _parse(url)
    arguments = {"connect_timeout": CONNECT_TIMEOUT_S} | parameters
    # A name of the caller's would hide us from the operator who looks for our backends.
    return parameters, arguments | {"application_name": APPLICATION_NAME, "client_encoding": "utf8"}


def _check_version(connection: psycopg.BaseConnection[Any], parameters: dict[str, Any]) -> None:
    if connection.info.server_version < MINIMUM_SERVER_VERSION:
        raise RefusedError(
            f"PostgreSQL at {_address(parameters)} is version {connection.info.server_version // 10_000}: "
            f"Queuekeeper needs {MINIMUM_SERVER_VERSION // 10_000} or later; upgrade the server"
        )


def address(connection: psycopg.BaseConnection[Any]) -> str:
    """Return ``host:port/database`` of a connection, also of a broken one."""
    try:
        info = connection.info
        return f"{info.host or 'localhost'}:{info.port}/{info.dbname}"
    except psycopg.OperationalError:
        return "the address of the connection URL"


def address_of(url: str) -> str:
    """Return ``host:port`` of a URL.

    :raises UsageError: when the URL does not parse.
    """
    return _address(_parse(url))


def is_local(connection: psycopg.BaseConnection[Any]) -> bool:
    """Tell whether what is sent stays on this machine."""
    return is_loopback(connection.info.hostaddr or connection.info.host)


def loopback_host(url: str) -> str | None:
    """Return the host of a URL that means another machine wherever it is used, such as ``localhost``; none for others.

    :raises UsageError: when the URL does not parse.
    """
    parameters = _parse(url)
    hosts = str(parameters.get("hostaddr") or parameters.get("host") or "").split(",")
    return next((host or "localhost" for host in hosts if is_loopback(host)), None)


def server_words(error: Exception) -> str:
    """Return what the server says about an error: the message, its hint, and its detail where that shows no data.

    Nothing else of an error may reach a person: psycopg's own text holds the detail whatever it shows. What is no error
    of PostgreSQL's speaks for itself.
    """
    if not isinstance(error, psycopg.Error):
        return str(error)
    diagnosis = error.diag
    # What libpq and psycopg say themselves has no parts.
    text = diagnosis.message_primary or " ".join(str(error).split())
    if diagnosis.message_detail and (error.sqlstate or "")[:2] in _DETAILED_CLASSES:
        text += f" ({' '.join(diagnosis.message_detail.split()).rstrip('.')})"
    if diagnosis.message_hint:
        text += f": {' '.join(diagnosis.message_hint.split()).rstrip('.')}"
    return text


@contextmanager
def translated_errors(connection: psycopg.BaseConnection[Any], *, missing: str = MIGRATE) -> Iterator[None]:
    """Turn what the server answers into words that say what to do; other errors pass.

    :param missing: what to do when a table or column is missing.
    :raises ServerUnavailable: when the connection broke.
    :raises RefusedError: when a part of the schema, a privilege or room is missing, or the server takes no writes.
    """
    where = f"PostgreSQL at {address(connection)}"
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        remedy = "" if error.diag.message_hint else "; grant the privilege"
        raise RefusedError(f"{where} refuses: {server_words(error)}{remedy}") from error
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedColumn) as error:
        raise RefusedError(f"{where} lacks a part of the schema: {server_words(error)}; {missing}") from error
    except psycopg.errors.ReadOnlySqlTransaction as error:
        raise RefusedError(
            f"{where} takes no writes: {server_words(error)}; name the primary server, not a standby"
        ) from error
    except psycopg.errors.DiskFull as error:
        raise RefusedError(
            f"{where} has no room left: {server_words(error)}; free disk space, then try again"
        ) from error
    except psycopg.OperationalError as error:
        if not connection.closed:
            raise
        raise ServerUnavailable(
            f"{where} broke the connection: {server_words(error)}; try again when it is up"
        ) from error


@cache
def statement(name: str) -> LiteralString:
    """Return one statement of ``sql/``, without its header comment.

    The header is left out since prose may hold a percent sign, which stands for a parameter everywhere else.

    :param name: folder below ``sql/`` and name of a statement in it, for example ``queuekeeper/queries/set_run_state``.
    :raises FileNotFoundError: when there is no such statement.
    """
    if not _STATEMENT_NAME.fullmatch(name):
        raise FileNotFoundError(f"{name!r} is not the name of a statement: lower-case words and slashes only")
    folder, _, own = name.rpartition("/")
    text = statements(folder).get(own)
    if text is None:
        raise FileNotFoundError(f"there is no statement {name}: neither a file {name}.sql nor a part of another one")
    lines = text.splitlines(keepends=True)
    comment = takewhile(lambda line: not line.strip() or line.startswith("--"), lines)
    return "".join(lines[len(list(comment)) :]).strip()


@cache
def statements(folder: str) -> dict[str, str]:
    """Return the statements of a folder below ``sql/`` by name, each with its header.

    A file holds one statement, which has its name, or several, each behind a line ``-- name: words``. Where a line
    ``-- include: words`` stands, lines come that statements share: those of ``sql/includes/``.
    """
    found: dict[str, str] = {}
    for path in sorted((assets.directory("sql") / folder).glob("*.sql")):
        before, *parts = _PART.split(_INCLUDE.sub(_included, schema_files.read(path)))
        if not parts:
            found[path.stem] = before
        found |= {name: text.rstrip().removesuffix(";") for name, text in zip(parts[::2], parts[1::2], strict=True)}
    return found


def _included(line: re.Match[str]) -> str:
    """Return what stands for a line ``-- include: words``, as deep as that line stands."""
    text = schema_files.read(assets.directory("sql") / "includes" / f"{line[2]}.sql")
    return indent(
        "".join(each for each in text.splitlines(keepends=True) if not each.startswith("--")).rstrip(), line[1]
    )


def rows_of(connection: Connection, name: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """Run a statement in the control database and return its rows."""
    with translated_errors(connection):
        return connection.execute(statement(name), parameters).fetchall()


def records(connection: Connection, made: Callable[..., T], name: str, parameters: Mapping[str, Any]) -> list[T]:
    """Run a statement and return a record per row, made of its columns by their names.

    :param made: the record's class, or what makes one of such arguments.
    """
    with translated_errors(connection), connection.cursor(row_factory=kwargs_row(made)) as cursor:
        return cursor.execute(statement(name), parameters).fetchall()


def migrations(directory: Path | None = None) -> list[Migration]:
    """Return all migrations in order.

    Those of ``released.sha256`` keep the checksum under which databases have applied them, whatever is left of them.

    :param directory: where they are; ``sql/migrations`` when absent.
    :raises UsageError: when a name is not ``NNNN_words.sql`` or a number is missing or given twice.
    """
    folder = directory or assets.directory("sql") / MIGRATIONS
    texts = {path.name: schema_files.read(path) for path in folder.glob("*.sql")}
    released = "".join(schema_files.read(path) for path in folder.glob("released.sha256"))
    checksums = {name: checksum for checksum, name in re.findall(r"^(\w+)  (.+)$", released, re.MULTILINE)}
    found: list[Migration] = []
    for name in sorted({*texts, *checksums}):
        match = _MIGRATION_NAME.fullmatch(name)
        if match is None:
            raise UsageError(f"migration {name} is misnamed: it must look like 0002_some_words.sql")
        text = texts.get(name, "")
        checksum = checksums.get(name) or schema_files.checksum(text)
        found.append(Migration(version=int(match[1]), name=name, checksum=checksum, text=text))
        if found[-1].version != len(found):
            raise UsageError(f"migration {name} is out of order: number {len(found):04d} is expected here")
    return found


def migrate(connection: Connection, *, directory: Path | None = None) -> MigrationsReport:
    """Bring schema ``queuekeeper`` to the state this release needs; two processes at once do no harm.

    A database without it gets the schema as the files of ``sql/queuekeeper`` have it. In one of an earlier release the
    tables that are missing are made from their files, migrations change those that were there, and functions and views
    whose files have changed are replaced. All of it happens in one transaction under an advisory lock, or nothing.

    :param directory: where the migrations are; ``sql/migrations`` when absent.
    :raises RefusedError: when an applied file was changed, the database is newer than this release, or a privilege
        is missing.
    """
    known = migrations(directory)
    applied: list[tuple[int, str, str]] = []
    try:
        with translated_errors(connection), connection.transaction():
            connection.execute(statement("queuekeeper/queries/lock_migrations"), {"key": _MIGRATION_LOCK})
            # Functions may name what comes later.
            connection.execute(sql.SQL("SET LOCAL check_function_bodies TO off"))
            applied = _applied(connection)
            check_history("queuekeeper", known, applied)
            pending = known[len(applied) :]
            if applied:
                _upgrade(connection, pending)
            else:
                connection.execute(statement("queuekeeper/schema"))
                _make(connection, _schema_files())
            for migration in pending:
                connection.execute(
                    statement("queuekeeper/queries/record_migration"),
                    {"version": migration.version, "name": migration.name, "checksum": migration.checksum},
                )
    except RefusedError as error:
        if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            user, database = connection.info.user, connection.info.dbname
            raise RefusedError(
                f"user {user} may not change schema queuekeeper in database {database}: have its owner {MIGRATE} "
                f"({server_words(error.__cause__)})"
                if applied
                else f"user {user} may not create schema queuekeeper in database {database}: "
                f"GRANT CREATE ON DATABASE {database} TO {user}, or name another user ({server_words(error.__cause__)})"
            ) from error.__cause__
        raise
    return MigrationsReport(applied=tuple(migration.name for migration in pending), version=len(known))


def _schema_files(*kinds: str) -> list[Path]:
    folder = assets.directory("sql") / "queuekeeper"
    return [path for kind in kinds or (_CODE[0], _TABLES, _CODE[1]) for path in sorted((folder / kind).glob("*.sql"))]


def _upgrade(connection: Connection, pending: list[Migration]) -> None:
    files = {path.stem: path for path in _schema_files()}
    # What migrations make or rename themselves is theirs to make.
    theirs = {found[1] or found[2] for migration in pending for found in _MAKES.finditer(migration.text)}
    made = _make(connection, [path for path in _schema_files(_TABLES) if path.stem not in theirs])
    for migration in pending:
        # Alternately: text, word of a directive, names behind it.
        parts = ["changes", "", *_DIRECTIVE.split(migration.text)]
        for word, names, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            if word == "makes":
                _make(connection, [files[name] for name in names.split(", ")])
            altered = set(_ALTERS.findall(text)) - theirs
            changed = {*altered, *names.split(", ")} if word == "changes" and names else altered
            # A table that was just made has the present shape already.
            if changed.isdisjoint(made) and changed <= _objects(connection).keys():
                connection.execute(sql.SQL(text))
    _make(connection, list(files.values()))


def outdated(connection: Connection) -> list[str]:
    """Return names of the functions and views of the schema that another release has made."""
    with translated_errors(connection):
        there = _objects(connection)
    return [path.stem for path in _schema_files(*_CODE) if there.get(path.stem) != _mark(schema_files.read(path))]


def _mark(text: str) -> str:
    return f"made by a file of Queuekeeper with the SHA-256 {schema_files.checksum(text)}"


def _objects(connection: Connection) -> dict[str, str | None]:
    rows = connection.execute(statement("queuekeeper/queries/schema_objects")).fetchall()
    return {row[0]: row[1] for row in rows}


def _make(connection: Connection, paths: list[Path]) -> set[str]:
    """Make what is missing with what it needs, and replace functions and views that another text has made.

    A function or view tells by its comment which text has made it.

    :return: names of all that was made or replaced.
    """
    there, made = _objects(connection), set[str]()
    for path in schema_files.ordered(paths, known=_schema_files()):
        text = schema_files.read(path)
        created, mark = schema_files.code(text), _mark(text)
        if created and path.parent.name != _TABLES:
            if there.get(path.stem) == mark:
                continue
            text = f"{schema_files.replacing(text)}COMMENT ON {' queuekeeper.'.join(created)} IS '{mark}'"
        elif path.stem in there:
            continue
        connection.execute(sql.SQL(text))
        made.add(path.stem)
    return made


def schema_version(connection: Connection) -> int | None:
    """Return the version of schema ``queuekeeper``; none when it is not there."""
    with translated_errors(connection):
        applied = _applied(connection)
    return applied[-1][0] if applied else None


def _applied(connection: Connection) -> list[tuple[int, str, str]]:
    row = connection.execute(statement("queuekeeper/queries/has_migrations")).fetchone()
    if row is None or not row[0]:
        return []
    return cast(
        list[tuple[int, str, str]], connection.execute(statement("queuekeeper/queries/applied_migrations")).fetchall()
    )


def check_history(schema: str, known: list[Migration], applied: list[tuple[int, str, str]]) -> None:
    """Check that a schema has been made of these migrations, as far as it goes.

    :param applied: version, name and checksum of each.
    :raises RefusedError: when it is newer than this release, or a file has been changed since.
    """
    if len(applied) > len(known):
        raise RefusedError(
            f"schema {schema} is at version {applied[-1][0]}, newer than this release of Queuekeeper knows "
            f"({len(known)}): upgrade Queuekeeper"
        )
    for migration, (version, name, checksum) in zip(known, applied, strict=False):
        if (migration.version, migration.name, migration.checksum) != (version, name, checksum):
            raise RefusedError(
                f"migration {migration.name} of schema {schema} differs from {name} as it was applied to this "
                "database: restore the file, and put the change into a new migration"
            )

"""Connections to PostgreSQL: how a server is reached, what runs on it, and what its errors mean."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import kwargs_row
from psycopg.types.json import set_json_loads
from pydantic_core import from_json

from queuekeeper.checks import checked
from queuekeeper.closing import Opening
from queuekeeper.errors import QueuekeeperError, RefusedError, ServerUnavailable, UsageError
from queuekeeper.hosts import is_loopback, without_secret
from queuekeeper.sql_statements import statement

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


_WRONG_OPTION = re.compile(r'(?:invalid \w+ value: "|invalid integer value "|bad value for ).*')
"""How libpq and psycopg name an option of a URL that no server and no retry can take."""


def _address(parameters: dict[str, Any]) -> str:
    host = parameters.get("host") or parameters.get("hostaddr") or "localhost"
    return f"{host}:{parameters.get('port') or 5432}"


def read_url(url: str) -> dict[str, Any]:
    """Return the options of libpq that a URL gives, the password among them.

    :raises UsageError: when the URL does not parse. It repeats no part of it: a password may stand anywhere.
    """
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


def _not_connected(parameters: dict[str, Any], error: psycopg.Error) -> QueuekeeperError:
    text = without_secret(str(error), str(parameters.get("password") or ""))
    # libpq asks whether the server runs: the remedy says so.
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip() and not line.rstrip().endswith("?")]
    text = "; ".join(lines).replace(":; ", ": ")
    if wrong := _WRONG_OPTION.search(text):
        return UsageError(f"the PostgreSQL connection URL has an option with a wrong value: {wrong[0]}")
    remedy = next((advice for words, advice in _REMEDIES if words in text), "check the server's log")
    return ServerUnavailable(f"PostgreSQL at {_address(parameters)} is not available: {text}; {remedy}")


@checked
def connect(url: str, *, autocommit: bool = False) -> Connection:
    """Open a connection whose session speaks UTF-8, thinks in UTC and reads committed rows.

    JSON comes as Python's ``json`` would read it.

    :param url: ``postgresql://user:password@host:port/database``.
    :raises UsageError: when the URL does not parse, or an option has a wrong value.
    :raises ServerUnavailable: naming host, port, cause and what helps, never the password.
    :raises RefusedError: when the server is older than PostgreSQL 14.
    """
    parameters, arguments = _arguments(url)
    try:
        connection: Connection = psycopg.Connection.connect(autocommit=True, **arguments)
    except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
        raise _not_connected(parameters, error) from None
    try:
        _check_version(connection, parameters)
        # Not as start-up options: connection poolers refuse those.
        connection.execute(statement("queuekeeper/queries/pin_session"))
        connection.autocommit = autocommit
        set_json_loads(_loads, connection)
    except psycopg.OperationalError as error:
        connection.close()
        raise _not_connected(parameters, error) from None
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
    except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
        raise _not_connected(parameters, error) from None
    try:
        _check_version(connection, parameters)
        await connection.execute(statement("queuekeeper/queries/pin_session"))
        await connection.set_autocommit(autocommit)
        set_json_loads(_loads, connection)
    except psycopg.OperationalError as error:
        await connection.close()
        raise _not_connected(parameters, error) from None
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
    parameters = read_url(url)
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
    return _address(read_url(url))


def is_local(connection: psycopg.BaseConnection[Any]) -> bool:
    """Tell whether what is sent stays on this machine."""
    return is_loopback(connection.info.hostaddr or connection.info.host)


def loopback_host(url: str) -> str | None:
    """Return the host of a URL that means another machine wherever it is used, such as ``localhost``; none for others.

    :raises UsageError: when the URL does not parse.
    """
    parameters = read_url(url)
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


def outside_dependants(connection: Connection, schemas: Sequence[str]) -> list[str]:
    """Return descriptions of the objects outside some schemas that depend on them, and would go with them."""
    return [name for (name,) in rows_of(connection, "queuekeeper/queries/outside_dependants", {"schemas": [*schemas]})]

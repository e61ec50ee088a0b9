"""Turns connections of Airflow into URLs and into our own connections."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.providers.redis.hooks.redis import RedisHook
from airflow.sdk import BaseHook, get_current_context
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from queuekeeper import audit, postgres, redis_client
from queuekeeper.airflow.provider import POSTGRES_NAME, POSTGRES_TYPE, REDIS_NAME, REDIS_TYPE
from queuekeeper.compacted.model import QueueRules
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.doctor import Examination, Finding, State, examine_postgres, examine_redis
from queuekeeper.errors import QueuekeeperError, UsageError
from queuekeeper.fanout.model import FanoutRules
from queuekeeper.fanout.queue import FanoutQueues
from queuekeeper.jobs.resources import POSTGRES_CONNECTION, POSTGRES_EXTRAS, REDIS_CONNECTION, REDIS_EXTRAS
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.migration.ledger.ledger import MigrationLedger

if TYPE_CHECKING:
    from airflow.sdk import Connection

# Extras for other users of the connection, which change nothing for us: we ask the server whether it is a cluster.
_POSTGRES_IGNORED = frozenset({"cursor", "sqlalchemy_query", "sqlalchemy_scheme"})
_REDIS_IGNORED = frozenset({"cluster", "startup_nodes"})
_REDIS_READ = frozenset({"db", "ssl"})
_REDIS_DEFAULTS = {"ssl_cert_reqs": "required", "ssl_check_hostname": "true"}
"""A form sends these with TLS on or off, so they do not show that TLS is wanted."""

_REDIS_HOST = "localhost"
_NO_PASSWORD = frozenset({"", "none", "false"})
"""Words that Airflow's own Redis hook reads as no password."""


def get_connection(conn_id: str, *, kinds: Iterable[str], example: str) -> Connection:
    """Return a connection of Airflow.

    :param kinds: accepted connection types.
    :param example: URI of an example, for the error message.
    :raises UsageError: when it does not exist or is of another type; the message shows the command that adds one.
    """
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise UsageError(
            f"Airflow has no connection {conn_id!r}: airflow connections add {conn_id} --conn-uri {example}"
        ) from None
    wanted = sorted(kinds)
    if connection.conn_type not in wanted:
        raise UsageError(
            f"connection {conn_id!r} is of type {connection.conn_type!r}: it must be {' or '.join(wanted)}"
        )
    return connection


def _extras(connection: Connection) -> Mapping[str, Any]:
    """Return the extras, which Airflow itself reads as none where they do not parse: TLS would be off unnoticed.

    :raises UsageError: when they are not a JSON object; the message does not repeat them, as they may be secret.
    """
    try:
        found = json.loads(connection.extra or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(
            f'connection {connection.conn_id!r} has extras that are not a JSON object: write {{"name": "value"}}'
        )
    # It masks what is secret among them.
    return connection.extra_dejson


def _allowed_extras(
    conn_id: str, extras: Mapping[str, Any], *, allowed: frozenset[str], ignored: frozenset[str]
) -> dict[str, str]:
    # If a misspelt extra were ignored, a connection could be without TLS unnoticed.
    unknown = sorted(set(extras) - allowed - ignored)
    if unknown:
        raise UsageError(
            f"connection {conn_id!r} has an extra that is not known: {', '.join(unknown)}; "
            f"known are {', '.join(sorted(allowed | (ignored & _REDIS_READ)))}"
        )
    if lists := sorted(name for name in allowed & set(extras) if isinstance(extras[name], list | dict)):
        raise UsageError(f"connection {conn_id!r} has an extra that is not one value: {', '.join(lists)}")
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in sorted(extras.items())
        # A form also sends empty fields.
        if name in allowed and value not in (None, "")
    }


def _is_on(conn_id: str, name: str, value: object) -> bool:
    """Read a switch among the extras, which a URI gives as a text; Airflow's own hook takes any text for on."""
    words = "false" if value in (None, "") else str(value).lower()
    if words not in ("true", "1", "false", "0"):
        raise UsageError(f"connection {conn_id!r} has {name} {value!r}: it must be true or false")
    return words in ("true", "1")


def _authority(connection: Connection, password: str | None, *, port: int, host: str = "") -> str:
    """Return user, password, hosts and ports of a URL.

    :param host: stands for a host that is not given; without one, what reads the URL decides, as for commands.
    """
    user = "" if not connection.login else quote(connection.login, safe="")
    secret = "" if password is None else f":{quote(password, safe='')}"
    if password is not None:
        # Airflow masks the password only in its own form; in a URL it may be encoded.
        mask_secret(quote(password, safe=""))
    # Each host of several has the port, which libpq would give to the last one alone.
    given = connection.port or (port if connection.host or host else None)
    try:
        hosts = ",".join(
            f"{_in_url(each.strip())}{f':{given}' if given else ''}" for each in (connection.host or host).split(",")
        )
    except ValueError:
        # Where a whole URL stands there, it may hold a password.
        raise UsageError(
            f"connection {connection.conn_id!r} has a host with a colon that is no IPv6 address: name only the host "
            "there, and port, user and password in their own fields"
        ) from None
    login = f"{user}{secret}@" if user or secret else ""
    return f"{login}{hosts}"


def _in_url(host: str) -> str:
    """Return a name, an address, or the folder of a socket as it stands in a URL.

    :raises ValueError: when there is a colon in a name.
    """
    if ":" not in host or host.startswith("/"):
        return quote(host, safe="")
    address = host.removeprefix("[").removesuffix("]")
    return f"[{quote(str(ipaddress.IPv6Address(address)), safe=':')}]"


def _tested(conn_id: str, url: Callable[[], str], examine: Callable[[str], list[Finding]]) -> tuple[bool, str]:
    """Return the result that Airflow's Test button shows; errors and findings hold no password."""
    try:
        found = Examination(findings=tuple(examine(url())))
    except QueuekeeperError as error:
        # The button tests a copy of the connection under a generated name.
        return False, str(error).replace(f"connection {conn_id!r}", "this connection")
    versions = [
        f"{finding.subject}: {finding.found}" for finding in found.findings if finding.check.startswith("version")
    ]
    wrong = [
        f"{finding.check}: {finding.found}" + (f" ({finding.remedy})" if finding.remedy else "")
        for state in (State.FAILED, State.WARNING)
        for finding in found.findings
        if finding.state is state
    ]
    verdict = (
        "Not fit for Queuekeeper" if not found.fit else "Fit for Queuekeeper" + (", with warnings" if wrong else "")
    )
    return found.fit, ". ".join([*versions, verdict, *wrong])


def _current_run() -> audit.AirflowRun | None:
    try:
        run = get_current_context()["dag_run"]
    except RuntimeError:
        return None
    return audit.AirflowRun(dag_id=run.dag_id, run_id=run.run_id)


# Entries of the audit name the run that made them: all tasks open their records by these hooks.
audit.find_runs_by(_current_run)


class QueuekeeperPostgresHook(PostgresHook):
    """Source and control database, reached as every other part of Queuekeeper reaches it."""

    default_conn_name = POSTGRES_CONNECTION
    conn_type = POSTGRES_TYPE
    hook_name = POSTGRES_NAME

    def test_connection(self) -> tuple[bool, str]:  # type: ignore[override]
        """Return which server answers and whether it is fit, for Airflow's Test button."""
        return _tested(self.get_conn_id(), lambda: self.url, examine_postgres)

    @property
    def url(self) -> str:
        """Address with user, password and TLS options; never log it.

        :raises UsageError: when the connection is missing, of another type, or has an extra that is not known.
        """
        conn_id = self.get_conn_id()
        connection = get_connection(
            conn_id,
            kinds=("postgres", POSTGRES_TYPE),
            example="postgresql://user:password@host:5432/thingsboard_mqtt_broker",
        )
        extras = _allowed_extras(conn_id, _extras(connection), allowed=POSTGRES_EXTRAS, ignored=_POSTGRES_IGNORED)
        database = quote(connection.schema or "", safe="")
        options = f"?{urlencode(extras, quote_via=quote)}" if extras else ""
        return f"postgresql://{_authority(connection, connection.password or None, port=5432)}/{database}{options}"

    @contextmanager
    def connect(self, *, autocommit: bool = True) -> Iterator[postgres.Connection]:
        """Open one of our connections for a ``with`` block."""
        with postgres.connect(self.url, autocommit=autocommit) as connection:
            yield connection

    @contextmanager
    def ledger(self) -> Iterator[MigrationLedger]:
        """Open the records of migrations for a ``with`` block."""
        with self.connect() as connection:
            yield MigrationLedger(connection)

    @contextmanager
    def maintenance_runs(self) -> Iterator[MaintenanceRuns]:
        """Open the records of maintenance runs for a ``with`` block."""
        with self.connect() as connection:
            yield MaintenanceRuns(connection)


class QueuekeeperRedisHook(RedisHook):
    """Target server or cluster, reached as every other part of Queuekeeper reaches it."""

    default_conn_name = REDIS_CONNECTION
    conn_type = REDIS_TYPE
    hook_name = REDIS_NAME

    def __init__(self, redis_conn_id: str = REDIS_CONNECTION, **kwargs: Any) -> None:
        super().__init__(redis_conn_id, **kwargs)

    def test_connection(self) -> tuple[bool, str]:
        """Return which servers answer and whether they are fit, for Airflow's Test button."""
        return _tested(self.redis_conn_id, lambda: self.url, examine_redis)

    @property
    def url(self) -> str:
        """Address with user, password, database and TLS options; never log it.

        :raises UsageError: when the connection is missing, of another type, or has an extra that is not known.
        """
        connection = get_connection(
            self.redis_conn_id, kinds=("redis", "rediss", REDIS_TYPE), example="redis://:password@host:6379/0"
        )
        found = _extras(connection)
        if "," in (connection.host or ""):
            raise UsageError(f"connection {self.redis_conn_id!r} names several hosts: name one, of a cluster any node")
        extras = _allowed_extras(self.redis_conn_id, found, allowed=REDIS_EXTRAS, ignored=_REDIS_IGNORED | _REDIS_READ)
        encrypted = _is_on(self.redis_conn_id, "ssl", found.get("ssl")) or connection.conn_type == "rediss"
        if not encrypted:
            believed = [name for name, value in extras.items() if value != _REDIS_DEFAULTS.get(name)]
            if believed:
                raise UsageError(
                    f"connection {self.redis_conn_id!r} has TLS options ({', '.join(believed)}) but TLS is off: "
                    'add "ssl": true to its extras'
                )
            extras = {}
        password = connection.password
        if password is None or password.lower() in _NO_PASSWORD:
            password = None
        named = [str(each) for each in (found.get("db"), connection.schema) if each not in (None, "")]
        database = named[0] if named else "0"
        if not database.isdecimal():
            raise UsageError(f"connection {self.redis_conn_id!r} names database {database!r}: it must be a number")
        if database == "0" and named[1:] not in ([], ["0"]):
            # A form shows db as 0 and hides the schema, which a URI has set; Airflow's own hook would take 0.
            raise UsageError(
                f"connection {self.redis_conn_id!r} names database 0 (db) and database {named[1]!r} (schema): name one"
            )
        scheme = "rediss" if encrypted else "redis"
        options = f"?{urlencode(extras, quote_via=quote)}" if extras else ""
        return f"{scheme}://{_authority(connection, password, port=6379, host=_REDIS_HOST)}/{database}{options}"

    @contextmanager
    def connect(self) -> Iterator[redis_client.RedisClient]:
        """Open one of our clients for a ``with`` block."""
        client = redis_client.connect(self.url)
        try:
            yield client
        finally:
            client.close()

    @contextmanager
    def compacted_queues(self, *, key_prefix: str = "", rules: QueueRules | None = None) -> Iterator[CompactedQueues]:
        """Open the compacted queues for a ``with`` block.

        :param rules: bounds of each queue, which apply when it is appended to.
        """
        with self.connect() as client:
            yield CompactedQueues(client, prefix=key_prefix, rules=rules)

    @contextmanager
    def fanout_queues(self, *, key_prefix: str = "", rules: FanoutRules | None = None) -> Iterator[FanoutQueues]:
        """Open the fan-out queues for a ``with`` block.

        :param rules: bounds that apply when a message is published.
        """
        with self.connect() as client:
            yield FanoutQueues(client, prefix=key_prefix, rules=rules)

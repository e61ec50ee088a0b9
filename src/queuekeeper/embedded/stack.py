"""The private servers together, for ``queuekeeper up``, ``status`` and ``down``."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from queuekeeper.config import Settings
from queuekeeper.embedded.airflow_server import AirflowServer, component_processes, stop_components
from queuekeeper.embedded.files import HOST
from queuekeeper.embedded.postgres_server import PostgresServer
from queuekeeper.embedded.process import ManagedProcess
from queuekeeper.embedded.redis_server import RedisServer
from queuekeeper.errors import ServerUnavailable
from queuekeeper.hosts import without_password
from queuekeeper.postgres import connect
from queuekeeper.schema_migrations import migrate

State = Literal["running", "stopped", "external"]

DATABASE = "queuekeeper"
"""Database of the private PostgreSQL with TBMQ's tables and our schema."""
METADATA_DATABASE = "airflow"


@dataclass(frozen=True, kw_only=True)
class ServerStatus:
    """State of one server.

    :param state: ``external`` when the settings name another server, which is neither started nor stopped.
    :param url: address without its password, ``None`` when stopped.
    """

    name: str
    state: State
    url: str | None = None
    pid: int | None = None
    port: int | None = None
    version: str | None = None
    log_path: Path | None = None

    @property
    def is_running(self) -> bool:
        """Whether it is a private server that runs."""
        return self.state == "running"


@dataclass(frozen=True, kw_only=True)
class Status:
    """State of all servers of one home."""

    home: Path
    servers: tuple[ServerStatus, ...]

    def server(self, name: str) -> ServerStatus:
        """Return the status of ``postgres``, ``redis`` or one of Airflow's components."""
        return next(server for server in self.servers if server.name == name)


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """The servers that ``down`` ended.

    :param names: the servers that ran.
    """

    home: Path
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ServerUrls:
    """Addresses of the two stores, passwords included."""

    postgres: SecretStr
    redis: SecretStr


def up(
    settings: Settings,
    *,
    airflow: bool = False,
    die_with_parent: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> Status:
    """Start the private servers that the settings do not replace; servers that run already are left as they are.

    :param airflow: start Airflow too. Its metadata are always in the private PostgreSQL.
    :param report: is called with a few words on what is being started.
    :raises ServerUnavailable: when a server does not come up.
    """
    with _locked(settings.home):
        if settings.postgres_url is None or airflow:
            postgres = _postgres(settings, die_with_parent=die_with_parent)
            if postgres.pid is None:
                report("PostgreSQL: starting")
            postgres.start()
            if settings.postgres_url is None:
                with connect(postgres.create_database(DATABASE), autocommit=True) as connection:
                    migrate(connection)
        if settings.redis_url is None:
            redis = _redis(settings, die_with_parent=die_with_parent)
            if redis.pid is None:
                report("Redis: starting")
            redis.start()
        if airflow:
            private_airflow(settings, die_with_parent=die_with_parent).start(report=report)
    return status(settings)


def status(settings: Settings) -> Status:
    """Return the state of the servers, without starting or asking any."""
    postgres = _postgres(settings)
    redis = _redis(settings)
    servers = [
        _status(
            postgres.process, "postgres", f"postgresql://postgres@{HOST}:{{port}}/{DATABASE}", settings.postgres_url
        ),
        _status(redis.process, "redis", f"redis://{HOST}:{{port}}/0", settings.redis_url),
    ]
    if settings.postgres_url is not None and postgres.process.running() is not None:
        servers.append(_status(postgres.process, "metadata", f"postgresql://postgres@{HOST}:{{port}}/airflow", None))
    for name, process in component_processes(settings.home / "airflow").items():
        servers.append(_status(process, name, f"http://{HOST}:{{port}}", None))
    return Status(home=settings.home, servers=tuple(servers))


def addresses_with_passwords(settings: Settings) -> dict[str, str]:
    """Return the addresses of the private stores that run, passwords included."""
    urls = {"postgres": lambda: _postgres(settings).database_url(DATABASE), "redis": lambda: _redis(settings).url}
    return {
        server.name: urls[server.name]()
        for server in status(settings).servers
        if server.name in urls and server.is_running
    }


def down(settings: Settings) -> Stopped:
    """Stop the private servers of this home, Airflow and its tasks first; data stay, and so do other servers."""
    if not settings.home.is_dir():
        return Stopped(home=settings.home, names=())
    names = list(down_airflow(settings).names)
    with _locked(settings.home):
        names += [server.name for server in (_redis(settings), _postgres(settings)) if server.stop()]
    return Stopped(home=settings.home, names=tuple(names))


def down_airflow(settings: Settings) -> Stopped:
    """Stop Airflow and its tasks; PostgreSQL and Redis go on."""
    if not settings.home.is_dir():
        return Stopped(home=settings.home, names=())
    with _locked(settings.home):
        directory = settings.home / "airflow"
        components = component_processes(directory)
        ran = [name for name, process in components.items() if process.running() is not None]
        stop_components(components, directory)
    return Stopped(home=settings.home, names=tuple(ran))


def erase(settings: Settings) -> Stopped:
    """Stop the private servers of this home and remove their data; reports stay."""
    stopped = down(settings)
    if settings.home.is_dir():
        _postgres(settings).erase()
        _redis(settings).erase()
        shutil.rmtree(settings.home / "airflow", ignore_errors=True)
    return stopped


def server_urls(settings: Settings) -> ServerUrls:
    """Return the addresses of the stores: those of the settings, else those of the running private servers.

    :raises ServerUnavailable: when a private server is needed and does not run.
    """
    postgres, redis = settings.postgres_url, settings.redis_url
    return ServerUrls(
        # An empty address counts as given: a caller that needs only one store starts no private server of the other.
        postgres=SecretStr(_postgres(settings).database_url(DATABASE)) if postgres is None else postgres,
        redis=SecretStr(_redis(settings).url) if redis is None else redis,
    )


def private_airflow(settings: Settings, *, die_with_parent: bool = False, schedules: bool = True) -> AirflowServer:
    """Return the private Airflow of this home, connected to the servers of the settings.

    :param schedules: whether DAGs also run by their schedules, once they are unpaused.
    :raises ServerUnavailable: when a private server that it needs does not run.
    """
    urls = server_urls(settings)
    metadata = _postgres(settings, die_with_parent=die_with_parent).create_database(METADATA_DATABASE)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return AirflowServer(
        settings.home / "airflow",
        metadata_url=metadata,
        postgres_url=urls.postgres.get_secret_value(),
        redis_url=urls.redis.get_secret_value(),
        spark_master=settings.spark_master.replace("local[*]", f"local[{cores}]"),
        environment={
            "QUEUEKEEPER_HOME": str(settings.home.absolute()),
            "QUEUEKEEPER_KEY_PREFIX": settings.key_prefix,
            "QUEUEKEEPER_REPORTS_DIR": settings.reports_dir
            if isinstance(settings.reports_dir, str)
            else str(settings.reports.absolute()),
            "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": str(schedules),
        },
        die_with_parent=die_with_parent,
    )


def _postgres(settings: Settings, *, die_with_parent: bool = False) -> PostgresServer:
    return PostgresServer(settings.home / "postgres", die_with_parent=die_with_parent)


def _redis(settings: Settings, *, die_with_parent: bool = False) -> RedisServer:
    return RedisServer(settings.home / "redis", die_with_parent=die_with_parent)


def _status(process: ManagedProcess, name: str, url: str, other: SecretStr | None) -> ServerStatus:
    if other is not None:
        return ServerStatus(name=name, state="external", url=without_password(other.get_secret_value()))
    record = process.running()
    if record is None:
        log = process.log_path if process.log_path.is_file() else None
        return ServerStatus(name=name, state="stopped", log_path=log)
    return ServerStatus(
        name=name,
        state="running",
        url=None if record.port is None else url.format(port=record.port),
        pid=record.pid,
        port=record.port,
        version=record.version or None,
        log_path=process.log_path,
    )


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Make a second ``up`` or ``down`` of the same home wait, and say what the home does not allow."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with (home / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise ServerUnavailable(
            f"cannot keep servers in {home}: {error}; name another folder in QUEUEKEEPER_HOME"
        ) from error

"""A private Airflow of four processes with its own users, pools and connections."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg

from queuekeeper import assets, postgres
from queuekeeper.embedded.files import HOST, demand_free, free_port, noted_port, write_private
from queuekeeper.embedded.process import ManagedProcess, ProcessRecord, end_marked
from queuekeeper.errors import ServerUnavailable, UsageError
from queuekeeper.java import java_home
from queuekeeper.jobs.resources import (
    POOLS,
    POSTGRES_CONNECTION,
    POSTGRES_EXTRAS,
    REDIS_CONNECTION,
    REDIS_EXTRAS,
    SPARK_CONNECTION,
)
from queuekeeper.redis_client import read_url

if TYPE_CHECKING:
    from queuekeeper.embedded.airflow_client import AirflowClient

COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("airflow", "api-server"),
    # Scheduler and DAG processor fork a process for every task and every file, so they import common modules first.
    # The components' own log servers would listen on every interface; logs are read from local files instead.
    "scheduler": ("queuekeeper.airflow.component", "scheduler", "--skip-serve-logs"),
    "dag-processor": ("queuekeeper.airflow.component", "dag-processor"),
    "triggerer": ("airflow", "triggerer", "--skip-serve-logs"),
}
"""Module and arguments of each component."""

ROLES: Mapping[str, str] = {"admin": "admin", "operator": "op", "viewer": "viewer"}
"""User name -> role of the simple auth manager. Operators trigger and approve; viewers only read."""

_START_TIMEOUT_S = 240.0
_REDIS_SCHEMES = frozenset({"redis", "rediss"})
_SET_BY_US = frozenset({"application_name", "client_encoding"})
"""Options that each of our connections sets, whatever a URL says."""


@dataclass(frozen=True, kw_only=True)
class AirflowUser:
    """Somebody who may sign in."""

    name: str
    role: str
    password: str


class AirflowServer:
    """API server, scheduler, DAG processor and triggerer on a given metadata database.

    :param directory: Airflow's home: logs, state, secrets and passwords.
    :param metadata_url: ``postgresql://`` address of a database for Airflow alone.
    :param postgres_url: address in the connection ``queuekeeper_postgres``.
    :param redis_url: address in the connection ``queuekeeper_redis``.
    :param spark_master: master in the connection ``queuekeeper_spark``.
    :param dags: DAG folder; that of the package when absent.
    :param plugins: plugin folder; that of the package when absent.
    :param environment: further variables for Airflow and its tasks.
    """

    def __init__(
        self,
        directory: Path,
        *,
        metadata_url: str,
        postgres_url: str,
        redis_url: str,
        spark_master: str = "local[2]",
        dags: Path | None = None,
        plugins: Path | None = None,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
        die_with_parent: bool = False,
    ) -> None:
        self.directory = directory.absolute()
        self._metadata_url = metadata_url
        self._connections = {
            POSTGRES_CONNECTION: _postgres_connection(postgres_url),
            REDIS_CONNECTION: _redis_connection(redis_url),
            SPARK_CONNECTION: {"conn_type": "spark", "host": spark_master, "extra": {"deploy-mode": "client"}},
        }
        self._dags = dags
        self._plugins = plugins
        self._wanted_port = port
        self._more_environment = dict(environment or {})
        self.components = component_processes(self.directory, die_with_parent=die_with_parent)

    @property
    def port(self) -> int:
        """Port of the running API server.

        :raises ServerUnavailable: when it is not running.
        """
        return self.components["api-server"].listening_port("the Airflow", command="queuekeeper up --airflow")

    @property
    def url(self) -> str:
        """Address of UI and REST API."""
        return f"http://{HOST}:{self.port}"

    @property
    def overview_url(self) -> str:
        """Address of our overview in Airflow's frame, which asks a visitor to sign in."""
        return f"{self.url}/plugin/queuekeeper"

    def user(self, name: str = "admin") -> AirflowUser:
        """Return a user with the password that was generated for them."""
        return AirflowUser(name=name, role=ROLES[name], password=_passwords(self.directory)[name])

    def client(self, user: str = "admin") -> AirflowClient:
        """Return a REST client that acts as this user."""
        from queuekeeper.embedded.airflow_client import AirflowClient  # noqa: PLC0415 - its HTTP client takes a while

        return AirflowClient(self.url, user=user, password=self.user(user).password)

    def start(self, *, report: Callable[[str], None] = lambda _: None) -> ProcessRecord:
        """Start the components that do not run, and wait until all four are healthy.

        A component that runs with other settings, such as the address of a server that has moved, is restarted.

        :param report: is called with a few words on what is being waited for.
        :raises ServerUnavailable: when a component does not come up; shows the end of its log.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        remembered = self.components["api-server"].record()
        running = self.components["api-server"].running()
        if running is not None and running.port is not None and self._wanted_port in (None, running.port):
            port = running.port
        elif self._wanted_port is not None:
            port = demand_free(self._wanted_port, "Airflow")
        else:
            port = free_port(noted_port(self.directory / "port") if remembered is None else remembered.port)
        environment = self._environment(port)
        settings = _checksum(environment)
        records = {name: process.running() for name, process in self.components.items()}
        if any(record is None or record.settings != settings for record in records.values()):
            self.stop()
            report("Airflow: preparing its database")
            self._migrate(environment)
            report("Airflow: starting API server, scheduler, DAG processor and triggerer")
            for name, process in self.components.items():
                process.start(
                    [sys.executable, "-m", *COMPONENTS[name]],
                    environment=environment,
                    port=port if name == "api-server" else None,
                    version=f"Airflow {version('apache-airflow-core')}",
                    settings=settings,
                    working_directory=self.directory,
                )
            write_private(self.directory / "port", str(port))
        self._wait_healthy()
        record = self.components["api-server"].running()
        if record is None:
            raise ServerUnavailable(f"api-server ended\n{self.components['api-server'].log_tail()}")
        return record

    def stop(self) -> bool:
        """End the four components and every process that their tasks started; return whether any ran."""
        return stop_components(self.components, self.directory)

    def command(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run one ``airflow`` command with this server's settings."""
        return self._run(arguments, self.environment())

    def environment(self) -> dict[str, str]:
        """Return what the running components were started with; a worker of another executor needs the same."""
        return self._environment(self.port)

    def _environment(self, port: int) -> dict[str, str]:
        keys = _keys(self.directory)
        base = f"http://{HOST}:{port}"
        passwords = _passwords(self.directory)
        dags = self._dags or assets.directory("dags")
        plugins = self._plugins or assets.directory("plugins")
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW__", "AIRFLOW_CONN_"))
        }
        java = java_home(self.directory.parent)
        paths = (str(Path(sys.executable).parent), str(java / "bin"))
        return {
            **kept,
            "AIRFLOW_HOME": str(self.directory),
            "AIRFLOW__API__BASE_URL": base,
            "AIRFLOW__API__HOST": HOST,
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__SECRET_KEY": keys["secret_key"],
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": keys["jwt_secret"],
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            # Tasks report to this address; with a wrong port every task fails without a log.
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{base}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__FERNET_KEY": keys["fernet_key"],
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.directory / "passwords.json"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{ROLES[name]}" for name in sorted(passwords)),
            # Off by default, since a test reaches hosts that its user may not: here user and servers are one machine's.
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            # Reading a file takes a second or two, but more on a busy machine.
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "180",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "240",
            # Parsing all DAGs takes seconds of a core, and a private Airflow shares two with Spark. A changed file is
            # parsed at once.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self._metadata_url.replace(
                "postgresql://", "postgresql+psycopg2://", 1
            ),
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in self._connections.items()},
            "JAVA_HOME": str(java),
            "PATH": os.pathsep.join([*paths, kept.get("PATH", os.defpath)]),
            # By default Spark's workers take the first python3 on PATH, and its driver the outer network.
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONUNBUFFERED": "1",
            "SPARK_LOCAL_IP": HOST,
            **self._more_environment,
        }

    def _migrate(self, environment: Mapping[str, str]) -> None:
        wanted = version("apache-airflow-core")
        stamp = self.directory / "migrated"
        try:
            with psycopg.connect(self._metadata_url) as connection:
                row = connection.execute("SELECT to_regclass('alembic_version') IS NOT NULL").fetchone()
        except psycopg.OperationalError as error:
            raise ServerUnavailable(f"Airflow's database does not answer: {error}") from error
        if row == (True,) and stamp.is_file() and stamp.read_text("utf-8") == wanted:
            return
        stamp.unlink(missing_ok=True)
        done = self._run(("db", "migrate"), environment)
        if done.returncode != 0:
            raise ServerUnavailable(f"`airflow db migrate` failed:\n{(done.stdout + done.stderr)[-3_000:]}")
        write_private(stamp, wanted)

    def _run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def _wait_healthy(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        with self.client() as client:
            while True:
                health = client.health()
                if health and all(state == "healthy" for state in health.values()):
                    break
                for name, process in self.components.items():
                    if process.running() is None:
                        raise ServerUnavailable(f"{name} ended while it was starting\n{process.log_tail()}")
                if time.monotonic() > deadline:
                    raise ServerUnavailable(
                        f"Airflow was not healthy within {_START_TIMEOUT_S:.0f} s: {health or 'no answer'}; "
                        f"see the logs in {self.directory}"
                    )
                time.sleep(0.3)
            for pool, size in POOLS.items():
                client.ensure_pool(pool, slots=size.slots, description=size.description)


def component_processes(directory: Path, *, die_with_parent: bool = False) -> dict[str, ManagedProcess]:
    """Return the four components of the Airflow in ``directory``, running or not."""
    return {
        name: ManagedProcess(name, directory.absolute(), stop_timeout_s=15.0, die_with_parent=die_with_parent)
        for name in COMPONENTS
    }


def stop_components(components: Mapping[str, ManagedProcess], directory: Path) -> bool:
    """End all components at once, then the processes that their tasks left; return whether anything ran."""
    with ThreadPoolExecutor(len(components)) as threads:
        ended = list(threads.map(lambda process: process.stop(), components.values()))
    return any([*ended, end_marked(directory.absolute()) > 0])


def _keys(directory: Path) -> dict[str, str]:
    path = directory / "keys.json"
    if not path.is_file():
        keys = {
            "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "jwt_secret": secrets.token_hex(32),
            "secret_key": secrets.token_hex(32),
        }
        write_private(path, json.dumps(keys))
    return {str(name): str(value) for name, value in json.loads(path.read_text("utf-8")).items()}


def _passwords(directory: Path) -> dict[str, str]:
    path = directory / "passwords.json"
    known: dict[str, str] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    missing = [name for name in ROLES if name not in known]
    if missing:
        known |= {name: secrets.token_urlsafe(12) for name in missing}
        write_private(path, json.dumps(known))
    return {name: known[name] for name in ROLES}


def _checksum(environment: Mapping[str, str]) -> str:
    """Return a checksum of the settings whose change needs a restart; the caller's other variables may differ."""
    ours = {name: value for name, value in environment.items() if name.startswith(("AIRFLOW", "QUEUEKEEPER_"))}
    return sha256(json.dumps([ours, _code_version()], sort_keys=True).encode()).hexdigest()


def _code_version() -> list[str]:
    found = []
    for package in ("apache-airflow-core", "queuekeeper"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} not installed")
    # Components keep the code that they have imported, so edited code in a checkout needs a restart, too.
    newest_ns = max(path.stat().st_mtime_ns for path in Path(__file__).parents[1].rglob("*.py"))
    return [*found, str(newest_ns)]


def _postgres_connection(url: str) -> dict[str, object]:
    """Return the connection by which Airflow reaches what commands reach by a URL, in any form that libpq reads."""
    options = {name: value for name, value in postgres.read_url(url).items() if name not in _SET_BY_US}
    place = {name: options.pop(name, None) for name in ("host", "port", "user", "password", "dbname")}
    ports = {int(port or 5432) for port in str(place["port"] or "").split(",")}
    if len(ports) > 1:
        raise UsageError(
            "the PostgreSQL URL has several ports, and a connection of Airflow has one: give all hosts the same port"
        )
    _demand_extras("PostgreSQL", options, known=POSTGRES_EXTRAS)
    return {
        "conn_type": "postgres",
        "host": place["host"],
        "port": ports.pop(),
        "login": place["user"],
        "password": place["password"],
        "schema": place["dbname"] or "",
        "extra": options,
    }


def _redis_connection(url: str) -> dict[str, object]:
    """Return the connection by which Airflow reaches what commands reach by a URL, in any form that redis-py reads."""
    scheme = urlsplit(url).scheme
    if scheme not in _REDIS_SCHEMES:
        raise UsageError(f"a Redis address begins with redis:// or rediss://, not with {scheme}://")
    options = dict(read_url(url)[2])
    # It goes with the scheme.
    options.pop("connection_class", None)
    place = {name: options.pop(name, None) for name in ("host", "port", "username", "password", "db")}
    _demand_extras("Redis", options, known=REDIS_EXTRAS)
    return {
        "conn_type": "redis",
        "host": place["host"],
        "port": place["port"] or 6379,
        "login": place["username"] or None,
        "password": place["password"],
        "extra": {**options, "db": place["db"] or 0, **({"ssl": True} if scheme == "rediss" else {})},
    }


def _demand_extras(product: str, options: Mapping[str, object], *, known: frozenset[str]) -> None:
    """Refuse an option that each task would refuse."""
    if others := sorted(set(options) - known):
        raise UsageError(
            f"the {product} URL has what connections of Airflow do not take: {', '.join(others)}; "
            f"they take {', '.join(sorted(known))}"
        )

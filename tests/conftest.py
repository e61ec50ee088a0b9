"""Real servers for every lane: started on first use, emptied for each test, ended even when the run is killed."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import count, product
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, settings

from queuekeeper.embedded import PostgresServer, RedisCluster, RedisServer
from queuekeeper.embedded import postgres_server as postgres_server_module
from queuekeeper.embedded.process import ManagedProcess
from queuekeeper.embedded.redis_server import Flavour
from queuekeeper.errors import ServerUnavailable
from queuekeeper.events.schema import install
from queuekeeper.java import java_home
from queuekeeper.postgres import Connection, connect
from queuekeeper.schema_migrations import migrate
from tests import spark_java
from tests.object_store import ObjectStore, forget
from tests.patience import PATIENCE_S

REDIS_FLAVOURS: tuple[Flavour, ...] = ("valkey", "redis") if shutil.which("redis-server") else ("valkey",)


def nightly(*values: object) -> list[ParameterSet]:
    """Return values of a parameter with which a test shows again what it has shown with others."""
    return [pytest.param(each, marks=pytest.mark.nightly) for each in values]


def in_turn(some: Collection[object], others: Sequence[object]) -> list[ParameterSet]:
    """Return all pairs of two parameters' values: by day each of the first with one of the others, in turn."""
    by_day = [(each, others[place % len(others)]) for place, each in enumerate(some)]
    marks = {pair: () if pair in by_day else (pytest.mark.nightly,) for pair in product(some, others)}
    return [pytest.param(*pair, marks=marks[pair]) for pair in marks]


ONE_SERVER_EACH = ["valkey", *nightly(*REDIS_FLAVOURS[1:])]
"""What a test shows on Valkey it shows on Redis again."""
HERE = Path(__file__).parent
LONGEST_FIRST = (
    "integration/test_session_migration.py",
    "integration/test_celery_executor.py",
    "integration/test_demo.py",
    "integration/test_planted_runs.py",
    "integration/test_cli.py",
    "integration/test_queue_quality.py",
    "chaos/test_copy_survives_kills.py",
    "spark/test_limits.py",
    "chaos/test_online_migration_survives.py",
    "spark/test_spark_hosts.py",
    "spark/test_spark_cluster.py",
    "dags/test_partition_maintenance.py",
    "dags/test_quality_run.py",
    "ui/test_plugin_pages.py",
    "conformance/test_online_migration.py",
    "integration/test_guides.py",
    "property/test_session_store_machine.py",
    "ui/test_report_page.py",
    "ui/test_quality_page.py",
)
"""Files that take minutes, or are long and would come last by their names. A file stays with one worker: what is long
must not be begun last. Those without a Spark of the worker's own come first, as it stays."""
TOGETHER = {
    "dags": ("dags/",),
    "spark": ("spark/",),
    "spark elsewhere": (
        *("chaos/test_copy_survives_kills.py", "integration/test_cli.py", "integration/test_cli_partitions.py"),
        *("integration/test_cli_quality.py",),
        *("property/test_fates.py", "property/test_one_judge.py", "quality/test_expectations.py"),
        *("quality/test_golden_profiles.py", "quality/test_healthy_data.py"),
    ),
}
"""Files that stay with one worker: they share an Airflow, which reads its code and our DAGs once, or a Spark."""
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 6 * 1024**3
_names = count(1)
_SERVERS: list[PostgresServer] = []

# Workers of pytest-xdist have a terminal of 80 columns; output is tested as it goes down a pipe.
os.environ.pop("COLUMNS", None)
# Tests share their machine: how long an example takes, or to think of one, says nothing.
settings.register_profile("queuekeeper", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("queuekeeper")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let PostgreSQL be another version than the embedded one: ``make test-sql ARGS="--postgres-binaries DIR/bin"``.

    ``--nightly`` leaves nothing out.
    """
    parser.addoption(
        "--nightly", action="store_true", help="also what repeats on other servers what the rest has shown"
    )
    parser.addoption(
        "--postgres-binaries", type=Path, help="bin folder of the PostgreSQL on which to run; else the embedded one"
    )


def pytest_report_header(config: pytest.Config) -> str:
    """Say what is left out."""
    left_out = "nothing" if config.getoption("--nightly") else "what `make test-nightly` adds (--nightly)"
    return f"queuekeeper: left out is {left_out}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage, which takes a quarter of the time; what was collected is never looked at."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show beside a connection that PostgreSQL broke what it says of that: its log goes with the server."""
    report = yield
    if report.failed and "server closed the connection unexpectedly" in report.longreprtext:
        report.sections += [("PostgreSQL's log", server.process.log_tail(60)) for server in _SERVERS]
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files, and those together that share what takes long to start."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    def unit_of(nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        name = (config.rootpath / file).relative_to(HERE).as_posix()
        return next((unit for unit, files in TOGETHER.items() if name.startswith(files)), file)

    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = unit_of
    return scheduling


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the nightly part to the night, and begin with the longest files: then all workers end together."""
    if not config.getoption("--nightly"):
        left_out = [item for item in items if item.get_closest_marker("nightly")]
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=left_out)
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.as_posix().removeprefix(f"{HERE.as_posix()}/"), len(places)))


@pytest.fixture(scope="session")
def postgres_binaries(request: pytest.FixtureRequest) -> Path | None:
    """Folder of the programs of this run's PostgreSQL; none for the embedded one."""
    found: Path | None = request.config.getoption("--postgres-binaries")
    return found


@pytest.fixture(scope="session")
def server_home() -> Iterator[Path]:
    """Folder for all servers of this run; every account may enter it, as PostgreSQL runs as ``nobody`` for root."""
    home = Path(tempfile.mkdtemp(prefix="queuekeeper-tests-"))
    home.chmod(0o711)
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def java(request: pytest.FixtureRequest, server_home: Path) -> None:
    """Let Spark find a Java that it can use; a test that needs one and has none says so itself.

    By day Spark interprets its queries, and by night it compiles them: ``compiling`` in ``tests/spark_session.py``.
    """
    with suppress(ServerUnavailable):
        os.environ["JAVA_HOME"] = str(java_home(server_home))
    os.environ |= spark_java.environment(compiles=request.config.getoption("--nightly"))


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Leave the process's handlers as they were: Airflow's task runner, which ``dag.test()`` calls, keeps its own."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def in_memory() -> Path | None:
    """Return a folder without a disk behind it, where there is one with room."""
    room_bytes = min(psutil.virtual_memory().available, shutil.disk_usage(_MEMORY).free) if _MEMORY.is_dir() else 0
    return _MEMORY if room_bytes >= _ROOM_BYTES else None


@pytest.fixture(scope="session")
def postgres_server(postgres_binaries: Path | None) -> Iterator[PostgresServer]:
    """Private PostgreSQL of this run. A test that kills it starts it again.

    Every database is three hundred files, and most tests have one of their own: in memory that takes half of the time.
    """
    with tempfile.TemporaryDirectory(prefix="queuekeeper-tests-", dir=in_memory(), ignore_cleanup_errors=True) as home:
        Path(home).chmod(0o711)
        server = PostgresServer(
            Path(home) / "postgres", durable=False, die_with_parent=True, binaries=postgres_binaries
        )
        _SERVERS.append(server)
        server.start()
        yield server
        server.erase()


def new_template(server: PostgresServer, purpose: str, prepare: Callable[[Connection], Any]) -> str:
    """Make a database that tests copy, since a copy is quicker than making another; return its name."""
    server.start()
    name = f"{purpose}_template_{os.getpid()}"
    with connect(server.create_database(name, template="template0"), autocommit=True) as connection:
        prepare(connection)
    return name


@pytest.fixture
def system_postgres(server_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """The system's PostgreSQL, started, which a test may stop and start; skips where none is installed."""
    monkeypatch.setattr(postgres_server_module, "_wheel_binaries", lambda: None)
    if not postgres_server_module._candidates():
        pytest.skip("no PostgreSQL is installed")
    postgres_server_module._usable_binaries.cache_clear()
    server = PostgresServer(server_home / "system-postgres", durable=False, die_with_parent=True)
    try:
        server.start()
        yield server
    finally:
        server.erase()
        postgres_server_module._usable_binaries.cache_clear()


@pytest.fixture(scope="session")
def control_template(postgres_server: PostgresServer) -> str:
    """Name of a database with schema ``queuekeeper``; copying it is five times faster than making another."""
    return new_template(postgres_server, "control", migrate)


@pytest.fixture(scope="session")
def object_store(server_home: Path) -> Iterator[ObjectStore]:
    """Private S3 of this run."""
    store = ObjectStore(ManagedProcess("s3", server_home / "s3", die_with_parent=True))
    yield store
    store.stop()


@pytest.fixture
def bucket(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of an empty bucket, in which whoever has this environment may read and write objects."""
    for name, value in object_store.writer.environment().items():
        monkeypatch.setenv(name, value)
    forget()
    yield object_store.bucket()
    forget()


@pytest.fixture
def control_schema() -> None:
    """Have ``postgres_url`` name a database that has schema ``queuekeeper``, as migrations leave it."""


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[str]:
    """Address of a database of the test's own, as a superuser; it is empty unless ``control_schema`` is asked for."""
    postgres_server.start()
    name = f"test_{os.getpid()}_{next(_names)}"
    is_empty = "control_schema" not in request.fixturenames
    template = "template0" if is_empty else request.getfixturevalue("control_template")
    yield postgres_server.create_database(name, template=template)
    postgres_server.start()
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def broker_template(postgres_server: PostgresServer) -> str:
    """Name of a database with a new event broker; copying it is ten times faster than installing another."""
    return new_template(postgres_server, "broker", install)


@pytest.fixture
def broker_url(postgres_server: PostgresServer, broker_template: str) -> Iterator[str]:
    """Address of a database of the test's own, with a new event broker."""
    postgres_server.start()
    name = f"broker_{os.getpid()}_{next(_names)}"
    yield postgres_server.create_database(name, template=broker_template)
    postgres_server.start()
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def redis_servers(server_home: Path) -> Iterator[Callable[[Flavour], RedisServer]]:
    """Answer the run's private server of a flavour; it is started, or started again, when asked for."""
    servers: dict[Flavour, RedisServer] = {}

    def server(flavour: Flavour) -> RedisServer:
        if flavour not in servers:
            servers[flavour] = RedisServer(server_home / flavour, flavour=flavour, die_with_parent=True)
        servers[flavour].start()
        return servers[flavour]

    yield server
    for started in servers.values():
        started.stop()


def _emptied(server: RedisServer) -> str:
    with server.client() as client:
        client.flushall()
        # Scripts and statistics of an earlier test are no business of the next one.
        client.script_flush()
        client.config_resetstat()
    return server.url


@pytest.fixture(params=ONE_SERVER_EACH)
def redis_url(request: pytest.FixtureRequest, redis_servers: Callable[[Flavour], RedisServer]) -> str:
    """Address of an empty single server: once on Valkey and, where ``redis-server`` is installed, once on Redis."""
    return _emptied(redis_servers(request.param))


@pytest.fixture
def valkey_url(redis_servers: Callable[[Flavour], RedisServer]) -> str:
    """Address of an empty Valkey, for tests to which the flavour makes no difference."""
    return _emptied(redis_servers("valkey"))


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of what commands write; no setting of whoever runs the tests is left."""
    for name in [each for each in os.environ if each.startswith("QUEUEKEEPER_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("QUEUEKEEPER_HOME", str(home))
    return home


@pytest.fixture
def named_postgres(postgres_url: str, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of the database that the environment names."""
    monkeypatch.setenv("QUEUEKEEPER_POSTGRES_URL", postgres_url)
    return postgres_url


@pytest.fixture
def named_redis(valkey_url: str, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of the Valkey that the environment names."""
    monkeypatch.setenv("QUEUEKEEPER_REDIS_URL", valkey_url)
    return valkey_url


@pytest.fixture(scope="session")
def redis_cluster(server_home: Path) -> Iterator[RedisCluster]:
    """Three Valkey masters that share the slots, and that no pause of a busy machine makes take each other for lost."""
    patient = {"cluster-node-timeout": round(1_000 * PATIENCE_S)}
    cluster = RedisCluster(server_home / "cluster", flavour="valkey", config=patient, die_with_parent=True)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def cluster_nodes(redis_cluster: RedisCluster) -> Iterator[list[redis.Redis]]:
    """A connection to each master that stays: to make three takes longer than many a test."""
    with ExitStack() as stack:
        yield [stack.enter_context(node.client()) for node in redis_cluster.nodes]


@pytest.fixture
def redis_cluster_url(redis_cluster: RedisCluster, cluster_nodes: list[redis.Redis]) -> str:
    """Address of an emptied cluster of three masters."""
    try:
        for node in cluster_nodes:
            node.flushall()
        # A test has taken a slot from all masters: they hear of its return from each other, about once a second.
        redis_cluster.agree(cluster_nodes)
    except redis.RedisError:
        # A test has stopped or restarted a master.
        redis_cluster.start()
        redis_cluster.flush()
    return redis_cluster.url


def url_of_parameter(request: pytest.FixtureRequest) -> str:
    """Return the address of the server that a fixture's parameter names: a flavour, or the cluster.

    A single server is as earlier tests have left it.
    """
    if request.param == "cluster":
        return str(request.getfixturevalue("redis_cluster_url"))
    return url_of_server(request, request.param)


def url_of_server(request: pytest.FixtureRequest, name: str) -> str:
    """Return the address of the server of a flavour, or of the cluster, for fixtures of a whole file.

    The server runs, and is as earlier tests have left it.
    """
    if name != "cluster":
        return str(request.getfixturevalue("redis_servers")(name).url)
    cluster = request.getfixturevalue("redis_cluster")
    cluster.start()
    return str(cluster.url)


@pytest.fixture
def redis_server_factory(server_home: Path) -> Iterator[Callable[..., RedisServer]]:
    """Start servers of the test's own: ``factory(maxmemory="10mb")``, with underscores for the dashes of option names.

    ``flavour`` chooses the program and is no option of the server.
    """
    servers: list[RedisServer] = []

    def factory(*, flavour: Flavour = "valkey", **config: str | int) -> RedisServer:
        server = RedisServer(
            server_home / f"redis-{next(_names)}",
            flavour=flavour,
            config={name.replace("_", "-"): value for name, value in config.items()},
            die_with_parent=True,
        )
        servers.append(server)
        server.start()
        return server

    yield factory
    for server in servers:
        server.stop()
        shutil.rmtree(server.directory, ignore_errors=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser of Playwright."""
    from tests.browser import chromium

    with chromium() as started:
        yield started

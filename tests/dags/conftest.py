"""Fixtures of the DAG lane: an Airflow home of its own, and the DAG files as Airflow reads them."""

from __future__ import annotations

import atexit
import copy
import importlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from queuekeeper import postgres, redis_client
from queuekeeper.java import java_home
from tests.conftest import in_memory

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

ROOT = Path(__file__).resolve().parents[2]

# Airflow reads its settings when it is first imported, and remembers them: they have to stand before.
_HOME = tempfile.mkdtemp(prefix="queuekeeper-airflow-", dir=in_memory())
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
for _name in [name for name in os.environ if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_"))]:
    del os.environ[_name]
os.environ |= {
    "AIRFLOW_HOME": _HOME,
    "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
}

with warnings.catch_warnings():
    # Airflow's API imports Starlette's test client, which announces the new name of a package that it would rather use.
    warnings.filterwarnings("ignore", message="Using `httpx` with `starlette.testclient` is deprecated")
    importlib.import_module("svcs")


@pytest.fixture(scope="session")
def airflow_database() -> Iterator[None]:
    """Airflow's own database, made once for all tests of a worker, and what ``dag.test()`` reads before a run, once.

    It would read the whole folder and store every DAG again before each run.
    """
    from airflow.dag_processing import dagbag
    from airflow.utils.db import initdb

    initdb()
    stored: set[Path] = set()
    read, store = dagbag.BundleDagBag, dagbag.sync_bag_to_db

    def read_once(*, dag_folder: Path, **given: Any) -> DagBag | None:
        return None if dag_folder in stored else read(dag_folder, **given)

    def store_once(found: DagBag | None, *given: Any) -> None:
        if found is not None:
            store(found, *given)
            stored.add(Path(found.dag_folder))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dagbag, "BundleDagBag", read_once)
        patched.setattr(dagbag, "sync_bag_to_db", store_once)
        yield


@pytest.fixture(scope="session")
def dag_bag() -> DagBag:
    """DAG files as the DAG processor reads them, without a connection to anything."""
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(str(ROOT / "dags"))


@pytest.fixture
def session_migration(dag_bag: DagBag) -> DAG:
    """The DAG under test, as a copy of the test's own: a run leaves its parameters' values behind in the DAG."""
    return copy.deepcopy(dag_bag.dags["session_migration"])


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Define connections of Airflow: ``connections(queuekeeper_redis="redis://...")``."""

    def define(**uris: str) -> None:
        for name, uri in uris.items():
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", uri)

    return define


@pytest.fixture
def client(valkey_url: str, connections: Callable[..., None]) -> Iterator[redis_client.RedisClient]:
    """An empty Redis, which Airflow knows."""
    connections(queuekeeper_redis=valkey_url)
    with redis_client.connect(valkey_url) as found:
        yield found


@pytest.fixture
def local_spark(server_home: Path, connections: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's connection to a Spark on this machine, and the Java that it needs."""
    java = java_home(server_home)
    monkeypatch.setenv("JAVA_HOME", str(java))
    monkeypatch.setenv("PATH", os.pathsep.join([str(java / "bin"), os.environ["PATH"]]))
    connections(queuekeeper_spark='{"conn_type": "spark", "host": "local[1]", "extra": {"deploy-mode": "client"}}')


Stores = tuple[redis_client.RedisClient, postgres.Connection]


@pytest.fixture
def empty_database(
    postgres_url: str, connections: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[postgres.Connection]:
    """An empty database, and Airflow's connection to it; files of runs go into the test's folder."""
    monkeypatch.setenv("QUEUEKEEPER_HOME", str(tmp_path))
    connections(queuekeeper_postgres=postgres_url)
    with postgres.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def stores(client: redis_client.RedisClient, empty_database: postgres.Connection) -> Stores:
    """The same with an empty database."""
    return client, empty_database

"""Spark with executors on another host: the driver is found, stores are named so that all reach them, nothing hangs.

The other host is a network namespace with an address of its own.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from queuekeeper import redis_client
from queuekeeper.embedded import PostgresServer, RedisCluster
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.migration.ledger.model import code_version
from queuekeeper.migration.spark.masters import check_master, refuse_loopback, runs_here
from queuekeeper.migration.spark.session import build_session, our_errors
from tests.chaos.support import until
from tests.conformance.cutting_proxy import CuttingProxy
from tests.spark.hosts import (
    WITHOUT_NAMESPACES,
    Network,
    free_port,
    network,
    spark_master,
    spark_worker,
    without_local_address,
)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Network]:
    with network(1) as made:
        if runs_here(f"spark://{made.here}:7077"):
            pytest.skip("this machine allows no network namespaces and has no address but loopback")
        yield made


@pytest.fixture(scope="module")
def master(hosts: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with spark_master(hosts.here, tmp_path_factory.mktemp("master")) as url:
        yield url


@pytest.fixture(scope="module")
def unshared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this host under whose name the other host has one of its own."""
    return tmp_path_factory.mktemp("unshared")


@pytest.fixture(scope="module")
def worker(hosts: Network, master: str, unshared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with spark_worker(hosts.hosts[0], master, tmp_path_factory.mktemp("worker"), hidden=[unshared]):
        yield


DRIVER = """
import json, os, sys
from pathlib import Path
from pyspark import SparkContext
from queuekeeper.errors import QueuekeeperError
from queuekeeper.migration.spark import probe
from queuekeeper.migration.spark.grants import Grants
from queuekeeper.migration.spark.session import build_session, check_shared, set_task_count, task_memory

probe.TELL_S = 1.0
for line in sys.stdin:
    call, python, asked = json.loads(line)
    context = SparkContext._active_spark_context
    os.environ["PYSPARK_PYTHON"] = python
    if context is not None:
        context.pythonExec = python
    said = "granted"
    try:
        if call == "build":
            session = build_session("probe", **asked)
        elif call == "probe":
            probe.probe_executor(context, stores=(), grants=Grants(context._jvm.java.io.StringWriter()), **asked)
        elif call == "address":
            said = context.getConf().get("spark.driver.host")
        elif call == "share":
            check_shared(session, Path(asked["folder"]))
        else:
            said = f"{set_task_count(session, rows=5)} tasks, {task_memory(session).tasks} in an executor"
    except QueuekeeperError as error:
        said = f"{type(error).__name__} {error}"
    print(json.dumps([said, SparkContext._active_spark_context is not None]), flush=True)
"""


class Driver:
    """A process that has a Spark: to start one, and an executor of it, takes longer than what is asked of them.

    :ivar has_session: whether it has been granted a session.
    :ivar told: lines that were printed meanwhile.
    """

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.has_session = False
        self.told: list[str] = []

    def build_session(self, master: str, *, python: Path | str = sys.executable, **arguments: Any) -> str:
        """Return what is said when a session cannot be had, which then ends, or granted.

        :param python: of executors.
        """
        return self._asked("build", python, master=master, **arguments)

    def probe_executor(self, python: Path | str) -> str:
        """Return what is said of executors of the session that have another Python."""
        return self._asked("probe", python)

    def check_shared(self, folder: Path) -> str:
        """Return what is said of a folder that executors of the session are to share."""
        return self._asked("share", sys.executable, folder=str(folder))

    def address(self) -> str:
        """Return the address at which executors reach the session's driver."""
        return socket.gethostbyname(self._asked("address", sys.executable))

    def tasks(self) -> str:
        """Return how many tasks a small step of the session has now, and how many of them an executor runs at once."""
        return self._asked("tasks", sys.executable)

    def _asked(self, call: str, python: Path | str, **arguments: Any) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps([call, str(python), arguments])}\n")
        self._process.stdin.flush()
        for answer in self._process.stdout:
            if answer.startswith("["):
                break
            self.told.append(answer)
        else:
            raise AssertionError(self._log.read_text("utf-8"))
        said, self.has_session = json.loads(answer)
        return str(said)


@contextmanager
def started_driver(folder: Path, **variables: str) -> Iterator[Driver]:
    """Start such a process for the block.

    :param variables: of its environment.
    """
    log = folder / "driver.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-c", DRIVER], env=without_local_address() | variables, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        ) as process,
    ):  # fmt: skip
        yield Driver(process, log)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with started_driver(tmp_path_factory.mktemp("driver")) as started:
        yield started


@pytest.fixture
def session(master: str, worker: None, driver: Driver) -> Driver:
    """The same with a session, which tests share until it is refused something."""
    if not driver.has_session:
        assert driver.build_session(master) == "granted"
    return driver


def _python(folder: Path, name: str, *, options: str = "", files: Mapping[str, str] | None = None) -> Path:
    """Make a Python for executors that differs from this one by options, or by modules that come first."""
    place = folder / name
    for path, text in (files or {}).items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text, "utf-8")
    place.mkdir(exist_ok=True)
    program = place / "python"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={place}:"$PYTHONPATH" exec {sys.executable} {options} "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    return program


# It comes first: no worker has come yet.
def test_a_spark_that_grants_no_executor_is_reported_and_not_waited_for(master: str, driver: Driver) -> None:
    said = driver.build_session(master, executor_wait_s=3)

    assert f"ServerUnavailable Spark at {master} granted no executor within 3 seconds: check on the master's" in said
    assert f"spark: waiting for an executor of Spark at {master}: 1 of at most 3 seconds\n" in driver.told


def test_an_executor_that_cannot_run_the_jobs_is_refused_in_words(master: str, session: Driver, tmp_path: Path) -> None:
    package = {f"queuekeeper/{path}__init__.py": "" for path in ("", "migration/", "migration/ledger/")}
    bare = _python(tmp_path, "bare", options="-S")
    older = _python(
        tmp_path,
        "older",
        files=package | {"queuekeeper/migration/ledger/model.py": "def code_version():\n    return '0.0.1'\n"},
    )
    other_spark = _python(
        tmp_path, "spark", files={"sitecustomize.py": "import pyspark\npyspark.__version__ = '4.0.1'\n"}
    )

    pythons = (bare, older, other_spark, "/nowhere/python", sys.executable)
    said = [session.probe_executor(python) for python in pythons]

    executor = f"RefusedError the executor of Spark at {master} on {socket.gethostname()}"
    assert [line.partition(": ")[0] for line in said[:3]] == [
        f"{executor} cannot import Queuekeeper into {sys.executable} (No module named 'queuekeeper')",
        f"{executor} has Queuekeeper 0.0.1, and this driver has {code_version()}",
        f"{executor} has Spark 4.0.1, and this driver has {pyspark.__version__}",
    ]
    assert "install queuekeeper[spark] there, or send it along as an archive" in said[0]
    assert said[3].startswith(f"RefusedError no executor of Spark at {master} can run Python tasks of this driver")
    assert 'Cannot run program "/nowhere/python"' in said[3]
    assert said[4:] == ["granted"]


def test_a_step_follows_the_executors_that_there_are_when_it_begins(
    hosts: Network, master: str, session: Driver, tmp_path: Path
) -> None:
    # Spark counts no cluster below two tasks.
    assert session.tasks() == "2 tasks, 1 in an executor"

    with spark_worker(hosts.hosts[0], master, tmp_path, cores="3"):
        until(lambda: session.tasks() == "4 tasks, 3 in an executor", what="the cores of a worker that came later")


def test_a_folder_for_archives_that_executors_do_not_share_is_refused(
    hosts: Network, master: str, session: Driver, unshared: Path, tmp_path: Path
) -> None:
    if not hosts.is_real:
        pytest.skip("without network namespaces the other host shares all folders")
    assert session.check_shared(tmp_path) == "granted"
    said = session.check_shared(unshared)

    assert said.startswith(
        f"RefusedError executors of Spark at {master} cannot write to {unshared} (No such file or directory, as user"
    )
    assert [each.name for each in unshared.iterdir()] == []


def test_a_store_that_only_this_host_reaches_is_refused_with_the_words_of_the_executor(
    hosts: Network, master: str, session: Driver, postgres_server: PostgresServer
) -> None:
    if not hosts.is_real:
        pytest.skip("without network namespaces the other host reaches whatever this one does")
    with CuttingProxy(postgres_server.url, host=hosts.only_here) as store:
        said = session.build_session(master, stores=[store.url])

    assert said.startswith(
        f"ServerUnavailable the executor of Spark at {master} on {socket.gethostname()} does not reach the stores: "
        f"PostgreSQL at {hosts.only_here}:"
    )


def test_a_master_that_takes_no_application_is_not_waited_for(hosts: Network, tmp_path: Path) -> None:
    # A driver of its own: Spark itself goes on waiting.
    with socket.create_server((hosts.here, 0)) as mute, started_driver(tmp_path) as driver:
        master = f"spark://{hosts.here}:{mute.getsockname()[1]}"

        said = driver.build_session(master, master_wait_s=2)

    assert said.startswith(
        f"ServerUnavailable the Spark master at {master} has not accepted this driver's application within 2 seconds. "
        "A master of another version of Spark does so"
    )
    assert f"this driver has Spark {pyspark.__version__}" in said
    assert (
        driver.told[0]
        == f"spark: waiting for the Spark master at {master} to accept this driver: 1 of at most 2 seconds\n"
    )


# By day: the first test, of an executor that is not granted, and the one of an executor that does not answer.
@pytest.mark.nightly
def test_an_executor_that_is_granted_and_does_not_come_is_reported_with_its_worker_and_state(
    hosts: Network, tmp_path: Path
) -> None:
    options = "--conf spark.executor.extraJavaOptions=-agentlib:missing pyspark-shell"
    # Others have the only core of the worker that tests share.
    with (
        spark_master(hosts.here, tmp_path) as master,
        spark_worker(hosts.hosts[0], master, tmp_path),
        started_driver(tmp_path, PYSPARK_SUBMIT_ARGS=options) as driver,
    ):
        said = driver.build_session(master, start_wait_s=3)

    expected = (
        rf"ServerUnavailable Spark at {re.escape(master)} has granted an executor, and none has come within 3 seconds "
        rf"\({re.escape(hosts.hosts[0].address)}:\d+: (RUNNING|EXITED \(Command exited with code 1\)|nothing was heard "
        rf"of it)\): check on the page of each of these workers that it has Spark {re.escape(pyspark.__version__)}"
    )
    assert re.match(expected, said), said


OTHER_VERSION = "4.2.1"


@pytest.fixture(scope="module")
def other_spark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of another version of Spark, from the package index."""
    folder = tmp_path_factory.mktemp("other")
    words = ["download", f"pyspark=={OTHER_VERSION}", "--no-deps", "--no-binary", ":all:", "--dest", str(folder)]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the package index gives no Spark {OTHER_VERSION}: {done.stderr[-500:]}")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    archive.unlink()
    (home,) = folder.glob("*/deps")
    return home


@pytest.mark.nightly
def test_a_worker_of_another_version_of_spark_is_refused_within_a_minute(
    other_spark: Path, hosts: Network, tmp_path: Path
) -> None:
    """It is registered at the master, which grants its executor, and it does not understand that."""
    with (
        spark_master(hosts.here, tmp_path) as master,
        spark_worker(hosts.hosts[0], master, tmp_path, home=other_spark),
        started_driver(tmp_path) as driver,
    ):
        said = driver.build_session(master)

    expected = f"ServerUnavailable Spark at {master} has granted an executor, and none has come within 45 seconds ("
    assert said.startswith(expected), said
    assert f"{hosts.hosts[0].address}:" in said
    assert "nothing was heard of it): check on the page of each of these workers that it has Spark" in said


@pytest.mark.nightly
def test_a_master_of_another_version_of_spark_is_refused_within_a_minute(
    other_spark: Path, hosts: Network, tmp_path: Path
) -> None:
    with spark_master(hosts.here, tmp_path, home=other_spark) as master, started_driver(tmp_path) as driver:
        said = driver.build_session(master)

    assert said.startswith(f"ServerUnavailable the Spark master at {master} has not accepted this driver's application")
    assert "A master of another version of Spark does so" in said


def test_an_executor_that_does_not_answer_is_reported_and_not_waited_for(
    master: str, worker: None, driver: Driver, tmp_path: Path
) -> None:
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\nwhile kill -0 $PPID; do sleep 1; done\n", "utf-8")
    mute.chmod(0o755)

    said = driver.build_session(master, python=mute, answer_wait_s=3)

    assert said.startswith(
        f"ServerUnavailable an executor of Spark at {master} has come, and did not answer within 3 seconds: check its"
    )

    assert driver.told[-1].startswith(f"spark: waiting for the first answer of an executor of Spark at {master}: ")


# From here on the session that tests share is over, and has given the one core back. By day: the test of a driver whose
# address has not been set, in test_spark_cluster.py.
@pytest.mark.nightly
@pytest.mark.parametrize("how", ["SPARK_LOCAL_IP", "spark.driver.host"])
def test_executors_reach_the_driver_at_the_address_that_is_set(
    hosts: Network, master: str, worker: None, tmp_path: Path, how: str
) -> None:
    address = hosts.also_here
    submitted = f"--conf {how}={address} pyspark-shell"
    variables = {how: address} if how == "SPARK_LOCAL_IP" else {"PYSPARK_SUBMIT_ARGS": submitted}
    with started_driver(tmp_path, **variables) as driver:
        assert driver.build_session(master) == "granted"
        assert driver.address() == address


# By day: test_an_executor_that_cannot_run_the_jobs_is_refused_in_words.
@pytest.mark.nightly
def test_an_executor_without_the_package_is_refused_within_a_minute_where_it_is_sent_an_archive_too(
    master: str, worker: None, tmp_path: Path
) -> None:
    (tmp_path / "sent").mkdir()
    archive = shutil.make_archive(str(tmp_path / "sent"), "gztar", tmp_path / "sent")
    submitted = f"--conf spark.archives={archive}#environment pyspark-shell"
    begun_s = time.monotonic()
    with started_driver(tmp_path, PYSPARK_SUBMIT_ARGS=submitted) as driver:
        said = driver.build_session(master, python=_python(tmp_path, "bare", options="-S"))

    assert "cannot import Queuekeeper" in said
    assert time.monotonic() - begun_s < 60


LATE = (
    "an executor of Spark that came after the first one has no Queuekeeper: install the same packages on all machines"
)


def test_a_task_that_does_not_find_the_package_fails_the_step_with_advice(spark: SparkSession) -> None:
    def lacking(_: Any) -> list[int]:
        raise ModuleNotFoundError("No module named 'queuekeeper'")

    with pytest.raises(RefusedError, match=LATE), our_errors():
        spark.sparkContext.parallelize([0], 1).mapPartitions(lacking).collect()


@pytest.mark.nightly
def test_an_executor_that_comes_later_without_the_package_fails_the_step_with_advice(
    hosts: Network, tmp_path: Path, clone: Callable[[str], str], healthy_template: str, own_redis: Any
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} $LATE "$@"\n', "utf-8")
    python.chmod(0o755)
    program = (
        "import os, sys\n"
        "from queuekeeper.errors import RefusedError\n"
        "from queuekeeper.migration.ledger.parameters import MigrationParameters\n"
        "from queuekeeper.migration.offline.copy import copy_sessions\n"
        "from queuekeeper.migration.offline.plan import plan_migration\n"
        "from queuekeeper.migration.spark.session import build_session\n"
        "master, postgres_url, redis_url, os.environ['PYSPARK_PYTHON'] = sys.argv[1:]\n"
        "stores = {'postgres_url': postgres_url, 'redis_url': redis_url}\n"
        "spark = build_session('late', master=master, stores=list(stores.values()))\n"
        "plan = plan_migration(spark, **stores, parameters=MigrationParameters(), run_id=None)\n"
        "print('planned', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    copy_sessions(spark, **stores, plan_id=plan.plan_id)\n"
        "except RefusedError as error:\n"
        "    print(error)\n"
    )
    folders = [tmp_path / name for name in ("first", "late")]
    for folder in folders:
        folder.mkdir()
    with (
        CuttingProxy(clone(healthy_template), host=hosts.here) as source,
        CuttingProxy(own_redis(), host=hosts.here) as target,
        # Without the worker of the other tests.
        spark_master(hosts.here, tmp_path) as master,
        ExitStack() as first,
    ):
        first.enter_context(spark_worker(hosts.hosts[0], master, folders[0]))
        words = [sys.executable, "-c", program, master, source.url, target.url, str(python)]
        with subprocess.Popen(
            words, env=without_local_address(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as driver:
            assert driver.stdout is not None
            assert any(line.startswith("planned") for line in driver.stdout)
            first.close()
            with spark_worker(hosts.hosts[0], master, folders[1], LATE="-S"):
                said, _ = driver.communicate("\n")
        with redis_client.connect(target.url) as client:
            assert client.dbsize() == 0

    assert said.splitlines()[-1].startswith(LATE)


def test_where_namespaces_are_not_allowed_three_addresses_of_this_host_stand_for_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(WITHOUT_NAMESPACES, "yes")

    with ExitStack() as stack:
        with pytest.warns(UserWarning, match=r"no network namespaces here: hosts are .* is set"):
            made = stack.enter_context(network(3))
        assert [host.address for host in made.hosts] == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
        assert not made.is_real
        for host in made.hosts:
            with (
                socket.create_server((host.address, 0)) as server,
                socket.create_connection(server.getsockname(), source_address=(made.here, 0)),
            ):
                subprocess.run(host.command(["true"], hidden=[Path("/")]), check=True)


def test_a_master_that_does_not_answer_is_named_before_spark_starts(hosts: Network, driver: Driver) -> None:
    nobody = f"spark://{hosts.here}:{free_port(hosts.here)}"

    said = driver.build_session(nobody)

    assert said.startswith(
        f"ServerUnavailable no Spark master answers at {nobody}: Connection refused; check its address"
    )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://:secret@localhost:6379/0", "Redis is named by localhost"),
        ("redis://:secret@127.0.0.2:6379/0", "Redis is named by 127.0.0.2"),
        ("unix:///run/redis.sock", "Redis is named by /run/redis.sock"),
        ("rediss://[::1]:6379", "Redis is named by ::1"),
        ("postgresql://u:secret@localhost/tbmq", "PostgreSQL is named by localhost"),
        ("postgresql://u:secret@10.1.1.1,127.0.0.1/tbmq", "PostgreSQL is named by 127.0.0.1"),
        ("postgresql:///tbmq", "PostgreSQL is named by localhost"),
    ],
)
def test_stores_on_loopback_are_refused_where_executors_are_elsewhere(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        build_session("never started", master="spark://10.1.2.3:7077", stores=["redis://10.1.1.1:6379", url])

    assert "name " in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_cluster_whose_nodes_are_announced_by_loopback_is_refused(
    hosts: Network, redis_cluster: RedisCluster
) -> None:
    with (
        CuttingProxy(redis_cluster.url, host=hosts.here) as cluster,
        pytest.raises(
            UsageError, match=r"a node of the Redis cluster is announced as 127\.0\.0\.1:\d+, which every"
        ) as caught,
    ):
        refuse_loopback("spark://10.1.2.3:7077", [cluster.url])

    assert "set cluster-announce-ip of each node to an address that all" in str(caught.value)


@pytest.mark.parametrize(
    "master",
    ["sc://connect:15002", "mesos://m:5050", "yarn://", "yarn-cluster", "local[0]", "local[two]", "nowhere", ""],
)
def test_a_master_of_a_mode_that_there_is_not_is_refused_before_anything_is_started(master: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"jobs do not run on the Spark master {master!r}")) as caught:
        build_session("never started", master=master)

    assert "write local[2], spark://host:7077, yarn, or k8s://https://host:6443" in str(caught.value)


def test_spark_connect_that_the_environment_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://connect:15002")

    with pytest.raises(UsageError, match="SPARK_REMOTE names a Spark Connect server, and a job is the driver"):
        build_session("never started", master="local[1]")


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[2]",
        "local[2, 4]",
        "local-cluster[2,1,1024]",
        "spark://127.0.0.1:7077",
        "spark://[::1]:7077",
    ],
)
def test_executors_of_this_machine_may_use_loopback(master: str) -> None:
    check_master(master)
    assert runs_here(master)


@pytest.mark.parametrize(
    "master", ["spark://10.1.1.1:7077", "spark://a:7077,127.0.0.1:7077", "yarn", "k8s://https://h:6443"]
)
def test_any_other_master_may_have_executors_elsewhere(master: str) -> None:
    check_master(master)
    assert not runs_here(master)

"""Spark with executors on another host: the driver is found, stores are named so that all reach them, nothing hangs.

The other host is a network namespace with an address of its own.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession

from queuekeeper.errors import UsageError
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.migration.spark.session import build_session, runs_here
from tests.conformance.cutting_proxy import CuttingProxy
from tests.spark.world import World

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def _without_local_address() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """This host and another one, joined by a cable.

    :param here: address of this host that the other one reaches.
    :param there: address of the other host.
    :param namespace: in which programs of the other host run.
    """

    here: str
    there: str
    namespace: str


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr}")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    name = f"qk{os.getpid() % 100_000}"
    third = os.getpid() % 256
    found = Hosts(here=f"10.213.{third}.1", there=f"10.213.{third}.2", namespace=name)
    try:
        _ip("netns", "add", name)
    except OSError as error:
        pytest.fail(f"this test makes a host of its own by a network namespace, for which it needs root: {error}")
    try:
        _ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        _ip("addr", "add", f"{found.here}/24", "dev", f"{name}a")
        _ip("link", "set", f"{name}a", "up")
        for words in (("addr", "add", f"{found.there}/24", "dev", f"{name}b"), ("link", "set", f"{name}b", "up")):
            _ip("-n", name, *words)
        _ip("-n", name, "link", "set", "lo", "up")
        yield found
    finally:
        _ip("netns", "del", name)


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def _started(words: list[str], *, says: str, folder: Path) -> Iterator[None]:
    """Run a daemon of Spark for the block, once it has said that it is ready."""
    environment = _without_local_address() | {"SPARK_WORKER_DIR": str(folder), "SPARK_DAEMON_MEMORY": "256m"}
    process = subprocess.Popen(
        words, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        heard = []
        for line in process.stdout:
            heard.append(line)
            if says in line:
                break
        else:
            pytest.fail("".join(heard))
        with (folder / "log").open("ab") as log, subprocess.Popen(["cat"], stdin=process.stdout, stdout=log):
            process.stdout.close()
            yield
            _end(process.pid)
    finally:
        _end(process.pid)
        process.wait()


def _end(pid: int) -> None:
    """End a process and what it started."""
    try:
        family = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(family)


@pytest.fixture(scope="module")
def master(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = _free_port(hosts.here)
    words = [
        str(SPARK_CLASS), "org.apache.spark.deploy.master.Master", "--host", hosts.here, "--port", str(port),
        "--webui-port", "0",
    ]  # fmt: skip
    with _started(words, says="New state: ALIVE", folder=tmp_path_factory.mktemp("master")):
        yield f"spark://{hosts.here}:{port}"


@pytest.fixture
def unshared(tmp_path: Path) -> Path:
    """A folder of this host under whose name the other host has one of its own."""
    folder = tmp_path / "unshared"
    folder.mkdir()
    return folder


@pytest.fixture
def worker(hosts: Hosts, master: str, tmp_path: Path, unshared: Path) -> Iterator[None]:
    words = [
        "ip", "netns", "exec", hosts.namespace, "sh", "-c", f'mount -t tmpfs none {unshared} && exec "$@"', "sh",
        str(SPARK_CLASS), "org.apache.spark.deploy.worker.Worker", "--host", hosts.there, "--cores", "1", "--memory",
        "1g", "--webui-port", "0", master,
    ]  # fmt: skip
    with _started(words, says="Successfully registered with master", folder=tmp_path):
        yield


def _queuekeeper(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("queuekeeper"), *words],
        env=_without_local_address(),
        capture_output=True,
        text=True,
        check=False,
    )


# By day an executor there does what the next test asks of it, and stores on loopback are refused.
@pytest.mark.nightly
@pytest.mark.parametrize("there", [("copy",), ("plan", "copy", "verify")], ids="-".join)
def test_migration_is_carried_out_by_an_executor_on_another_host(
    hosts: Hosts,
    master: str,
    worker: None,
    spark: SparkSession,
    clone: Callable[[str], str],
    hostile_template: str,
    own_redis: Any,
    there: tuple[str, ...],
) -> None:
    """The commands do what is done there; the Spark of this run, on this host, does the rest."""
    with (
        CuttingProxy(clone(hostile_template), host=hosts.here) as source,
        CuttingProxy(own_redis(), host=hosts.here) as target,
        World.opened(spark, postgres_url=source.url, redis_url=target.url) as here,
    ):

        def done_there(step: str, *words: str) -> Any:
            common = ("--postgres-url", source.url, "--redis-url", target.url, "--spark-master", master, "--json")
            done = _queuekeeper("migrate", step, *words, *common)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        if "plan" in there:
            plan_id = done_there("plan", "--cohort-count", "4", "--quarantine-cap", "0.5")["plan_id"]
        else:
            plan_id = here.plan(MigrationParameters(cohort_count=4, quarantine_cap_percent=50)).plan_id
        assert done_there("copy", plan_id, "--yes")["messages_written"] > 1_000
        if "verify" in there:
            assert done_there("verify", plan_id)["balanced"] is True
        else:
            assert here.verify(plan_id).balanced


def _build_session(master: str, **arguments: Any) -> str:
    """Return what is said when a session cannot be had; in a process of its own, as each has one Spark."""
    program = (
        "import json, sys\n"
        "from queuekeeper.errors import QueuekeeperError\n"
        "from queuekeeper.migration.spark.session import build_session\n"
        "try:\n"
        "    build_session('probe', master=sys.argv[1], **json.loads(sys.argv[2]))\n"
        "except QueuekeeperError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    words = [sys.executable, "-c", program, master, json.dumps(arguments)]
    return subprocess.run(words, env=_without_local_address(), capture_output=True, text=True, check=True).stdout


def test_a_folder_for_archives_that_executors_do_not_share_is_refused(
    master: str, worker: None, unshared: Path, tmp_path: Path
) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from queuekeeper.errors import RefusedError\n"
        "from queuekeeper.migration.spark.session import build_session, check_shared\n"
        "session = build_session('probe', master=sys.argv[1])\n"
        "check_shared(session, Path(sys.argv[2]))\n"
        "try:\n"
        "    check_shared(session, Path(sys.argv[3]))\n"
        "except RefusedError as error:\n"
        "    print(error)\n"
    )
    words = [sys.executable, "-c", program, master, str(tmp_path), str(unshared)]

    said = subprocess.run(words, env=_without_local_address(), capture_output=True, text=True, check=True).stdout

    assert f"executors of Spark at {master} cannot write to {unshared} (No such file or directory, as user" in said
    assert [each.name for each in unshared.iterdir()] == []


def test_a_spark_that_grants_no_executor_is_reported_and_not_waited_for(master: str) -> None:
    said = _build_session(master, executor_wait_s=3)

    assert f"ServerUnavailable Spark at {master} granted no executor within 3 seconds: check on the master's" in said


def test_a_master_that_does_not_answer_is_named_before_spark_starts(hosts: Hosts) -> None:
    nobody = f"spark://{hosts.here}:{_free_port(hosts.here)}"

    said = _build_session(nobody)

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


@pytest.mark.parametrize(
    "master", ["local[2]", "local-cluster[2,1,1024]", "spark://127.0.0.1:7077", "spark://[::1]:7077"]
)
def test_executors_of_this_machine_may_use_loopback(master: str) -> None:
    assert runs_here(master)


@pytest.mark.parametrize(
    "master", ["spark://10.1.1.1:7077", "spark://a:7077,127.0.0.1:7077", "yarn", "k8s://https://h:6443"]
)
def test_any_other_master_may_have_executors_elsewhere(master: str) -> None:
    assert not runs_here(master)

"""Starts Spark sessions the way migrations need them, and ends a driver whose supervisor is gone."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from queuekeeper import errors, postgres, redis_client
from queuekeeper.config import DRIVER_JAVA_OPTIONS
from queuekeeper.errors import RefusedError, ServerUnavailable, UsageError
from queuekeeper.hosts import is_loopback
from queuekeeper.migration.ledger.model import HEAP_USABLE, TaskMemory, code_version

SUPERVISOR_VARIABLE = "QUEUEKEEPER_SUPERVISOR_PID"

_SETTINGS = {
    # Without effect under spark-submit, whose JVM runs already: the Airflow operator passes it there.
    "spark.driver.extraJavaOptions": DRIVER_JAVA_OPTIONS,
    "spark.sql.session.timeZone": "UTC",
    # Base64 in lines of 76 characters would not be what TBMQ's reader expects.
    "spark.sql.chunkBase64String.enabled": "false",
    # A row may be a megabyte: batches are bounded in bytes, not only in rows.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Rows are partitioned by task; a join or window on (task, client) needs no second shuffle.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    "spark.sql.shuffle.partitions": "8",
    # Spark cannot know how large a table of PostgreSQL is: it broadcasts what it has measured, or is told to.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "10MB",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


EXECUTOR_WAIT_S = 120.0
"""How long a cluster may take to grant the first executor."""

_CONNECT_TIMEOUT_S = 5.0


def build_session(
    name: str,
    *,
    master: str | None = None,
    stores: Sequence[str] = (),
    executor_wait_s: float = EXECUTOR_WAIT_S,
) -> SparkSession:
    """Return the process's Spark session, started if need be.

    On a cluster, one executor has answered before this returns. The driver is reached at the address of this machine
    that leads to the master, unless ``SPARK_LOCAL_IP`` or ``spark.driver.host`` names another.

    :param name: application name.
    :param master: where to run; none leaves it to ``spark-submit``.
    :param stores: URLs of the stores that executors will connect to.
    :param executor_wait_s: how long to wait for the first executor, in seconds.
    :raises UsageError: when executors on other machines are to reach a store by a loopback address.
    :raises ServerUnavailable: when the master does not answer or grants no executor.
    :raises RefusedError: when an executor cannot run Queuekeeper.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is None:
        master = _submitted("spark.master")
    settings = dict(_SETTINGS)
    is_remote = master is not None and not runs_here(master)
    if master is not None and is_remote:
        refuse_loopback(master, stores)
        address = _driver_address(master)
        if address and "SPARK_LOCAL_IP" not in os.environ and _submitted("spark.driver.host") is None:
            settings["spark.driver.host"] = address
    else:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Elsewhere a worker must be able to say that there is no Queuekeeper.
        settings["spark.python.daemon.module"] = "queuekeeper.migration.spark.python_workers"
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if is_remote:
        try:
            _ask_executor(session, wait_s=executor_wait_s)
        except BaseException:
            session.stop()
            raise
    return session


def runs_here(master: str) -> bool:
    """Return whether all executors run on this machine, as far as the master's address tells."""
    places = _addresses(master)
    return master.startswith("local") or (bool(places) and all(is_loopback(host) for host, _ in places))


def task_memory(session: SparkSession) -> TaskMemory:
    """Return the memory in which the session's tasks run: the driver's own where there are no executors."""
    context = session.sparkContext
    master = context.master or ""
    if master == "local" or master.startswith("local["):
        heap_bytes = int(context._jvm.java.lang.Runtime.getRuntime().maxMemory())  # type: ignore[union-attr]
        return TaskMemory(heap_bytes=heap_bytes, tasks=context.defaultParallelism, setting="spark.driver.memory")
    cores = context.getConf().get("spark.executor.cores")
    return TaskMemory(
        heap_bytes=int(context._jsc.sc().executorMemory() * 2**20 * HEAP_USABLE),
        tasks=int(cores or context.defaultParallelism),
        setting="spark.executor.memory",
    )


def refuse_loopback(master: str, stores: Sequence[str]) -> None:
    """Refuse stores that executors on other machines cannot reach.

    :raises UsageError: naming product and host, never a password.
    """
    for url in stores:
        is_redis = url.startswith(("redis", "unix"))
        product = "Redis" if is_redis else "PostgreSQL"
        host = redis_client.loopback_host(url) if is_redis else postgres.loopback_host(url)
        if host is not None:
            raise UsageError(
                f"Spark runs at {master}, and {product} is named by {host}, which every executor takes for its own "
                f"machine: name {product} by an address that all machines of Spark reach"
            )


def _submitted(name: str) -> str | None:
    """Return a setting that ``spark-submit`` gave this driver; none where Python starts Spark itself."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    SparkContext._ensure_initialized()
    return SparkConf().get(name)


def _addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of each master that a URL names; none for a master that is no address."""
    kind, _, rest = master.partition("://")
    if kind not in ("spark", "k8s"):
        return []
    found = []
    for place in rest.partition("://")[2].split(",") if "://" in rest else rest.split(","):
        host, _, port = place.partition("/")[0].rpartition(":")
        if not host or not port.isdecimal():
            raise UsageError(f"the Spark master {master!r} does not parse: write {kind}://host:port")
        found.append((host.strip("[]"), int(port)))
    return found


def _driver_address(master: str) -> str | None:
    """Return this machine's address on the way to the master; none where the master has no address.

    :raises ServerUnavailable: when nothing listens there.
    """
    problem = ""
    for place in _addresses(master):
        try:
            with socket.create_connection(place, timeout=_CONNECT_TIMEOUT_S) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            problem = error.strerror or str(error)
    if problem:
        raise ServerUnavailable(
            f"no Spark master answers at {master}: {problem}; check its address and that this machine reaches it"
        )
    return None


def _ask_executor(session: SparkSession, *, wait_s: float) -> None:
    """Have an executor say which Queuekeeper it runs, so that nothing is begun that no executor can carry out."""
    context = session.sparkContext
    master, driver = context.master, context.getConf().get("spark.driver.host")
    answer: Future[list[str]] = Future()

    def answer_from_executor() -> None:
        try:
            answer.set_result(context.parallelize([0], 1).mapPartitions(_installed_there()).collect())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=answer_from_executor, name="first-executor", daemon=True).start()
    try:
        (found,) = answer.result(timeout=wait_s)
    except TimeoutError:
        raise ServerUnavailable(
            f"Spark at {master} granted no executor within {wait_s:g} seconds: check on the master's page that workers "
            f"are registered and have a free core and memory, and that they may connect to this driver at {driver}; "
            "another address of this machine is set by SPARK_LOCAL_IP"
        ) from None
    except (PySparkException, Py4JError, OSError) as error:
        words = " ".join(str(error).split())
        raise RefusedError(
            f"an executor of Spark at {master} cannot run Python tasks of this driver: {words[:600]}; give all "
            "machines the same packages and Python (docs/deploying.md)"
        ) from None
    if found != code_version():
        raise RefusedError(
            f"executors of Spark at {master} have Queuekeeper {found}, this driver has {code_version()}: give all "
            "machines the same packages (docs/deploying.md)"
        )


def check_shared(session: SparkSession, folder: Path) -> None:
    """Refuse a folder of the driver's that executors do not have, or may not write to.

    :raises RefusedError: naming the folder and what an executor met there.
    """
    context = session.sparkContext
    if context.master is None or runs_here(context.master):
        return
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".shared-") as probe:
        name = probe.name

        def look(_: Any) -> Iterator[str]:
            place = Path(name)
            try:
                place.stat()
                written = place.with_name(f"{place.name}.executor")
                written.touch()
                written.unlink()
            except OSError as error:
                yield f"{error.strerror}, as user {os.getuid()} of {socket.gethostname()}"

        problems = context.parallelize([0], 1).mapPartitions(look).collect()
    if problems:
        raise RefusedError(
            f"executors of Spark at {context.master} cannot write to {folder} ({problems[0]}): name a folder that all "
            "machines of Spark share with this one, and run them as one user"
        )


def _installed_there() -> Any:
    """Return a function that an executor can run without having Queuekeeper: it travels by value."""

    def installed(_: Any) -> Iterator[str]:
        try:
            from queuekeeper.migration.ledger.model import code_version  # noqa: PLC0415 - may be missing there
        except ImportError as error:
            yield f"not installed ({error})"
        else:
            yield code_version()

    return installed


_RAISED = re.compile(r"^queuekeeper\.errors\.(\w+): (.*)$", re.MULTILINE)


@contextmanager
def our_errors() -> Iterator[None]:
    """Raise again, as itself, an exception of ours that was raised inside a Spark task; say what a full heap asks for.

    :raises RefusedError: when a task has run out of memory.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if _out_of_memory(error):
            raise RefusedError(
                "a task of Spark has run out of memory: raise spark.driver.memory with a local master, else "
                "spark.executor.memory, then repeat the step"
            ) from None
        # A worker's traceback arrives as text; an exception of ours stands on its last line.
        found = _RAISED.findall(str(error))
        for name, message in found:
            cls = getattr(errors, name, None)
            if isinstance(cls, type) and issubclass(cls, errors.QueuekeeperError):
                raise cls(message) from None
        raise


def _out_of_memory(error: Exception) -> bool:
    """Return whether a task has run out of memory; a local one takes its JVM along, which then explains nothing."""
    try:
        return "java.lang.OutOfMemoryError" in str(error)
    except (Py4JError, OSError):
        return True


def _started_at(pid: int) -> str | None:
    """Return when a process started, as the kernel counts, or none when it is gone; a zombie counts as gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def end_with_supervisor(*, poll_s: float = 1.0) -> None:
    """End this driver and its JVM when the process named by ``QUEUEKEEPER_SUPERVISOR_PID`` is gone.

    A task that is killed outright cannot tell its ``spark-submit`` to stop; without this the driver would go on
    writing while the task's retry does the same.
    """
    text = os.environ.get(SUPERVISOR_VARIABLE)
    if not text:
        return
    supervisor = int(text)
    procfs = Path("/proc/self/stat").exists()
    born = _started_at(supervisor) if procfs else None
    parent = os.getppid()

    def watch() -> None:
        while (_started_at(supervisor) == born and born is not None) if procfs else _alive(supervisor):
            time.sleep(poll_s)
        print("the task that started this driver is gone: stopping", file=sys.stderr, flush=True)
        # Under spark-submit the JVM is our parent; it holds the executors.
        if parent > 1:
            os.kill(parent, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()

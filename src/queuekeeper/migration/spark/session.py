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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from queuekeeper import errors
from queuekeeper.config import DRIVER_SETTINGS, SUPERVISOR_VARIABLE
from queuekeeper.errors import RefusedError, ServerUnavailable, UsageError
from queuekeeper.migration.ledger.model import HEAP_USABLE, TaskMemory
from queuekeeper.migration.spark.grants import heard
from queuekeeper.migration.spark.java_start import start_java
from queuekeeper.migration.spark.masters import addresses, check_master, is_local, refuse_loopback, runs_here
from queuekeeper.migration.spark.probe import (
    ANSWER_WAIT_S,
    EXECUTOR_WAIT_S,
    START_WAIT_S,
    asked,
    probe_executor,
    telling_line,
    waited,
)

Session: TypeAlias = SparkSession
"""A started Spark, for callers that pass it on and do not import Spark."""

_SETTINGS = {
    # What is the JVM's has no effect under spark-submit, whose JVM runs already: the Airflow operator passes it there.
    **DRIVER_SETTINGS,
    # Base64 in lines of 76 characters would not be what TBMQ's reader expects.
    "spark.sql.chunkBase64String.enabled": "false",
    # A row may be a megabyte: batches are bounded in bytes, not only in rows.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Rows are partitioned by task; a join or window on (task, client) needs no second shuffle.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    # Spark cannot know how large a table of PostgreSQL is: it broadcasts what it has measured, or is told to.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "10MB",
}

_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_ROWS_PER_TASK = 100_000

_CONNECT_TIMEOUT_S = 5.0

MASTER_WAIT_S = 45.0
"""How long a master may take to accept an application; Spark itself gives up after sixty seconds, without a word."""


_TELL_TRACES = ("org.apache.spark.executor.Executor", "org.apache.spark.scheduler.TaskSetManager")
"""Loggers that print the trace of each task that fails; the error that ends the step has it, too."""


def build_session(
    name: str,
    *,
    master: str | None = None,
    stores: Sequence[str] = (),
    traces: bool = True,
    master_wait_s: float = MASTER_WAIT_S,
    executor_wait_s: float = EXECUTOR_WAIT_S,
    start_wait_s: float = START_WAIT_S,
    answer_wait_s: float = ANSWER_WAIT_S,
) -> SparkSession:
    """Return the process's Spark session, started if need be.

    On a cluster, one executor has answered before this returns. The driver is reached at the address of this machine
    that leads to the master, unless ``SPARK_LOCAL_IP`` or ``spark.driver.host`` names another.

    :param name: application name.
    :param master: where to run; none leaves it to ``spark-submit``.
    :param stores: URLs of the stores that executors will connect to.
    :param traces: false: the log has no traces of tasks that fail; whoever asks says in words why a step has ended.
    :param master_wait_s: how long to wait for the master to accept the application, in seconds.
    :param executor_wait_s: how long to wait until the first executor is granted, in seconds.
    :param start_wait_s: how long it may take to come, in seconds.
    :param answer_wait_s: how long it may take to answer, in seconds, besides unpacking archives.
    :raises UsageError: when there is no such master, or executors on other machines are to reach a store by a loopback
        address.
    :raises ServerUnavailable: when the master does not answer or grants no executor.
    :raises RefusedError: when an executor cannot run Queuekeeper.
    """
    if os.environ.get("SPARK_REMOTE"):
        raise UsageError("SPARK_REMOTE names a Spark Connect server, and a job is the driver: unset it")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = dict(_SETTINGS)
    if master is None:
        master = _known(settings, "spark.master")
    if master is not None:
        check_master(master)
    if master is None or runs_here(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        refuse_loopback(master, stores)
        address = _driver_address(master)
        if address and "SPARK_LOCAL_IP" not in os.environ and _known(settings, "spark.driver.host") is None:
            settings["spark.driver.host"] = address
    is_cluster = master is not None and not is_local(master)
    if not is_cluster:
        # Elsewhere a worker must be able to say that there is no Queuekeeper.
        settings["spark.python.daemon.module"] = "queuekeeper.migration.spark.python_workers"
    conf = SparkConf(loadDefaults=False).setAppName(name).setAll(list(settings.items()))
    if master is not None:
        conf.setMaster(master)
    start_java(conf)
    if is_cluster:
        with heard() as grants:
            _register(conf, master=str(master), wait_s=master_wait_s)
            session = _got_session(conf, traces=traces)
            try:
                probe_executor(
                    session.sparkContext,
                    stores=stores,
                    grants=grants,
                    executor_wait_s=executor_wait_s,
                    start_wait_s=start_wait_s,
                    answer_wait_s=answer_wait_s,
                )
            except BaseException:
                session.stop()
                raise
        return session
    return _got_session(conf, traces=traces)


def _got_session(conf: SparkConf, *, traces: bool) -> SparkSession:
    session: SparkSession = SparkSession.builder.config(conf=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    jvm: Any = session.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    for name in _TELL_TRACES:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR if traces else log4j.Level.OFF)
    return session


def set_task_count(session: SparkSession, *, rows: int) -> int:
    """Return how many tasks a step has, and have its shuffles use as many, unless the user has set their number.

    There are enough for all cores that the cluster has at this moment, and for some 100,000 rows each.

    :param rows: that the step reads.
    """
    context = session.sparkContext
    count = max(context.defaultParallelism, -(-rows // _ROWS_PER_TASK))
    if not context.getConf().contains(_SHUFFLE_PARTITIONS):
        session.conf.set(_SHUFFLE_PARTITIONS, count)
    return count


def _register(conf: SparkConf, *, master: str, wait_s: float) -> None:
    """Have the master accept the driver, whose Java runs already.

    :raises ServerUnavailable: when the master does not.
    """
    accepted = asked(lambda: SparkContext.getOrCreate(SparkConf().setAll(conf.getAll())), name="spark-master")
    what = f"has not accepted this driver's application within {wait_s:g} seconds"
    if waited(accepted.done, what=f"the Spark master at {master} to accept this driver", longest_s=wait_s):
        try:
            accepted.result()
        except (Py4JError, OSError) as error:
            what = f"has not accepted this driver's application: {telling_line(str(error))}"
        else:
            return
    raise ServerUnavailable(
        f"the Spark master at {master} {what}. A master of another version of Spark does so, and a standby: this "
        f"driver has Spark {pyspark.__version__}; compare it with the master's page, and give all machines the same "
        "Spark (docs/deploying.md)"
    )


def task_memory(session: SparkSession) -> TaskMemory:
    """Return the memory in which the session's tasks run: the driver's own where there are no executors."""
    context = session.sparkContext
    master = context.master or ""
    if master == "local" or master.startswith("local["):
        heap_bytes = int(context._jvm.java.lang.Runtime.getRuntime().maxMemory())  # type: ignore[union-attr]
        return TaskMemory(heap_bytes=heap_bytes, tasks=context.defaultParallelism, setting="spark.driver.memory")
    # Without spark.executor.cores an executor has as many as its worker: the largest that has come counts.
    known = context._jsc.sc().statusStore().executorList(False)
    executors = [known.apply(place) for place in range(known.size())]
    return TaskMemory(
        heap_bytes=int(context._jsc.sc().executorMemory() * 2**20 * HEAP_USABLE),
        tasks=max((int(each.maxTasks()) for each in executors if each.id() != "driver"), default=1),
        setting="spark.executor.memory",
    )


def _known(settings: Mapping[str, str], name: str) -> str | None:
    """Return a setting of ``spark-submit``, of ``spark-defaults.conf`` or of ``PYSPARK_SUBMIT_ARGS``; none without.

    :param settings: with which Java is started, where ``spark-submit`` has not done so.
    """
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))
    return SparkConf().get(name)


def _driver_address(master: str) -> str | None:
    """Return this machine's address on the way to the master; none where the master has no address.

    :raises ServerUnavailable: when nothing listens there.
    """
    problem = ""
    for place in addresses(master):
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


_RAISED = re.compile(r"^queuekeeper\.errors\.(\w+): (.*)$", re.MULTILINE)


@contextmanager
def our_errors() -> Iterator[None]:
    """Raise again, as itself, an exception of ours that was raised inside a Spark task; say what a full heap asks for.

    :raises RefusedError: when a task has run out of memory, or an executor that came late has no Queuekeeper.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if _out_of_memory(error):
            raise RefusedError(
                "a task of Spark has run out of memory: raise spark.driver.memory with a local master, else "
                "spark.executor.memory, then repeat the step"
            ) from None
        if "ModuleNotFoundError: No module named 'queuekeeper" in str(error):
            raise RefusedError(
                "an executor of Spark that came after the first one has no Queuekeeper: install the same packages on "
                "all machines, or send them along as an archive (docs/deploying.md), then repeat the step"
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
        # Under spark-submit the JVM is our parent; it holds the executors. Another process may have the number of one
        # that has ended.
        if parent > 1 and os.getppid() == parent:
            os.kill(parent, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()

"""Starts Spark sessions the way migrations need them, and ends a driver whose supervisor is gone; no data work here."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from queuekeeper import errors
from queuekeeper.config import DRIVER_JAVA_OPTIONS

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
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def build_session(name: str, *, master: str | None = None) -> SparkSession:
    """Return the process's Spark session, started if need be.

    :param name: application name.
    :param master: where to run; none leaves it to ``spark-submit``.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


_RAISED = re.compile(r"^queuekeeper\.errors\.(\w+): (.*)$", re.MULTILINE)


@contextmanager
def our_errors() -> Iterator[None]:
    """Raise again, as itself, an exception of ours that was raised inside a Spark task."""
    try:
        yield
    except PySparkException as error:
        # A worker's traceback arrives as text; an exception of ours stands on its last line.
        found = _RAISED.findall(str(error))
        for name, message in found:
            cls = getattr(errors, name, None)
            if isinstance(cls, type) and issubclass(cls, errors.QueuekeeperError):
                raise cls(message) from None
        raise


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

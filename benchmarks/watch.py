"""Processor time and memory of processes while something is measured, and servers that have no work left over."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import bench
import psutil
import redis

from queuekeeper.errors import QueuekeeperError

_LOOK_EVERY_S = 0.5
_MEBIBYTE = 1024 * 1024
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Watch:
    """Adds up the processor time of parties while something is measured; processes that end meanwhile are counted.

    :param parties: name -> process that makes up the party with its descendants, as far as they are not another's.
    """

    def __init__(self, parties: dict[str, int]) -> None:
        self._parties = {pid: name for name, pid in parties.items()}
        self._used_s: dict[tuple[int, float], tuple[str, float]] = {}
        self._collected: set[tuple[int, float]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._before = self._totals()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def cpu_s(self) -> dict[str, float]:
        """Return each party's seconds of processor time since the beginning."""
        return {name: round(used_s - self._before[name], 3) for name, used_s in self._totals().items()}

    def _totals(self) -> dict[str, float]:
        return {
            name: sum(used_s for owner, used_s in self._used_s.values() if owner == name)
            for name in self._parties.values()
        }

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_EVERY_S):
            self._look()

    def _look(self) -> None:
        me = psutil.Process()
        owners = {me.pid: self._parties.get(me.pid, "")}
        alive = set()
        # Parents come before their children.
        for process in (me, *me.children(recursive=True)):
            with suppress(psutil.Error):
                pid, parent = process.pid, process.ppid()
                key = pid, process.create_time()
                times = process.cpu_times()
                used_s = times.user + times.system
                if pid in self._parties:
                    used_s += times.children_user + times.children_system
                elif parent in self._parties:
                    # Once it has ended its time is that of the parent, who collects it.
                    self._collected.add(key)
                owners[pid] = self._parties.get(pid) or owners.get(parent, "")
                self._used_s[key] = owners[pid], used_s
                alive.add(key)
        for key in self._collected - alive:
            self._used_s.pop(key, None)


def memory_of(job: str, *words: str, variables: Mapping[str, str], log: Path) -> dict[str, int]:
    """Run a Spark job as an operator would start it, and return the most memory that it took, for a result.

    :param job: name of its file.
    :param variables: of its environment, besides those of this process.
    :raises QueuekeeperError: with what it said last, when it failed.
    """
    submit, script = Path(sys.executable).parent / "spark-submit", bench.ROOT / "spark_jobs" / job
    command = [str(submit), "--master", "local[2]", "--driver-memory", "1g", str(script), *words]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **variables}
    with log.open("w+") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT)
        peaks = peak_mib(process)
        if process.returncode:
            said.seek(0)
            raise QueuekeeperError(f"{job} {' '.join(words)} failed:\n{said.read()[-3_000:]}")
    return {f"{kind}_mib": size for kind, size in peaks.items() if size}


def peak_mib(process: subprocess.Popen[Any], *, look: Callable[[], None] = lambda: None) -> dict[str, int]:
    """Wait for a process and return the most memory that it took with its descendants, as resident sets.

    :param look: called twice a second meanwhile, for whoever watches something else.
    :returns: ``jvm`` (the driver's, and tasks' where there are no executors), ``executors`` and ``python``; pages that
        workers share count for each of them.
    """
    peaks = dict.fromkeys(("jvm", "executors", "python"), 0)
    while process.poll() is None:
        sizes = dict.fromkeys(peaks, 0)
        with suppress(psutil.Error):
            leader = psutil.Process(process.pid)
            for member in (leader, *leader.children(recursive=True)):
                with suppress(psutil.Error):
                    sizes[_kind(member)] += member.memory_info().rss
        peaks = {kind: max(peaks[kind], size) for kind, size in sizes.items()}
        look()
        time.sleep(_LOOK_EVERY_S)
    return {kind: size // _MEBIBYTE for kind, size in peaks.items()}


def _kind(process: psutil.Process) -> str:
    if process.name() != "java":
        return "python"
    return "executors" if _EXECUTOR in process.cmdline() else "jvm"


def empty_redis(client: redis.Redis) -> None:
    """Remove everything, and wait for the server's other thread, which gives memory back behind the answer."""
    client.flushall(asynchronous=False)
    memory: Any = client.info("memory")
    while memory["lazyfree_pending_objects"]:
        time.sleep(0.01)
        memory = client.info("memory")

"""What the chaos lane needs besides servers: a driver that can be killed, and everything that a target holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import redis

from queuekeeper.config import DRIVER_JAVA_OPTIONS, POSTGRES_VARIABLE, REDIS_VARIABLE, SUPERVISOR_VARIABLE
from queuekeeper.embedded import RedisServer
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
Value = tuple[Any, ...]
"""Kind, content and expiry instant of a key."""

_PAGE = 1_000


class Driver:
    """A copy of its own: ``spark-submit`` of the job, with everything that it starts."""

    def __init__(self, *, plan_id: str, postgres_url: str, redis_url: str, folder: Path) -> None:
        self._log = folder / f"driver-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(Path(sys.executable).parent / "spark-submit"),
                    *("--master", "local[2]", "--driver-memory", "1g", "--driver-java-options", DRIVER_JAVA_OPTIONS),
                    *(str(ROOT / "spark_jobs" / "copy_sessions.py"), "--plan-id", plan_id),
                ],
                env=os.environ
                | {
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONUNBUFFERED": "1",
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    POSTGRES_VARIABLE: postgres_url,
                    REDIS_VARIABLE: redis_url,
                    # A run that is itself killed leaves no driver behind.
                    SUPERVISOR_VARIABLE: str(os.getpid()),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Another process may have the number of one that has ended.
        for process in self.processes() if self.running() else ():
            process.kill()
        self._process.wait()

    @property
    def said(self) -> str:
        """All output so far."""
        return self._log.read_text("utf-8", "replace")

    @property
    def result(self) -> dict[str, Any]:
        """The JSON of the job's last word."""
        found: dict[str, Any] = json.loads(next(line for line in reversed(self.said.splitlines()) if line[:1] == "{"))
        return found

    def processes(self) -> list[psutil.Process]:
        """Return the JVM (it takes the place of the shell that starts it), the driver and Spark's workers."""
        try:
            leader = psutil.Process(self._process.pid)
            return [leader, *leader.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """Kill JVM and driver at once, as the out-of-memory killer or an operator would; workers have to notice."""
        jvm, *others = self.processes()
        driver = next(process for process in others if "copy_sessions.py" in _command(process))
        jvm.kill()
        driver.kill()
        self._process.wait()
        _, alive = psutil.wait_procs(others, timeout=PATIENCE_S)
        assert not alive, f"workers outlive their driver: {alive}"

    def running(self) -> bool:
        """Tell whether the job has not ended."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Return the exit code."""
        return self._process.wait(PATIENCE_S)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def until(condition: Callable[[], bool], *, what: str) -> None:
    """Wait for something that can only be asked for."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"in vain waited for: {what}"
        time.sleep(0.02)


def contents(client: redis.Redis) -> dict[bytes, Value]:
    """Return every key with its kind, its content in order and its expiry instant."""
    found: dict[bytes, Value] = {}
    names = list(client.scan_iter(count=_PAGE))
    for start in range(0, len(names), _PAGE):
        page = names[start : start + _PAGE]
        pipeline: Any = client.pipeline(transaction=False)
        for name in page:
            pipeline.type(name)
            pipeline.pexpiretime(name)
        facts = pipeline.execute()
        kinds = facts[::2]
        for name, kind in zip(page, kinds, strict=True):
            if kind == b"string":
                pipeline.get(name)
            elif kind == b"zset":
                pipeline.zrange(name, 0, -1, withscores=True)
            elif kind == b"hash":
                pipeline.hgetall(name)
            else:
                raise AssertionError(f"{name!r} is a {kind!r}, which no copy makes")
        for name, kind, expires_at_ms, value in zip(page, kinds, facts[1::2], pipeline.execute(), strict=True):
            content = tuple(sorted(value.items())) if kind == b"hash" else value
            found[name] = (kind, tuple(content) if isinstance(content, list) else content, expires_at_ms)
    return found


def differing(found: dict[bytes, Value], wanted: dict[bytes, Value]) -> list[tuple[bytes, Value | None, Value | None]]:
    """Return the first keys that differ, with what was found and what was wanted."""
    names = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    return [(name, found.get(name), wanted.get(name)) for name in names[:5]]


def refusals(nodes: Sequence[Any]) -> set[str]:
    """Return first words of all error replies that the servers have given."""
    return {name.removeprefix("errorstat_") for node in nodes for name in node.info("errorstats")}


def set_maxmemory(server: RedisServer, *, room_bytes: int | None) -> None:
    """Leave a server so much room for data; none stands for any."""
    with server.client() as client:
        used: dict[str, Any] = client.info("memory")
        client.config_set("maxmemory", 0 if room_bytes is None else max(1, used["used_memory"] + room_bytes))

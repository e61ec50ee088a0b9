"""What the figures of a benchmark depend on; measuring is the benchmarks' own business."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import redis

from queuekeeper import __version__
from queuekeeper.postgres import Connection


def facts(postgres: Connection | None, server: redis.Redis | None = None) -> dict[str, Any]:
    """Return machine and versions of the servers that are measured; nothing that names the machine."""
    versions = {} if postgres is None else {"postgresql": _version(postgres)}
    if server is not None:
        about: Any = server.info("server")
        flavour = "valkey" if "valkey_version" in about else "redis"
        versions[flavour] = str(about[f"{flavour}_version"])
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "measured_on": datetime.now(UTC).date().isoformat(),
        "processor": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 1024**3, 1),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        **versions,
        "queuekeeper": __version__,
    }


def _version(postgres: Connection) -> str:
    number = postgres.info.server_version
    return f"{number // 10_000}.{number % 10_000}"

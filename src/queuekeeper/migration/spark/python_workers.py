"""Starts Spark's Python workers: they fork from a process that has imported what tasks need once for all of them."""

from __future__ import annotations

import gc
import importlib
from contextlib import suppress

from pyspark.daemon import manager

NEEDED = (
    "adbc_driver_postgresql.dbapi",
    # PyArrow looks whether it is there when it makes an array.
    "pandas",
    "pyspark.worker",
    "queuekeeper.maintenance.partitions.archive",
    "queuekeeper.migration.offline.copy",
    "queuekeeper.migration.offline.verify",
    "queuekeeper.quality.profile.stores",
)


def import_needed() -> None:
    """Import what tasks use; what is not installed is told by the task that needs it."""
    for name in NEEDED:
        with suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    import_needed()
    # The collector of a worker need not look through all that was imported again and again.
    gc.freeze()
    manager()

"""Runs a component of Airflow that forks, after importing once what all its children need for DAGs and tasks."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from contextlib import suppress

from airflow.__main__ import main

from queuekeeper.airflow import operators


def import_expectations() -> None:
    """Import Great Expectations, which takes seconds, before a task needs it; a missing one is reported by the task."""
    with suppress(ImportError):
        importlib.import_module("queuekeeper.quality.judge.expectations")


def import_operators() -> None:
    """Import everything that DAGs use; a missing package is reported by the DAG that needs it."""
    for module in pkgutil.iter_modules(operators.__path__, f"{operators.__name__}."):
        with suppress(ImportError):
            importlib.import_module(module.name)
    importlib.import_module("airflow.sdk.execution_time.task_runner")


if __name__ == "__main__":
    import_operators()
    if "scheduler" in sys.argv:
        import_expectations()
    sys.argv[0] = "airflow"
    main()  # type: ignore[no-untyped-call]

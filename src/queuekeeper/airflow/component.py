"""Runs a component of Airflow that forks: it imports what DAGs and tasks need once, instead of every child doing so."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from contextlib import suppress

from airflow.__main__ import main

from queuekeeper.airflow import operators


def import_operators() -> None:
    """Import all that DAGs are made of; what is not installed is told by the DAG that needs it."""
    for module in pkgutil.iter_modules(operators.__path__, f"{operators.__name__}."):
        with suppress(ImportError):
            importlib.import_module(module.name)
    importlib.import_module("airflow.sdk.execution_time.task_runner")


if __name__ == "__main__":
    import_operators()
    sys.argv[0] = "airflow"
    main()  # type: ignore[no-untyped-call]

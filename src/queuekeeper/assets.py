"""Finds the files that travel with the code, such as ``lua/`` and ``dags/``, in a wheel or in a checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

AREAS = ("lua", "sql", "expectations", "policies", "dags", "plugins", "spark_jobs")
PROJECT = "pyproject.toml"
_PACKAGE = Path(__file__).resolve().parent


@cache
def directory(area: str) -> Path:
    """Return the folder of one kind of asset.

    :param area: one of :data:`AREAS`.
    :raises FileNotFoundError: when neither the installed package nor a checkout around it holds the folder.
    """
    if area not in AREAS:
        raise FileNotFoundError(f"unknown asset area {area!r}: one of {', '.join(AREAS)}")
    installed = _PACKAGE / "_assets" / area
    if installed.is_dir():
        return installed
    around = checkout()
    if around is not None and (around / area).is_dir():
        return around / area
    raise FileNotFoundError(
        f"{area}/ is neither in the installed package ({installed}) nor in a checkout ({_PACKAGE.parent.parent})"
    )


def checkout() -> Path | None:
    """Return the checkout that this code is in; none for an installed package."""
    found = _PACKAGE.parent.parent
    project = found / PROJECT
    # A folder that merely happens to lie two levels up is not ours: a checkout has our project file beside it.
    is_ours = project.is_file() and 'name = "queuekeeper"' in project.read_text("utf-8")
    return found if is_ours else None


def read(area: str, name: str) -> str:
    """Return the text of one asset file, for example ``read("sql", "sessions/vendor_schema.sql")``."""
    return (directory(area) / name).read_text("utf-8")

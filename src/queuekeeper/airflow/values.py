"""What a rendered template says, and what Airflow keeps of a report."""

from __future__ import annotations

from typing import Any

import orjson

from queuekeeper.errors import UsageError


def flag(name: str, value: bool | str) -> bool:
    """Return what a rendered template says: ``True`` and ``False`` arrive as text.

    :raises UsageError: when it says neither.
    """
    try:
        return {"true": True, "false": False}[str(value).lower()]
    except KeyError:
        raise UsageError(f"{name} is {value!r}: it must be True or False") from None


def as_dict(report: Any) -> dict[str, Any]:
    """Return a report as Airflow keeps it: objects, lists, numbers and text."""
    found: dict[str, Any] = orjson.loads(orjson.dumps(report))
    return found

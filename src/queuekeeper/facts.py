"""Turns what a command, a task or a Spark job comes to into JSON, so that all of them show the same record.

A record says in ``worked_out`` which of its properties are shown with its fields, and in ``at_length`` which of them
are left out where a result is kept in few lines, by XCom or a log: what names clients, or stands on record in any case.
A record with a method ``facts`` is shown by that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime
from enum import Enum
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """Return a value as JSON knows it; records become objects."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        if callable(told := getattr(kind, "facts", None)):
            return plain(told(value))
        names = [*(each.name for each in fields(value)), *getattr(kind, "worked_out", ())]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(plain(name)): plain(each) for name, each in value.items()}
    if isinstance(value, Enum):
        return value.value
    # A path in an object store acts like one, and is none.
    if isinstance(value, Path) or hasattr(value, "joinpath"):
        return str(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, Iterable):
        return [plain(each) for each in value]
    raise TypeError(f"{type(value).__name__} is not shown")


def brief(record: Any) -> dict[str, Any]:
    """Return a record in few lines: as :func:`plain` does, without what is told at length."""
    left_out = getattr(record, "at_length", ())
    return {name: fact for name, fact in plain(record).items() if name not in left_out}

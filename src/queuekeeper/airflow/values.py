"""What Airflow keeps of a report."""

from __future__ import annotations

from typing import Any

import orjson


def as_dict(report: Any) -> dict[str, Any]:
    """Return a report as Airflow keeps it: objects, lists, numbers and text."""
    found: dict[str, Any] = orjson.loads(orjson.dumps(report))
    return found

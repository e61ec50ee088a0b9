"""What tests ask of a run of a DAG or of one operator."""

from __future__ import annotations

import json
from typing import Any


def states(run: Any) -> dict[str, set[str]]:
    """Return the states of each task; a mapped one has several."""
    found: dict[str, set[str]] = {}
    for task in run.get_task_instances():
        found.setdefault(task.task_id, set()).add(task.state)
    return found


def returned(operator: Any, *, secret: str) -> dict[str, Any]:
    """Run an operator by itself, and return what it keeps: JSON without any content."""
    result: dict[str, Any] = operator.execute({})
    assert json.loads(json.dumps(result)) == result, "it is kept as JSON"
    assert secret not in json.dumps(result)
    return result

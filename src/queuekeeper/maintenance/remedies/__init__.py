"""Mends one kind of fault per remedy in sessions that may be in use."""

from __future__ import annotations

from queuekeeper.maintenance.remedies.model import (
    REMEDY_NAMES,
    Effect,
    Queue,
    QueuePlan,
    Remedy,
    RemedyParameters,
    RemedyPlan,
    RemedyReport,
    UndoReport,
)
from queuekeeper.maintenance.remedies.run import apply_remedy, plan_remedy, undo_remedy

__all__ = [
    "REMEDY_NAMES",
    "Effect",
    "Queue",
    "QueuePlan",
    "Remedy",
    "RemedyParameters",
    "RemedyPlan",
    "RemedyReport",
    "UndoReport",
    "apply_remedy",
    "plan_remedy",
    "undo_remedy",
]

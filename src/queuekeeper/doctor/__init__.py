"""Checks whether servers and machine are fit for the work, and says what to do."""

from __future__ import annotations

from queuekeeper.doctor.findings import Examination, Finding, State
from queuekeeper.doctor.machine import examine_java, examine_machine
from queuekeeper.doctor.postgres import examine_postgres
from queuekeeper.doctor.redis import examine_redis

__all__ = [
    "Examination",
    "Finding",
    "State",
    "examine_java",
    "examine_machine",
    "examine_postgres",
    "examine_redis",
]

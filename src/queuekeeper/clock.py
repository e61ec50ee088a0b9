"""Where time comes from: one clock that callers pass in, so that tests can stop it; no formatting here."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Answers the current time as milliseconds since 1970-01-01 UTC."""


def system_clock() -> int:
    """Return this machine's time in milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000

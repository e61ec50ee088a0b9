"""Waiting between two attempts, as a step of an operation; whoever carries it out sleeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from queuekeeper.errors import UsageError

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Pause:
    """Step: wait; the answer is none."""

    seconds: float


def pause_s(attempt: int) -> float:
    """Return how long to wait before something is tried again.

    :param attempt: how often it was tried again before.
    """
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempt, 10)))


def check_seconds(name: str, value: Any, *, least: float) -> None:
    """Refuse what is no time in seconds.

    :raises UsageError: naming parameter, value and rule.
    """
    # A value that is not a number is not greater than anything.
    if type(value) not in (int, float) or not value >= least:
        raise UsageError(f"{name} is {value!r}: it must be a number of seconds, {least} or more")

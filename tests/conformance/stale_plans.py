"""Plans that count no more, for every job on Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest

from queuekeeper import approvals
from queuekeeper.errors import StalePlan

DAY_MS = 86_400_000


class Timed(Protocol):
    """A world whose time stands still until a test moves it."""

    now_ms: int


def refused_as_stale(world: Timed, do: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that a plan just made is not carried out nine days later, nor by another release."""
    world.now_ms += 9 * DAY_MS
    with pytest.raises(StalePlan, match="and a plan counts for 8 days: plan again"):
        do()
    world.now_ms -= 9 * DAY_MS
    monkeypatch.setattr(approvals, "__version__", "9.9")
    with pytest.raises(StalePlan, match=r"was planned by release .*, and this is release 9\.9: plan again"):
        do()

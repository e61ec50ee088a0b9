"""Durations as people write them."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from queuekeeper.errors import UsageError

MAX_DURATION_MS = 2**53 - 1

_UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION = re.compile(r"(?:\d{1,18}(?:\.\d{1,9})?(?:ms|[wdhms]))+", re.ASCII | re.IGNORECASE)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[wdhms])", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,9})?", re.ASCII)


def duration_ms(name: str, value: Any) -> int:
    """Return a duration in milliseconds, rounded up: ``"10s"``, ``"1h30m"``, ``"10000ms"``, ``"10000"``, ``9999.9``.

    :param name: of the setting, for the message.
    :raises UsageError: when it is negative, too long, or no duration.
    """
    found: Decimal | None = None
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text):
            found = Decimal(text)
        elif _DURATION.fullmatch(text):
            found = sum((Decimal(count) * _UNITS_MS[unit.lower()] for count, unit in _PART.findall(text)), Decimal(0))
    elif type(value) is int or (type(value) is float and math.isfinite(value)):
        found = Decimal(value)
    if found is None:
        raise UsageError(f'{name} is {value!r}: it must be a duration such as "10s", "1h30m" or milliseconds')
    if not 0 <= found <= MAX_DURATION_MS:
        raise UsageError(f"{name} is {value!r}: it must be 0 to {MAX_DURATION_MS} ms")
    return math.ceil(found)


def duration_text(value_ms: int) -> str:
    """Return milliseconds as :func:`duration_ms` reads them, in the largest unit up to days that has no rest."""
    units = (name for name in ("d", "h", "m", "s", "ms") if value_ms % _UNITS_MS[name] == 0)
    unit = next(units) if value_ms else "ms"
    return f"{value_ms // _UNITS_MS[unit]}{unit}"

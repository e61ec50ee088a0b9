"""Figures as people read them: counts, bytes, spans, instants and shares, each with its unit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from queuekeeper.wording import number_of

SCORE_95 = 1.96
"""Standard deviations to either side within which 95 % of a normal distribution lie."""

_FORMULA = ("=", "+", "-", "@", "|", "%")


def number(value: int | float) -> str:
    """Return a count with thousands separators."""
    return f"{round(value):,}"


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(value: int | float) -> str:
    """Return bytes in the unit that reads best, for example ``62.1 MiB``."""
    unit_bytes, unit = unit_of(value)
    return f"{value / unit_bytes:,.{0 if unit_bytes == 1 else 1}f} {unit}"


def unit_of(value: int | float) -> tuple[int, str]:
    """Return the unit in which a number of bytes reads best, in bytes and by its name."""
    found = next((power for power in range(len(_UNITS)) if abs(value) < 1024 ** (power + 1)), len(_UNITS) - 1)
    return 1024**found, _UNITS[found]


def duration(seconds: float) -> str:
    """Return a span of time in words, for example ``2 min 05 s`` or ``7 days 9 h``."""
    if seconds < 60:
        return f"{seconds:,.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours = minutes // 60
    if hours < 48:
        return f"{hours} h {minutes % 60:02d} min"
    days = number_of(hours // 24, "day")
    return f"{days} {hours % 24} h" if hours % 24 else days


def instant(at_ms: int) -> str:
    """Return an instant as date and time in UTC."""
    try:
        moment = datetime.fromtimestamp(at_ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{at_ms:,} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def percent(share: float) -> str:
    """Return a share in per cent; what is there is never shown as nothing, what is missing never as all."""
    if 0 < share < 0.001:
        return "under 0.1 %"
    if 0.999 < share < 1:
        return "over 99.9 %"
    return f"{share * 100:.1f} %"


def signed_percent(share: float) -> str:
    """Return a deviation in per cent with its sign."""
    return f"{share * 100:+.1f} %".replace("-", "−")


def short(value: float) -> str:
    """Return a count in a few characters, for example ``1.2k``."""
    for unit in ("", "k", "M", "G"):
        if abs(value) < 1_000 or unit == "G":
            break
        value /= 1_000
    return f"{value:.3g}{unit}" if unit else f"{value:.0f}"


_WRITTEN = {"qos": "QoS", "ttl": "TTL"}
"""Parts of identifiers that are no words."""


def words(name: str) -> str:
    """Return an identifier as words."""
    return " ".join(_WRITTEN.get(part, part) for part in name.split("_"))


def heading(name: str) -> str:
    """Return an identifier as words that begin a line."""
    found = words(name)
    return f"{found[:1].upper()}{found[1:]}"


def harmless(text: object) -> str:
    """Return foreign text so that no spreadsheet takes a copy of it for a formula, and what cannot be seen is named."""
    shown = seen(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


def seen(text: object) -> str:
    """Return foreign text in which what cannot be seen is named."""
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in str(text))


FILTERS: dict[str, Callable[..., str]] = {
    "number": number,
    "number_of": number_of,
    "size": size,
    "duration": duration,
    "instant": instant,
    "percent": percent,
    "signed_percent": signed_percent,
    "short": short,
    "words": words,
    "heading": heading,
    "harmless": harmless,
}
"""Names under which templates know them."""

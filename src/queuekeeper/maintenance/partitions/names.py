"""Names within PostgreSQL's limit on their length."""

from __future__ import annotations

NAME_BYTES = 63
"""Most bytes of a name; PostgreSQL cuts longer names, also of indexes."""


def cut_name(name: str, *, room: int) -> str:
    """Return a name cut so that this many more bytes fit behind it."""
    return name.encode()[: NAME_BYTES - room].decode(errors="ignore")

"""Names that PostgreSQL takes whole."""

from __future__ import annotations

NAME_BYTES = 63
"""It cuts longer ones, those of indexes too."""


def cut_name(name: str, *, room: int) -> str:
    """Return a name behind which so many bytes have room."""
    return name.encode()[: NAME_BYTES - room].decode(errors="ignore")

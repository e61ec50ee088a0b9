"""Pictures of pages: where walks leave them, and which of them README and ``docs/`` show."""

from __future__ import annotations

from pathlib import Path

PICTURES = Path(__file__).parents[1] / "var" / "pictures"
"""Those of every page in every look; below it, in ``docs``, those that ``make pictures`` puts into ``docs/images``."""

OF_DOCUMENTS = ("migration-copies", "overview", "quality")
"""Names of the views."""

PICTURE_PX = (1_280, 860)
"""Width and height: what fits on a screen beside text."""


def png_size(path: Path) -> tuple[int, int]:
    """Return width and height of a picture, in pixels."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG"), path
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")

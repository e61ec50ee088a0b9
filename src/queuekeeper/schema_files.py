"""Files that make a schema: the order in which they run, and how one takes the place of its former self."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

_NEEDS = re.compile(r"^-- needs: (.+)$", re.MULTILINE)
_CODE = re.compile(r"^CREATE (FUNCTION|PROCEDURE|TRIGGER|VIEW) (?:\w+\.)?(\w+)", re.MULTILINE)


def read(path: Path) -> str:
    """Return the text of a file. Line ends are those of Unix, whatever the checkout has."""
    return path.read_bytes().decode("utf-8").replace("\r\n", "\n")


def checksum(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def ordered(paths: Iterable[Path], *, known: Iterable[Path]) -> list[Path]:
    """Return files in their order, each after those that its lines ``-- needs: name, name`` name.

    :param known: all files that may be needed; those that are needed are returned too.
    """
    by_name = {path.stem: path for path in known}
    done: dict[Path, None] = {}

    def add(path: Path) -> None:
        for names in _NEEDS.findall(read(path)):
            for name in names.split(", "):
                if by_name[name] not in done:
                    add(by_name[name])
        done.setdefault(path)

    for path in paths:
        add(path)
    return list(done)


def code(text: str) -> tuple[str, str] | None:
    """Return the kind and name of the function, procedure, trigger or view that a text creates; none for a table."""
    found = _CODE.search(text)
    return (found[1], found[2]) if found else None


def replacing(text: str) -> str:
    """Return a text whose functions, procedures, triggers and views may be there already."""
    return _CODE.sub(lambda found: found[0].replace("CREATE", "CREATE OR REPLACE", 1), text)

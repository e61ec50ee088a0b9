"""Statements by name: what the files of ``sql/`` hold."""

from __future__ import annotations

import re
from functools import cache
from itertools import takewhile
from textwrap import indent
from typing import LiteralString

from queuekeeper import assets, schema_files

_PART = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_INCLUDE = re.compile(r"^( *)-- include: (\w+)$", re.MULTILINE)
_STATEMENT_NAME = re.compile(r"[a-z0-9_]+(?:/[a-z0-9_]+)*")


@cache
def statement(name: str) -> LiteralString:
    """Return one statement of ``sql/``, without its header comment.

    The header is left out since prose may hold a percent sign, which stands for a parameter everywhere else.

    :param name: folder below ``sql/`` and name of a statement in it, for example ``queuekeeper/queries/set_run_state``.
    :raises FileNotFoundError: when there is no such statement.
    """
    if not _STATEMENT_NAME.fullmatch(name):
        raise FileNotFoundError(f"{name!r} is not the name of a statement: lower-case words and slashes only")
    folder, _, own = name.rpartition("/")
    text = statements(folder).get(own)
    if text is None:
        raise FileNotFoundError(f"there is no statement {name}: neither a file {name}.sql nor a part of another one")
    lines = text.splitlines(keepends=True)
    comment = takewhile(lambda line: not line.strip() or line.startswith("--"), lines)
    return "".join(lines[len(list(comment)) :]).strip()


@cache
def statements(folder: str) -> dict[str, str]:
    """Return the statements of a folder below ``sql/`` by name, each with its header.

    A file holds one statement, which has its name, or several, each behind a line ``-- name: words``. Where a line
    ``-- include: words`` stands, lines come that statements share: those of ``sql/includes/``.
    """
    found: dict[str, str] = {}
    for path in sorted((assets.directory("sql") / folder).glob("*.sql")):
        before, *parts = _PART.split(_INCLUDE.sub(_included, schema_files.read(path)))
        if not parts:
            found[path.stem] = before
        found |= {name: text.rstrip().removesuffix(";") for name, text in zip(parts[::2], parts[1::2], strict=True)}
    return found


def _included(line: re.Match[str]) -> str:
    """Return what stands for a line ``-- include: words``, as deep as that line stands."""
    text = schema_files.read(assets.directory("sql") / "includes" / f"{line[2]}.sql")
    return indent(
        "".join(each for each in text.splitlines(keepends=True) if not each.startswith("--")).rstrip(), line[1]
    )

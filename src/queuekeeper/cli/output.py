"""How the command line shows things: tables for people, JSON for programs, both on stdout; trouble goes to stderr."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, date, datetime
from enum import Enum
from itertools import chain
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from queuekeeper.errors import CheckFailed, QueuekeeperError
from queuekeeper.facts import plain
from queuekeeper.jsonl import encoded

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from queuekeeper.cli.tables import Table
    from queuekeeper.jobs.kinds import Table as ToldTable

PIPE_WIDTH = 120
"""Columns when nobody is looking: a table that is piped on is not squeezed into 80."""

_DIGITS = 7
"""No screen has a width of so many digits."""

_NARROW = 80
"""Columns of a terminal where the environment says what is no number of them."""

SHOWN_CHARACTERS = 60
"""Most of a message's content that a table shows."""

_SPANS = (
    "_age",
    "deduplication",
    "delay",
    "idle_expiry",
    "_left",
    "lease",
    "_limit",
    "retention",
    "_timeout",
    "tombstone",
    "ttl",
)
"""Ends of the names of spans of time in milliseconds; all other ``_ms`` are instants."""
_NAMES = frozenset(
    {"acked", "acked_up_to", "epoch", "id", "incarnation", "last_id", "new_acked", "old_acked", "sent", "sequence"}
    | {"dead_letter_id", "incident_id", "known_issue_id", "last_packet_id", "packet_id", "quarantine_id", "version"}
    | {"delivered_serial", "last_serial", "serial", "serial_number"}
)
"""Numbers that name something and count nothing, and so is what ends with ``_sequence``."""


Column: TypeAlias = str | Callable[[Any], Any]
"""The field that a column shows, such as ``event.topic``, or what makes it of a record."""
Columns: TypeAlias = Mapping[str, Column]
"""Columns by their headings."""


def screen(*, stderr: bool = False) -> Console:
    """Return the place to write to; made anew each time, since tests and pipes exchange the streams."""
    from rich.console import Console

    stream, asked = sys.stderr if stderr else sys.stdout, os.environ.get("COLUMNS", "")
    # A number that is none, or 0 as where no screen is known, is no width.
    named = int(asked) if asked.isascii() and asked.isdecimal() and len(asked) < _DIGITS else 0
    width = named or (PIPE_WIDTH if not stream.isatty() else _NARROW if asked else None)
    # What the library takes for a number need not be one: "²" is none.
    others = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, _environ=others)


def picked(value: Any, *names: str) -> dict[str, Any]:
    """Return some fields of a record, by name."""
    return {name: getattr(value, name) for name in names}


@dataclass(frozen=True)
class Shown:
    """What a command has to show: one result, of which tables and JSON are two renderings.

    :param facts: record or mapping; all of it is in the JSON.
    :param view: title of tables of the facts, see :func:`parts`, or makes what people see instead, top to bottom:
        tables, and texts, which are wrapped unless they are there to be copied.
    :param failed: makes the exit code 1, and goes to stderr; empty where what is shown says it; an error, where it has
        an exit code of its own.
    :param then: what to do next, or to know besides; people see it below, behind an empty line.
    """

    facts: Any
    view: str | Callable[[], Iterable[Table | Text | str]]
    failed: str | QueuekeeperError | None = None
    then: str = ""


def show_result(shown: Shown, *, as_json: bool) -> None:
    """Write a result to stdout: as JSON and nothing else, or for people.

    :raises QueuekeeperError: where the result says so.
    """
    view, failed = shown.view, shown.failed
    if as_json:
        # An escape of JSON is read anywhere, and what is no UTF-8 needs one.
        is_plain = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        sys.stdout.write(json.dumps(plain(shown.facts), ensure_ascii=not is_plain, indent=2) + "\n")
        sys.stdout.flush()
    else:
        shown_parts = parts(view, shown.facts) if isinstance(view, str) else view()
        then = [copied(f"\n{shown.then}") if ": queuekeeper " in shown.then else f"\n{shown.then}"]
        print_parts(screen(), chain(shown_parts, then if shown.then else []))
    if isinstance(failed, QueuekeeperError):
        raise failed
    if failed is not None:
        raise CheckFailed(failed) if failed else typer.Exit(1)


def print_parts(out: Console, parts: Iterable[Table | Text | str]) -> None:
    """Write tables and texts, one below the other; what is there to be copied stays on its line."""
    for each in parts:
        out.print(each, soft_wrap=getattr(each, "no_wrap", None) is True)


def printable(text: str) -> str:
    """Return text that cannot move the cursor, change colours or reverse the line: ids are chosen by strangers."""
    return "".join(
        character if unicodedata.category(character)[0] != "C" else character.encode("unicode_escape").decode()
        for character in text
    )


def cell(value: Any, *, style: str = "") -> Text:
    """Return one value as a table shows it."""
    from rich.text import Text

    if value is None:
        return Text("–", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, int):
        return Text(f"{value:,}")
    if isinstance(value, float):
        return Text(f"{value:,.1f}")
    return Text(printable(str(plain(value))), style=style)


def copied(text: str, *, style: str = "") -> Text:
    """Return a text that stays on its line, however narrow the screen is: a command, a path or SQL."""
    from rich.text import Text

    return Text("\n".join(map(printable, text.split("\n"))), style=style, no_wrap=True)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return a table; numbers are set to the right."""
    from rich.text import Text

    from queuekeeper.cli.tables import Table

    content = [list(row) for row in rows]
    right = {at for at in range(len(columns)) if all(isinstance(row[at], int | float | None) for row in content)}
    cells = [[each if isinstance(each, Text) else cell(each) for each in row] for row in content]
    # The empty line sets tables apart without a frame.
    return Table(title=Text(f"\n{printable(title)}", style="bold"), heads=columns, rows=cells, right=right)


def told_tables(tables: Iterable[ToldTable]) -> Iterator[Table | Text]:
    """Yield tables that a run tells of itself; the sentence in the place of one without rows."""
    for each in tables:
        yield table(each.heading, each.heads, each.rows) if each.rows else cell(each.empty)


def pairs(title: str, values: Mapping[str, Any]) -> Table:
    """Return names and values, one to a line."""
    return table(title, (), [(cell(name, style="dim"), value) for name, value in values.items()])


def record(title: str, value: Any) -> Table:
    """Return a record's, or a mapping's, counts, words and instants as pairs; what it holds inside is left out."""
    return pairs(title, told(value))


def parts(
    title: str, value: Any, *, headings: Mapping[str, str] = MappingProxyType({}), **columns: Columns
) -> Iterator[Table | str]:
    """Yield all that a record, or a mapping, holds: its facts, then records, mappings and lists of records inside.

    :param headings: of what is inside, by field; the field's name where they are not said.
    :param columns: of a list, by the name of its field; all facts of its records where they are not said.
    """
    yield record(title, value)
    for name, inside in _items(value):
        heading = headings.get(name) or _label(name).capitalize()
        if is_dataclass(inside):
            yield record(heading, inside)
        elif isinstance(inside, Mapping) and inside:
            # Codes of a choice stay as they are.
            counts = {_label(each) if type(each) is str else str(plain(each)): each for each in inside}
            yield pairs(heading, {label: plain(inside[each]) for label, each in counts.items()})
        elif (
            isinstance(inside, list | tuple) and inside and (is_dataclass(inside[0]) or isinstance(inside[0], Mapping))
        ):
            yield listing(heading, inside, columns.get(name) or headed(*(each for each, _ in _items(inside[0]))))


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return ((str(plain(name)), each) for name, each in value.items())
    return ((each.name, getattr(value, each.name)) for each in fields(value))


def told(value: Any) -> dict[str, Any]:
    """Return the facts of a record or a mapping as people read them, by their titles; lists and records are left out.

    The name of a field says what it holds: ``_ms`` is an instant or a duration, some numbers are names.
    """
    shown: dict[str, Any] = {}
    for name, fact in _items(value):
        if isinstance(fact, str | int | float | datetime | date | Path | Enum | None):
            label = _label(name)
            shown[label if label not in shown else f"{label} last"] = fact_of(name, fact)
    return shown


def _label(name: str) -> str:
    return name.rpartition(".")[2].removesuffix("_ms").replace("_", " ")


def headed(*names: str, **others: Column) -> dict[str, Column]:
    """Return columns with the titles of their fields, then others with titles of their own."""
    return {_label(name): name for name in names} | others


def fact_of(name: str, value: Any) -> Any:
    """Return one fact as people read it.

    :param name: of its field.
    """
    if isinstance(value, datetime):
        return instant(int(value.timestamp() * 1_000))
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if name.removesuffix("_ms").endswith(_SPANS):
        return duration(value)
    if name.endswith("_ms"):
        return instant(value)
    return str(value) if name in _NAMES or name.endswith("_sequence") else value


def listing(title: str, items: Collection[Any], columns: Columns, *, nothing: str = "") -> Table | str:
    """Return a table of records, one to a line.

    :param nothing: sentence in its place where there are none.
    """
    if nothing and not items:
        return printable(nothing)

    def shown(item: Any, column: Column) -> Any:
        if not isinstance(column, str):
            return column(item)
        found = item.get(column) if isinstance(item, Mapping) else attrgetter(column)(item)
        return fact_of(column.rpartition(".")[2], found)

    return table(title, list(columns), [[shown(item, column) for column in columns.values()] for item in items])


def line(*values: Any) -> bytes:
    """Return values as a line of their own, with tabs between them."""
    return ("\t".join("" if each is None else printable(str(each)) for each in values).rstrip() + "\n").encode()


def instant(at_ms: int | None) -> str | None:
    """Return an instant as date and time in UTC."""
    if at_ms is None:
        return None
    try:
        return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{at_ms:,} ms"


def duration(milliseconds: int) -> str:
    """Return a span of time as people say it."""
    from queuekeeper.report import figures

    return figures.duration(milliseconds / 1_000)


def shown_bytes(content: bytes) -> str:
    """Return bytes on one line: as text, or as base64 where they are none."""
    facts = encoded("it", content)
    text = facts["it"] if len(facts["it"]) <= SHOWN_CHARACTERS else f"{facts['it'][:SHOWN_CHARACTERS]}…"
    return text if facts["it_encoding"] == "utf-8" else f"base64:{text}"


@contextmanager
def stdout_for_results() -> Iterator[None]:
    """Send what libraries and the Java runtime print to stderr while the block runs: stdout is for the result."""
    sys.stdout.flush()
    outer, kept = sys.stdout, os.dup(1)
    try:
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        yield
    finally:
        sys.stdout = outer
        os.dup2(kept, 1)
        os.close(kept)

"""Tables that fit the screen: a name, hash or address is never cut where the screen has room for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions
from rich.text import Text

_GAP = 2
_LONGEST_WORD = 24
"""A longer word of a sentence may be broken; a cell of one word never is while the screen has room for it."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows below headings. Where they are too wide, sentences are wrapped, then columns go below their rows.

    :param heads: headings; empty for pairs of a name and a value.
    :param right: columns that are set to the right.
    """

    title: Text
    heads: Sequence[str]
    rows: Sequence[Sequence[Text]]
    right: Collection[int]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines."""
        yield self.title
        if not self.rows:
            yield Text("none", style="dim")
            return
        widths = self._widths(options.max_width)
        if self.heads:
            yield from self._lines([Text(head, style="dim") for head in self.heads], widths)
        for row in self.rows:
            yield from self._lines(row, widths)
            for at, cell in enumerate(row):
                if at not in widths and cell.plain != "–":
                    yield from _below(self.heads[at], cell, options.max_width)
                elif at in widths and _is_cut(cell.plain, widths[at]):
                    yield from _below("", cell, options.max_width)

    def _widths(self, room: int) -> dict[int, int]:
        """Return the widths of the columns that stay beside each other."""
        columns = list(zip(*(map(str, row) for row in self.rows), strict=True))
        if not self.heads:
            names, values = (max(map(cell_len, column)) for column in columns)
            return {0: names, 1: max(1, min(values, room - names - _GAP))}
        wanted = [max(map(cell_len, (head, *column))) for head, column in zip(self.heads, columns, strict=True)]
        least = {at: max(map(_least, (self.heads[at], *column))) for at, column in enumerate(columns)}
        while len(least) > 1 and sum(least.values()) + _GAP * (len(least) - 1) > room:
            del least[max(list(least)[1:], key=lambda at: least[at])]
        left = room - sum(least.values()) - _GAP * (len(least) - 1)
        by_need = sorted(least, key=lambda at: wanted[at] - least[at])
        for number, at in enumerate(by_need):
            more = max(0, min(wanted[at] - least[at], left // (len(by_need) - number)))
            least[at], left = min(least[at] + more, room), left - more
        return least

    def _lines(self, row: Sequence[Text], widths: dict[int, int]) -> Iterator[Text]:
        cells = [[] if _is_cut(str(row[at]), width) and not self.heads else _wrapped(str(row[at]), width)
                 for at, width in widths.items()]  # fmt: skip
        for parts in zip_longest(*cells, fillvalue=""):
            line = Text()
            for (at, width), part in zip(widths.items(), parts, strict=True):
                blank = " " * (width - cell_len(part))
                line.append(" " * _GAP if line else "").append(blank if at in self.right else "")
                line.append(part, row[at].style).append("" if at in self.right else blank)
            line.rstrip()
            yield line


def _below(head: str, cell: Text, room: int) -> Iterator[Text]:
    start = f"  {head}  " if head else "  "
    if head and _is_cut(cell.plain, room - cell_len(start)):
        yield Text(f"  {head}", style="dim")
        start = "    "
    for line in _wrapped(cell.plain, max(1, room - cell_len(start))):
        yield Text.assemble((start, "dim"), (line, cell.style))
        start = " " * cell_len(start)


def _is_cut(text: str, width: int) -> bool:
    return " " not in text and cell_len(text) > width


def _least(text: str) -> int:
    """Return how narrow a column may be for a text."""
    words = text.split()
    return cell_len(text) if len(words) < 2 else max(min(cell_len(word), _LONGEST_WORD) for word in words)


def _wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text; words that are too long are broken behind a slash or a comma, where they have one."""
    if cell_len(text) <= width:
        return [text]
    lines, line = list[str](), ""
    for word in text.split():
        if line and cell_len(f"{line} {word}") > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
        while cell_len(line) > width:
            head = chop_cells(line, width)[0]
            at = max(head.rfind(mark) for mark in "/,") + 1 or len(head)
            lines.append(line[:at])
            line = line[at:]
    return [*lines, line]

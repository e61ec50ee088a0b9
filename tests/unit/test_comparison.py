"""The comparison with other tools: every cell has its source, and the README says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "comparison.md").read_text("utf-8")

Table = dict[tuple[str, str], str]
"""What stands where a row and a column meet."""


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def comparison(page: str) -> Table:
    """Return the table whose columns are tools."""
    [text] = re.findall(r"^\| \| TBMQ's own upgrade .*\n(?:\|.*\n)+", page, re.MULTILINE)
    head, _, *rows = map(cells, text.splitlines())
    assert [row for row in rows if len(row) != len(head)] == []
    return {(row[0], tool): cell for row in rows for tool, cell in zip(head[1:], row[1:], strict=True)}


def sources(tool: str) -> dict[str, tuple[str, str]]:
    """Return for each row of a tool's section its cell, and what that rests on."""
    [section] = re.findall(rf"^## {re.escape(tool)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    found: dict[str, tuple[str, str]] = {}
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith(("| rows |", "| --- |")):
            rows, cell, source = cells(line)
            for row in rows.split("; "):
                assert row not in found, f"{tool}: {row}: two sources"
                found[row] = (cell, source)
    return found


WHOLE = comparison(PAGE)
TOOLS = list(dict.fromkeys(tool for _, tool in WHOLE))


@pytest.mark.parametrize("tool", TOOLS)
def test_every_cell_of_a_tool_has_its_source_or_says_that_nobody_looked(tool: str) -> None:
    given = sources(tool)

    assert {row: cell for row, (cell, _) in given.items()} == {
        row: cell for (row, of), cell in WHOLE.items() if of == tool and cell != "–"
    }
    links = {row for row, (_, source) in given.items() if re.search(r"\]\([^)\s]+\)", source)}
    assert {row for row, (cell, _) in given.items() if cell != "not checked"} <= links


def test_a_cell_begins_with_a_sign_that_the_page_explains() -> None:
    [legend] = re.findall(r"^● yes ◐ partly ○ no – not its business$", PAGE, re.MULTILINE)

    assert [each for each in WHOLE.items() if each[1][0] not in legend and each[1] != "not checked"] == []


def test_the_readme_says_of_each_tool_what_the_comparison_says() -> None:
    short = comparison((ROOT / "README.md").read_text("utf-8"))

    assert len(short) > 10
    assert short == {place: WHOLE.get(place) for place in short}

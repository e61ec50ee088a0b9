"""Tables fit the screen, and what is there to be copied is whole in them."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from queuekeeper.cli.output import copied, fact_of, pairs, print_parts, table

pytestmark = pytest.mark.unit

HASH = "ec0cce96fac6c0256038d3a22dbf697a6a8ecf4d35c16e59cadd50efbc330bd0"
URL = "postgresql://postgres@127.0.0.1:23602/queuekeeper"
HEADS = ("run", "state", "messages", "where", "why")
ROWS = [
    ("0123456789abcdef", "at work", 12_000, URL, "another driver has fenced it, and so nothing was written"),
    ("fedcba9876543210", "done", 7, "/var/lib/queuekeeper/undo/fedcba9876543210.undo.jsonl", None),
    ("日本のデバイス", "planned", 1_000_000, None, "short"),
]


def lines(*parts: Any, width: int) -> list[str]:
    """Return what is printed on a screen of a width."""
    out = StringIO()
    print_parts(Console(file=out, width=width, highlight=False, markup=False, emoji=False), parts)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_table_fits_and_cuts_no_value_of_one_word(width: int) -> None:
    shown = lines(table("Runs", HEADS, ROWS), pairs("Evidence", {"hash": HASH[: width - 4], "where": URL}), width=width)

    assert [line for line in shown if cell_len(line) > width or line != line.rstrip()] == []
    words = {word for line in shown for word in line.split()}
    values = [str(value) for row in ROWS for value in row if isinstance(value, str) and " " not in value]
    assert [value for value in [*values, URL, HASH[: width - 4], "12,000"] if value not in words] == []


def test_column_for_which_there_is_no_room_comes_below_its_rows() -> None:
    assert lines(table("Runs", HEADS, ROWS), width=80) == [
        "",
        "Runs",
        "run               state     messages  why",
        "0123456789abcdef  at work     12,000  another driver has fenced it, and so",
        "                                      nothing was written",
        f"  where  {URL}",
        "fedcba9876543210  done             7  –",
        "  where  /var/lib/queuekeeper/undo/fedcba9876543210.undo.jsonl",
        "日本のデバイス    planned  1,000,000  short",
    ]


def test_value_of_a_pair_that_does_not_fit_comes_below_its_name() -> None:
    assert lines(pairs("In sum", {"read": True, "evidence (SHA-256)": HASH}), width=80) == [
        "", "In sum", "read                yes", "evidence (SHA-256)", f"  {HASH}",
    ]  # fmt: skip


def test_word_that_no_line_can_hold_is_broken_behind_a_slash() -> None:
    path = "/var/lib/queuekeeper/" + "undo/" * 12
    assert lines(pairs("Files", {"undo": path}), width=40)[2:] == [
        "undo", "  /var/lib/queuekeeper/undo/undo/undo/", "  " + "undo/" * 7, "  undo/undo/",
    ]  # fmt: skip


def test_table_without_rows_says_none_and_what_is_copied_stays_on_its_line() -> None:
    command = f"Next: queuekeeper migrate copy {HASH} --cohorts 0-3"
    sentence = "A sentence that is longer than the screen is wide is wrapped."

    assert lines(table("Runs", HEADS, []), copied(command), sentence, width=40) == [
        "", "Runs", "none", command, "A sentence that is longer than the ", "screen is wide is wrapped.",
    ]  # fmt: skip


def test_time_in_milliseconds_is_shown_as_the_span_or_the_instant_that_its_name_says() -> None:
    spans = (
        "delay_ms",
        "lease_ms",
        "lease_left_ms",
        "idle_expiry_ms",
        "oldest_age_ms",
        "time_limit_ms",
        "retention_ms",
    )
    assert {fact_of(name, 4_000) for name in spans} == {"4.0 s"}
    instants = ("published_ms", "next_expiry_ms", "due_ms", "verified_at_ms", "blocked_until_ms")
    assert {fact_of(name, 4_000) for name in instants} == {"1970-01-01 00:00:04 UTC"}

"""The tables of published defects in ``docs/reliability.md``, and the tests that they name."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from tests.golden_defects import (
    broker_defects,
    compacted_defects,
    event_defects,
    fanout_defects,
    source_defects,
    untold,
)
from tests.golden_defects.defect import Defect

TESTS = Path(__file__).parents[1]
OF_SESSIONS: tuple[Defect[Any], ...] = (*broker_defects.DEFECTS, *source_defects.DEFECTS)
ALL: tuple[Defect[Any], ...] = (
    *OF_SESSIONS, *event_defects.DEFECTS, *compacted_defects.DEFECTS, *fanout_defects.DEFECTS,
)  # fmt: skip
_DEFINED = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


@cache
def defined_tests() -> dict[str, list[str]]:
    """Return where each test is defined: name -> files."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for name in _DEFINED.findall(path.read_text("utf-8")):
            found.setdefault(name, []).append(f"tests/{path.relative_to(TESTS).as_posix()}")
    return found


def address(test: str) -> str:
    """Return a test's address; it must be the only one of its name."""
    [path] = defined_tests()[test]
    return f"{path}::{test}"


def lines() -> list[str]:
    """Return both tables, line by line."""
    told = [
        "| defect | published in | trace in data | found by | ours does not have it |",
        "| --- | --- | --- | --- | --- |",
        *(
            _line(defect.title, defect.published, defect.trace, _checks(defect), _addresses(defect.ours))
            for defect in ALL
        ),
    ]
    not_told = [
        "| defect | published in | why no check of sessions finds it | ours does not have it |",
        "| --- | --- | --- | --- |",
        *(_line(each.title, each.published, each.reason, _addresses(each.ours)) for each in untold.UNTOLD),
    ]
    return [*told, "", *not_told]


def _checks(defect: Defect[Any]) -> str:
    return ", ".join(sorted({finding.check_id for finding in defect.finds}, key=lambda check: int(check[1:])))


def _addresses(tests: tuple[str, ...]) -> str:
    return ", ".join(f"`{address(test)}`" for test in tests)


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells).replace(" |  |", " | |") + " |"

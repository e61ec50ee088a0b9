"""The examples of ``docs/sessions.md`` run as they stand, one after the other, and print what the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuekeeper import assets, postgres

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "sessions.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"^#> (.*)$", re.MULTILINE)


def examples() -> Iterator[tuple[int, str]]:
    """Yield each example with the lines of the page before it."""
    text = PAGE.read_text("utf-8")
    for match in _BLOCK.finditer(text):
        yield text.count("\n", 0, match.start(1)), match[1]


def test_examples_print_what_the_page_says(
    valkey_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUEUEKEEPER_REDIS_URL", valkey_url)
    monkeypatch.setenv("QUEUEKEEPER_POSTGRES_URL", postgres_url)
    with postgres.connect(postgres_url, autocommit=True) as connection:
        connection.execute(assets.read("sql", "sessions/vendor_schema.sql").encode())

    names: dict[str, object] = {"__name__": "docs"}
    count = 0
    try:
        for lines_before, source in examples():
            # Empty lines make a traceback name the page's own line.
            exec(compile("\n" * lines_before + source, str(PAGE), "exec"), names)
            assert capsys.readouterr().out.splitlines() == _PRINTED.findall(source), f"below line {lines_before}"
            count += 1
    finally:
        if "client" in names:
            names["client"].close()  # type: ignore[attr-defined]
    assert count == PAGE.read_text("utf-8").count("```python")
    assert count > 0

"""The examples of pages in ``docs/`` run as they stand, one after the other, and print what the page says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queuekeeper import assets, postgres
from queuekeeper.events import schema

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"^#> (.*)$", re.MULTILINE)


def examples(page: Path) -> Iterator[tuple[int, str]]:
    """Yield each example with the lines of the page before it."""
    text = page.read_text("utf-8")
    for match in _BLOCK.finditer(text):
        yield text.count("\n", 0, match.start(1)), match[1]


def vendor_tables(connection: postgres.Connection) -> None:
    """Create the tables of TBMQ 1.4."""
    connection.execute(assets.read("sql", "sessions/vendor_schema.sql").encode())


def tables_of_moves(connection: postgres.Connection) -> None:
    """Create the tables of TBMQ 1.4 and schema ``queuekeeper``."""
    vendor_tables(connection)
    postgres.migrate(connection)


def event_broker(connection: postgres.Connection) -> None:
    """Create schema ``pgmb``."""
    schema.install(connection)


def nothing(connection: postgres.Connection) -> None:
    """Leave PostgreSQL as it is: the page is about Redis."""


@pytest.mark.parametrize(
    ("page", "prepare"),
    [
        ("sessions", vendor_tables),
        ("online", tables_of_moves),
        ("events", event_broker),
        ("compacted", nothing),
        ("fanout", nothing),
        ("sizing", nothing),
    ],
)
def test_examples_print_what_the_page_says(
    page: str,
    prepare: Callable[[postgres.Connection], None],
    valkey_url: str,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QUEUEKEEPER_REDIS_URL", valkey_url)
    monkeypatch.setenv("QUEUEKEEPER_POSTGRES_URL", postgres_url)
    with postgres.connect(postgres_url, autocommit=True) as connection:
        prepare(connection)

    path = DOCS / f"{page}.md"
    names: dict[str, object] = {"__name__": "docs"}
    count = 0
    try:
        for lines_before, source in examples(path):
            # Empty lines make a traceback name the page's own line.
            exec(compile("\n" * lines_before + source, str(path), "exec"), names)
            assert capsys.readouterr().out.splitlines() == _PRINTED.findall(source), f"below line {lines_before}"
            count += 1
    finally:
        for name in ("client", "connection"):
            if name in names:
                names[name].close()  # type: ignore[attr-defined]
    assert count == path.read_text("utf-8").count("```python")
    assert count > 0

"""The examples of pages in ``docs/`` run as they stand, one after the other, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queuekeeper import assets, postgres, redis_client, schema_migrations
from queuekeeper.compacted import Append, CompactedQueues
from queuekeeper.events import EventBroker, Interest, NewEvent, schema
from queuekeeper.fanout import FanoutProducer, FanoutQueues
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PROGRAM = "## In ten lines\n\n"
_PRINTED = re.compile(r"^#> (.*)$", re.MULTILINE)


def examples(page: Path) -> Iterator[tuple[int, str]]:
    """Yield each example with the lines of the page before it; a program of its own is none."""
    text = page.read_text("utf-8")
    for match in _BLOCK.finditer(text):
        if not text.endswith(_PROGRAM, 0, match.start()):
            yield text.count("\n", 0, match.start(1)), match[1]


def program_of(page: str) -> str:
    """Return the program that a page shows in ten lines."""
    _, _, behind = (DOCS / f"{page}.md").read_text("utf-8").partition(_PROGRAM)
    found = _BLOCK.match(behind)
    assert found is not None
    return found[1]


def vendor_tables(connection: postgres.Connection) -> None:
    """Create the tables of TBMQ 1.4."""
    connection.execute(assets.read("sql", "sessions/vendor_schema.sql").encode())


def tables_of_moves(connection: postgres.Connection) -> None:
    """Create the tables of TBMQ 1.4 and schema ``queuekeeper``."""
    vendor_tables(connection)
    schema_migrations.migrate(connection)


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
    text = path.read_text("utf-8")
    assert count == text.count("```python") - text.count(_PROGRAM)
    assert count > 0


def publish_event(redis_url: str, postgres_url: str) -> None:
    with postgres.connect(postgres_url, autocommit=True) as connection:
        schema.install(connection)
        broker = EventBroker(connection)
        broker.subscribe("screen", Interest.topics("greeting"))
        broker.publish([NewEvent(topic="greeting", payload="world")])
        broker.poll()


def publish_message(redis_url: str, postgres_url: str) -> None:
    with redis_client.connect(redis_url) as client:
        queues = FanoutQueues(client)
        queues.register("greetings", consumer="screen")
        FanoutProducer(queues).publish_json("greetings", "world")


def append_value(redis_url: str, postgres_url: str) -> None:
    with redis_client.connect(redis_url) as client:
        CompactedQueues(client).append("meter-17", [Append(key=b"valve/1", value=b"open")])


@pytest.mark.parametrize(
    ("page", "publish", "printed"),
    [
        ("events", publish_event, "hello world\n"),
        ("fanout", publish_message, "hello world\n"),
        ("compacted", append_value, "valve/1 open\n"),
    ],
)
def test_a_consumer_with_a_decorator_runs_in_ten_lines_until_it_is_told_to_end(
    page: str, publish: Callable[[str, str], None], printed: str, valkey_url: str, postgres_url: str
) -> None:
    program = program_of(page)
    assert len([line for line in program.splitlines() if line]) <= 10
    assert "@handler(" in program
    publish(valkey_url, postgres_url)
    environment = {"QUEUEKEEPER_REDIS_URL": valkey_url, "QUEUEKEEPER_POSTGRES_URL": postgres_url}
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as running:
        assert running.stdout is not None
        try:
            assert running.stdout.readline() == printed
        finally:
            running.terminate()
        assert running.wait(PATIENCE_S) == 0

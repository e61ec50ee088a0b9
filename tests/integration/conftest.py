"""What tests of commands share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from io import StringIO
from typing import Any

import pytest
import typer.main
import typer.testing
from rich.cells import cell_len
from rich.console import Console

from queuekeeper import redis_client
from queuekeeper.cli import command, here, output


@pytest.fixture(scope="session", autouse=True)
def _commands_are_built_once() -> Iterator[None]:
    """Keep the tree of commands between two calls: to build it takes a third of a second of the processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def client(named_redis: str) -> Iterator[redis_client.RedisClient]:
    """A connection to the server that the environment names."""
    with redis_client.connect(named_redis) as opened:
        yield opened


_COPIED = re.compile(
    r"queuekeeper [a-z]|ACL SETUSER|://|[/.]\w+/|^\s*(ALTER|COMMENT|CREATE|DETACH|DROP|INSERT|SELECT|UPDATE|--) "
)
"""What is copied as it is stays on one line: commands, rules, addresses, paths and SQL."""


@pytest.fixture(autouse=True)
def _what_people_see_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Print all that commands show to people on a narrow screen, too."""
    too_long = list[str]()

    def printed(out: Console, parts: Iterable[Any]) -> None:
        shown = list(parts)
        narrow = Console(file=StringIO(), width=80, height=25, highlight=False, markup=False, emoji=False)
        print_parts(narrow, shown)
        lines = narrow.file.getvalue().splitlines()  # type: ignore[attr-defined]
        too_long.extend(line for line in lines if cell_len(line) > 80 and not _COPIED.search(line))
        print_parts(out, shown)

    print_parts = output.print_parts
    for module in (command, here, output):
        monkeypatch.setattr(module, "print_parts", printed)
    yield
    assert too_long == []

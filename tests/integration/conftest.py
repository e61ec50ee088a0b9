"""What tests of commands share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main
import typer.testing

from queuekeeper import redis_client


@pytest.fixture(scope="session", autouse=True)
def _commands_are_built_once() -> Iterator[None]:
    """Keep the tree of commands between two calls: to build it takes a third of a second of the processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def client(valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis_client.RedisClient]:
    """A connection to the server that the environment names."""
    for name in list(os.environ):
        if name.startswith("QUEUEKEEPER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("QUEUEKEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("QUEUEKEEPER_REDIS_URL", valkey_url)
    with redis_client.connect(valkey_url) as opened:
        yield opened

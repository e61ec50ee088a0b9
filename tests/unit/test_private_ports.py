"""Ports of private servers."""

from __future__ import annotations

import pytest

from queuekeeper.embedded import files

pytestmark = pytest.mark.unit


def test_servers_that_do_not_listen_yet_get_a_port_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PORTS", range(20_000, 20_400))

    ports = [files.free_port() for _ in range(60)]

    assert len(set(ports)) == len(ports)

"""Addresses of test servers."""

from __future__ import annotations

from queuekeeper.postgres import Connection


def url_of(connection: Connection) -> str:
    """Return the address of a connection's database."""
    info = connection.info
    return f"postgresql://{info.user}:{info.password}@{info.host}:{info.port}/{info.dbname}"

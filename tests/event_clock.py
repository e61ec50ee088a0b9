"""A scratch installation of the event broker that asks a function of the test's for the time."""

from __future__ import annotations

import re
from datetime import timedelta

from queuekeeper.events.schema import script
from queuekeeper.postgres import Connection

_INSTANT = """
CREATE FUNCTION moved.instant() RETURNS timestamptz LANGUAGE sql STABLE SECURITY DEFINER
AS $$ SELECT pg_catalog.clock_timestamp() + ahead FROM moved.clock $$
"""


def install_with_clock(connection: Connection) -> None:
    """Install the broker with a clock that can be moved."""
    for text in (
        "CREATE SCHEMA moved",
        "CREATE TABLE moved.clock AS SELECT interval '0' AS ahead",
        _INSTANT,
        "GRANT USAGE ON SCHEMA moved TO PUBLIC",
        re.sub(r"\b(clock_timestamp|now)\(\)", "moved.instant()", script()),
    ):
        connection.execute(text.encode())


def move_clock(connection: Connection, ahead: timedelta) -> None:
    """Set the clock so far ahead of the true time."""
    connection.execute("UPDATE moved.clock SET ahead = %s", (ahead,))

"""JSON that is read from PostgreSQL is what Python's own reader makes of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from queuekeeper import postgres
from queuekeeper.postgres import Connection

pytestmark = pytest.mark.sql

TEXTS = (
    '{"a": [1, -0, 0.1, 1.10, 1e5, null, true, "\\u00e9\\n\\ud83d\\ude00"], "": {}}',
    "12345678901234567890123456789",
    "-9223372036854775809",
    "-0.0",
    "0.30000000000000004",
    "1e400",
    '{"a": 1, "a": 2}',
    '"\\ud800"',
    "[" * 300 + "]" * 300,
)


def test_json_keeps_what_pythons_reader_keeps(connection: Connection) -> None:
    rows = connection.execute("SELECT unnest(%s::json[])", ([*TEXTS],)).fetchall()
    assert [repr(value) for (value,) in rows] == [repr(json.loads(text)) for text in TEXTS]

    # Type jsonb knows no half characters.
    texts = [text for text in TEXTS if "ud800" not in text]
    written = connection.execute("SELECT v, v::text FROM unnest(%s::jsonb[]) AS v", (texts,)).fetchall()
    assert [repr(value) for value, _ in written] == [repr(json.loads(text)) for _, text in written]
    assert written[1][0] == 12345678901234567890123456789


def test_asyncio_reads_the_same(postgres_url: str) -> None:
    async def read() -> list[str]:
        async with await postgres.connect_async(postgres_url) as connection:
            rows = await (await connection.execute("SELECT unnest(%s::json[])", ([*TEXTS],))).fetchall()
            return [repr(value) for (value,) in rows]

    assert asyncio.run(read()) == [repr(json.loads(text)) for text in TEXTS]

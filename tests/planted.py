"""Secrets and payloads that tests plant, in all the ways in which they might come to light again."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

PAYLOAD = b"planted-payload-7e1f: nobody's business"
POSTGRES_PASSWORD = "planted-postgres-word-3c/9a"
REDIS_PASSWORD = "planted-redis-word-5b/2d"
CLIENT = "planted-client-8d21"
"""A client id is no secret of its owner's own choice alone: logs and reports name clients by their hash."""


def forms(secret: bytes) -> set[bytes]:
    """Return how a text may be written: as such, in JSON, in an address, by Base64 wherever it begins, or by digits."""
    text = secret.decode()
    found = {secret, json.dumps(text)[1:-1].encode(), quote(text, safe="").encode(), secret.hex().encode()}
    for lead in range(3):
        # What is before and behind shares digits with the first and the last bytes.
        digits = base64.b64encode(b"\0" * lead + secret)
        found.add(digits[4 if lead else 0 : len(digits) - 4])
    return found


SECRETS: Mapping[str, set[bytes]] = {
    "the payload": forms(PAYLOAD),
    "the password of PostgreSQL": forms(POSTGRES_PASSWORD.encode()),
    "the password of Redis": forms(REDIS_PASSWORD.encode()),
}
CLIENTS: Mapping[str, set[bytes]] = {"the client id": forms(CLIENT.encode())}
EVERYTHING: Mapping[str, set[bytes]] = {**SECRETS, **CLIENTS}


def found_in(content: bytes, wanted: Mapping[str, set[bytes]] = SECRETS) -> list[str]:
    """Return what of it is in a text."""
    lowered = content.lower()
    return [
        name for name, written in wanted.items() if any(each in content or each.lower() in lowered for each in written)
    ]


def found_in_files(*folders: Path, wanted: Mapping[str, set[bytes]], leaving_out: Iterable[Path] = ()) -> list[str]:
    """Return in which files below some folders it is; names of files count."""
    left_out = set(leaving_out)
    found = []
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path in left_out or left_out & set(path.parents) or path.is_symlink() or not path.is_file():
                continue
            content = str(path.relative_to(folder)).encode() + b"\n" + path.read_bytes()
            found += [f"{name} in {path}" for name in found_in(content, wanted)]
    return found


def found_in_database(
    url: str, *, wanted: Mapping[str, set[bytes]], schema: str = "public", tables: Iterable[str] | None = None
) -> list[str]:
    """Return in which tables of a schema it is, whatever the type of the column.

    :param tables: those to look at; all of them otherwise.
    """
    found = []
    with psycopg.connect(url) as connection:
        known = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1", (schema,))
        names = [name for (name,) in known]
        assert names
        for name in names if tables is None else tables:
            rows = connection.execute(
                sql.SQL("SELECT record::text FROM {} AS record").format(sql.Identifier(schema, name))
            )
            for (row,) in rows:
                found += [f"{each} in {schema}.{name}" for each in found_in(row.encode(), wanted)]
    return sorted(set(found))

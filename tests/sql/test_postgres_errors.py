"""What a person is told of PostgreSQL's errors: its hints, and its details unless those may show what rows hold."""

from __future__ import annotations

import pytest
from typer import Typer
from typer.testing import CliRunner

from queuekeeper.cli.context import CommandGroup
from queuekeeper.errors import RefusedError
from queuekeeper.events.broker import broker_errors
from queuekeeper.postgres import Connection, translated_errors

pytestmark = pytest.mark.sql

TABLE = "CREATE TABLE letters (id int PRIMARY KEY, body text NOT NULL CHECK (body <> 'secret'), data jsonb)"


def raised(code: str, *, detail: str = "", hint: str = "") -> bytes:
    using = "".join(f", {name} = '{text}'" for name, text in (("DETAIL", detail), ("HINT", hint)) if text)
    return f"DO $$ BEGIN RAISE EXCEPTION 'it is so' USING ERRCODE = '{code}'{using}; END $$".encode()


def test_a_hint_takes_the_place_of_general_advice(connection: Connection) -> None:
    with (
        pytest.raises(RefusedError, match=r"refuses: it is so \(only x may\): GRANT a TO b$"),
        translated_errors(connection),
    ):
        connection.execute(raised("42501", detail="only x may.", hint="GRANT a TO b."))
    with pytest.raises(RefusedError, match=r"refuses: it is so; grant the privilege$"), translated_errors(connection):
        connection.execute(raised("42501"))


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DROP TABLE letters", r"cannot drop table letters .* \(view readers depends on table letters\): Use DROP"),
        (
            raised("53300", detail="there are 9 others", hint="Close some"),
            r"it is so \(there are 9 others\): Close some$",
        ),
        ("SELECT bodi FROM letters", r'column "bodi" does not exist: Perhaps you meant .*letters\.body'),
    ],
)
def test_details_that_name_objects_and_limits_are_told(
    connection: Connection, statement: str | bytes, words: str
) -> None:
    connection.execute(TABLE)
    connection.execute("CREATE VIEW readers AS SELECT body FROM letters")
    with pytest.raises(RefusedError, match=words), broker_errors(connection):
        connection.execute(statement if isinstance(statement, bytes) else statement.encode())


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO letters VALUES (1, 'secret')",
        "INSERT INTO letters VALUES (77123, 'a'), (77123, 'b')",
        "INSERT INTO letters VALUES (77123, NULL)",
        """INSERT INTO letters VALUES (1, 'a', '{"name": secret}')""",
        raised("P0001", detail="secret"),
    ],
)
def test_details_that_may_hold_a_row_are_told_by_nobody(connection: Connection, statement: str | bytes) -> None:
    connection.execute(TABLE)
    sentences = []

    def run() -> None:
        connection.execute(statement if isinstance(statement, bytes) else statement.encode())

    app = Typer(cls=CommandGroup)
    app.command()(run)
    app.command("other")(lambda: None)
    sentences.append(CliRunner().invoke(app, ["run"]).stderr)
    try:
        with broker_errors(connection):
            run()
    except Exception as error:
        sentences.append(str(error))

    assert len(sentences) == 2
    for sentence in sentences:
        assert sentence
        assert "secret" not in sentence
        assert "77123" not in sentence

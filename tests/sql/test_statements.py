"""Each statement file keeps to its header, names real indexes, and is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import queuekeeper
from queuekeeper import assets, schema_migrations, sql_statements
from queuekeeper.events import schema
from queuekeeper.postgres import Connection

pytestmark = pytest.mark.sql

SQL = assets.directory("sql")
FOLDERS = {str(path.parent.relative_to(SQL)) for path in SQL.rglob("*.sql")}
TEXTS = {
    f"{folder}/{name}": text
    for folder in FOLDERS
    for name, text in sql_statements.statements(folder).items()
    if "-- params:" in text
}
STATEMENTS = sorted(TEXTS)
SOURCES = "\n".join(
    path.read_text("utf-8")
    for path in (
        *Path(queuekeeper.__file__).parent.rglob("*.py"),
        *assets.directory("expectations").glob("*.json"),  # a suite names the statement that gives its rows
    )
)


def header(name: str) -> dict[str, str]:
    """Return the fields of a statement's header, continued lines joined."""
    fields = {"purpose": ""}
    current = "purpose"
    for line in TEXTS[name].splitlines():
        if not line.startswith("-- "):
            break
        match = re.match(r"-- (params|rows|index): (.*)", line)
        if match:
            current = match[1]
            fields[current] = match[2]
        else:
            fields[current] = f"{fields[current]} {line[3:]}".strip()
    return fields


def test_every_query_of_the_control_schema_has_a_header() -> None:
    names = {f"queuekeeper/queries/{name}" for name in sql_statements.statements("queuekeeper/queries")}

    assert names
    assert names - set(STATEMENTS) == set()


def test_no_two_statements_of_a_folder_have_one_name() -> None:
    for folder in FOLDERS:
        parts = [
            name
            for path in (SQL / folder).glob("*.sql")
            for name in re.findall(r"^-- name: (\w+)$", path.read_text("utf-8"), re.MULTILINE) or [path.stem]
        ]
        assert sorted(parts) == sorted(sql_statements.statements(folder)), folder


def test_headers_name_the_parameters_that_the_statements_take() -> None:
    fields = {name: header(name) for name in STATEMENTS}
    declared = {
        name: set(re.findall(r"\w+", each.get("params", "").partition(";")[0])) - {"none"}
        for name, each in fields.items()
    }
    taken = {name: set(re.findall(r"%\((\w+)\)[sb]", sql_statements.statement(name))) for name in STATEMENTS}

    assert [name for name, each in fields.items() if not each["purpose"].endswith(".")] == []
    assert [name for name, each in fields.items() if set(each) != {"purpose", "params", "rows", "index"}] == []
    assert declared == taken


def test_names_stand_for_one_statement_each() -> None:
    assert [name for name in STATEMENTS if ";" in re.sub(r"--.*", "", sql_statements.statement(name))] == []


def test_a_parameter_is_sent_in_one_format_and_arrays_in_binary_form() -> None:
    formats = {
        f"{path.relative_to(SQL)}: {name}": {*re.findall(rf"%\({name}\)([sb])", text)}
        for path in SQL.rglob("*.sql")
        for text in re.split(r"^-- name: ", path.read_text("utf-8"), flags=re.MULTILINE)
        for name in re.findall(r"%\((\w+)\)", text)
    }
    as_text = [
        f"{path.relative_to(SQL)}: {name}"
        for path in SQL.rglob("*.sql")
        for name in re.findall(r"%\((\w+)\)s::[\w ]+\[\]", path.read_text("utf-8"))
    ]

    assert formats
    # psycopg refuses a statement that asks for both.
    assert {place: letters for place, letters in formats.items() if len(letters) > 1} == {}
    # As text, an array of 100 payloads of 256 bytes takes its client thirty times as long.
    assert as_text == []


def test_headers_name_indexes_that_exist(source: Connection) -> None:
    schema_migrations.migrate(source)
    schema.install(source)
    existing = {name for (name,) in source.execute("SELECT indexname FROM pg_indexes")}
    named = {
        index for name in STATEMENTS for index in re.findall(r"\w+_(?:pkey|idx|key)\b|idx_\w+", header(name)["index"])
    }

    assert named - existing == set()
    assert named


def test_every_statement_is_used() -> None:
    unused = [
        name
        for name in STATEMENTS
        if not any(
            words in SOURCES
            for words in (f'"{name}"', f'"{name.rpartition("/")[2]}"', f"{{_QUERIES}}{name.rpartition('/')[2]}")
        )
    ]

    assert STATEMENTS
    assert unused == []

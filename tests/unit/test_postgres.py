"""What ``queuekeeper.postgres`` does without a server: URLs, statement files, migration files."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable

import pytest

from queuekeeper import assets, postgres
from queuekeeper.errors import ServerUnavailable, UsageError

pytestmark = pytest.mark.unit

SQL = assets.directory("sql")


def test_statement_comes_without_its_header() -> None:
    text = postgres.statement("queuekeeper/queries/plan_of_run")

    assert text.startswith("SELECT plan_id")
    assert text.endswith("%(run_id)s")
    assert "-- rows:" in postgres.statements("queuekeeper/queries")["plan_of_run"]


def test_lines_that_statements_share_stand_in_one_file() -> None:
    peek, quarantined = (postgres.statement(f"sessions/{name}") for name in ("peek", "quarantined_messages"))
    shared = """
    retain,
    msg_expiry_interval,
    payload_format_indicator,
    content_type,
    response_topic,
    correlation_data,
"""

    assert shared in peek
    assert shared in quarantined
    # As deep as the line that stands for them, also where several statements are in a file.
    assert "\n    AND driver = %(driver)s\nRETURNING" in postgres.statement("queuekeeper/queries/set_online_state")


def test_no_line_of_a_statement_is_left_that_stands_for_others() -> None:
    folders = {str(path.parent.relative_to(SQL)) for path in SQL.rglob("*.sql")}
    texts = {name: text for folder in folders for name, text in postgres.statements(folder).items()}
    used = {name for path in SQL.rglob("*.sql") for name in re.findall(r"-- include: (\w+)", path.read_text("utf-8"))}

    assert [name for name, text in texts.items() if "-- include: " in text] == []
    assert used == {path.stem for path in (SQL / "includes").glob("*.sql")}


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "queuekeeper//x", "queuekeeper/queries/Throttle", "a.b", ""]
)
def test_name_of_a_statement_is_no_path(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="is not the name of a statement"):
        postgres.statement(name)


def test_unknown_statement_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"no_such_statement\.sql"):
        postgres.statement("queuekeeper/queries/no_such_statement")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cret@@host/db",
        "postgresql://user:s3/cret@host/db",
        "postgresql://user:s3cret#1@host/db?",
        "postgresql://user:s3cret@host:port/db",
        "postgresql://user:s3cret@host/db?bogus=s3cret",
        "host=h password=s3cret bogus=1",
        "s3cret",
        "postgresql://user:s3cret@host/d\ud800b",
    ],
)
def test_malformed_url_is_explained_without_the_password(url: str) -> None:
    with pytest.raises((UsageError, ServerUnavailable)) as caught:
        postgres.connect(url)

    assert "s3" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("end", ["host:99999/db", "host:0/db", "host:\u00b2/db", "host\0other/db", "host/db\0other"])
def test_address_that_there_cannot_be_is_refused_before_a_server_is_asked(end: str) -> None:
    with pytest.raises(UsageError, match="does not parse: write postgresql://"):
        postgres.connect(f"postgresql://user@{end}")


def test_refused_connection_names_address_and_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        port = taken.getsockname()[1]
        with pytest.raises(ServerUnavailable, match=rf"PostgreSQL at 127\.0\.0\.1:{port} is not available: .*refused"):
            postgres.connect(f"postgresql://user:s3cret@127.0.0.1:{port}/db")


def test_migrations_are_numbered_without_gaps() -> None:
    found = postgres.migrations()

    assert [migration.version for migration in found] == list(range(1, len(found) + 1))
    assert len({migration.checksum for migration in found}) == len(found) > 0


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, -2.5e3, "x\\"]}\\\\", {"b": null, "c": [true, {}, []]}], "d\\u00fc,:": ""}',
        '[{"a:": "b"}, "[{:", ":", {"": {"": ":"}}]',
        '"\\ud800"',
        "-17",
    ],
)
def test_slow_reader_of_json_reads_as_python_does(text: str) -> None:
    assert postgres._read_slowly(text) == json.loads(text)


@pytest.mark.parametrize("form", [str, str.encode])
def test_json_of_any_depth_and_any_number_is_read(form: Callable[[str], str | bytes]) -> None:
    deep = postgres._loads(form('{"a": [' * 5_000 + "0" + "]}" * 5_000))
    for _ in range(5_000):
        (deep,) = deep["a"]
    assert deep == 0
    assert postgres._loads(form("[-" + "9" * 5_000 + "]"))[0] == 1 - 10**5_000

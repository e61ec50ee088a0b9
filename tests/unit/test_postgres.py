"""What ``queuekeeper.postgres`` does without a server: URLs and JSON."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest

from queuekeeper import postgres
from queuekeeper.errors import ServerUnavailable, UsageError

pytestmark = pytest.mark.unit


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
        with pytest.raises(ServerUnavailable) as caught:
            postgres.connect(f"postgresql://user:a@127.0.0.1:{port}/db")
    assert "is not available: connection" in str(caught.value), "a password is no part of a word"
    assert "?" not in str(caught.value), "a remedy asks nothing"


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

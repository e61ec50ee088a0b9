"""What tasks and pages of Airflow keep in an object store, by a connection; and a store that refuses, told in words."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from queuekeeper import places
from queuekeeper.airflow.plugin.pages import list_reports, pages
from queuekeeper.airflow.run_index import PREFIX, remember, report_of
from queuekeeper.airflow.settings import AirflowSettings
from queuekeeper.errors import QueuekeeperError, RefusedError, UsageError
from queuekeeper.jobs.undo import UndoFile, read_undo_file, remove_old_undo_files, undo_paths
from queuekeeper.report.files import ReportFiles, ReportKind, write_files
from tests.conftest import nightly
from tests.object_store import NOWHERE, Account, ObjectStore, forget
from tests.plugin_world import open_guards

HEADER = {"kind": "cleanup", "run_id": "1"}
NOW_MS = 1_780_000_000_000


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Credentials are those of connections."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in NOWHERE.items():
        monkeypatch.setenv(name, value)
    forget()
    yield
    forget()


@pytest.fixture
def place(object_store: ObjectStore, connections: Callable[..., None]) -> str:
    """Connection and bucket, as URLs name them."""
    connections(qk_writer=object_store.writer.connection(), qk_reader=object_store.reader.connection())
    return f"qk_writer@{object_store.bucket()}"


def reports_in(url: str) -> Path:
    return AirflowSettings(reports_dir=url).reports


def written(directory: Path, subject: str = "0" * 16) -> ReportFiles:
    return write_files(
        directory, kind=ReportKind.QUALITY, subject_id=subject, at_ms=NOW_MS, text="{}", page=lambda *_: "<p>page</p>"
    )


def undo_in(url: str) -> Path:
    return AirflowSettings(undo_dir=url).undo / "1.a.undo.jsonl"


def test_pages_show_what_tasks_have_written_since(place: str, object_store: ObjectStore) -> None:
    url = f"s3://{place}/reports"
    settings = AirflowSettings(reports_dir=url)

    async def served(*names: str) -> list[httpx.Response]:
        # As Airflow's API server does, in a running loop: there, connections of object stores cannot be opened.
        app = FastAPI()
        app.mount(PREFIX, pages(settings=settings, guards=open_guards()))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow", follow_redirects=True) as client:
            return [await client.get(f"{PREFIX}/{name}") for name in names]

    first = written(reports_in(url))
    remember(reports_in(url), dag_id="queue_quality", run_id="run [1]", files=first)
    (listed, shown, of_run) = asyncio.run(
        served("reports", f"reports/{first.html.name}", "run?dag_id=queue_quality&run_id=run+%5B1%5D")
    )
    assert first.html.name in listed.text
    assert (shown.status_code, shown.text) == (of_run.status_code, of_run.text) == (200, "<p>page</p>")

    # Another process writes: nothing that this one remembers of the folder counts.
    bucket, second = place.partition("@")[2], first.html.name.replace("0" * 16, "1" * 16)
    object_store.client.put_object(Bucket=bucket, Key=f"reports/{second}", Body=b"second")
    (listed, shown) = asyncio.run(served("reports", f"reports/{second}"))
    assert (second in listed.text, shown.text) == (True, "second")


def test_folder_without_a_report_is_empty(place: str) -> None:
    assert list_reports(reports_in(f"s3://{place}/reports")) == []
    assert report_of(reports_in(f"s3://{place}/reports"), dag_id="queue_quality", run_id="1") is None


def test_undo_file_of_a_task_is_read_and_removed_by_another(place: str, object_store: ObjectStore) -> None:
    path = undo_in(f"s3://{place}/undo")
    with UndoFile(path, HEADER) as undo:
        undo.write([{"a": 1}])
    forget()
    (found,) = undo_paths(path.parent, run_id="1")
    assert list(read_undo_file(found, kind="cleanup")[1]) == [{"a": 1}]
    assert remove_old_undo_files(path.parent, kind="cleanup", days=0, now_ms=2 * NOW_MS) == 1
    assert object_store.objects(place.partition("@")[2]) == []


@pytest.mark.parametrize("parts", [50, *nightly(1_010)])
def test_more_parts_than_a_store_lists_at_once_are_read_in_order(
    parts: int, place: str, object_store: ObjectStore
) -> None:
    path = undo_in(f"s3://{place}/undo")
    with UndoFile(path, HEADER) as undo:
        undo.write([{"n": 0}])
    bucket = place.partition("@")[2]
    (_, key) = object_store.objects(bucket)
    for number in range(1, parts):
        name = key.replace("/00000002-", f"/{number + 2:08}-")
        object_store.client.put_object(Bucket=bucket, Key=name, Body=b'{"n":%d}\n' % number)
    assert [line["n"] for line in read_undo_file(path)[1]] == list(range(parts))
    assert remove_old_undo_files(path.parent, kind="cleanup", days=0, now_ms=2 * NOW_MS) == 1
    assert object_store.objects(bucket) == []


def away(account: Account, server: socket.socket) -> str:
    """Return a connection to a store that is elsewhere."""
    url = f"http://127.0.0.1:{server.getsockname()[1]}"
    return Account(url=url, key=account.key, secret=account.secret).connection()


def refused(url: str, kind: type[QueuekeeperError], words: str) -> None:
    """Expect reports and undo files to be refused there."""
    with pytest.raises(kind, match=words):
        written(reports_in(f"{url}/reports"))
    with pytest.raises(kind, match=words):
        UndoFile(undo_in(f"{url}/undo"), HEADER)


def test_store_that_refuses_is_told_in_words_and_gets_nothing(
    place: str, object_store: ObjectStore, connections: Callable[..., None]
) -> None:
    bucket = place.partition("@")[2]
    wrong = Account(url=object_store.url, key=object_store.writer.key, secret="wrong")
    connections(qk_wrong=wrong.connection(), qk_owner=object_store.owner.connection())
    before = object_store.buckets()
    refused(f"s3://qk_reader@{bucket}", RefusedError, "cannot be written.*: Access Denied; let this user write")
    refused(f"s3://qk_wrong@{bucket}", RefusedError, "cannot be .*: The request signature we calculated does not match")
    refused(f"s3://{bucket}", RefusedError, "cannot be .*: Unable to locate credentials; let this user")
    refused("s3://qk_owner@no-such-bucket", RefusedError, "cannot be written.*: there is no such bucket; let this user")
    assert (object_store.buckets(), object_store.objects(bucket)) == (before, [])


def test_connection_that_nobody_has_made_is_refused_whatever_the_environment_allows(bucket: str) -> None:
    refused(f"s3://qk_nobody@{bucket}", UsageError, "names connection 'qk_nobody', which Airflow does not have: add it")


def test_store_that_is_away_is_told_in_words(
    place: str, object_store: ObjectStore, connections: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = place.partition("@")[2]
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with socket.socket() as closed, socket.create_server(("127.0.0.1", 0)) as silent:
        closed.bind(("127.0.0.1", 0))
        connections(qk_closed=away(object_store.writer, closed), qk_silent=away(object_store.writer, silent))
        refused(f"s3://qk_closed@{bucket}", RefusedError, "cannot be .*: Could not connect to the endpoint URL")
        assert places._ANSWER_S <= 60
        monkeypatch.setattr(places, "_ANSWER_S", 0.5)
        refused(f"s3://qk_silent@{bucket}", RefusedError, "cannot be .*: it has not answered within [01] seconds; let")

"""Tasks about one session on real servers: what they do, what they return, and what never leaves the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

from queuekeeper import assets, postgres, redis_client
from queuekeeper.airflow.operators.sessions import (
    ExportSessionOperator,
    ImportSessionOperator,
    InspectSessionOperator,
    PeekSessionOperator,
    PurgeSessionOperator,
)
from queuekeeper.airflow.operators.store_call import StoreCallOperator
from queuekeeper.clock import system_clock
from queuekeeper.errors import CheckFailed, MovedOn, RefusedError, UsageError
from queuekeeper.keyspace import payload_key
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.transfer import SessionStore

pytestmark = [
    pytest.mark.dags,
    pytest.mark.usefixtures("airflow_database"),
    pytest.mark.filterwarnings("ignore:.*StoreCallOperator:DeprecationWarning"),
]

C = "meter-17"
SECRET = b"secret-content"


@pytest.fixture
def database(
    postgres_url: str, control_schema: None, connections: Callable[..., None]
) -> Iterator[postgres.Connection]:
    connections(queuekeeper_postgres=postgres_url)
    with postgres.connect(postgres_url, autocommit=True) as found:
        found.execute(assets.read("sql", "sessions/vendor_schema.sql").encode())
        yield found


def save(store: SessionStore, count: int = 3) -> None:
    message = NewMessage(
        topic="t", payload=SECRET, qos=1, time_ms=system_clock(), expiry_interval_s=3_600,
        user_properties=(("n", "secret-property"),),
    )  # fmt: skip
    (report,) = store.save_messages([SessionSave(client_id=C, messages=(message,) * count)])
    assert report.error is None


def run(operator: type[StoreCallOperator], **arguments: Any) -> dict[str, Any]:
    result: dict[str, Any] = operator(task_id="task", client_id=C, **arguments).execute({})
    assert json.loads(json.dumps(result)) == result, "it is kept as JSON"
    return result


def test_session_is_described_without_content(
    client: redis_client.RedisClient, capfd: pytest.CaptureFixture[str]
) -> None:
    save(RedisSessionStore(client))

    found = run(InspectSessionOperator, limit="2")
    log = "".join(capfd.readouterr())

    assert (found["exists"], found["messages"], len(found["page"])) == (True, 3, 2)
    assert found["counts"] == {"trimmed": 0, "expired": 0, "refused": 0, "quarantined": 0}
    assert "Session 'meter-17': exists True, 3 messages" in log
    assert "secret" not in json.dumps(found) + log


def test_message_is_described_and_its_content_goes_into_a_file_only_when_asked_for(
    client: redis_client.RedisClient, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save(RedisSessionStore(client))
    path = tmp_path / "message.json"

    without = run(PeekSessionOperator, packet_id="2")
    assert list(tmp_path.iterdir()) == []
    found = run(PeekSessionOperator, packet_id=2, content_path=str(path))
    log = "".join(capfd.readouterr())

    assert without["content_path"] is None
    assert found == without | {"content_path": str(path)}
    assert (found["packet_id"], found["payload_bytes"], found["user_property_count"]) == (2, len(SECRET), 1)
    assert "secret" not in json.dumps(found) + log
    written = json.loads(path.read_bytes())
    assert (written["payload"], written["user_properties"]) == (SECRET.decode(), [["n", "secret-property"]])
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(RefusedError, match="exists: name another file, or allow replacing it"):
        run(PeekSessionOperator, packet_id=2, content_path=str(path))
    with pytest.raises(UsageError, match=r"^redis holds no message of 'meter-17' with packet id 9: it may have"):
        run(PeekSessionOperator, packet_id=9)


@pytest.mark.parametrize("dry_run", [{}, {"dry_run": True}, {"dry_run": "True"}, {"dry_run": "true"}])
def test_purge_removes_nothing_unless_it_is_told_to(client: redis_client.RedisClient, dry_run: dict[str, Any]) -> None:
    save(RedisSessionStore(client))

    assert run(PurgeSessionOperator, **dry_run) == {"client_id": C, "messages": 3, "kept": 0, "dry_run": True}
    assert RedisSessionStore(client).inspect(C).messages == 3


@pytest.mark.parametrize("dry_run", [False, "False"])
def test_purge_removes_the_session_and_can_be_repeated(client: redis_client.RedisClient, dry_run: bool | str) -> None:
    save(RedisSessionStore(client))

    assert run(PurgeSessionOperator, dry_run=dry_run)["messages"] == 3
    assert run(PurgeSessionOperator, dry_run=dry_run)["messages"] == 0
    assert not RedisSessionStore(client).inspect(C).exists


def test_purge_takes_no_answer_that_is_neither_yes_nor_no(client: redis_client.RedisClient) -> None:
    save(RedisSessionStore(client))

    with pytest.raises(UsageError, match=r"^dry_run is 'None': it must be true or false$"):
        run(PurgeSessionOperator, dry_run="None")
    assert RedisSessionStore(client).inspect(C).messages == 3


def test_session_moves_from_store_to_store_by_a_file(
    client: redis_client.RedisClient, database: postgres.Connection, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save(PostgresSessionStore(database))
    path = str(tmp_path / "session.jsonl")

    exported = run(ExportSessionOperator, store="postgres", path=path)
    imported = run(ImportSessionOperator, path=path)
    log = "".join(capfd.readouterr())

    assert exported == {"client_id": C, "messages": 3, "unreadable": 0, "path": path}
    assert imported == {"client_id": C, "stored": 3, "expired": 0, "last_packet_id": 3}
    page = RedisSessionStore(client).fetch_pending(C)
    assert [message.payload for message in page.messages] == [SECRET] * 3
    assert "Session 'meter-17': 3 messages stored, 0 expired" in log
    assert "secret" not in log
    with pytest.raises(MovedOn, match="exists"):
        run(ImportSessionOperator, path=path)
    with pytest.raises(RefusedError, match="exists: name another file, or allow replacing it"):
        run(ExportSessionOperator, path=path)
    assert run(ExportSessionOperator, path=path, replace="True")["messages"] == 3


def test_export_that_is_not_whole_fails_its_task(client: redis_client.RedisClient, tmp_path: Path) -> None:
    save(RedisSessionStore(client))
    client.set(payload_key(C, 2), "{broken")
    path = tmp_path / "session.jsonl"

    with pytest.raises(CheckFailed, match=r"is not the whole session: 1 record of 'meter-17' cannot be read"):
        run(ExportSessionOperator, path=str(path))
    assert len(path.read_bytes().splitlines()) == 3


def test_unknown_store_is_refused_before_any_server_is_asked() -> None:
    with pytest.raises(UsageError, match=r"^the store is 'mysql': it must be redis or postgres$"):
        run(InspectSessionOperator, store="mysql")


DAG_FILE = """
from airflow.sdk import DAG

from queuekeeper.airflow.defaults import START
from queuekeeper.airflow.operators.sessions import (
    ExportSessionOperator,
    ImportSessionOperator,
    InspectSessionOperator,
    PeekSessionOperator,
    PurgeSessionOperator,
)

about = {"client_id": "{{ params.client }}"}
path = "{{ params.folder }}/{{ params.client }}.jsonl"
parameters = {"client": "none", "folder": "none", "dry_run": True}
with DAG("session_tasks", start_date=START, schedule=None, params=parameters):
    (
        InspectSessionOperator(task_id="inspect", **about)
        >> PeekSessionOperator(task_id="peek", packet_id="{{ 1 + 1 }}", **about)
        >> ExportSessionOperator(task_id="export", path=path, **about)
        >> PurgeSessionOperator(task_id="purge", dry_run="{{ params.dry_run }}", **about)
        >> ImportSessionOperator(task_id="import", path=path, **about)
    )
"""


def test_tasks_run_in_a_dag_with_rendered_arguments(
    client: redis_client.RedisClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(RedisSessionStore(client))
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "session_tasks.py").write_text(DAG_FILE, "utf-8")
    bundle = {
        "name": "session-tasks",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(folder)},
    }
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))

    dag = DagBag(str(folder)).dags["session_tasks"]
    done = dag.test(run_conf={"client": C, "folder": str(tmp_path), "dry_run": False})

    assert {task.task_id: task.state for task in done.get_task_instances()} == dict.fromkeys(
        ("inspect", "peek", "export", "purge", "import"), "success"
    )
    assert (tmp_path / f"{C}.jsonl").is_file()
    assert RedisSessionStore(client).inspect(C).messages == 3

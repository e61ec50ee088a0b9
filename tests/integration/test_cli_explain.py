"""``queuekeeper explain`` and ``queuekeeper audit`` on real servers."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from queuekeeper import assets, audit
from queuekeeper.cli import app
from queuekeeper.postgres import connect
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.schema_migrations import migrate
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_home")]

SECRET = "nobody's business"


@pytest.fixture
def servers(postgres_url: str, valkey_url: str) -> tuple[str, ...]:
    """Options that name both servers; the database has the vendor's tables and ours."""
    with connect(postgres_url, autocommit=True) as connection:
        connection.execute(assets.read("sql", "sessions/vendor_schema.sql").encode())
        migrate(connection)
    return "--postgres-url", postgres_url, "--redis-url", valkey_url


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def as_json(result: Result) -> Any:
    return json.loads(result.stdout)


def fill(url: str, *, count: int = 4, layout: Layout = Layout.TBMQ) -> RedisSessionStore:
    store = RedisSessionStore(connect_redis(url), layout=layout)
    now_ms = time.time_ns() // 1_000_000
    messages = tuple(NewMessage(topic=SECRET, payload=SECRET.encode(), qos=1, time_ms=now_ms) for _ in range(count))
    store.save_messages([SessionSave(client_id="meter", messages=messages)])
    return store


@pytest.mark.parametrize("layout", Layout)
def test_each_serial_has_a_fate_and_a_reason_and_no_content_is_shown(
    servers: tuple[str, ...], valkey_url: str, layout: Layout
) -> None:
    store = fill(valkey_url, layout=layout)
    page = store.fetch_pending("meter", limit=3, mark_delivered=True)
    store.ack("meter", [Ack(packet_id=page.messages[1].packet_id, serial=page.messages[1].serial)])

    shown = run("explain", "meter", *servers)
    assert shown.exit_code == 0, shown.stderr
    words = " ".join(shown.stdout.split())
    assert "1 sent" in words
    assert "2 acked" in words
    assert "4 waiting" in words
    assert "Every message is accounted for." in words
    assert SECRET not in shown.output

    found = as_json(run("explain", "meter", "--gaps", "--json", *servers))
    assert [(line["first_serial"], line["fate"]) for line in found["lines"]] == [(2, "acked")]
    assert found["counts"] == {"acked": 1, "sent": 2, "waiting": 1}
    assert SECRET not in json.dumps(found)


def test_message_that_vanished_is_a_failure_with_advice(servers: tuple[str, ...], valkey_url: str) -> None:
    fill(valkey_url)
    with connect_redis(valkey_url) as client:
        # Somebody removed the reference by hand.
        client.zremrangebyrank("{meter}_messages", 1, 1)
    result = run("explain", "meter", *servers)
    assert result.exit_code == 1
    assert "unaccounted for" in result.stdout
    (gone,) = as_json(run("explain", "meter", "--gaps", "--json", *servers))["lines"]
    assert (gone["first_serial"], gone["fate"]) == (2, "unknown")
    assert gone["why"]


def test_store_that_is_down_is_named_and_the_other_is_read(servers: tuple[str, ...], valkey_url: str) -> None:
    fill(valkey_url)
    result = run(
        "explain", "meter", "--json", "--redis-url", valkey_url, "--postgres-url", "postgresql://a:hidden@127.0.0.1:1/x"
    )
    found = as_json(result)
    assert result.exit_code == 1
    assert found["counts"] == {"waiting": 4}
    assert "start the server" in found["problems"]["PostgreSQL"]
    assert "hidden" not in result.output


def test_unknown_and_hostile_ids_get_a_sentence(servers: tuple[str, ...]) -> None:
    assert "check the spelling of the id" in run("explain", "\x1b[31mnobody", *servers).stdout
    refused = run("explain", "", *servers)
    assert refused.exit_code == 2
    assert "client id is empty" in refused.stderr


def test_audit_is_listed_exported_and_verified(servers: tuple[str, ...], postgres_url: str) -> None:
    database = servers[:2]
    with connect(postgres_url, autocommit=True) as connection:
        for plan in ("a", "b"):
            effect = {"cohorts": 3, "operations_per_s": None, "counts": {"rows_kept": 1_200, "lost": 0}}
            audit.record(connection, actor="ann", action=audit.Action.APPROVE, subject=plan, effect=effect)
        assert [entry["subject"] for entry in as_json(run("audit", "list", "--json", *database))["entries"]] == [
            "b",
            "a",
        ]
        assert as_json(run("audit", "list", "--subject", "a", "--json", *database))["entries"][0]["actor"] == "ann"
        told = " ".join(run("audit", "list", *database).stdout.split())
        assert "cohorts: 3; counts rows kept: 1,200; operations per s: none" in told
        lines = run("audit", "export", *database).stdout.splitlines()
        assert audit.verify_chain(audit.AuditEntry.from_json(line) for line in lines).is_whole
        whole = run("audit", "verify", *database)
        assert whole.exit_code == 0
        assert "2 entries, and none was changed" in whole.stdout

        connection.execute("ALTER TABLE queuekeeper.audit DISABLE TRIGGER refuse_change")
        connection.execute("UPDATE queuekeeper.audit SET actor = 'eve' WHERE seq = 1")
    broken = run("audit", "verify", *database)
    assert broken.exit_code == 1
    assert "entry 1 was changed after it was written" in " ".join(broken.stdout.split())

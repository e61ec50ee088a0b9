"""Every route of the plugin over stores with planted payloads and passwords: none shows them, errors included.

The one that is there to show a payload does so for a reason that is on record; it is asked for it here as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import psycopg
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from psycopg import sql

from queuekeeper import audit, postgres, redis_client, schema_migrations, sql_statements
from queuekeeper.airflow.plugin.pages import pages
from queuekeeper.airflow.plugin.stores import Stores
from queuekeeper.airflow.run_index import remember
from queuekeeper.clock import system_clock
from queuekeeper.config import Settings
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.identity import client_hash, hash_key
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.migration.ledger.ledger import MigrationLedger, QuarantinedRow
from queuekeeper.migration.ledger.model import Difference
from queuekeeper.report.files import ReportFiles
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests import planted, postgres_roles, report_samples
from tests.dags.test_plugin_pages import FORM, OPEN, Airflow, Browser
from tests.plugin_world import RUN_ID, fill_migration, fill_quality
from tests.postgres_roles import role_url

pytestmark = pytest.mark.dags

ROLE = "planted_pages"
STEM = "migration-0123456789abcdef-20260131T120000Z"
REVEAL = "/queue/reveal"


class World:
    """The pages, and what an address may hold."""

    def __init__(self, home: Path, postgres_url: str, redis_url: str) -> None:
        self.settings = Settings(home=home, reports_dir=home / "reports")
        self.name = client_hash(planted.CLIENT, key=hash_key(self.settings))
        self.values = {
            "plan_id": report_samples.PLAN_ID,
            "cohort": "7",
            "name": self.name,
            "dag_id": "session_migration",
            "path": "absent",
            "kind": "session_migration",
            "run_id": report_samples.PLAN_ID,
        }
        self.app = self.with_stores(Stores(postgres_url=lambda: postgres_url, redis_url=lambda: redis_url))
        self.postgres_url, self.redis_url = postgres_url, redis_url

    def with_stores(self, stores: Stores) -> FastAPI:
        """Return the application over other stores."""
        return pages(settings=self.settings, guards=OPEN, api=Airflow().api(), stores=stores)

    def routes(self) -> Iterator[tuple[str, str, str]]:
        """Yield method, pattern and address of every route; where there are several things to see, of each."""
        for route in self.app.routes:
            assert isinstance(route, APIRoute)
            names = [self.name]
            if route.path == "/static/{name}":
                names = ["pages.js", "pages.css"]
            elif route.path == "/reports/{name}":
                names = [f"{STEM}.html", "absent.html"]
            for name in names:
                address = route.path
                for place, value in (self.values | {"name": name}).items():
                    address = re.sub(rf"{{{place}(?::\w+)?}}", value, address)
                for method in sorted(route.methods):
                    yield method, route.path, address


@pytest.fixture(scope="module")
def world(
    postgres_server: PostgresServer,
    redis_servers: Callable[[str], RedisServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    """Stores that know their passwords, with the payload wherever one can be."""
    postgres_server.start()
    home = tmp_path_factory.mktemp("home")
    url = postgres_server.create_database(ROLE, template="template0")
    with ExitStack() as opened:
        admin = opened.enter_context(psycopg.connect(postgres_server.url, autocommit=True))
        role = sql.Identifier(ROLE)
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN SUPERUSER PASSWORD {}").format(role, sql.Literal(planted.POSTGRES_PASSWORD))
        )
        opened.callback(admin.execute, sql.SQL("DROP ROLE {}").format(role))
        # What belongs to the role goes first.
        opened.callback(postgres_server.drop_database, ROLE)
        redis = opened.enter_context(redis_client.connect(redis_servers("valkey").url))
        anything: Any = redis
        anything.flushall()
        anything.execute_command("ACL", "SETUSER", ROLE, "on", f">{planted.REDIS_PASSWORD}", "~*", "&*", "+@all")
        opened.callback(anything.execute_command, "ACL", "DELUSER", ROLE)
        place = urlsplit(redis_servers("valkey").url)
        yield _filled(
            World(
                home,
                role_url(url, ROLE, word=quote(planted.POSTGRES_PASSWORD, safe="")),
                f"redis://{ROLE}:{quote(planted.REDIS_PASSWORD, safe='')}@{place.hostname}:{place.port}",
            )
        )


def _filled(world: World) -> World:
    now_ms = system_clock()
    messages = tuple(
        NewMessage(topic=planted.PAYLOAD.decode(), payload=planted.PAYLOAD, qos=1, time_ms=now_ms) for _ in range(3)
    )
    saves = [SessionSave(client_id=planted.CLIENT, messages=messages)]
    with (
        postgres.connect(world.postgres_url, autocommit=True) as connection,
        redis_client.connect(world.redis_url) as client,
    ):
        connection.execute(sql_statements.statement("sessions/vendor_schema"))
        schema_migrations.migrate(connection)
        for store in (PostgresSessionStore(connection), RedisSessionStore(client)):
            assert store.save_messages(saves)[0].error is None
        fill_migration(connection, report_samples.unbalanced(), now_ms=now_ms)
        fill_quality(connection, now_ms=now_ms)
        connection.execute("CREATE TABLE readings (at timestamptz NOT NULL, text text) PARTITION BY RANGE (at)")
        connection.execute(
            "CREATE TABLE readings_1 PARTITION OF readings FOR VALUES FROM ('2026-01-01+00') TO ('2026-01-02+00')"
        )
        connection.execute("INSERT INTO readings VALUES ('2026-01-01 12:00+00', %s)", (planted.PAYLOAD.decode(),))
        save_policy(connection, PartitionPolicy(table="public.readings", step="1 day", ahead="3 days"))
        ledger = MigrationLedger(connection)
        row = QuarantinedRow(
            cohort=7, kind="message", reason="packet_id_duplicate", detail="packet id 7", client_id=planted.CLIENT,
            serial_number=7, payload=planted.PAYLOAD, topic=planted.PAYLOAD.decode(),
        )  # fmt: skip
        ledger.replace_quarantine(report_samples.PLAN_ID, [7], [row])
        difference = Difference(
            cohort=7, client_id=planted.CLIENT, serial_number=7, kind="payload", expected="0a", found="0b"
        )
        ledger.replace_differences(report_samples.PLAN_ID, [7], [difference], counts={(7, "payload"): 1})
        connection.execute(
            "UPDATE queuekeeper.queue_profiles SET client_id = %s, client_hash = %s WHERE client_id = 'meter-1'",
            [planted.CLIENT, world.name],
        )
    reports = world.settings.reports
    reports.mkdir()
    (reports / f"{STEM}.html").write_text("<h1>The report</h1>", "utf-8")
    files = ReportFiles(html=reports / f"{STEM}.html", json=reports / f"{STEM}.json", sha256="0")
    remember(reports, dag_id="session_migration", run_id=RUN_ID, files=files)
    return world


def _forms(path: str) -> list[dict[str, str]]:
    """Return what may be sent to a route: nothing, what is in order, and what is not."""
    sent: list[dict[str, str]] = [
        {},
        {"client_id": "absent", "per_s": "many", "paused": "?", "option": "Maybe"},
    ]
    if path == "/queue":
        sent += [{"client_id": planted.CLIENT}, {"client_id": planted.CLIENT, "gaps": "true"}]
    if path == "/search":
        sent += [{"text": planted.CLIENT}, {"text": RUN_ID}]
    if path == REVEAL:
        known = {"client_id": planted.CLIENT, "packet_id": "1"}
        sent += [
            known | {"store": "redis", "reason": "short"},
            known | {"store": "postgres", "reason": "with\nbreaks in it"},
            known | {"store": "elsewhere", "reason": "ticket 4711: lost"},
            known | {"store": "redis", "reason": "ticket 4711: lost", "packet_id": "60000"},
        ]
    if path.endswith("/throttle"):
        sent.append({"per_s": "1000"})
    if path.endswith("/pause"):
        sent.append({"paused": "yes"})
    if path.endswith("/answer"):
        sent.append({"run_id": RUN_ID, "option": "Approve"})
    return sent


def _answers(world: World, app: FastAPI) -> Iterator[tuple[str, httpx.Response]]:
    browser = Browser(app)
    query = {"dag_id": "session_migration", "run_id": RUN_ID, "task_id": "copy"}
    for method, path, address in world.routes():
        for accept in ("text/html", "application/json"):
            for form in _forms(path) if method == "POST" else [{}]:
                options: dict[str, Any] = {"data": form} if method == "POST" else {}
                yield (
                    f"{method} {address} {sorted(form)}",
                    browser.send(method, address, params=query, headers=FORM | {"Accept": accept}, **options),
                )
    for address in (
        "/audit?verify=true",
        "/audit?since=yesterday",
        "/queue/zz",
        "/migration/absent",
        "/run?dag_id=%00",
    ):
        yield f"GET {address}", browser.get(address, page=True)


def test_no_route_shows_a_payload_or_a_password(world: World, caplog: pytest.LogCaptureFixture) -> None:
    seen: dict[int, int] = {}
    with caplog.at_level("DEBUG"):
        for what, answer in _answers(world, world.app):
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
            shown = answer.content + repr(sorted(answer.headers.items())).encode()
            assert planted.found_in(shown) == [], what
            # A queue that was asked for by its name is shown under it, and nothing else names a client.
            if not what.startswith(("GET /queue", "POST /queue", "POST /search")):
                assert planted.found_in(shown, planted.CLIENTS) == [], what
    assert {200, 404, 422} <= seen.keys(), seen
    assert sum(seen.values()) > 100
    assert planted.found_in(caplog.text.encode(), planted.EVERYTHING) == []


@pytest.mark.parametrize("wrong", ["passwords", "ports", "databases"])
def test_no_error_of_a_store_shows_a_password(world: World, caplog: pytest.LogCaptureFixture, wrong: str) -> None:
    def changed(url: str) -> str:
        parts = urlsplit(url)
        place = f"{parts.hostname}:{parts.port}"
        if wrong == "passwords":
            return url.replace(f"{ROLE}:", f"{ROLE}:x")
        if wrong == "ports":
            return url.replace(place, f"{parts.hostname}:1")
        return parts._replace(path="/absent" if url.startswith("postgres") else "/4711").geturl()

    stores = Stores(postgres_url=lambda: changed(world.postgres_url), redis_url=lambda: changed(world.redis_url))
    failed = 0
    with caplog.at_level("DEBUG"):
        for what, answer in _answers(world, world.with_stores(stores)):
            failed += answer.status_code >= 500
            assert planted.found_in(answer.content) == [], what
    assert failed > 5
    assert planted.found_in(caplog.text.encode()) == []


def test_reveal_alone_shows_it_and_says_so_in_the_audit(world: World) -> None:
    form = {"client_id": planted.CLIENT, "store": "redis", "packet_id": "1", "reason": "ticket 4711: lost"}
    answer = Browser(world.app).send("POST", REVEAL, data=form, headers=FORM)
    assert planted.found_in(answer.content.replace(b"&#39;", b"'")) == ["the payload"]
    with postgres.connect(world.postgres_url, autocommit=True) as connection:
        (entry, *_) = audit.latest(connection, wanted=audit.AuditFilter(action="reveal"))
    assert entry.subject == world.name
    assert planted.found_in(entry.to_json().encode(), planted.EVERYTHING) == []


def test_pages_without_actions_are_shown_to_the_role_of_monitoring(world: World) -> None:
    prefix = f"{ROLE}_"
    with (
        postgres.connect(world.postgres_url, autocommit=True) as admin,
        postgres_roles.roles(admin, url=world.postgres_url, prefix=prefix),
    ):
        limited = role_url(world.postgres_url, f"{prefix}monitor")
        app = world.with_stores(Stores(postgres_url=lambda: limited, redis_url=lambda: world.redis_url))
        browser = Browser(app)
        plan = f"/migration/{report_samples.PLAN_ID}"
        cohort = f"{plan}/cohorts/7"
        shown = ["/", "/migration", plan, f"{plan}/data", cohort, f"{cohort}/clients/{world.name}"]
        shown += ["/runs", "/runs?kind=session_migration"]
        shown += ["/partitions", "/quality", "/audit", "/audit?verify=true", "/audit/export", "/reports"]
        for path in shown:
            answer = browser.get(path, page=True)
            assert answer.status_code == 200, (path, answer.text)
            assert "permission denied" not in answer.text, path
            assert "cannot be shown" not in answer.text, path
        assert "Inserts fail now" in browser.get("/partitions", page=True).text
        found = browser.send("POST", "/search", data={"text": world.name}, headers=FORM)
        assert f"/queuekeeper/queue/{world.name}" in found.text
        assert found.text.count("Not searched: ") == found.text.count("Not searched: sessions in PostgreSQL.") == 1
        explained = browser.send("POST", "/queue", data={"client_id": planted.CLIENT}, headers=FORM)
        assert explained.status_code == 200
        reveal = {"client_id": planted.CLIENT, "store": "postgres", "packet_id": "1", "reason": "ticket 4711: lost"}
        throttle = f"/runs/session_migration/{report_samples.PLAN_ID}/throttle"
        for path, form in ((REVEAL, reveal), (throttle, {"per_s": "7"})):
            refused = browser.send("POST", path, data=form, headers=FORM)
            assert refused.status_code in (409, 503), path
            assert "permission denied" in refused.text
            assert planted.found_in(refused.content) == []

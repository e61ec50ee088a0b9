"""Pages of the stores: what they show on real servers, what they say when one is down, and how quick they are."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from psycopg.types.json import Jsonb

from queuekeeper import audit, postgres, redis_client
from queuekeeper.airflow.plugin.pages import pages
from queuekeeper.airflow.plugin.site import Site
from queuekeeper.airflow.plugin.stores import Stores
from queuekeeper.clock import HOUR_MS, Clock, system_clock
from queuekeeper.config import Settings
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.errors import ServerUnavailable
from queuekeeper.identity import client_hash, hash_key
from queuekeeper.jobs import registry
from queuekeeper.jobs.kinds import RunKind
from queuekeeper.jobs.registry import kind_of, overview_of
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CohortState, PlanState
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.migration.online.states import OnlineState
from queuekeeper.postgres import Connection
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests import report_samples
from tests.dags.test_plugin_pages import FORM, OPEN, Browser
from tests.plugin_world import RUN_ID, fill_all, fill_migration, fill_quality
from tests.run_kinds import KINDS

pytestmark = pytest.mark.dags

PLANTED = b"planted payload"
REPORT = "quality-00112233445566aa-20260131T120000Z.html"
SECTIONS = ("/", "/migration", "/runs", "/queue", "/partitions", "/quality", "/audit", "/reports")


class World:
    """Real stores with pages on them.

    :param asked: answers of Airflow's REST API by the end of their path.
    """

    def __init__(self, home: Path, connection: Connection, postgres_url: str, redis_url: str) -> None:
        self.connection = connection
        self.settings = Settings(home=home, reports_dir=home / "reports")
        self.asked: dict[str, Any] = {}
        self.sent: list[tuple[str, str, Any]] = []
        self.stores = Stores(postgres_url=lambda: postgres_url, redis_url=lambda: redis_url)
        self.browser = self.with_stores(self.stores)

    def with_stores(self, stores: Stores, *, clock: Clock = system_clock) -> Browser:
        from queuekeeper.airflow.plugin.rest import RestApi

        api = RestApi(lambda: httpx.MockTransport(self._answer))
        return Browser(pages(settings=self.settings, guards=OPEN, api=api, stores=stores, site=Site(clock=clock)))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        self.sent.append((request.method, request.url.path, body))
        for end, answer in self.asked.items():
            if request.url.path.endswith(end):
                return httpx.Response(200, json=answer)
        return httpx.Response(404, json={"detail": "not found"})

    def hash_of(self, client_id: str) -> str:
        return client_hash(client_id, key=hash_key(self.settings))


@pytest.fixture(scope="module")
def servers(
    postgres_server: PostgresServer,
    redis_servers: Callable[[str], RedisServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    """Stores with a history, for tests that change nothing in it that another one reads."""
    postgres_server.start()
    url = postgres_server.create_database("plugin_stores", template="template0")
    redis = redis_servers("valkey")
    with redis.client() as client:
        client.flushall()
    with postgres.connect(url, autocommit=True) as connection:
        fill_all(connection, messages=200, sessions=20)
        yield World(tmp_path_factory.mktemp("home"), connection, url, redis.url)
    postgres_server.drop_database("plugin_stores")


@pytest.fixture
def empty(postgres_url: str, valkey_url: str, control_schema: None, tmp_path: Path) -> Iterator[World]:
    """Stores of a first day: migrated, and nothing in them."""
    with postgres.connect(postgres_url, autocommit=True) as connection:
        yield World(tmp_path, connection, postgres_url, valkey_url)


def text_of(answer: httpx.Response) -> str:
    """Return what a page says, without its tags."""
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", answer.text))


def test_every_page_of_a_first_day_says_what_to_do_next(empty: World) -> None:
    for path in SECTIONS:
        answer = empty.browser.get(path, page=True)
        assert answer.status_code == 200, path
        assert "cannot be shown" not in answer.text, text_of(answer)
    assert "/queuekeeper/trigger/queue_quality" in empty.browser.get("/").text
    assert "Nothing waits for you, and no run is at work." in text_of(empty.browser.get("/"))
    assert "/queuekeeper/trigger/session_migration" in empty.browser.get("/migration").text
    assert "queuekeeper partitions set" in empty.browser.get("/partitions").text
    assert "There are no entries yet" in empty.browser.get("/audit").text


def test_overview_draws_what_grows_and_says_the_same_in_words(servers: World) -> None:
    answer = servers.browser.get("/", page=True)

    assert re.findall(r'<svg class="spark" role="img" aria-label="([^"]+)"', answer.text) == [
        "Depth over 5 runs: first 300, last 400, least 300, greatest 400",
        "Lag over 5 runs: first 1,200, last 840, least 840, greatest 1,200",
        "Memory over 5 runs: first 50.0 %, last 53.7 %, least 50.0 %, greatest 53.7 %",
        *(
            f"Messages that expire per hour in {store} over the next 2 days 1 h: first 0, last 57, least 0, greatest 99"
            for store in ("Redis", "PostgreSQL")
        ),
    ]
    shown = text_of(answer)
    assert "400 messages in all queues; up from 300 over 5 runs" in shown
    assert "840 messages wait for a consumer; down from 1,200 over 5 runs" in shown
    assert "PostgreSQL held 50 queues with 150 messages of sessions" in shown


@pytest.mark.parametrize(
    ("mode", "change", "part"),
    [
        ("fast", {}, "the part of the queues, one in 96, that"),
        ("full", {"cohort_count": 96, "cohorts": [7]}, "the part of the queues that"),
        ("full", {"sample_percent": 10}, "the part of the queues that"),
    ],
    ids=["one turn", "chosen cohorts", "a sample"],
)
def test_overview_tells_what_stores_hold_by_runs_that_read_all_queues(
    empty: World, mode: str, change: dict[str, Any], part: str
) -> None:
    fill_quality(empty.connection, now_ms=system_clock())
    before = text_of(empty.browser.get("/"))
    held = re.search(r"Redis held [\d,]+ queues with [\d,]+ messages", before)
    assert held
    newest = "(SELECT * FROM queuekeeper.quality_runs ORDER BY started_at DESC LIMIT 1) AS newest"
    empty.connection.execute(
        "INSERT INTO queuekeeper.profiles SELECT (jsonb_populate_record(profiles, %s || jsonb_build_object("
        f"'profile_id', profile_id || ' in part'))).* FROM queuekeeper.profiles, {newest}"
        " WHERE profile_id = any(newest.profile_ids)".encode(),
        (Jsonb(change),),
    )
    empty.connection.execute(
        "INSERT INTO queuekeeper.quality_runs (quality_run_id, mode, suites, profile_ids, verdict, numbers, started_at,"
        " finished_at) SELECT 'of a part', %s, suites, ARRAY(SELECT id || ' in part' FROM unnest(profile_ids) AS id),"
        " verdict, numbers || '{\"messages\": 4}', started_at + interval '15 min', finished_at + interval '15 min'"
        f" FROM {newest}".encode(),
        (mode,),
    )

    after = text_of(empty.browser.get("/"))

    assert "400 messages in all queues; up from 300 over 5 runs" in after
    assert held[0] in after
    assert "This and what the stores hold is of the last run that read all queues, " in after
    assert "Expiry and worst queues are of the last run that read all queues, " in text_of(
        empty.browser.get("/quality")
    )

    empty.connection.execute("DELETE FROM queuekeeper.quality_runs WHERE quality_run_id <> 'of a part'")
    alone = text_of(empty.browser.get("/"))
    assert f"This and what the stores hold is of {part} the newest run read." in alone
    assert "messages in all queues" not in alone


def test_overview_of_one_run_without_lag_and_expiry_says_what_fills_them(empty: World) -> None:
    fill_quality(empty.connection, now_ms=system_clock(), runs=1)
    empty.connection.execute("DELETE FROM queuekeeper.expiry_hours")
    empty.connection.execute("UPDATE queuekeeper.quality_runs SET numbers = numbers - 'waiting'")

    answer = empty.browser.get("/", page=True)

    assert '<svg class="spark"' not in answer.text
    shown = text_of(answer)
    assert "one run so far: its line begins with the second" in shown
    assert "Lag is not known: the newest run read no compacted or fan-out queues. Run queue_quality" in shown
    assert "What expires is not known" in shown


def test_overview_shows_stores_verdict_lengths_and_memory_against_its_limit(servers: World) -> None:
    answer = servers.browser.get("/", page=True)

    shown = text_of(answer)
    assert "✓ answers" in shown
    assert "Passed" in shown
    assert "100 queues and 300 messages were read" in shown
    assert shown.count("Both scales are logarithmic") == 2
    assert "and the limit" in shown
    assert answer.text.count("<svg") - answer.text.count('<svg class="spark"') == 6
    assert report_samples.PLAN_ID in shown


def test_overview_names_what_waits_for_a_person_and_leads_there(servers: World) -> None:
    with postgres.connect(servers.stores._postgres_url(), autocommit=True) as connection:
        run = MaintenanceRuns(connection).save_plan(kind="fanout_repair", parameters={}, plan={})
    try:
        answer = servers.browser.get("/", page=True)
        assert f"! Repair of fan-out queues {run.maintenance_run_id} waits for an approval, planned" in text_of(answer)
        assert f'href="/queuekeeper/runs/fanout_repair/{run.maintenance_run_id}"' in answer.text
    finally:
        with postgres.connect(servers.stores._postgres_url(), autocommit=True) as connection:
            connection.execute("DELETE FROM queuekeeper.maintenance_runs")


@pytest.mark.parametrize("down", ["PostgreSQL", "Redis"])
def test_store_that_is_down_is_named_and_the_rest_of_the_page_is_there(servers: World, down: str) -> None:
    def refused() -> str:
        raise ServerUnavailable(f"{down} at db:1 is not available: Connection refused; start the server")

    working = servers.stores
    stores = (
        Stores(postgres_url=refused, redis_url=working._redis_url)
        if down == "PostgreSQL"
        else Stores(postgres_url=working._postgres_url, redis_url=refused)
    )
    browser = servers.with_stores(stores)

    for path in SECTIONS:
        assert browser.get(path, page=True).status_code == 200, path
    shown = text_of(browser.get("/", page=True))
    assert f"{down} at db:1 is not available: Connection refused; start the server" in shown
    assert "✓ answers" in shown
    assert browser.get("/migration/0123456789abcdef", page=True).status_code == (503 if down == "PostgreSQL" else 200)
    explained = text_of(browser.send("POST", "/queue", data={"client_id": "meter-1"}, headers=FORM))
    assert f"{down} was not reached." in explained


def test_table_that_somebody_locks_is_told_on_its_panels_and_the_rest_of_the_page_is_there(
    servers: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuekeeper.airflow.plugin.stores._LOCK_TIMEOUT_MS", 200)
    with postgres.connect(servers.stores._postgres_url()) as other:
        other.execute("LOCK TABLE queuekeeper.quality_runs IN ACCESS EXCLUSIVE MODE")
        shown = text_of(servers.browser.get("/", page=True))
        assert "another session, which holds a lock on a table: reload this page later." in shown
        assert shown.count("✓ answers") == 2
        assert report_samples.PLAN_ID in shown
        assert servers.browser.get("/migration", page=True).status_code == 200
    assert "another session" not in servers.browser.get("/", page=True).text
    with postgres.connect(servers.stores._postgres_url()) as other:
        other.execute("LOCK TABLE queuekeeper.plans IN ACCESS EXCLUSIVE MODE")
        answer = servers.browser.get(f"/migration/{report_samples.PLAN_ID}", page=True)
        assert answer.status_code == 503
        assert "another session, which holds a lock" in answer.text


def test_statement_that_takes_too_long_is_ended_and_told_as_such(servers: World) -> None:
    impatient = Stores(
        postgres_url=servers.stores._postgres_url, redis_url=servers.stores._redis_url, statement_timeout_ms=200
    )
    slow = impatient.from_postgres(lambda connection: connection.execute("SELECT pg_sleep(60)").fetchall())
    assert slow.problem == "PostgreSQL did not answer in time because it is busy: reload this page later."
    with postgres.connect(servers.stores._postgres_url()) as other:
        # Held for less than locks are waited for, and longer than an answer.
        other.execute("LOCK TABLE queuekeeper.quality_runs IN ACCESS EXCLUSIVE MODE")
        shown = text_of(servers.with_stores(impatient).get("/", page=True))
    assert "PostgreSQL did not answer in time because it is busy: reload this page later." in shown
    assert "✓ answers" in shown


@pytest.mark.parametrize("hanging", ["PostgreSQL", "Redis"])
def test_server_that_takes_calls_and_says_nothing_is_told_as_such(
    servers: World, hanging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hanging == "Redis":
        monkeypatch.setattr("queuekeeper.airflow.plugin.stores._REPLY_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        stores = (
            Stores(postgres_url=lambda: f"postgresql://u:hidden-word@{place}/d", redis_url=servers.stores._redis_url)
            if hanging == "PostgreSQL"
            else Stores(postgres_url=servers.stores._postgres_url, redis_url=lambda: f"redis://:hidden-word@{place}")
        )
        answer = servers.with_stores(stores).get("/", page=True)
    assert answer.status_code == 200
    assert f"{hanging} at {place}" in text_of(answer)
    assert "✓ answers" in text_of(answer)
    assert "hidden-word" not in answer.text


def test_failed_migration_is_followed_from_the_cohort_to_the_client_to_the_message(servers: World) -> None:
    plan = servers.browser.get(f"/migration/{report_samples.PLAN_ID}", page=True)
    name = servers.hash_of(report_samples.HOSTILE)

    shown = text_of(plan)
    assert "It has failed : 3 differences" in shown
    assert plan.text.count('class="cell ') == 96
    assert "Cohort 7: failed" in plan.text
    assert "Packet id duplicate: 1 message open" in shown
    assert "Unaccounted" in shown
    assert "data-poll" not in plan.text
    cohort = servers.browser.get(f"/migration/{report_samples.PLAN_ID}/cohorts/7", page=True)
    assert f"/cohorts/7/clients/{name}" in cohort.text
    client = servers.browser.get(f"/migration/{report_samples.PLAN_ID}/cohorts/7/clients/{name}", page=True)
    assert "2 differences on record" in text_of(client)
    assert "4711" in client.text
    for page in (plan, cohort, client):
        assert "attacker" not in page.text
        assert PLANTED.decode() not in page.text


@pytest.mark.parametrize(
    "path",
    [
        "/migration/ffffffffffffffff",
        "/migration/..%2F..%2Fetc",
        "/migration/<script>alert(1)</script>",
        f"/migration/{report_samples.PLAN_ID}/cohorts/96",
        f"/migration/{report_samples.PLAN_ID}/cohorts/7/clients/<script>",
        "/queue/<script>alert(1)</script>",
        "/queue/%00",
        "/queue/ffffffffffffffff",
        "/run?dag_id=session_migration&run_id=<script>alert(1)</script>",
        "/run/progress?dag_id=session_migration&run_id=<script>alert(1)</script>",
        "/task?dag_id=<script>&run_id=<script>&task_id=<script>",
    ],
)
def test_what_is_not_there_is_a_clear_page_that_repeats_nothing_as_code(servers: World, path: str) -> None:
    answer = servers.browser.get(path, page=True)

    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "<script>alert" not in answer.text
    assert "<script>&" not in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/audit?actor=%00",
        "/audit?subject=a%00b",
        "/runs?kind=%00",
        "/started?dag_id=session_migration&run_id=%00",
        "/run/progress?dag_id=session_migration&run_id=%00",
        "/task?dag_id=session_migration&run_id=%00&task_id=plan",
        "/trigger/%00",
    ],
)
def test_address_that_no_database_takes_is_refused_before_one_is_asked(servers: World, path: str) -> None:
    # Airflow would answer, as it does with a database that takes such texts.
    servers.asked = {"": {"state": "success"}}

    answer = servers.browser.get(path, page=True)

    assert answer.status_code == 404
    assert "the character U+0000, which is in no name" in text_of(answer)


@pytest.mark.parametrize("before", ["0", "-1", "9223372036854775808", "9" * 30, "x"])
def test_place_in_the_audit_that_no_entry_can_have_is_answered_in_words(servers: World, before: str) -> None:
    answer = servers.browser.get("/audit", params={"before": before}, page=True)

    assert answer.status_code == 422
    assert "not valid: before" in text_of(answer)


def test_number_that_is_none_is_answered_in_words(servers: World) -> None:
    answer = servers.browser.get(f"/migration/{report_samples.PLAN_ID}/cohorts/x", page=True)

    assert answer.status_code == 422
    assert "not valid: cohort" in text_of(answer)


def test_running_migration_tells_speed_rest_and_what_holds_it_back(empty: World) -> None:
    evidence = report_samples.unverified()
    plan_id = fill_migration(empty.connection, evidence, now_ms=system_clock())
    ledger, now_ms = MigrationLedger(empty.connection), system_clock()
    ledger.approve(plan_id, "ann")
    ledger.set_plan_state(plan_id, PlanState.COPYING)
    ledger.set_cohort_state(plan_id, [0, 1], CohortState.COPYING)
    ledger.set_throttle(plan_id, 1_000)
    for second in range(11):
        at_ms = now_ms - (10 - second) * 1_000
        ledger.record_throughput(plan_id=plan_id, step="copy", at_ms=at_ms, done=second * 1_000)
    ledger.record_progress(plan_id=plan_id, step="copy", part="0", done=10_000, total=20_000, at_ms=now_ms)

    # The clock stands still: a test that shares its machine may take longer than a step may be silent.
    browser = empty.with_stores(empty.stores, clock=lambda: now_ms)
    page = browser.get(f"/migration/{plan_id}", page=True)
    live = browser.get(f"/migration/{plan_id}/data").json()
    later = empty.with_stores(empty.stores, clock=lambda: now_ms + 31_000)

    total = evidence.plan.total("to_copy")
    assert f'data-poll="/queuekeeper/migration/{plan_id}/data"' in page.text
    assert live["bars"]["copy-bar"] == [10_000, total]
    assert "1,000 messages/s" in live["texts"]["copy-words"]
    assert re.search(r"\d+ min \d\d s left", live["texts"]["copy-words"])
    assert live["texts"]["held"] == "Held to 1,000 messages/s by the throttle of the plan."
    held = later.get(f"/migration/{plan_id}/data").json()["texts"]["held"]
    assert held.startswith("No word from the copy for 31.0 s")
    assert live["board"] == "cc" + "p" * 94
    assert live["texts"]["count-copying"] == "2"
    assert live["texts"]["copy-words"] in text_of(page)


def test_finished_migration_stays_at_its_end_when_one_of_its_cohorts_is_verified_again(empty: World) -> None:
    plan_id = fill_migration(empty.connection, report_samples.balanced(), now_ms=system_clock())
    ledger = MigrationLedger(empty.connection)
    ledger.clear_progress(plan_id, "verify")
    ledger.record_progress(plan_id=plan_id, step="verify", part="00007-00007", done=1, total=1, at_ms=system_clock())

    page = empty.browser.get(f"/migration/{plan_id}", page=True)
    live = empty.browser.get(f"/migration/{plan_id}/data").json()

    total = ledger.load_plan(plan_id).total("to_copy")
    assert live["bars"]["verify-bar"] == live["bars"]["copy-bar"] == [total, total]
    assert live["texts"]["verify-words"] == f"{total:,} of {total:,} messages (100 %); done"
    assert live["texts"]["verify-words"] in text_of(page)


def test_pace_is_changed_from_the_page_and_stands_in_the_audit(empty: World) -> None:
    plan_id = fill_migration(empty.connection, report_samples.unverified(), now_ms=system_clock())
    path = f"/runs/session_migration/{plan_id}/throttle"

    assert empty.browser.send("POST", path, data={"per_s": "2,500"}, headers=FORM).status_code == 303
    assert MigrationLedger(empty.connection).throttle(plan_id) == 2_500
    assert empty.browser.send("POST", path, data={"per_s": ""}, headers=FORM).status_code == 303
    assert MigrationLedger(empty.connection).throttle(plan_id) is None
    for wrong, words in {
        wrong: f"the rate is {wrong[:50]!r}: write messages per second, 1 to 2,147,483,647, or none"
        for wrong in ("-1", "many", "1.5", "9" * 21, "9" * 5_000, "0", "99999999999")
    }.items():
        answer = empty.browser.send("POST", path, data={"per_s": wrong}, headers=FORM)
        assert (answer.status_code, words in answer.json()["detail"]) == (422, True), wrong
    absent = empty.browser.send("POST", path.replace(plan_id, "0" * 16), data={"per_s": "7"}, headers=FORM)
    assert absent.status_code == 404
    foreign = FORM | {"Origin": "https://attacker.example"}
    assert empty.browser.send("POST", path, data={"per_s": "7"}, headers=foreign).status_code == 403
    assert MigrationLedger(empty.connection).throttle(plan_id) is None
    entries = audit.latest(empty.connection, wanted=audit.AuditFilter(action="throttle"))
    assert [(each.actor, json.loads(each.effect)["messages_per_s"]) for each in entries] == [
        ("operator", None),
        ("operator", 2_500),
    ]


def test_clients_that_change_their_owner_are_counted_and_the_change_is_paused_from_the_page(empty: World) -> None:
    plan_id = fill_migration(empty.connection, report_samples.unverified(), now_ms=system_clock())
    assert "Owners of the clients" not in empty.browser.get(f"/migration/{plan_id}", page=True).text
    online = OnlineCohorts(empty.connection)
    plan = MigrationLedger(empty.connection).load_plan(plan_id)
    online.arm(plan, [0, 1], actor="operator")
    empty.connection.execute(
        "INSERT INTO queuekeeper.session_owners (client_id, slot, owner, epoch)"
        " SELECT 'c' || n, n, CASE WHEN n < 3 THEN 'redis' ELSE 'postgres' END, 1 FROM generate_series(0, 9) AS n"
    )
    driver = online.take(plan_id, [0, 1])
    online.note_servers(plan_id, [0], driver=driver, servers="one")
    online.note_servers(plan_id, [0], driver=driver, servers="<b>two</b>")
    online.hold_back(plan_id, "Redis answers within 30 ms, the limit is 20 ms")

    page = empty.browser.get(f"/migration/{plan_id}", page=True)
    texts = empty.browser.get(f"/migration/{plan_id}/data").json()["texts"]

    assert (texts["online-postgres"], texts["online-redis"], texts["online-fenced"]) == ("7", "3", "0")
    assert texts["online-cohorts"] == "2 copying"
    assert texts["online-held"] == "Redis answers within 30 ms, the limit is 20 ms"
    assert "Cohort 0 has to be verified again: servers were one and are &lt;b&gt;two&lt;/b&gt;" in text_of(page)
    assert "<b>two</b>" not in page.text
    online.move(plan_id, [0, 1], driver=driver, after=OnlineState.CAUGHT_UP, actor="operator")
    texts = empty.browser.get(f"/migration/{plan_id}/data").json()["texts"]
    assert texts["held"] == "Next comes the verification of 2 cohorts."
    assert texts["held"] in text_of(empty.browser.get(f"/migration/{plan_id}", page=True))
    path = f"/runs/online_migration/{plan_id}/pause"
    assert empty.browser.send("POST", path, data={"paused": "perhaps"}, headers=FORM).status_code == 422
    assert empty.browser.send("POST", path, data={"paused": "yes"}, headers=FORM).status_code == 303
    assert online.control(plan_id).paused
    assert "Go on" in empty.browser.get(f"/migration/{plan_id}", page=True).text
    assert empty.browser.send("POST", path, data={"paused": "no"}, headers=FORM).status_code == 303
    assert not online.control(plan_id).paused
    for action in ("pause", "resume"):
        entries = audit.latest(empty.connection, wanted=audit.AuditFilter(action=action))
        assert [each.actor for each in entries] == ["operator"]


ASKED = "**To copy**\n\n| messages | |\n| --- | --- |\n| 200 | <i>200</i> |\n| =cmd | 1 |\n\n- by the throttle"
MARKS = ("**To copy**", "| --- |", "<i>200</i>")


def test_plan_is_approved_on_its_own_page_and_no_other_plan_is(empty: World) -> None:
    plan_id = fill_migration(empty.connection, report_samples.unverified(), now_ms=system_clock())
    empty.asked = {
        "/taskInstances/approve": {"state": "awaiting_input"},
        "/hitlDetails": {"subject": "Copy <b>200</b> messages?", "body": ASKED, "response_received": False},
    }
    page = empty.browser.get(f"/migration/{plan_id}", page=True)
    path = f"/migration/{plan_id}/answer"
    form = {"run_id": RUN_ID, "option": "Approve"}

    assert "Copy &lt;b&gt;200&lt;/b&gt; messages?" in page.text
    # Read as Airflow's own page shows it, and not as it is written.
    assert "<strong>To copy</strong>" in page.text
    assert "<td>200</td>" in page.text
    assert "<li>by the throttle</li>" in page.text
    assert "<td>&#39;=cmd</td>" in page.text or "<td>'=cmd</td>" in page.text
    assert [mark for mark in MARKS if mark in page.text] == []
    assert f'value="{RUN_ID}"' in page.text
    empty.sent.clear()
    assert empty.browser.send("POST", path, data=form, headers=FORM).status_code == 303
    ((method, sent_to, body),) = empty.sent
    assert (method, body) == ("PATCH", {"chosen_options": ["Approve"], "params_input": {}})
    assert sent_to.endswith("/taskInstances/approve/-1/hitlDetails")
    empty.sent.clear()
    # The run has planned anew in the meantime.
    other = replace(report_samples.unverified().plan, plan_id="fedcba9876543210")
    MigrationLedger(empty.connection).save_plan(other, run_id=RUN_ID)
    assert empty.browser.send("POST", path, data=form, headers=FORM).status_code == 409
    assert empty.browser.send("POST", path, data=form | {"option": "Maybe"}, headers=FORM).status_code == 422
    assert empty.browser.send("POST", path, data=form | {"run_id": "none"}, headers=FORM).status_code == 404
    assert empty.browser.send("POST", path, data=form | {"run_id": "a\0b"}, headers=FORM).status_code == 400
    foreign = FORM | {"Origin": "https://attacker.example"}
    assert empty.browser.send("POST", path, data=form, headers=foreign).status_code == 403
    assert empty.sent == []


def test_queue_is_explained_without_payload_topic_or_an_id_in_an_address(servers: World) -> None:
    with redis_client.connect(servers.stores._redis_url()) as client:
        store = RedisSessionStore(client)
        messages = tuple(
            NewMessage(topic="secret/topic", payload=PLANTED, qos=1, time_ms=system_clock()) for _ in range(4)
        )
        (saved,) = store.save_messages([SessionSave(client_id="<b>kettle", messages=messages)])
        store.mark_delivered("<b>kettle", serial=saved.serials[2] or 0)
        store.ack("<b>kettle", [Ack(packet_id=saved.packet_ids[1] or 0)])
    answer = servers.browser.send("POST", "/queue", data={"client_id": "<b>kettle"}, headers=FORM)

    shown = text_of(answer)
    assert "✓ Accounted for" in shown
    for fate, count in (("sent", 2), ("acked", 1), ("waiting", 1)):
        assert re.search(rf"{fate} {count} ", shown), (fate, shown)
    assert servers.hash_of("<b>kettle") in answer.text
    assert "<b>kettle" not in answer.text
    assert "secret/topic" not in answer.text
    assert PLANTED.decode() not in answer.text
    gaps = servers.browser.send("POST", "/queue", data={"client_id": "<b>kettle", "gaps": "true"}, headers=FORM)
    assert "1 line, in the order of serials" in text_of(gaps)
    by_hash = servers.browser.get(f"/queue/{'1'.zfill(16)}", page=True)
    assert by_hash.status_code == 200
    assert "meter-1" in by_hash.text
    for wrong in ("", "x" * 70_000):
        assert servers.browser.send("POST", "/queue", data={"client_id": wrong}, headers=FORM).status_code == 422


def searched(world: World, text: str) -> httpx.Response:
    return world.browser.send("POST", "/search", data={"text": text}, headers=FORM | {"Accept": "text/html"})


def test_client_is_found_in_either_store_and_its_queue_is_opened_without_an_id_in_an_address(servers: World) -> None:
    with redis_client.connect(servers.stores._redis_url()) as client:
        message = NewMessage(topic="secret/topic", payload=PLANTED, qos=1, time_ms=system_clock())
        RedisSessionStore(client).save_messages([SessionSave(client_id="<i>fridge", messages=(message,))])
    (stored,) = servers.connection.execute("SELECT client_id FROM device_session_ctx LIMIT 1").fetchone() or ("",)

    in_redis, in_postgres = searched(servers, "<i>fridge"), searched(servers, stored)

    assert "1 message in Redis" in text_of(in_redis)
    assert "messages in PostgreSQL" in text_of(in_postgres)
    for answer in (in_redis, in_postgres):
        assert answer.status_code == 200
        assert '<form method="post" action="/queuekeeper/queue"><input type="hidden" name="client_id"' in answer.text
        assert not re.search(r'(?:href|action)="[^"]*(?:fridge|' + re.escape(stored) + ")", answer.text)
    assert "<i>fridge" not in in_redis.text
    assert "secret/topic" not in in_redis.text
    assert PLANTED.decode() not in in_redis.text


def test_runs_queues_and_tables_are_found_by_what_a_person_has_at_hand(servers: World) -> None:
    plan = f"/queuekeeper/runs/session_migration/{report_samples.PLAN_ID}"
    newest = "SELECT quality_run_id FROM queuekeeper.quality_runs ORDER BY started_at DESC LIMIT 1"
    required = {
        table: [
            name
            for (name,) in servers.connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = 'queuekeeper'"
                " AND table_name = %s AND is_nullable = 'NO' AND data_type <> 'text'",
                [table],
            )
        ]
        for table in ("compacted_profiles", "fanout_profiles")
    }
    (run_id,) = servers.connection.execute(newest).fetchone() or ("",)
    for table, row in (
        ("compacted_profiles", {"client_id": "twin-1", "client_hash": "c" * 16, "lag": 4_711}),
        ("fanout_profiles", {"queue": "alarms", "consumer": "pager", "client_hash": "f" * 16, "messages": 17}),
    ):
        filled = dict.fromkeys(required[table], 0) | {"quality_run_id": run_id} | row
        servers.connection.execute(
            f"INSERT INTO queuekeeper.{table} SELECT * FROM jsonb_populate_record(NULL::queuekeeper.{table}, %s)",
            [json.dumps(filled)],
        )

    for text, page, words in (
        (report_samples.PLAN_ID, plan, "session_migration, failed"),
        (f" {report_samples.PLAN_ID[:4]}\n", plan, "session_migration, failed"),
        (RUN_ID, plan, "session_migration, failed"),
        ("1".zfill(16), f"/queuekeeper/queue/{'1'.zfill(16)}", "by its hash"),
        ("twin-1", "/queuekeeper/quality", "compacted; 4,711 messages waited"),
        ("f" * 16, "/queuekeeper/quality", "fan-out; 17 messages waited"),
        ("READ", "/queuekeeper/partitions?table=public.readings", "partitions of 1 day"),
    ):
        answer = searched(servers, text)
        assert f'href="{page}"' in answer.text, text
        assert words in text_of(answer), text
    # The hash does not tell whose it is.
    assert "meter-1" not in searched(servers, "1".zfill(16)).text
    led = servers.browser.get(f"/runs/session_migration/{report_samples.PLAN_ID}")
    assert led.headers["location"] == f"/queuekeeper/migration/{report_samples.PLAN_ID}"


def test_search_without_a_result_says_what_was_looked_for_where_and_what_to_do(servers: World) -> None:
    for text in ("<b>nobody", "ffff", "0" * 16, "x" * 70_000, "%", "manual__"):
        answer = searched(servers, text)
        shown = text_of(answer)
        assert answer.status_code == 200, text[:20]
        assert "Nothing was found" in shown, text[:20]
        assert "a client of PostgreSQL or Redis, by its whole id" in shown
        assert "/queuekeeper/trigger/queue_quality" in answer.text
        assert "<b>nobody" not in answer.text
    assert "What are you looking for?" in text_of(servers.browser.get("/search", page=True))
    assert "What are you looking for?" in text_of(searched(servers, " "))
    foreign = FORM | {"Origin": "https://attacker.example"}
    assert servers.browser.send("POST", "/search", data={"text": RUN_ID}, headers=foreign).status_code == 403


def test_search_names_the_store_that_is_down_and_finds_the_rest(servers: World) -> None:
    def down() -> str:
        raise ServerUnavailable("the server is down")

    urls: dict[str, Any] = {"postgres_url": servers.stores._postgres_url, "redis_url": servers.stores._redis_url}
    (stored,) = servers.connection.execute("SELECT client_id FROM device_session_ctx LIMIT 1").fetchone() or ("",)
    for name, words, text in (
        ("redis_url", "Not searched: sessions in Redis. the server is down", stored),
        ("redis_url", "Not searched: sessions in Redis. the server is down", RUN_ID),
        ("postgres_url", "Not searched: records of queues, runs and tables. the server is down", "absent"),
    ):
        browser = servers.with_stores(Stores(**(urls | {name: down})))
        answer = browser.send("POST", "/search", data={"text": text}, headers=FORM | {"Accept": "text/html"})
        assert words in text_of(answer), name
        assert ("Nothing was found in what was searched" in text_of(answer)) is (text == "absent")


def test_payload_is_shown_for_a_reason_that_is_on_record_before_it_is(servers: World) -> None:
    with redis_client.connect(servers.stores._redis_url()) as client:
        message = NewMessage(topic="t", payload=PLANTED, qos=1, time_ms=system_clock())
        (saved,) = RedisSessionStore(client).save_messages([SessionSave(client_id="pump", messages=(message,))])
    form = {"client_id": "pump", "store": "redis", "packet_id": str(saved.packet_ids[0]), "reason": "ticket 4711: lost"}

    def reveals() -> list[audit.AuditEntry]:
        return audit.latest(servers.connection, wanted=audit.AuditFilter(action="reveal"))

    before = len(reveals())
    numbers = [{"packet_id": wrong} for wrong in ("", "-1", "0", "65536", "9" * 5_000)]
    for wrong in ({"reason": "short"}, {"reason": "with\nbreaks in it"}, {"store": "x"}, *numbers):
        answer = servers.browser.send("POST", "/queue/reveal", data=form | wrong, headers=FORM)
        assert answer.status_code == 422, wrong
        assert PLANTED.decode() not in answer.text
    foreign = FORM | {"Origin": "https://attacker.example"}
    assert servers.browser.send("POST", "/queue/reveal", data=form, headers=foreign).status_code == 403
    assert len(reveals()) == before

    answer = servers.browser.send("POST", "/queue/reveal", data=form, headers=FORM)

    assert answer.status_code == 200
    assert PLANTED.decode() in answer.text
    entry = reveals()[0]
    assert (entry.actor, entry.subject) == ("operator", servers.hash_of("pump"))
    assert json.loads(entry.effect)["reason"] == "ticket 4711: lost"
    assert PLANTED.decode() not in entry.effect
    missing = servers.browser.send("POST", "/queue/reveal", data=form | {"packet_id": "60000"}, headers=FORM)
    assert missing.status_code == 404
    assert len(reveals()) == before + 2


def test_payload_is_not_shown_when_it_cannot_be_put_on_record(servers: World) -> None:
    with redis_client.connect(servers.stores._redis_url()) as client:
        message = NewMessage(topic="t", payload=PLANTED, qos=1, time_ms=system_clock())
        (saved,) = RedisSessionStore(client).save_messages([SessionSave(client_id="valve", messages=(message,))])
    form = {
        "client_id": "valve",
        "store": "redis",
        "packet_id": str(saved.packet_ids[0]),
        "reason": "ticket 4711: lost",
    }
    servers.connection.execute("ALTER TABLE queuekeeper.audit RENAME TO audit_away")
    try:
        answer = servers.browser.send("POST", "/queue/reveal", data=form, headers=FORM)
    finally:
        servers.connection.execute("ALTER TABLE queuekeeper.audit_away RENAME TO audit")

    assert answer.status_code == 409
    assert PLANTED.decode() not in answer.text


def test_partitions_are_drawn_with_their_gaps_and_marks(servers: World) -> None:
    answer = servers.browser.get("/partitions", page=True)

    shown = text_of(answer)
    assert "✗ Inserts fail now" in shown
    assert re.search(r"gap 2026-01-02 00:00:00\+00 ", shown)
    assert "live 2026-01-01 00:00:00+00 2026-01-02 00:00:00+00" in shown
    assert "End of desired head-room" in shown
    assert re.search(r"Short public\.readings .*Open partition_maintenance with its form filled in", shown)
    assert answer.text.count("<svg") == 2


def test_page_of_partitions_shows_some_of_many_tables_and_leads_to_each(empty: World) -> None:
    for number in range(45):
        save_policy(empty.connection, PartitionPolicy(table=f"public.t{number:02}", step="1 day", ahead="7 days"))

    first = empty.browser.get("/partitions", page=True)
    last = empty.browser.get("/partitions?table=public.t40", page=True)

    assert "Tables 1 to 20 of 45." in text_of(first)
    assert first.text.count("<section") == 20
    (further,) = re.findall('href="/queuekeeper(/partitions[?]table=[^"]+)">Further tables', first.text)
    assert "Tables 21 to 40 of 45." in text_of(empty.browser.get(further, page=True))
    assert "Tables 41 to 45 of 45." in text_of(last)
    assert "Further tables" not in last.text
    assert last.text.count('href="/queuekeeper/partitions?table=public.t07"') == 1
    assert empty.browser.get("/partitions?table=public.gone").status_code == 404


def test_quality_shows_checks_run_by_run_and_leads_to_the_worst_queues(servers: World) -> None:
    answer = servers.browser.get("/quality", page=True)

    shown = text_of(answer)
    assert "Checks over the last 5 runs" in shown
    assert "failed, critical, 1,234 queues" in shown
    assert "P0 Q1 Order open nobody 4 days" in shown
    trend = answer.text.partition('id="trend"')[2].partition("</section>")[0]
    assert trend.count("<svg") == 2
    assert re.search(r'href="/queuekeeper/queue/[0-9a-f]{16}"', answer.text)


def test_quality_draws_what_expires_of_each_store_and_what_is_held_meanwhile(empty: World) -> None:
    now_ms = system_clock()
    fill_quality(empty.connection, now_ms=now_ms)
    empty.connection.execute("DELETE FROM queuekeeper.expiry_hours")
    hour_ms = now_ms // HOUR_MS * HOUR_MS
    with empty.connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO queuekeeper.expiry_hours VALUES ('redis', %s, 1000, 1048576)",
            [(hour_ms + ahead * HOUR_MS,) for ahead in range(1, 25)],
        )

    answer = empty.browser.get("/quality", page=True)

    drawn = answer.text.partition('id="expiry"')[2].partition("</section>")[0]
    assert drawn.count("<svg") == 6
    assert 'aria-label="24,000 messages expire over time"' in drawn
    assert 'aria-label="24.0 MiB expire over time"' in drawn
    assert "Solid, with <code>expired_reference_cleanup</code>" in drawn
    assert "Nothing that was read expires within the default expiry." in drawn  # of PostgreSQL


def test_audit_is_searched_verified_and_exported(servers: World) -> None:
    listed = servers.browser.get("/audit", params={"verify": "true", "action": "approve"}, page=True)
    exported = servers.browser.get("/audit/export")

    assert "✓ The chain is whole" in text_of(listed)
    assert f"admin approve {report_samples.PLAN_ID}" in text_of(listed).replace("  ", " ")
    chain = audit.verify_chain([audit.AuditEntry.from_json(line) for line in exported.text.splitlines()])
    assert chain.is_whole
    assert chain.entries == len(list(audit.read_chain(servers.connection)))
    assert "attachment" in exported.headers["content-disposition"]
    assert "No entry matches" in servers.browser.get("/audit", params={"actor": "nobody"}, page=True).text
    assert servers.browser.get("/audit", params={"since": "yesterday"}, page=True).status_code == 422


def test_tabs_of_a_run_lead_to_its_plan_and_to_what_it_left_on_record(servers: World) -> None:
    run = {"dag_id": "session_migration", "run_id": RUN_ID}
    progress = servers.browser.get("/run/progress", params=run)
    servers.asked = {f"/dagRuns/{RUN_ID}": {"state": "success"}}
    task = servers.browser.get("/task", params=run | {"task_id": "copy", "map_index": "3"}, page=True)

    assert progress.headers["location"] == f"/queuekeeper/migration/{report_samples.PLAN_ID}"
    assert "this is instance 3 of the task" in text_of(task)
    assert "approve" in task.text
    quality = servers.browser.get("/run/progress", params={"dag_id": "queue_quality", "run_id": "x"})
    assert quality.headers["location"] == "/queuekeeper/quality"


@pytest.mark.parametrize("dag", sorted({kind_of(kind).dag for kind in KINDS} - {"session_migration"}))
def test_progress_of_a_run_leads_to_the_page_that_its_kinds_name(
    servers: World, monkeypatch: pytest.MonkeyPatch, dag: str
) -> None:
    overview = overview_of(dag)
    assert overview == ("partitions" if dag == "partition_maintenance" else "")
    answer = servers.browser.get("/run/progress", params={"dag_id": dag, "run_id": "x"})
    assert answer.headers["location"] == f"/queuekeeper/{overview or f'started?dag_id={dag}&run_id=x'}"

    # A kind of another distribution brings its own.
    kind = RunKind(name="other", dag="dag_of_others", noun="run", overview="elsewhere")
    monkeypatch.setattr(registry, "kinds", lambda: [kind.name])
    monkeypatch.setattr(registry, "kind_of", lambda _: kind)
    answer = servers.browser.get("/run/progress", params={"dag_id": "dag_of_others", "run_id": "x"})
    assert answer.headers["location"] == "/queuekeeper/elsewhere"


class ExpiredCredentials:
    """A folder of reports in an object store that no longer knows who asks.

    :param in_loop: for each question, whether it held up an event loop.
    """

    def __init__(self) -> None:
        self.in_loop: list[bool] = []

    def __truediv__(self, name: str) -> ExpiredCredentials:
        return self

    def __str__(self) -> str:
        return "s3://bucket/reports"

    path = "bucket/reports"
    async_impl = False

    @property
    def fs(self) -> ExpiredCredentials:
        """Its own file system, which has no other folder."""
        return self

    def invalidate_cache(self) -> None:
        """Forget nothing, as nothing was ever learnt."""

    def ls(self, key: str, **_: object) -> list[str]:
        """Fail as :meth:`read_bytes` does."""
        return [self.read_bytes().decode()]

    def read_bytes(self) -> bytes:
        """Fail as clients of object stores do: with an error that is none of the system's."""
        try:
            asyncio.get_running_loop()
            self.in_loop.append(True)
        except RuntimeError:
            self.in_loop.append(False)
        raise RuntimeError("the provided token has expired")


@pytest.mark.parametrize("place", ["a disk", "an object store"])
def test_reports_that_cannot_be_read_are_told_and_the_rest_of_the_page_is_there(
    servers: World, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever runs the tests may read every file; nobody can follow a link to itself.
    (tmp_path / "reports").symlink_to(tmp_path / "reports")
    folder = tmp_path / "reports" if place == "a disk" else ExpiredCredentials()
    monkeypatch.setattr(Settings, "reports", folder)
    monkeypatch.setattr(servers, "asked", {f"/dagRuns/{RUN_ID}": {"state": "success"}})
    browser = servers.with_stores(servers.stores)
    run = {"dag_id": "session_migration", "run_id": RUN_ID}

    words = "Too many levels of symbolic links" if place == "a disk" else "the provided token has expired"
    told = f"reports cannot be read from {folder}: {words}; let the user that asks read it, or renew the credentials"
    evidence = browser.get("/task", params=run | {"task_id": "copy"}, page=True)
    assert evidence.status_code == 200
    assert f"The report of the run cannot be shown. {told}" in text_of(evidence)
    assert "has not written a report" not in evidence.text
    assert "On record for this plan" in evidence.text
    for path in (f"/run?dag_id=session_migration&run_id={RUN_ID}", "/reports", f"/reports/{REPORT}"):
        answer = browser.get(path, page=True)
        assert (answer.status_code, told in text_of(answer)) == (503, True), path
    if isinstance(folder, ExpiredCredentials):
        assert folder.in_loop == [False] * 4


def test_report_that_is_removed_while_it_is_asked_for_is_not_found(
    servers: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / REPORT).write_text("<h1>Report</h1>", "utf-8")
    monkeypatch.setattr(Settings, "reports", tmp_path)
    browser = servers.with_stores(servers.stores)
    assert browser.get(f"/reports/{REPORT}").status_code == 200
    read = Path.read_bytes

    def late(path: Path) -> bytes:
        path.unlink()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", late)

    assert browser.get(f"/reports/{REPORT}").status_code == 404


def test_ten_thousand_cohorts_and_queues_are_made_into_pages_in_under_a_second(empty: World) -> None:
    now_ms = system_clock()
    evidence = report_samples.balanced(count=10_000)
    plan_id = fill_migration(empty.connection, evidence, now_ms=now_ms)
    fill_quality(empty.connection, now_ms=now_ms, queues=10_000)

    for path in (
        f"/migration/{plan_id}",
        f"/migration/{plan_id}/data",
        "/",
        "/quality",
        f"/migration/{plan_id}/cohorts/9",
    ):
        # Charts are drawn once for the same figures; the second look is what everybody has.
        assert empty.browser.get(path, page=True).status_code == 200
        gc.collect()  # what earlier tests left behind is not this page's work
        begun = time.process_time()
        answer = empty.browser.get(path, page=True)
        assert time.process_time() - begun < 1.0, path
        assert answer.status_code == 200
    assert empty.browser.get(f"/migration/{plan_id}", page=True).text.count('class="cell ') == len(
        evidence.plan.cohorts
    )

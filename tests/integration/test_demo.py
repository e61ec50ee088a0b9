"""The demo as a program: its exit codes, what it says, that its user interface stays, and that it leaves nothing."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from queuekeeper import embedded, redis_client
from queuekeeper.cli import app
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.config import Settings
from queuekeeper.demo.partitions import TABLE
from queuekeeper.demo.quality import PLANTED
from queuekeeper.demo.queues import HELD, MESSAGES, METER, ORDERS
from queuekeeper.embedded import AirflowServer, PostgresServer
from queuekeeper.fanout.queue import FanoutQueues
from queuekeeper.jobs.findings import Status
from queuekeeper.keyspace import session_keys
from queuekeeper.maintenance.partitions.model import RetiredState
from queuekeeper.maintenance.partitions.retired import retired_partitions
from queuekeeper.postgres import Connection, connect
from queuekeeper.quality.judge.incidents import Incidents, State
from queuekeeper.quality.judge.store import QualityStore
from queuekeeper.redis_client import RedisClient
from tests import page_looks, planted
from tests.browser import chromium
from tests.conftest import nightly
from tests.integration import airflow_pages, airflow_runs
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

DAG = "session_migration"
states = partial(airflow_runs.states, DAG)
log = partial(airflow_runs.log, DAG)


@pytest.fixture
def home(server_home: Path) -> Iterator[Path]:
    folder = server_home / "demo"
    folder.mkdir()
    yield folder
    embedded.erase(_settings(folder))
    shutil.rmtree(folder, ignore_errors=True)


def test_a_second_demo_in_the_same_home_is_refused_and_starts_nothing(home: Path) -> None:
    with (home / "demo.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        demo = _demo(home)
        said, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 4
    assert "another demo runs in" in said
    assert sorted(path.name for path in home.iterdir()) == ["demo.lock"]


# tests/unit/test_demo.py shows by stand-ins that nobody waits for an Airflow that still starts, and the exit code.
@pytest.mark.parametrize(
    "interrupted_at",
    [None, *nightly("filling PostgreSQL", "plan: success", "Finding: ")],
    ids=["first", "behind one that started", "behind one that migrated", "behind one that judged"],
)
def test_a_demo_balances_stays_until_ctrl_c_and_stops_what_it_started(home: Path, interrupted_at: str | None) -> None:
    if interrupted_at is not None:
        _interrupt_one(home, at=interrupted_at)

    demo = _demo(home)
    said = _day_of(demo)
    assert "The demo itself answered Approve" in said
    assert re.search(r"copy ([\d,]+)/\1 messages \(100 %\)", said)
    assert "balances to zero; the run ended as success." in said
    assert re.search(
        r"^Quality +http://127\.0\.0\.1:\d+/dags/queue_quality/runs/\S+: nothing critical was found$",
        said,
        re.MULTILINE,
    )
    report = next(line.split(maxsplit=1)[1] for line in said.splitlines() if line.startswith("Report "))
    assert "<html" in Path(report).read_text("utf-8")
    shown = re.search(r"^Airflow +(http://127\.0\.0\.1:\d+)/\S+\n +user (\S+), password (\S+)$", said, re.MULTILINE)
    assert shown is not None, said
    address, user, password = shown.groups()
    assert httpx.post(f"{address}/auth/token", json={"username": user, "password": password}).status_code == 201
    _migration_is_on_record_for_those_who_may_see_it(embedded.private_airflow(_settings(home)), Path(report))
    _runs_are_those_of_the_day(embedded.private_airflow(_settings(home)))
    _overview_is_filled(embedded.private_airflow(_settings(home)))
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 0
    assert "Stopping the servers." in said
    assert {server.state for server in embedded.status(_settings(home)).servers} == {"stopped"}

    # What it has made is what the servers show when they are started again.
    embedded.up(_settings(home))
    urls = embedded.addresses_with_passwords(_settings(home))
    with connect(urls["postgres"], autocommit=True) as connection, redis_client.connect(urls["redis"]) as client:
        (plans,) = connection.execute("SELECT count(*) FROM queuekeeper.plans").fetchone() or (0,)
        (runs,) = connection.execute("SELECT count(*) FROM queuekeeper.quality_runs").fetchone() or (0,)
        assert plans == 1
        assert runs == 2
        assert client.dbsize() > 1_000
        _finding_is_mended(connection, client)
        _partition_is_back_with_its_rows(connection)
        _queues_are_as_the_day_has_left_them(client)
    passwords = {
        name: planted.forms((home / name / "password").read_text("utf-8").strip().encode())
        for name in ("postgres", "redis")
    }
    assert planted.found_in_files(home / "airflow", home / "demo", home / "reports", wanted=passwords) == []
    metadata = PostgresServer(home / "postgres").database_url("airflow")
    assert planted.found_in_database(metadata, wanted=passwords) == []
    assert planted.found_in_database(urls["postgres"], wanted=passwords, schema="queuekeeper") == []


@pytest.mark.nightly
def test_every_page_that_a_link_leads_to_after_the_demo_can_be_read_in_every_size(home: Path) -> None:
    demo = _demo(home)
    _day_of(demo)
    airflow = embedded.private_airflow(_settings(home))
    base, looks = f"{airflow.url}/queuekeeper/", [*page_looks.DAY, *page_looks.NIGHT]
    waiting, known = [base], {base}
    faults: list[tuple[str, ...]] = []
    kinds: Counter[str] = Counter()
    with chromium() as browser:
        context = browser.new_context()
        context.add_init_script(page_looks.STILL)
        page, requests, complaints = page_looks.watched(context)
        airflow_pages.sign_in(page, airflow, "operator")
        complaints.clear()
        requests.clear()
        while waiting:
            path = waiting.pop(0).removeprefix(airflow.url)
            # Of pages that are alike, such as those of cohorts, one stands for all.
            kind = re.sub(r"[0-9a-f]{12,}|\d+", "N", path.partition("?")[0])
            kinds[kind] += 1
            if kinds[kind] > 1:
                continue
            answer = page.goto(f"{airflow.url}{path}")
            assert answer is not None
            faults += [(path, f"status {answer.status}")] * (answer.status != 200)
            name = re.sub(r"\W+", "-", kind.removeprefix("/queuekeeper/")).strip("-") or "overview"
            faults += page_looks.seen(page, looks, alert="", name=f"demo-{name}")
            for link in page.locator("a[href]:not([download])").evaluate_all("(all) => all.map((each) => each.href)"):
                url = link.partition("#")[0]
                if url.startswith(base) and not url.endswith(".json") and url not in known:
                    known.add(url)
                    waiting.append(url)
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=PATIENCE_S)
    assert "\n".join("; ".join(each) for each in faults) == ""
    assert complaints == []
    assert [url for url in requests if not url.startswith((airflow.url, "data:"))] == []
    # Links lead to all that a day leaves.
    missing = {"", "migration/N", "runs", "partitions", "quality", "audit", "reports", "search", "queue"} - {
        kind.removeprefix("/queuekeeper/") for kind in kinds
    }
    assert missing == set()


def _runs_are_those_of_the_day(airflow: AirflowServer) -> None:
    with airflow.client("viewer") as client:
        runs = client.call("GET", "/dags/~/dagRuns", query={"order_by": "run_after"})["dag_runs"]
        # A demo that was interrupted has left runs, too.
        newest = {run["dag_id"]: run["state"] for run in runs if run["run_type"] == "manual"}
        assert set(newest.values()) == {"success"}, newest
        *_, repair = [run for run in runs if run["dag_id"] == "session_repair"]
        *_, first, second = [run for run in runs if run["dag_id"] == "queue_quality"]
        judged = client.returned("queue_quality", first["dag_run_id"], "check")
    # What is critical fails the run that finds it. Who opens it reads there that it is part of the demo.
    assert (first["state"], second["state"]) == ("failed", "success")
    assert first["note"].startswith("Fails on purpose: the demo has broken the queues defect-counter-behind (Q11) and ")
    assert "Q13 is left for you to mend" in second["note"]
    assert newest["partition_maintenance"] == "success"
    found = next(finding for finding in judged["findings"] if finding["check"] == "Q11")
    # With the values of the link, and the dry run unticked.
    assert found["remedy_conf"]["quality_run_id"] == judged["quality_run_id"]
    assert repair["conf"] == found["remedy_conf"] | {"dry_run": False}


def _overview_is_filled(airflow: AirflowServer) -> None:
    token = airflow_pages.token(airflow, "viewer")
    page = httpx.get(f"{airflow.url}/queuekeeper/", cookies={"_token": token}, timeout=PATIENCE_S).text
    compacted = re.search(r">Compacted</th><td>1</td><td>(\d+)</td><td>(.+?)</td>", page)
    fanout = re.search(r">Fan-out</th><td>1</td><td>(\d+)</td><td>(.+?)</td>", page)
    assert compacted is not None, page
    assert fanout is not None, page
    assert compacted[1] == "1"
    assert MESSAGES - HELD <= int(fanout[1]) <= MESSAGES
    assert "none waits" not in (compacted[2], fanout[2])
    assert "is not known" not in page
    assert "not been looked at" not in page


def _finding_is_mended(connection: Connection, client: RedisClient) -> None:
    before, after = (
        {each.check_id: each.status for each in QualityStore(connection).results(run.quality_run_id)}
        for run in reversed(QualityStore(connection).runs(limit=2))
    )
    assert (before["Q11"], after["Q11"]) == (Status.FAILED, Status.PASSED)
    # Nobody has mended the other one.
    assert (before["Q13"], after["Q13"]) == (Status.FAILED, Status.FAILED)
    assert client.get(session_keys(PLANTED["Q11"]).last_packet_id) == b"3"
    incidents = {
        each.check_id: each.state for each in Incidents(connection).all(today=datetime.now(UTC).date(), closed=True)
    }
    assert (incidents["Q11"], incidents["Q13"]) == (State.CLOSED, State.OPEN)


def _partition_is_back_with_its_rows(connection: Connection) -> None:
    one, other = sorted(retired_partitions(connection, table=TABLE), key=lambda each: each.lower or "")
    assert (one.state, other.state) == (RetiredState.REATTACHED, RetiredState.DROPPED)
    rows = connection.execute("SELECT count(*) FROM public.readings GROUP BY tableoid ORDER BY min(at)").fetchall()
    assert rows == [(1_000,)] * 4
    (first,) = connection.execute("SELECT min(at) FROM public.readings").fetchone() or (None,)
    assert f"{first:%Y-%m-%d}" in str(one.lower)


def _queues_are_as_the_day_has_left_them(client: RedisClient) -> None:
    [left] = CompactedQueues(client).peek(METER)
    assert (left.key, left.value) == (b"sensor-3", b"2")
    billing, shipping = FanoutQueues(client).inspect(ORDERS).consumers
    assert (billing.ready, billing.leased) == (0, 0)
    # Those that the dead one held were delivered to the next one: the others still wait.
    assert (shipping.ready, shipping.leased, shipping.overdue) == (MESSAGES - HELD, 0, 0)


def _day_of(demo: subprocess.Popen[str]) -> str:
    """Return what a demo says until it has done all and only its servers stay."""
    assert demo.stdout is not None
    said = ""
    for line in demo.stdout:
        said += line
        if "The user interface stays up. Ctrl-C ends the demo." in line:
            break
    return said


def _interrupt_one(home: Path, *, at: str) -> None:
    demo = _demo(home)
    assert demo.stdout is not None
    for line in demo.stdout:
        if at in line:
            break
    demo.send_signal(signal.SIGTERM)
    said, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 130
    assert "Stopping the servers." in said
    assert {server.state for server in embedded.status(_settings(home)).servers} == {"stopped"}


def _migration_is_on_record_for_those_who_may_see_it(airflow: AirflowServer, html: Path) -> None:
    with airflow.client("operator") as client:
        # A demo that was interrupted has left a run, too.
        *_, run = client.call("GET", f"/dags/{DAG}/dagRuns", query={"order_by": "run_after"})["dag_runs"]
        run_id = str(run["dag_run_id"])
        found = states(client, run_id)
        # The broker is stopped: no client has to change its owner.
        online = {"catch_up", "rehearse", "cut_over", "soak", "approve_commit", "mirror", "commit"}
        assert {task for task, state in found.items() if state == "skipped"} == online
        assert {state for task, state in found.items() if task not in online} == {"success"}
        plan_id = client.returned(DAG, run_id, "verify")["plan_id"]
        reported = client.returned(DAG, run_id, "report")
        assert (reported["verdict"], reported["html"]) == ("balanced", str(html))
        assert " messages (" in log(client, run_id, "copy")
        links = client.call("GET", f"/dags/{DAG}/dagRuns/{run_id}/taskInstances/report/links")["extra_links"]
        assert links["Migration report"].startswith(f"/queuekeeper/run?dag_id={DAG}&run_id=manual__")
        for task in client.tasks(DAG, run_id):
            if task.task_id in ("plan", "copy", "verify"):
                path = f"/dags/{DAG}/dagRuns/{run_id}/taskInstances/{task.task_id}"
                instance = client.call("GET", path if task.map_index < 0 else f"{path}/{task.map_index}")
                assert "redis://" not in str(instance["rendered_fields"])
                assert "postgresql://" not in str(instance["rendered_fields"])
    airflow_pages.demand_that_pages_are_for_those_who_have_signed_in(airflow, dag_id=DAG, run_id=run_id, html=html)
    airflow_pages.demand_that_actions_are_for_those_who_may_act(airflow, plan_id=plan_id)


def test_data_that_no_demo_has_made_are_not_emptied(home: Path) -> None:
    settings = _settings(home)
    embedded.up(settings)
    with redis_client.connect(embedded.addresses_with_passwords(settings)["redis"]) as client:
        client.set("mine", "1")

        demo = _demo(home)
        said, _ = demo.communicate(timeout=PATIENCE_S)

        assert demo.returncode == 4
        assert "hold data that no demo has made, and the demo begins by emptying them" in " ".join(said.split())
        assert client.get("mine") == b"1"


def test_private_servers_begin_with_the_control_schema_and_say_their_passwords_when_asked(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(home)
    embedded.up(settings)

    urls = embedded.addresses_with_passwords(settings)

    with connect(urls["postgres"], autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM queuekeeper.plans").fetchone() == (0,)
    assert all(":" in url.partition("@")[0].partition("://")[2] for url in urls.values())
    monkeypatch.setenv("QUEUEKEEPER_HOME", str(home))
    for name in ("QUEUEKEEPER_POSTGRES_URL", "QUEUEKEEPER_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    for command in (["up"], ["status"]):
        shown = CliRunner().invoke(app, command)
        assert "Addresses with their passwords: queuekeeper up --show-urls" in shown.stdout, shown.output
        assert [url for url in urls.values() if url in shown.output] == []
    for command in (["up", "--show-urls"], ["status", "--show-urls"]):
        told = CliRunner().invoke(app, command).stdout.replace("\n", "")
        assert [url for url in urls.values() if url not in told] == []


def _demo(home: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "QUEUEKEEPER_HOME": str(home), "DEMO_EXIT": "", "DEMO_MESSAGES": "5000"}
    return subprocess.Popen(
        [sys.executable, "-m", "queuekeeper.demo"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _settings(home: Path) -> Settings:
    return Settings(home=home, postgres_url=None, redis_url=None)

"""Runs of every kind are paused, go on, and change their pace from the pages, by the rules of ``queuekeeper run``."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from fastapi import HTTPException
from typer.testing import CliRunner

from queuekeeper import audit, postgres
from queuekeeper.airflow.plugin.pages import pages
from queuekeeper.airflow.plugin.security import may_steer
from queuekeeper.airflow.plugin.stores import Stores
from queuekeeper.cli import app
from queuekeeper.clock import system_clock
from queuekeeper.config import Settings
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.registry import kind_of
from queuekeeper.jobs.store import MaintenanceRuns, Runs, RunState, ShardProgress
from queuekeeper.jobs.undo import UndoFile, remove_old_undo_files, undo_path
from queuekeeper.migration.ledger.ledger import MIGRATIONS, MigrationLedger
from queuekeeper.migration.ledger.model import PlanState
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import connect
from tests.dags.test_plugin_pages import FORM, OPEN, Browser
from tests.patience import PATIENCE_S
from tests.run_kinds import KINDS, PARTITIONS, planned, rejected
from tests.sample_job import Renaming, RenamingParameters

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

pytestmark = pytest.mark.dags

FINISHED = "nothing is at work that could be paused"


@pytest.fixture
def control(named_postgres: str, named_redis: str, control_schema: None) -> Iterator[Connection]:
    """Schema ``queuekeeper`` and an empty Redis, named by the environment for commands."""
    with postgres.connect(named_postgres, autocommit=True) as connection:
        yield connection


@pytest.fixture
def browser(control: Connection, named_postgres: str, named_redis: str, tmp_path: Path) -> Browser:
    """The pages of these stores, for somebody who may do everything."""
    stores = Stores(postgres_url=lambda: named_postgres, redis_url=lambda: named_redis)
    return Browser(pages(settings=Settings(home=tmp_path), guards=OPEN, stores=stores))


def commanded(*arguments: str) -> str:
    """Return the words by which a command of ``queuekeeper run`` refuses; empty where it does not."""
    result = CliRunner().invoke(app, ["run", *arguments, "--json"], env={"COLUMNS": "10000"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return " ".join(result.stderr.split()) if result.exit_code else ""


def entries(connection: Connection, run_id: str) -> list[tuple[str, str, str]]:
    """Return who did what to which kind of run, the first first."""
    found = audit.latest(connection, wanted=audit.AuditFilter(subject=run_id))
    return [(each.actor, each.action, json.loads(each.effect)["kind"]) for each in reversed(found)]


def shown(browser: Browser, kind: str, run_id: str) -> str:
    """Return the page of a run, of a migration its plan's."""
    answer = browser.get(f"/runs/{kind}/{run_id}", page=True)
    if kind in MIGRATIONS:
        assert answer.headers["location"] == f"/queuekeeper/migration/{run_id}"
        answer = browser.get(f"/migration/{run_id}", page=True)
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.parametrize("kind", KINDS)
def test_run_of_a_kind_obeys_its_page_as_it_obeys_the_command(
    control: Connection, browser: Browser, own_home: Path, kind: str
) -> None:
    run_id = planned(control, kind, own_home)
    runs, address = MaintenanceRuns(control), f"/runs/{kind}/{run_id}"
    if kind == "session_migration":
        assert "nothing is at work" in shown(browser, kind, run_id), "its plan is verified"
        assert f'action="/queuekeeper{address}' not in shown(browser, kind, run_id)
        MigrationLedger(control).set_plan_state(run_id, PlanState.COPYING)

    listed = browser.get("/runs", params={"kind": kind}, page=True)
    page = shown(browser, kind, run_id)

    assert f'href="/queuekeeper{address}"' in listed.text
    assert f'action="/queuekeeper{address}/pause"' in page
    noted = entries(control, run_id)
    assert browser.send("POST", f"{address}/pause", data={"paused": "yes"}, headers=FORM).status_code == 303
    assert runs.control(run_id).paused
    assert 'name="paused" value="no"' in shown(browser, kind, run_id)
    assert browser.send("POST", f"{address}/pause", data={"paused": "no"}, headers=FORM).status_code == 303
    assert not runs.control(run_id).paused
    done = ["pause", "resume"]
    for rate in ("250", "many", "0", "9" * 5_000):
        answer = browser.send("POST", f"{address}/throttle", data={"per_s": rate}, headers=FORM)
        by_page_per_s = runs.control(run_id).operations_per_s
        refusal = commanded("throttle", run_id, rate, "--kind", kind)
        if not refusal:
            assert (answer.status_code, by_page_per_s) == (303, 250)
            done.append("throttle")
            continue
        # The command line begins with a word of its own.
        assert answer.status_code == 422, rate
        assert answer.json()["detail"] in refusal
    paceless = kind in PARTITIONS
    assert (f'action="/queuekeeper{address}/throttle"' in page) is not paceless
    assert ("so there is nothing to slow down" in page) is paceless
    assert done == ["pause", "resume"] + ["throttle"] * (not paceless)
    by_page = [each for each in entries(control, run_id)[len(noted) :] if each[0] == "operator"]
    assert by_page == [("operator", action, kind) for action in done]
    if kind not in MIGRATIONS:
        finished_run_has_no_button_that_does_nothing(browser, runs, kind, run_id)


@pytest.mark.parametrize("kind", KINDS)
def test_page_of_a_run_that_nobody_agreed_to_offers_nothing_that_its_command_refuses(
    control: Connection, browser: Browser, own_home: Path, kind: str
) -> None:
    run_id = rejected(control, kind, own_home)
    runs, address = Runs(control), f"/runs/{kind}/{run_id}"

    page = shown(browser, kind, run_id)

    assert f'action="/queuekeeper{address}' not in page
    assert "queuekeeper run undo" not in page
    before, noted = runs.load(run_id), len(entries(control, run_id))
    for verb, form in (("pause", {"paused": "yes"}), ("pause", {"paused": "no"}), ("throttle", {"per_s": "7"})):
        answer = browser.send("POST", f"{address}/{verb}", data=form, headers=FORM)
        words = answer.json()["detail"]
        assert (answer.status_code, words.partition(".")[0]) == (409, f"N{FINISHED[1:]}, resumed or slowed down")
        assert words in commanded("pause", run_id)
    assert (runs.load(run_id), len(entries(control, run_id))) == (before, noted)
    # A pause would hold it up once somebody agrees after all.
    runs.set_paused(run_id, True)
    page = shown(browser, kind, run_id)
    assert ('name="paused" value="no"' in page, f'{address}/throttle"' in page) == (True, False)


def test_list_of_runs_is_narrowed_by_job_and_state_in_its_address(
    control: Connection, browser: Browser, own_home: Path
) -> None:
    waiting, failed = (planned(control, kind, own_home) for kind in ("fanout_repair", "compacted_queue_gc"))
    MaintenanceRuns(control).set_state(failed, RunState.FAILED)

    def listed(**asked: str) -> tuple[bool, bool]:
        text = browser.get("/runs", params=asked, page=True).text
        return waiting in text, failed in text

    assert listed() == (True, True)
    assert listed(state="failed") == (False, True)
    assert listed(state="planned", kind="fanout_repair") == (True, False)
    page = browser.get("/runs", params={"state": "failed"}, page=True).text
    assert [text for text in ("any (2)", "planned (1)", "failed (1)", "done (0)") if text not in page] == []
    assert '<option value="failed" selected>' in page
    nothing = browser.get("/runs", params={"state": "failed", "kind": "fanout_repair"}, page=True).text
    assert "No run of this job has failed." in nothing
    assert browser.get("/runs", params={"state": "broken"}).status_code == 404


def test_page_of_a_plan_that_waits_for_an_approval_says_what_asks_for_it(
    control: Connection, browser: Browser, own_home: Path
) -> None:
    run_id = planned(control, "fanout_repair", own_home, has_work=True)
    assert (
        f"It waits for an approval: <code>queuekeeper fanout repair-all --go-on {run_id}</code> asks for it."
        in shown(browser, "fanout_repair", run_id)
    )
    assert "nobody yet" in browser.get("/runs", page=True).text


def test_page_of_a_run_leads_to_the_run_of_airflow_that_has_worked_on_it_last(
    control: Connection, browser: Browser, own_home: Path
) -> None:
    run_id = planned(control, "fanout_repair", own_home)
    address = "/dags/fanout_repair/runs/manual__2026-01-31T12%3A00%3A00%2B00%3A00"
    assert "/dags/fanout_repair/runs/" not in shown(browser, "fanout_repair", run_id), "a command has planned it"
    for at, name in enumerate(("scheduled__1", "manual__2026-01-31T12:00:00+00:00")):
        control.execute(
            "INSERT INTO queuekeeper.audit_runs (dag_id, run_id, subject, noted_at)"
            " VALUES ('fanout_repair', %s, %s, now() + %s * interval '1 s')",
            (name, run_id, at),
        )
    assert f'href="{address}" target="_top"' in shown(browser, "fanout_repair", run_id)


@pytest.mark.parametrize("kind", PARTITIONS)
def test_page_of_a_run_leads_to_its_latest_report(
    control: Connection, browser: Browser, own_home: Path, tmp_path: Path, kind: str
) -> None:
    run_id = planned(control, kind, own_home)
    assert "Its report" not in shown(browser, kind, run_id)
    tell = Runs(control).load(run_id).of.report
    assert tell is not None
    for now_ms in (1_700_000_000_000, 1_800_000_000_000):
        files = tell(None, Runs(control).load(run_id), now_ms=now_ms).write(Settings(home=tmp_path).reports)

    assert f'<a href="/queuekeeper/reports/{files.html.name}">Its report</a>' in shown(browser, kind, run_id)
    assert browser.get(f"/reports/{files.html.name}").text == files.html.read_text("utf-8")


def test_list_of_runs_asks_the_database_as_often_for_many_as_for_one(
    browser: Browser, control: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    execute = psycopg.Connection.execute

    def counted(connection: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(str(query))
        return execute(connection, query, *arguments, **options)

    def questions() -> int:
        asked.clear()
        with monkeypatch.context() as patched:
            patched.setattr(psycopg.Connection, "execute", counted)
            answer = browser.get("/runs")
        assert answer.status_code == 200
        assert answer.text.count('<th scope="row">') == len(runs)
        return len(asked)

    runs = [planned(control, "fanout_repair", tmp_path)]
    one = questions()
    runs += [planned(control, kind, tmp_path) for kind in KINDS if kind not in ("fanout_repair", "online_migration")]
    for run_id in runs:
        if Runs(control).load(run_id).kind not in MIGRATIONS:
            for share in ("a", "b"):
                MaintenanceRuns(control).save_progress(run_id, ShardProgress(shard=share, scanned=7, done=share == "a"))

    assert questions() == one
    assert len(runs) > 10
    assert browser.get("/runs").text.count("Entries looked at: 14.") == len(runs) - 1


def finished_run_has_no_button_that_does_nothing(
    browser: Browser, runs: MaintenanceRuns, kind: str, run_id: str
) -> None:
    """Hold the page of a run to what is left to tell it."""
    runs.set_state(run_id, RunState.DONE)
    assert "<button" in shown(browser, kind, run_id), "its second look can be paused"
    runs.save_report(run_id, {"changes": 0})

    page = shown(browser, kind, run_id)

    assert FINISHED in page
    assert "<button" not in page
    # Its page was loaded before it ended: the order comes too late, and leaves nothing behind.
    before, noted = runs.load(run_id), len(entries(runs.connection, run_id))
    address = f"/runs/{kind}/{run_id}"
    for verb, form in (("pause", {"paused": "yes"}), ("pause", {"paused": "no"}), ("throttle", {"per_s": "7"})):
        answer = browser.send("POST", f"{address}/{verb}", data=form, headers=FORM)
        assert (answer.status_code, FINISHED in answer.json()["detail"]) == (409, True), form
    assert answer.json()["detail"] in commanded("resume", run_id)
    assert (runs.load(run_id), len(entries(runs.connection, run_id))) == (before, noted)
    # A pause that came before the end can be lifted, as a second look keeps to it.
    runs.set_paused(run_id, True)
    assert 'name="paused" value="no"' in shown(browser, kind, run_id)
    assert browser.send("POST", f"{address}/pause", data={"paused": "no"}, headers=FORM).status_code == 303
    assert not runs.load(run_id).paused
    # The way back is that of the command, or why there is none.
    words = runs.load(run_id).refuses("undo")
    assert ("queuekeeper run undo" in page) is not bool(words)
    assert "`" not in page
    assert re.sub("`([^`]+)`", r"<code>\1</code>", words) in page


@pytest.fixture(params=["a disk", "an object store"])
def undo_directory(request: pytest.FixtureRequest, own_home: Path) -> str:
    if request.param == "a disk":
        return str(own_home / "undo")
    return f"s3://{request.getfixturevalue('bucket')}/undo"


def test_page_of_a_run_shows_its_undo_files_and_until_when_they_are_kept(
    control: Connection, named_postgres: str, own_home: Path, undo_directory: str
) -> None:
    settings = Settings(home=own_home, undo_dir=undo_directory)
    stores = Stores(postgres_url=lambda: named_postgres)
    browser = Browser(pages(settings=settings, guards=OPEN, stores=stores))
    run_id, other = (planned(control, "expired_reference_cleanup", own_home / name) for name in ("one", "other"))
    page = shown(browser, "expired_reference_cleanup", run_id)
    assert f"Run {run_id} has no undo file in {settings.undo}: it changed nothing, ran on another machine" in page

    begun_ms = system_clock()
    path = undo_path(settings.undo, run_id=run_id, shard="127.0.0.1:6379")
    with UndoFile(path, {"kind": "expired_reference_cleanup"}) as file:
        file.write([{"removed": "x" * 2_000}])
    with UndoFile(undo_path(settings.undo, run_id=other, shard="all"), {"kind": "expired_reference_cleanup"}):
        pass
    page = shown(browser, "expired_reference_cleanup", run_id)

    rows = re.findall(r"<code data-copy>(\S+)\.undo\.jsonl</code></th><td>(.*?)</td>(.*?)</tr>", page)
    assert [(name, size) for name, size, _ in rows] == [(f"{run_id}.127.0.0.1_6379", "2.0 KiB")]
    written, until = (
        datetime.fromisoformat(found).timestamp() for found in re.findall(r'datetime="([^"]+)"', rows[0][2])
    )
    assert begun_ms <= round(written * 1_000) <= system_clock()
    assert until - written == 7 * 86_400
    removed = [
        remove_old_undo_files(settings.undo, kind="expired_reference_cleanup", days=7, now_ms=round(now * 1_000))
        for now in (until - 1, until + 1)
    ]
    assert [bool(each) for each in removed] == [False, True]
    assert str(settings.undo) in page
    assert f"queuekeeper run undo {run_id}</code>" in page


@pytest.mark.parametrize("kind", KINDS)
def test_who_may_not_start_runs_of_the_dag_of_a_kind_may_steer_none(
    dag_bag: DagBag, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    asked: list[tuple[str, str]] = []

    class Manager:
        def is_authorized_dag(self, *, method: str, details: Any, **_: Any) -> bool:
            asked.append((method, details.id))
            return len(asked) > 1

    manager = Manager()
    monkeypatch.setattr("queuekeeper.airflow.plugin.security.get_auth_manager", lambda: manager)
    user: Any = None

    with pytest.raises(HTTPException) as refused:
        may_steer(kind, user)

    assert asked == [("POST", kind_of(kind).dag)]
    assert kind_of(kind).dag in dag_bag.dags
    assert (refused.value.status_code, refused.value.detail) == (
        403,
        f"You may not start runs of {kind_of(kind).dag}, so you may not steer one either.",
    )
    may_steer(kind, user)


def test_order_goes_to_no_run_of_another_kind_than_the_rights_were_looked_at_for(
    control: Connection, browser: Browser, own_home: Path
) -> None:
    run_id = planned(control, "fanout_repair", own_home)
    before = MaintenanceRuns(control).load(run_id)
    sent = (("throttle", {"per_s": "7"}), ("pause", {"paused": "yes"}))
    for verb, form in sent:
        for kind in ("expired_reference_cleanup", "session_migration", "partition_drop", "nothing", "a%00b"):
            answer = browser.send("POST", f"/runs/{kind}/{run_id}/{verb}", data=form, headers=FORM)
            assert answer.status_code == 404, (kind, verb)
        for other in ("0" * 16, "%00", "x"):
            answer = browser.send("POST", f"/runs/fanout_repair/{other}/{verb}", data=form, headers=FORM)
            assert answer.status_code == 404, (other, verb)
        foreign = FORM | {"Origin": "https://attacker.example"}
        answer = browser.send("POST", f"/runs/fanout_repair/{run_id}/{verb}", data=form, headers=foreign)
        assert answer.status_code == 403, verb
    answer = browser.send("POST", f"/runs/fanout_repair/{run_id}/pause", data={"paused": "perhaps"}, headers=FORM)
    assert answer.status_code == 422
    for form in ({}, {"messages_per_s": "7"}):
        answer = browser.send("POST", f"/runs/fanout_repair/{run_id}/throttle", data=form, headers=FORM)
        assert (answer.status_code, "per_s" in answer.json()["detail"]) == (422, True), form
    assert MaintenanceRuns(control).load(run_id) == before
    assert entries(control, run_id) == []
    for path in ("/runs/nothing/" + run_id, f"/runs/expired_reference_cleanup/{run_id}", "/runs?kind=nothing"):
        assert browser.get(path, page=True).status_code == 404, path
    assert browser.get("/runs?kind=%00").status_code == 404


@contextmanager
def at_work(
    run_id: str, *, postgres_url: str, redis_url: str, folder: Path, say: Callable[[str], None]
) -> Iterator[threading.Thread]:
    """Carry out a run beside the test, as a task would, and give its thread."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            with postgres.connect(postgres_url, autocommit=True) as connection, connect(redis_url) as client:
                engine = Engine(job=Renaming, client=client, undo_directory=folder, say=say)
                runs = MaintenanceRuns(connection)
                [share] = engine.load(runs, run_id).share_names()
                engine.apply(runs, run_id, share)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield thread
    assert failed == []


def test_job_at_work_waits_goes_on_and_changes_its_pace_as_its_page_says(
    control: Connection, browser: Browser, named_postgres: str, named_redis: str, tmp_path: Path
) -> None:
    count = 5_000
    with connect(named_redis) as opened:
        client: Any = opened
        client.mset({f"old:{number}": number for number in range(count)})
        runs = MaintenanceRuns(control)
        engine = Engine(job=Renaming, client=client, undo_directory=tmp_path)
        run_id = engine.save(runs, engine.plan(RenamingParameters())).maintenance_run_id
        runs.approve(run_id, "ada")
        address = f"/runs/rename_keys/{run_id}"
        waits = threading.Event()

        def say(line: str) -> None:
            if "is paused" in line:
                waits.set()

        def told(verb: str, **form: str) -> None:
            answer = browser.send("POST", f"{address}/{verb}", data=form, headers=FORM)
            assert (answer.status_code, answer.headers["location"]) == (303, f"/queuekeeper{address}")

        # At one key a second it would work for longer than anybody waits.
        told("throttle", per_s="1")
        with at_work(run_id, postgres_url=named_postgres, redis_url=named_redis, folder=tmp_path, say=say) as thread:
            told("pause", paused="yes")
            assert waits.wait(PATIENCE_S), "the job has not noticed that it is paused"
            left = len(client.keys("old:*"))
            told("throttle", per_s="")
            # It would be through at once if it did not wait.
            thread.join(3.0)
            assert (thread.is_alive(), runs.load(run_id).state) == (True, RunState.RUNNING)
            assert len(client.keys("old:*")) == left > 0, "it has worked while it was paused"
            page = browser.get(address, page=True).text
            assert "It is <strong>paused</strong>." in page
            told("throttle", per_s="1")
            told("pause", paused="no")
            thread.join(3.0)
            assert thread.is_alive(), "it goes on, at one key a second"
            told("throttle", per_s="1,000,000")
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "the job has not followed its new pace"
        assert client.keys("old:*") == []
    shown_now = re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", browser.get(address, page=True).text))
    assert f"Shares done: 1 of 1. Entries looked at: {count:,}." in shown_now
    assert "Throttle: 1,000,000 operations/s." in shown_now
    found = audit.latest(control, wanted=audit.AuditFilter(subject=run_id))
    assert [
        (each.actor, each.action, json.loads(each.effect).get("operations_per_s"))
        for each in reversed(found)
        if each.action != "apply"
    ] == [
        ("ada", "approve", None),
        ("operator", "throttle", 1),
        ("operator", "pause", None),
        ("operator", "throttle", None),
        ("operator", "throttle", 1),
        ("operator", "resume", None),
        ("operator", "throttle", 1_000_000),
    ]

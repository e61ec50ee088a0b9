"""Upkeep of the event broker through Airflow: its form, its wiring, and whole runs by ``dag.test()`` on PostgreSQL."""

from __future__ import annotations

import copy
import json
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.definitions.param import ParamsDict

from queuekeeper.airflow.defaults import Pool
from queuekeeper.airflow.operators.jobs import ApplyPlannedShareOperator, PlanJobOperator
from queuekeeper.events.schema import install
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.maintenance.events import watch as event_watch
from queuekeeper.maintenance.events.upkeep import UpkeepParameters
from queuekeeper.maintenance.events.watch import UpkeepLimits, watch_broker

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

    from queuekeeper.postgres import Connection

pytestmark = [pytest.mark.dags, pytest.mark.usefixtures("airflow_database")]


@pytest.fixture
def upkeep(dag_bag: DagBag) -> DAG:
    """The DAG, as a copy of the test's own; what fails is not tried again, which would take minutes."""
    dag = copy.deepcopy(dag_bag.dags["event_upkeep"])
    for task in dag.tasks:
        task.retries = 0
        task.retry_policy = None
        # A copy shares what a run leaves behind in the parameters of its tasks.
        task.params = ParamsDict({name: copy.deepcopy(dag.params.get_param(name)) for name in dag.params})
    return dag


@pytest.fixture
def broker(empty_database: Connection) -> Connection:
    """An event broker, and Airflow's connection to it."""
    install(empty_database)
    return empty_database


def states(run: Any) -> dict[str, str]:
    return {task.task_id: task.state for task in run.get_task_instances()}


def value(connection: Connection, query: str) -> Any:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def report_of(home: Path) -> dict[str, Any]:
    (path,) = (home / "reports").glob("events-*.json")
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def neglect(connection: Connection) -> str:
    """Leave one subscription behind, and one event that no poll will find; return the event's id."""
    connection.execute(
        "INSERT INTO pgmb.subscription_groups (id) VALUES ('g');"
        "INSERT INTO pgmb.subscriptions (group_id) VALUES ('g');"
        "INSERT INTO pgmb.subscriptions (group_id, params, last_active_at, expiry_interval)"
        " VALUES ('g', '{\"gone\": 1}', now() - interval '2 hours', '1 hour')"
    )
    connection.execute("INSERT INTO pgmb.events (topic, payload) VALUES ('t', '{\"secret\": 1}')")
    connection.execute("SELECT pgmb.poll_for_events()")
    # As if a crash had lost what was dispatched, and nothing else.
    connection.execute("DELETE FROM pgmb.subscription_events; DELETE FROM pgmb.dispatches")
    return str(value(connection, "SELECT id FROM pgmb.events"))


def test_run_expires_repeats_and_reports(upkeep: DAG, broker: Connection, tmp_path: Path) -> None:
    event_id = neglect(broker)
    run = upkeep.test(run_conf={"max_stall_s": 3_600})
    assert (run.state, set(states(run).values())) == ("success", {"success"})
    assert value(broker, "SELECT count(*) FROM pgmb.subscriptions") == 1
    assert value(broker, "SELECT event_id FROM pgmb.due_events") == event_id
    broker.execute("SELECT pgmb.poll_for_events()")
    assert value(broker, "SELECT id FROM pgmb.read_next_events('g')") == event_id
    report = report_of(tmp_path)
    assert report["expiry"] == {"found": 1, "removed": 1}
    assert report["reenqueued"] == {"remedy": "reenqueue_events", "planned": 1, "done": 1}
    assert report["watch"]["reenqueued"] == 1
    assert {table["table"] for table in report["watch"]["tables"]} >= {"pgmb.events", "pgmb.dispatches"}
    (page,) = (tmp_path / "reports").glob("events-*.html")
    assert "secret" not in page.read_text("utf-8") + json.dumps(report)


def test_dry_run_changes_nothing(upkeep: DAG, broker: Connection, tmp_path: Path) -> None:
    neglect(broker)
    run = upkeep.test(run_conf={"dry_run": True})
    assert run.state == "success"
    assert value(broker, "SELECT count(*) FROM pgmb.subscriptions") == 2
    assert value(broker, "SELECT count(*) FROM pgmb.due_events") == 0
    assert {task for task, state in states(run).items() if state == "skipped"} == {
        "expire_subscriptions",
        "reenqueue_events",
    }
    report = report_of(tmp_path)
    assert report["expiry"] == {"found": 1, "removed": 0}
    assert report["reenqueued"] == {"remedy": "reenqueue_events", "planned": 1, "done": 0}
    assert report["watch"]["findings"][0]["words"].startswith("1 stored event never dispatched")
    (found,) = [each for each in report["watch"]["findings"] if each["kind"] == "never_dispatched"]
    assert (found["check_id"], found["remedy"]) == ("Q31", "event_upkeep")
    assert found["remedy_conf"] == {"dry_run": True, "postgres_conn_id": "queuekeeper_postgres"}
    (page,) = (tmp_path / "reports").glob("events-*.html")
    assert f'<a href="{escape(found["remedy_url"])}">event_upkeep</a>' in page.read_text("utf-8")


def test_its_run_is_on_record_and_waits_while_it_is_paused(
    upkeep: DAG, broker: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    neglect(broker)
    pause = "UPDATE queuekeeper.maintenance_runs SET paused = true"
    plan = PlanJobOperator.make_plan

    def plan_and_pause(self: PlanJobOperator, context: Any) -> Any:
        made = plan(self, context)
        broker.execute(pause)
        return made

    monkeypatch.setattr(PlanJobOperator, "make_plan", plan_and_pause)
    parked: list[str] = []

    def park(self: ApplyPlannedShareOperator) -> None:
        parked.append(self.share)
        MaintenanceRuns(broker).set_paused(self.maintenance_run_id, False)
        self.work({})

    monkeypatch.setattr(ApplyPlannedShareOperator, "park", park)
    assert upkeep.test(run_conf={"max_operations_per_s": 50, "max_stall_s": 3_600}).state == "success"
    assert len(parked) == 1
    (run,) = MaintenanceRuns(broker).newest(limit=5)
    assert (run.kind, run.state.value, run.throttle_operations_per_s) == ("event_upkeep", "done", 50)
    shares = {
        each.shard: (each.removed, each.repaired) for each in MaintenanceRuns(broker).progress(run.maintenance_run_id)
    }
    assert shares == {"expire_subscriptions": (1, 0), "reenqueue_events": (0, 1)}
    applied = (
        "SELECT effect -> 'counts' FROM queuekeeper.audit WHERE action = 'apply' AND effect ->> 'kind' = 'event_upkeep'"
    )
    assert value(broker, applied) == {"expired_subscriptions": 1, "reenqueued_events": 1}


def test_polls_that_have_stopped_turn_the_run_red_after_the_report(
    upkeep: DAG, broker: Connection, tmp_path: Path
) -> None:
    neglect(broker)
    broker.execute("UPDATE pgmb.dispatch_state SET polled_at = now() - interval '10 minutes'")
    run = upkeep.test(run_conf={"max_stall_s": 300})
    assert run.state == "failed"
    assert {task for task, state in states(run).items() if state != "success"} == {"upkept"}
    (finding,) = [each for each in report_of(tmp_path)["watch"]["findings"] if each["urgent"]]
    assert finding["subject"] == "dispatching"
    assert "the last poll was 10 min " in finding["words"]
    assert "queuekeeper events dispatch" in finding["words"]


def test_without_a_broker_it_says_what_to_do(
    upkeep: DAG, broker: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    broker.execute("DROP SCHEMA pgmb CASCADE")
    run = upkeep.test(run_conf={})
    assert run.state == "failed"
    found = states(run)
    assert (found["plan"], found["expire_subscriptions"], found["report"]) == ("failed", "upstream_failed", "skipped")
    assert "run `queuekeeper events install`" in "".join(capfd.readouterr())


def test_ages_and_bloat_are_found(broker: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_watch, "FEWEST_DEAD_ROWS", 10)
    broker.execute("ALTER TABLE pgmb.subscriptions SET (autovacuum_enabled = false)")
    broker.execute("INSERT INTO pgmb.subscription_groups (id) VALUES ('g')")
    broker.execute(
        "INSERT INTO pgmb.subscriptions (group_id, params)"
        " SELECT 'g', jsonb_build_object('n', n) FROM generate_series(1, 50) AS n"
    )
    broker.execute("DELETE FROM pgmb.subscriptions WHERE (params ->> 'n')::int > 5")
    broker.execute("SELECT pg_stat_force_next_flush()")
    found = watch_broker(broker, limits=UpkeepLimits(max_freeze_percent=1))
    assert {each.subject: each.urgent for each in found.findings if "dead" in each.words} == {
        "pgmb.subscriptions": False
    }
    assert all(each.freeze_percent < 1 for each in found.tables)
    monkeypatch.setattr(
        event_watch,
        "read_event_broker",
        lambda _: (
            {"kind": "broker", "stalled_s": None, "is_foreign": 1, "never_dispatched": 0},
            {"kind": "table", "name": "pgmb.events", "freeze_share": 1.51},
        ),
    )
    urgent = watch_broker(broker, limits=UpkeepLimits()).urgent
    assert [each.subject for each in urgent] == ["dispatching", "pgmb.events"]
    assert "resynchronize_dispatch" in urgent[0].words
    assert "151 %" in urgent[1].words


def test_condition_that_fails_is_named_by_its_key_until_it_is_in_quarantine(
    upkeep: DAG, broker: Connection, tmp_path: Path
) -> None:
    broker.execute("INSERT INTO pgmb.subscription_groups (id) VALUES ('g')")
    broker.execute(
        "INSERT INTO pgmb.subscriptions (group_id, conditions_sql)"
        " VALUES ('g', '(e.payload ->> ''secret'')::int > 0'), ('g', 'TRUE')"
    )
    broker.execute("INSERT INTO pgmb.events (topic, payload) VALUES ('t', '{\"secret\": \"no number\"}')")
    broker.execute("UPDATE pgmb.dispatch_state SET polled_at = now()")
    failing = "SELECT condition_key::text FROM pgmb.subscriptions WHERE conditions_sql <> 'TRUE'"
    key = value(broker, failing)
    assert upkeep.test(run_conf={"max_stall_s": 3_600}).state == "success"
    watch = report_of(tmp_path)["watch"]
    assert watch["failing_conditions"] == [key]
    (finding,) = [each for each in watch["findings"] if each["subject"] == f"condition {key}"]
    assert not finding["urgent"]
    assert "still evaluates it for 1 subscription:" in finding["words"]
    (page,) = (tmp_path / "reports").glob("events-*.html")
    assert key in page.read_text("utf-8")
    assert "secret" not in page.read_text("utf-8") + json.dumps(watch)
    broker.execute("SELECT pgmb.poll_for_events()")
    found = watch_broker(broker, limits=UpkeepLimits())
    assert [each.subject for each in found.findings if each.subject.startswith("condition")] == []
    assert found.quarantined_subscriptions == 1


def test_defaults_are_those_of_the_upkeep_itself(upkeep: DAG) -> None:
    params, defaults = upkeep.params.dump(), UpkeepParameters()
    assert UpkeepParameters(**{name: params[name] for name in vars(defaults)}) == defaults


def test_it_is_wired_as_it_is_drawn(upkeep: DAG) -> None:
    assert {task.task_id: set(task.upstream_task_ids) for task in upkeep.tasks} == {
        "plan": set(),
        "expire_subscriptions": {"plan"},
        "reenqueue_events": {"plan"},
        "watch": {"expire_subscriptions", "reenqueue_events"},
        "report": {"plan", "expire_subscriptions", "reenqueue_events", "watch"},
        "upkept": {"expire_subscriptions", "reenqueue_events", "report"},
    }
    assert {task.pool for task in upkeep.tasks} == {Pool.POSTGRES}, "it loads no other store"
    assert {task.execution_timeout for task in upkeep.tasks} == {timedelta(hours=1)}, "the next run comes soon"

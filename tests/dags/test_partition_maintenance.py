"""Maintenance of partitions through Airflow: its form, its wiring, and whole runs by ``dag.test()`` on PostgreSQL."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.models.taskinstance import TaskInstance
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk.bases.xcom import BaseXCom as XCom
from airflow.sdk.exceptions import TaskDeferred
from airflow.utils.session import create_session

from queuekeeper import audit, postgres
from queuekeeper.airflow.operators.partitions import ApplyPartitionsOperator, ArchivePartitionsOperator
from queuekeeper.clock import system_clock
from queuekeeper.extras import name_missing_extras
from queuekeeper.facts import plain
from queuekeeper.jobs.store import MaintenanceRuns, RunState
from queuekeeper.maintenance.partitions import apply
from queuekeeper.maintenance.partitions.model import Purpose, RetiredState
from queuekeeper.maintenance.partitions.plan import plan_for
from queuekeeper.maintenance.partitions.policies import load_policy, save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.query import query
from queuekeeper.maintenance.partitions.retired import retired_partitions
from queuekeeper.maintenance.partitions.runs import kind_name
from tests.extras import hide

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from queuekeeper.postgres import Connection

pytestmark = [pytest.mark.dags, pytest.mark.usefixtures("airflow_database")]

QUESTION = kind_name(Purpose.DROP)
ANSWER = {"chosen_options": ["Approve"], "responded_by_user": {"id": "1", "name": "ada"}}
ENDS = ("retirement.register", "retirement.override", "retirement.drop")
REJECTION = {"chosen_options": ["Reject"], "responded_by_user": None}


class World:
    """Tables by day, with five days of the past, one of which is today."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.runs = MaintenanceRuns(connection)

    def table(self, name: str, **policy: Any) -> None:
        """Make a table and its policy."""
        self.connection.execute(f"CREATE TABLE {name} (at timestamptz NOT NULL, payload text) PARTITION BY RANGE (at)")
        query = "SELECT date_trunc('day', now()), extract(EPOCH FROM now() - date_trunc('day', now()))::int / 60"
        row = self.connection.execute(query).fetchone()
        assert row is not None
        for days in range(5):
            bounds = [(row[0] - timedelta(days=each)).isoformat() for each in (days, days - 1)]
            self.connection.execute(
                f"CREATE TABLE {name}_{days} PARTITION OF {name} FOR VALUES FROM ('{bounds[0]}') TO ('{bounds[1]}')"
            )
        self.connection.execute(
            f"INSERT INTO {name} SELECT date_trunc('day', now()) - n * interval '24 minutes', 'row ' || n"
            " FROM generate_series(1, 200) AS n"
        )
        # Spans reach to the middle of a day, so that nothing changes when a day ends while a test runs.
        given: dict[str, Any] = {
            "step": "1 day",
            "ahead": f"{84 * 60 - row[1]} minutes",
            "retention": f"{36 * 60 + row[1]} minutes",
            "quarantine_days": 0,
        }
        save_policy(self.connection, PartitionPolicy(table=f"public.{name}", **given | policy))

    def grow_old(self, name: str) -> None:
        """Let one more partition of a table be beyond its retention."""
        policy = load_policy(self.connection, f"public.{name}")
        assert policy.retention is not None
        minutes = int(policy.retention.removesuffix(" minutes")) - 24 * 60
        save_policy(self.connection, replace(policy, retention=f"{minutes} minutes"))

    def partitions(self, name: str) -> set[str]:
        """Return the names of a table's partitions."""
        query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass"
        return {name for (name,) in self.connection.execute(query, (name,))}

    def rows(self, name: str) -> int:
        """Return how many rows a table has."""
        row = self.connection.execute(f"SELECT count(*) FROM {name}").fetchone()
        assert row is not None
        return int(row[0])

    def states(self) -> list[tuple[str, RetiredState]]:
        """Return where the retired partitions stand."""
        return [(each.partition_name, each.state) for each in retired_partitions(self.connection)]


@pytest.fixture
def maintenance(dag_bag: DagBag) -> DAG:
    """The DAG, as a copy of the test's own."""
    return copy.deepcopy(dag_bag.dags["partition_maintenance"])


def run_it(**conf: Any) -> Any:
    """Run the DAG, read anew: a run leaves its values behind in the tasks, and copies share them.

    What fails is not tried again, which would take minutes.
    """
    dag = DagBag(str(Path(__file__).resolve().parents[2] / "dags" / "partition_maintenance.py")).dags[
        "partition_maintenance"
    ]
    for task in dag.tasks:
        task.retries = 0
        task.retry_policy = None
    return dag.test(run_conf=conf)


@pytest.fixture
def world(
    postgres_url: str,
    control_schema: None,
    connections: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[World]:
    """A database without any table, and Airflow's connection to it."""
    monkeypatch.setenv("QUEUEKEEPER_HOME", str(tmp_path))
    connections(queuekeeper_postgres=postgres_url, queuekeeper_spark="spark://local%5B2%5D?deploy-mode=client")
    with postgres.connect(postgres_url, autocommit=True) as connection:
        yield World(connection)


def leave(run: Any, task_id: str, state: str) -> None:
    """Leave the tasks of a run in a state, as if they were not done yet."""
    with create_session() as session:
        session.query(TaskInstance).filter_by(dag_id=run.dag_id, run_id=run.run_id, task_id=task_id).update(
            {"state": state}
        )


def states(run: Any) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for task in run.get_task_instances():
        found.setdefault(task.task_id, {})[task.map_index] = task.state
    return found


def only(run: Any, task_id: str) -> set[str]:
    return set(states(run)[task_id].values())


def done(run: Any) -> set[str]:
    """Return the tasks of retirement that have done something."""
    found = {task: set(each.values()) for task, each in states(run).items()}
    return {task.removeprefix("retirement.") for task in found if "retirement." in task and found[task] == {"success"}}


def report_of(home: Path) -> dict[str, Any]:
    (path,) = (home / "reports").glob("partitions-*.json")
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def test_dry_run_ends_with_the_plans(world: World, tmp_path: Path) -> None:
    world.table("visits", register_archives=True)
    before = world.partitions("visits")
    run = run_it(dry_run=True)
    assert run.state == "success"
    assert {task for task, found in states(run).items() if set(found.values()) == {"success"}} == {
        "list_tables",
        "creation.plan_creation",
        "retirement.plan_retirement",
        "retirement.plan_drop",
        "report",
        "maintained",
    }
    assert world.partitions("visits") == before
    assert world.states() == []
    report = report_of(tmp_path)
    (table,) = report["tables"]
    assert (report["dry_run"], report["verdict"]) == (True, "in_danger")
    assert len(table["plans"]["creation"]["steps"]) == 3
    assert len(table["plans"]["retirement"]["steps"]) == 2
    assert table["applied"] == {}
    (short,) = [each for each in table["coverage"]["findings"] if each["kind"] == "short"]
    assert (short["remedy"], short["remedy_conf"]["tables"]) == ("partition_maintenance", ["public.visits"])
    (page,) = (tmp_path / "reports").glob("partitions-*.html")
    assert f'<a href="{escape(short["remedy_url"])}">Open partition_maintenance' in page.read_text("utf-8")
    told = next(task for task in run.get_task_instances() if task.task_id == "report").xcom_pull(task_ids="report")
    assert {"table": "public.visits", **short} in told["findings"]
    # What the task returns is the report in few lines, and where it is.
    del report["tables"]
    assert told == report | {name: told[name] for name in ("html", "json", "sha256")}


@pytest.mark.spark
def test_partitions_are_archived_registered_where_the_policy_asks_and_dropped_once_a_person_agrees(
    world: World, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A catalog that is away fails the task that registers, and no other one."""
    world.table("visits", register_archives=True)
    archives, counted = tmp_path / "archives", "SELECT count(*) FROM visits"
    asked: list[str] = []
    pages: set[Path] = set()

    def answer(operator: HITLOperator, context: Any) -> Mapping[str, Any]:
        asked.append(operator.subject)
        assert "DROP TABLE" in (operator.body or "")
        return ANSWER

    def run_without_catalog() -> Any:
        with monkeypatch.context() as away:
            away.setenv("PYICEBERG_CATALOG__QUEUEKEEPER__URI", "http://127.0.0.1:1")
            run = run_it()
        assert run.state == "failed"
        assert [task for task, found in states(run).items() if "failed" in found.values()] == ["retirement.register"]
        words = "the Iceberg catalog queuekeeper, or a file that it names, cannot be reached"
        assert words in "".join(capfd.readouterr())
        return run

    def told() -> tuple[int, int]:
        found = query(postgres_url=postgres_url, table="public.visits", text=counted, directory=archives)
        return found.rows[0][0], found.cold_rows

    def page() -> str:
        (added,) = set((tmp_path / "reports").glob("partitions-*.html")) - pages
        pages.add(added)
        return added.read_text("utf-8")

    monkeypatch.setattr(HITLOperator, "execute", answer)
    first = run_without_catalog()
    assert done(first) == {"plan_retirement", "retire", "plan_archive", "archive", "plan_drop"}
    # Nothing is dropped yet, and no consumer is passed: nobody is asked.
    assert asked == []
    assert len(world.partitions("visits")) == 6
    assert world.rows("visits") == 120
    retired = retired_partitions(world.connection)
    assert [each.state for each in retired] == [RetiredState.QUARANTINED] * 2
    assert [each.archive["content"]["rows"] for each in retired if each.archive] == [20, 60]
    assert told() == (200, 0)
    assert "archives were not registered in the Iceberg catalog" in page()

    second = run_it()
    assert second.state == "success"
    # Nothing is left to archive, so no slot of Spark is waited for.
    dropped = {"plan_drop", "approve_drop", "verify", "drop"}
    assert done(second) == {"plan_retirement", "retire", "register"} | dropped
    assert asked == ["public.visits: drop 2 partitions for good (32.0 KiB)?"]
    assert [state for _, state in world.states()] == [RetiredState.DROPPED] * 2
    run_id = world.runs.latest_id(QUESTION)
    assert run_id is not None
    stored = world.runs.load(run_id)
    assert (stored.state, stored.approved_by) == (RunState.DONE, "ada")
    assert "row 1" not in json.dumps(stored.plan)
    assert told() == (200, 80)
    text = page()
    assert "In order" in text
    assert "Iceberg catalog" in text
    assert re.search(r'public\.visits</th><td class="text"><code>[^<]+</code></td><td>80</td><td>2</td>', text)

    # One more is archived; then the catalog is away while it is dropped.
    world.grow_old("visits")
    assert run_it().state == "success"
    assert told() == (200, 140)
    away = run_without_catalog()
    assert dropped <= done(away)
    assert [state for _, state in world.states()] == [RetiredState.DROPPED] * 3
    assert told() == (200, 140)


def test_archives_are_not_registered_unasked_beside_another_run_or_without_the_extra(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    world.table("visits", quarantine_days=7)
    monkeypatch.setattr(ArchivePartitionsOperator, "execute", lambda *_, **__: {"archives": []})
    unasked = run_it()
    assert (unasked.state, only(unasked, "retirement.register")) == ("success", {"skipped"})
    assert "its policy does not ask for archives to be registered" in "".join(capfd.readouterr())

    save_policy(world.connection, replace(load_policy(world.connection, "public.visits"), register_archives=True))
    leave(unasked, "retirement.register", "up_for_retry")
    assert only(run_it(), "retirement.register") == {"skipped"}
    assert "another run registers: public.visits is left to a later run" in "".join(capfd.readouterr())

    leave(unasked, "retirement.register", "skipped")
    with monkeypatch.context() as without:
        for name in [each for each in sys.modules if "iceberg" in each]:
            without.delitem(sys.modules, name)
        without.setattr(sys, "meta_path", [*sys.meta_path])
        hide({"pyiceberg"})
        name_missing_extras()
        assert only(run_it(), "retirement.register") == {"failed"}
    assert "pip install 'queuekeeper[iceberg]'" in "".join(capfd.readouterr())
    assert world.connection.execute("SELECT to_regnamespace('queuekeeper_iceberg')").fetchone() == (None,)


# By day: that the last task comes after the archive, as it is drawn.
@pytest.mark.nightly
def test_archive_that_fails_turns_the_run_red_although_later_tasks_are_skipped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.table("visits")
    monkeypatch.delenv("AIRFLOW_CONN_QUEUEKEEPER_SPARK")
    run = run_it()
    assert (only(run, "retirement.archive"), only(run, "retirement.register")) == ({"failed"}, {"skipped"})
    assert (run.state, only(run, "maintained")) == ("failed", {"upstream_failed"})


# By day: tests/integration/test_cli_partitions.py.
@pytest.mark.nightly
def test_table_that_fails_stops_no_other(world: World, tmp_path: Path) -> None:
    world.table("broken")
    world.table("visits", archive=False, quarantine_days=7)
    world.connection.execute("DROP TABLE broken")
    run = run_it()
    assert run.state == "failed"
    found = states(run)
    assert found["creation.create"] == {0: "upstream_failed", 1: "success"}
    assert found["retirement.retire"] == {0: "upstream_failed", 1: "success"}
    assert found["report"] == {-1: "success"}
    assert found["maintained"] == {-1: "upstream_failed"}
    assert len(world.partitions("visits")) == 6
    broken, visits = report_of(tmp_path)["tables"]
    assert "there is no table public.broken" in broken["problem"]
    assert visits["coverage"]["head_room_met"]


def test_rejection_drops_nothing_and_stops_neither_creation_nor_retirement(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.table("visits", archive=False)
    monkeypatch.setattr(HITLOperator, "execute", lambda *_: REJECTION)
    assert run_it().state == "failed"
    world.connection.execute("DROP TABLE visits_0")
    world.grow_old("visits")
    run = run_it()
    assert run.state == "failed"
    assert only(run, "creation.create") == {"success"}
    assert only(run, "retirement.retire") == {"success"}
    assert only(run, "retirement.verify") == {"failed"}
    assert only(run, "retirement.drop") == {"upstream_failed"}
    assert [state for _, state in world.states()] == [RetiredState.QUARANTINED] * 3
    assert "visits_0" not in world.partitions("visits")
    run_id = world.runs.latest_id(QUESTION)
    assert run_id is not None
    assert world.runs.load(run_id).state is RunState.REJECTED


# By day the same lock keeps runs from archiving, in the next test.
@pytest.mark.nightly
def test_only_one_run_waits_for_an_answer_and_the_next_ones_retire_without_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.table("visits", archive=False)
    world.table("others", archive=False, quarantine_days=7)
    asked: list[str] = []

    def reject(operator: HITLOperator, context: Any) -> Mapping[str, Any]:
        asked.append(operator.subject)
        return REJECTION

    monkeypatch.setattr(HITLOperator, "execute", reject)
    first = run_it()
    assert (first.state, len(asked)) == ("failed", 1)
    # As if that person had not answered yet.
    leave(first, "retirement.approve_drop", "awaiting_input")
    world.grow_old("visits")
    world.grow_old("others")
    run = run_it()
    assert run.state == "success"
    assert len(asked) == 1
    assert only(run, "creation.create") == only(run, "retirement.retire") == {"success"}
    assert only(run, "retirement.approve_drop") == {"skipped"}
    assert len(world.states()) == 6
    leave(first, "retirement.approve_drop", "failed")
    assert (run_it().state, len(asked)) == ("failed", 2)


def test_only_one_run_archives_and_the_next_ones_do_not_wait_for_spark(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.table("visits")
    archived: list[list[int]] = []

    def archive(operator: ArchivePartitionsOperator, context: Any) -> Mapping[str, Any]:
        archived.append(operator.retired["to_archive"])
        return {"archives": []}

    monkeypatch.setattr(ArchivePartitionsOperator, "execute", archive)
    first = run_it()
    assert (first.state, len(archived)) == ("success", 1)
    leave(first, "retirement.archive", "queued")
    run = run_it()
    assert (run.state, len(archived)) == ("success", 1)
    assert only(run, "retirement.plan_archive") == only(run, "retirement.archive") == {"skipped"}
    assert only(run, "creation.create") == only(run, "retirement.retire") == {"success"}


def test_answer_to_one_plan_is_no_answer_to_another(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    world.table("visits", archive=False)

    def answer(operator: HITLOperator, context: Any) -> Mapping[str, Any]:
        # Meanwhile somebody clears the task that plans, alone: it finds one more partition.
        ti = context["ti"]
        plan = ti.xcom_pull(task_ids="retirement.plan_drop", map_indexes=ti.map_index)
        XCom.set(
            "return_value",
            {**plan, "question": "0123456789abcdef"},
            dag_id=ti.dag_id,
            task_id="retirement.plan_drop",
            run_id=ti.run_id,
            map_index=ti.map_index,
        )
        return ANSWER

    monkeypatch.setattr(HITLOperator, "execute", answer)
    run = run_it()
    assert run.state == "failed"
    assert only(run, "retirement.verify") == {"failed"}
    assert "was planned anew as 0123456789abcdef since a person was asked" in "".join(capfd.readouterr())
    assert [state for _, state in world.states()] == [RetiredState.QUARANTINED] * 2
    run_id = world.runs.latest_id(QUESTION)
    assert run_id is not None
    assert world.runs.load(run_id).approved_by is None


# By day: test_it_is_wired_as_it_is_drawn has the question, tests/sql/test_partitions.py what an answer lets pass.
@pytest.mark.nightly
def test_consumers_are_passed_only_when_a_person_agrees(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.table(
        "visits",
        archive=False,
        quarantine_days=7,
        lowest_needed_sql="SELECT date_trunc('day', now()) - interval '3 days'",
    )
    asked: list[str] = []

    def answer(operator: HITLOperator, context: Any) -> Mapping[str, Any]:
        asked.append(operator.subject)
        return ANSWER

    monkeypatch.setattr(HITLOperator, "execute", answer)
    assert run_it().state == "success"
    assert len(world.states()) == 1
    assert asked == []
    assert run_it(override_consumers=True).state == "success"
    assert asked == ["public.visits: retire 1 partition that consumers have not read?"]
    assert len(world.states()) == 2


def test_no_policy_is_no_failure(world: World) -> None:
    run = run_it()
    assert run.state == "success"
    assert only(run, "list_tables") == {"skipped"}


def test_drop_waits_for_an_archive_that_is_what_it_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.table("visits")
    monkeypatch.setattr(HITLOperator, "execute", lambda *_: ANSWER)
    monkeypatch.setattr(ArchivePartitionsOperator, "execute", lambda *_, **__: {"archives": []})
    assert run_it().state == "success"
    world.connection.execute(
        'UPDATE queuekeeper.retired_partitions SET archived_at = now(), archive = \'{"path": "/nowhere"}\''
    )
    run = run_it()
    assert run.state == "failed"
    assert only(run, "retirement.verify") == {"failed"}
    assert only(run, "retirement.drop") == {"upstream_failed"}
    assert [state for _, state in world.states()] == [RetiredState.QUARANTINED] * 2


def test_paused_run_holds_no_worker_and_goes_on_behind_what_is_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.table("visits")
    policy = load_policy(world.connection, "public.visits")
    plan = plan_for(world.connection, policy=policy, purpose=Purpose.CREATION, now_ms=system_clock())
    left: dict[str, Any] = {}
    context: Any = {
        "dag_run": SimpleNamespace(run_id="by hand"),
        "ti": SimpleNamespace(xcom_push=lambda key, value: left.update({key: value})),
    }
    do = apply._Work.do

    def paused_after_it(work: Any, step: Any) -> Any:
        found = do(work, step)
        run_id = world.runs.latest_id("partition_creation")
        assert run_id is not None
        world.runs.set_paused(run_id, True)
        return found

    task = ApplyPartitionsOperator(task_id="create", planned=plain(plan), plan_only="False")
    with monkeypatch.context() as patched:
        patched.setattr(apply._Work, "do", paused_after_it)
        with pytest.raises(TaskDeferred):
            task.execute(context)
    assert len(world.partitions("visits")) == 6
    run_id = world.runs.latest_id("partition_creation")
    assert run_id is not None
    with pytest.raises(TaskDeferred):
        task.look_again(context)
    assert len(world.partitions("visits")) == 6

    world.runs.set_paused(run_id, False)
    done = task.look_again(context)
    assert (done["table"], len(done["outcomes"]), done["done"]) == ("public.visits", 3, True)
    assert len(world.partitions("visits")) == 8
    assert world.runs.load(run_id).state is RunState.DONE
    (told,) = world.runs.progress(run_id)
    assert (told.shard, told.scanned, told.repaired, told.done) == ("public.visits", 3, 3, True)
    changed = [
        json.loads(each.effect)["partitions"]
        for each in audit.latest(world.connection, wanted=audit.AuditFilter(subject=run_id))
        if each.action == audit.Action.APPLY
    ]
    assert [len(each) for each in changed] == [2, 1]


def test_it_is_wired_as_it_is_drawn(maintenance: DAG) -> None:
    assert {task.task_id: set(task.upstream_task_ids) for task in maintenance.tasks} == {
        "list_tables": set(),
        "creation.plan_creation": {"list_tables"},
        "creation.create": {"creation.plan_creation"},
        "retirement.plan_retirement": {"list_tables", "creation.create"},
        "retirement.retire": {"retirement.plan_retirement"},
        "retirement.plan_archive": {"list_tables", "retirement.retire"},
        "retirement.archive": {"retirement.plan_archive"},
        "retirement.register": {"list_tables", "retirement.archive"},
        "retirement.plan_override": {"list_tables", "retirement.retire"},
        "retirement.approve_override": {"retirement.plan_override"},
        "retirement.override": {"retirement.plan_override", "retirement.approve_override"},
        "retirement.plan_drop": {"list_tables", "retirement.retire"},
        "retirement.approve_drop": {"retirement.plan_drop"},
        "retirement.verify": {"retirement.plan_drop", "retirement.approve_drop"},
        "retirement.drop": {"retirement.plan_drop", "retirement.approve_drop", "retirement.verify"},
        "report": {"list_tables", *ENDS},
        "maintained": {"report", "creation.create", "retirement.retire", "retirement.archive", *ENDS},
    }

"""What ``queuekeeper metrics`` prints: figures of real servers and records, for Prometheus and for the dashboard."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner, Result

from queuekeeper.cli import app
from queuekeeper.embedded import PostgresServer
from queuekeeper.events.schema import install
from queuekeeper.jobs.checks import Severity
from queuekeeper.jobs.findings import Finding, Status
from queuekeeper.maintenance.partitions.broker import TABLES
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.metrics import METRICS, NAMESPACE
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.postgres import connect
from queuekeeper.quality.judge.store import QualityStore, Verdict
from queuekeeper.schema_migrations import migrate
from tests import report_samples as samples
from tests.quality_rows import NOW, save_profile

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_home")]

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "queuekeeper.json"


def metrics(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["metrics", *arguments])


def figures(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Return name -> values of the labels, in the order of the labels' names -> figure."""
    return {
        family.name: {
            tuple(value for _, value in sorted(sample.labels.items())): sample.value for sample in family.samples
        }
        for family in text_string_to_metric_families(text)
    }


def test_figures_of_a_migration_and_of_both_servers_are_those_on_record(postgres_url: str, valkey_url: str) -> None:
    evidence = samples.balanced(count=4)
    with connect(postgres_url, autocommit=True) as connection:
        migrate(connection)
        ledger = MigrationLedger(connection)
        ledger.save_plan(evidence.plan, run_id="test")
        ledger.replace_ledger(samples.PLAN_ID, evidence.rows, samples.NOW_MS)
        ledger.set_throttle(samples.PLAN_ID, 5_000)

    result = metrics("--postgres-url", postgres_url, "--redis-url", valkey_url)
    assert result.exit_code == 0, result.stderr
    found = figures(result.stdout)
    cohorts = evidence.plan.cohorts
    assert found["queuekeeper_up"] == {("postgres",): 1, ("redis",): 1}
    assert found["queuekeeper_migration_messages"] == {
        (fate, samples.PLAN_ID): sum(getattr(cohort, fate) for cohort in cohorts)
        for fate in ("to_copy", "expired", "trimmed", "quarantined")
    }
    assert found["queuekeeper_migration_unaccounted_rows"] == {(samples.PLAN_ID,): 0}
    assert found["queuekeeper_migration_cohorts"] == {(samples.PLAN_ID, "planned"): len(cohorts)}
    assert found["queuekeeper_migration_throttle_messages_per_second"] == {(samples.PLAN_ID,): 5_000}
    (address,) = found["queuekeeper_redis_used_memory_bytes"]
    assert valkey_url.endswith(f"@{address[0]}/0")
    assert found["queuekeeper_redis_append_only_file"][address] == 1
    # A broker that is not installed has no figures, and that is no fault.
    assert not [name for name in found if name.startswith("queuekeeper_events")]


def test_event_broker_that_is_installed_has_figures(postgres_url: str, valkey_url: str) -> None:
    with connect(postgres_url, autocommit=True) as connection:
        migrate(connection)
        install(connection)
    found = figures(metrics("--postgres-url", postgres_url, "--redis-url", valkey_url).stdout)
    assert found["queuekeeper_events_undispatched"] == {(): 0}
    assert found["queuekeeper_events_head_room_seconds"][()] > 3_600
    assert found["queuekeeper_events_dead_letters"] == {(): 0}


def test_tables_that_hold_queues_have_figures(postgres_url: str, valkey_url: str) -> None:
    with connect(postgres_url, autocommit=True) as connection, connect(postgres_url, autocommit=True) as other:
        migrate(connection)
        install(connection)
        connection.execute("CREATE TABLE readings (at timestamptz NOT NULL) PARTITION BY RANGE (at)")
        connection.execute("CREATE TABLE now PARTITION OF readings FOR VALUES FROM ('2000-01-01') TO ('2100-01-01')")
        save_policy(connection, PartitionPolicy(table="public.readings", step="1 day", ahead="1 day"))
        save_policy(connection, PartitionPolicy(table="public.gone", step="1 day", ahead="1 day"))
        connection.execute(
            "CREATE TABLE device_publish_msg (id int GENERATED ALWAYS AS IDENTITY (MAXVALUE 200)) "
            "WITH (autovacuum_enabled = off, autovacuum_vacuum_threshold = 50)"
        )
        for _ in range(100):
            connection.execute("INSERT INTO device_publish_msg DEFAULT VALUES")
        connection.execute("DELETE FROM device_publish_msg WHERE id > 25")
        connection.execute("SELECT pg_stat_force_next_flush()")
        other.execute("BEGIN")
        other.execute("SELECT pg_current_xact_id()")
        connection.execute("SELECT pg_current_xact_id()")
        result = metrics("--postgres-url", postgres_url, "--redis-url", valkey_url)
    assert result.exit_code == 0, result.stderr
    found = figures(result.stdout)
    table = ("public.device_publish_msg",)
    assert found["queuekeeper_queue_table_live_rows"][table] == 25
    assert found["queuekeeper_queue_table_dead_rows"][table] == 75
    assert found["queuekeeper_queue_table_vacuum_ratio"][table] == 1.5
    assert 0 < found["queuekeeper_queue_table_frozen_ratio"][table] < 1
    assert found["queuekeeper_queue_sequence_used_ratio"][("public.device_publish_msg_id_seq",)] == 0.5
    assert found["queuekeeper_postgres_snapshot_age_transactions"] == {("idle in transaction",): 2}
    assert found["queuekeeper_postgres_snapshot_held_seconds"][("idle in transaction",)] > 0
    head_rooms = found["queuekeeper_queue_table_head_room_seconds"]
    assert set(head_rooms) == {("public.readings",), *((name,) for name in TABLES)}
    assert head_rooms[("public.readings",)] > 50 * 365 * 86_400
    assert head_rooms[("pgmb.events",)] == pytest.approx(found["queuekeeper_events_head_room_seconds"][()], abs=60)


def test_figures_of_queues_are_those_of_readings_of_all_queues(postgres_url: str, valkey_url: str) -> None:
    minute = timedelta(minutes=1)
    with connect(postgres_url, autocommit=True) as connection:
        migrate(connection)
        store = QualityStore(connection)
        for number, mode in enumerate(("full", "fast")):
            began = NOW + number * minute
            store.begin(
                quality_run_id=mode, mode=mode, suites=["compacted", "fanout", "events"], profile_ids=[], numbers={},
                started_at=began,
            )  # fmt: skip
            results = [
                Finding(
                    suite=suite, check_id="late", description="late", severity=Severity.WARNING, status=Status.FAILED,
                    unexpected_count=64 if mode == "full" else 1,
                )
                for suite in ("fanout", "events")
            ]  # fmt: skip
            store.finish(quality_run_id=mode, verdict=Verdict.PASSED, results=results, numbers={})
            connection.execute(
                "INSERT INTO queuekeeper.fanout_profiles SELECT %(mode)s, 'queue ' || n, '', 'hash', 5, 0, 0, 0, 0, 0, "
                "0, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM generate_series(1, %(queues)s) AS n",
                {"mode": mode, "queues": 64 if mode == "full" else 1},
            )
            connection.execute(
                "INSERT INTO queuekeeper.compacted_profiles SELECT %(mode)s, 'client ' || n, 'hash', 1, 1, 7, 0, 0, 0, "
                "7, 0, 7, 0, 0, 0, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0 FROM generate_series(1, %(queues)s) AS n",
                {"mode": mode, "queues": 64 if mode == "full" else 1},
            )
    save_profile(postgres_url, profile_id="all")
    save_profile(postgres_url, profile_id="sample", sample_percent=10, finished_at=NOW + minute)
    save_profile(postgres_url, profile_id="chosen", cohorts=[0, 1], finished_at=NOW + 2 * minute)

    found = figures(metrics("--postgres-url", postgres_url, "--redis-url", valkey_url).stdout)
    assert found["queuekeeper_fanout_stored_messages"] == {(): 320}
    assert found["queuekeeper_compacted_lag_messages"] == {(): 448}
    # Suites that read PostgreSQL alone have read all of it in a fast run, too.
    counted = {suite: queues for (_, _, _, suite), queues in found["queuekeeper_quality_unexpected_queues"].items()}
    assert counted == {"fanout": 64, "events": 1}
    judged = found["queuekeeper_quality_finished_seconds"]
    assert set(judged) == {("fanout",), ("events",), ("compacted",)}
    assert list(found["queuekeeper_session_profile_finished_seconds"].values()) == [NOW.timestamp()]


def test_server_that_is_down_is_a_figure_and_the_other_is_asked(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    result = metrics("--postgres-url", postgres_url, "--redis-url", "redis://:hidden@127.0.0.1:1")
    found = figures(result.stdout)
    assert result.exit_code == 1
    assert found["queuekeeper_up"] == {("postgres",): 1, ("redis",): 0}
    assert found["queuekeeper_schema_version"] == {(): 0}
    assert "nothing listens there" in result.stderr
    assert "hidden" not in result.output


def test_file_is_whole_or_as_it_was(postgres_url: str, valkey_url: str, tmp_path: Path) -> None:
    place = tmp_path / "queuekeeper.prom"
    servers = ("--postgres-url", postgres_url, "--redis-url", valkey_url)
    assert metrics(*servers, "--output", str(place)).exit_code == 0
    assert "queuekeeper_up" in figures(place.read_text("utf-8"))
    assert [each.name for each in tmp_path.iterdir()] == [place.name]
    refused = metrics(*servers, "--output", str(tmp_path / "missing" / "x.prom"))
    assert refused.exit_code == 2
    assert "name one that is there" in refused.stderr


def test_dashboard_shows_figures_that_exist_with_their_labels() -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    shown: set[str] = set()
    for panel in panels:
        for target in panel["targets"]:
            names = re.findall(rf"{NAMESPACE}_(\w+)", target["expr"])
            assert names, panel["title"]
            labels = {label for name in names for label in METRICS[name].labels}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, panel["title"]
            shown.update(names)
    assert shown >= {"up", "redis_used_memory_bytes", "migration_unaccounted_rows", "quality_unexpected_queues"}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])

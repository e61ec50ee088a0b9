"""Forms refuse what no run could honour, and names that they do not have."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from itertools import groupby
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.exceptions import ParamValidationError as ServerRefusal
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from queuekeeper.airflow.forms import reject_unknown
from queuekeeper.errors import UsageError
from queuekeeper.migration.ledger.parameters import MigrationParameters

pytestmark = pytest.mark.dags

BAD: dict[str, list[tuple[str, Any]]] = {
    "session_migration": [
        ("mode", "hot"),
        ("bad_rows", "drop"),
        ("dry_run", "yes"),
        ("cohorts", ""),
        ("cohorts", "1;2"),
        ("cohorts", "0-"),
        ("cohorts", "all,1"),
        ("cohorts", "--master"),
        ("cohort_count", 0),
        ("cohort_count", 16_385),
        ("cohort_count", 1.5),
        ("copy_groups", 0),
        ("limit", 0),
        ("limit", 65_536),
        ("limit", "10"),
        ("default_ttl_s", 0),
        ("default_ttl_s", -1),
        ("default_ttl_s", 4_294_967_296),
        ("quarantine_cap_percent", -0.1),
        ("quarantine_cap_percent", 100.1),
        ("throttle_messages_per_s", 0),
        ("throttle_messages_per_s", 1.5),
        ("key_prefix", "{a}"),
        ("canary_steps_percent", "10,5,100"),
        ("approval_timeout_minutes", 0),
        ("postgres_conn_id", ""),
        ("postgres_conn_id", "a b"),
        ("postgres_conn_id", "a\n"),
        ("redis_conn_id", "{{ conn.x.password }}"),
        ("spark_conn_id", "a|b"),
    ],
    "expired_reference_cleanup": [
        ("dry_run", "yes"),
        ("default_ttl_s", 0),
        ("limit", 65_536),
        ("grace_s", 0),
        ("idle_days", 0),
        ("max_operations_per_s", 0),
        ("max_run_minutes", 1.5),
        ("shares", 65),
        ("undo_retention_days", 0),
        ("key_prefix", "{a}"),
        ("approval_timeout_minutes", 0),
        ("redis_conn_id", "a b"),
    ],
    "compacted_queue_gc": [
        ("policy", "all"),
        ("retention_s", -1),
        ("tombstone_s", 1.5),
        ("override", "yes"),
        ("max_operations_per_s", 0),
        ("max_run_minutes", 0),
        ("max_jitter_s", 3_601),
        ("shares", 65),
        ("undo_retention_days", 0),
        ("key_prefix", "{a}"),
        ("redis_conn_id", "a b"),
    ],
    "fanout_repair": [
        ("queues", "orders"),
        ("queues", [""]),
        ("queues", ["or\x07ders"]),
        ("unregister", "yes"),
        ("idle_expiry_s", 0),
        ("max_stalls", -1),
        ("max_operations_per_s", 0),
        ("max_run_minutes", 0),
        ("shares", 65),
        ("key_prefix", "{a}"),
        ("redis_conn_id", "a b"),
    ],
    "event_upkeep": [
        ("dry_run", "yes"),
        ("max_stall_s", 0),
        ("max_operations_per_s", 0),
        ("max_freeze_percent", 0),
        ("max_bloat_percent", 101),
        ("postgres_conn_id", "a b"),
    ],
    "partition_adoption": [
        ("table", "visits"),
        ("act", "swap"),
        ("disk_mib", 0),
        ("batch_rows", 0),
        ("exchange_ms", 1_001),
        ("postgres_conn_id", "a b"),
    ],
    "partition_maintenance": [
        ("tables", "visits"),
        ("dry_run", "yes"),
        ("override_consumers", 1),
        ("archive_directory", "relative"),
        ("keep_snapshots_days", -1),
        ("approval_timeout_minutes", 0),
        ("postgres_conn_id", "a b"),
        ("spark_conn_id", ""),
    ],
}

GOOD: list[tuple[str, Any]] = [
    ("cohorts", "0-3, 7,12-15"),
    ("limit", 1),
    ("limit", 65_535),
    ("default_ttl_s", 1),
    ("quarantine_cap_percent", 0),
    ("quarantine_cap_percent", 0.5),
    ("throttle_messages_per_s", None),
    ("throttle_messages_per_s", 1),
    ("key_prefix", None),
    ("key_prefix", ""),
    ("canary_steps_percent", "5,100"),
    ("key_prefix", "tbmq:"),
    ("dry_run", True),
    ("bad_rows", "leave"),
]


@pytest.mark.parametrize(
    ("dag_id", "name", "value"), [(dag_id, name, value) for dag_id, values in BAD.items() for name, value in values]
)
def test_bad_values_are_refused_by_the_form(dag_bag: DagBag, dag_id: str, name: str, value: Any) -> None:
    with pytest.raises(ParamValidationError, match=f"Invalid input for param {name}"):
        copy.deepcopy(dag_bag.dags[dag_id].params)[name] = value


@pytest.mark.parametrize(
    ("dag_id", "name", "value", "words"),
    [
        ("session_migration", "canary_steps_percent", "10,5,100", "is '10,5,100': it must be rising percentages that "),
        ("fanout_repair", "queues", ["orders", "a\x07"], r"is 'a\\x07': each must be the name of a queue: 1 to 255 "),
        ("fanout_repair", "queues", ["orders", 5], "is 5: each must be the name of a queue: 1 to 255 "),
        ("session_migration", "cohort_count", 0, "is 0: it must be an integer from 1 to 16,384\n"),
        ("session_migration", "limit", 1e3, "is 1000.0: it must be an integer from 1 to 65,535\n"),
        ("session_migration", "quarantine_cap_percent", 150.0, "is 150: it must be a number from 0 to 100\n"),
        ("session_migration", "mode", "hot", "is 'hot': it must be offline or online\n"),
        ("session_migration", "dry_run", "yes", "is 'yes': it must be true or false\n"),
        (
            "queue_quality",
            "key_prefix",
            "\ud800",
            r"is '\\ud800': it must be text in UTF-8, without a zero character",
        ),
    ],
)
def test_server_refuses_in_our_words(dag_bag: DagBag, dag_id: str, name: str, value: Any, words: str) -> None:
    kept = json.loads(json.dumps(DagSerialization.serialize_dag(dag_bag.dags[dag_id])))
    params = DagSerialization.deserialize_dag(kept).params

    with pytest.raises(ServerRefusal, match=f"^Invalid input for param {name}: {name} {words}"):
        params.deep_merge({name: value}).validate()


@pytest.mark.filterwarnings("ignore:The metaschema specified by:DeprecationWarning")
def test_server_without_our_plugin_refuses_the_same_bounds(
    session_migration: DAG, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = session_migration.params
    # Such a server does not know the dialect: the plan refuses what only a check refuses.
    monkeypatch.setitem(params.get_param("cohort_count").schema, "$schema", "urn:unknown")
    monkeypatch.setitem(params.get_param("canary_steps_percent").schema, "$schema", "urn:unknown")

    params["canary_steps_percent"] = "10,5,100"
    with pytest.raises(ParamValidationError, match=r"(?s)0 is less than the minimum of 1.*cohort_count: it must be"):
        params["cohort_count"] = 0


TRIGGERED = """
import json, sys
from airflow.serialization.serialized_objects import DagSerialization

assert not {"queuekeeper.airflow.dialect", "queuekeeper.airflow.forms"} & set(sys.modules)
params = DagSerialization.deserialize_dag(json.load(sys.stdin)).params
params.deep_merge({"canary_steps_percent": "10,5,100"}).validate()
"""
"""What ``airflow dags trigger`` does with the values of a run."""


def test_process_that_has_loaded_our_plugin_alone_refuses_it_too(dag_bag: DagBag) -> None:
    kept = json.dumps(DagSerialization.serialize_dag(dag_bag.dags["session_migration"]))

    done = subprocess.run([sys.executable, "-c", TRIGGERED], input=kept, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "canary_steps_percent is '10,5,100': it must be rising percentages" in done.stderr, done.stderr


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_good_values_pass(session_migration: DAG, name: str, value: Any) -> None:
    params = session_migration.params
    params[name] = value

    assert params[name] == value


def test_defaults_are_those_of_the_migration_itself(session_migration: DAG) -> None:
    params, defaults = session_migration.params.dump(), MigrationParameters()

    assert params["cohorts"] == defaults.cohorts
    assert params["cohort_count"] == defaults.cohort_count
    assert params["limit"] == defaults.limit
    assert params["default_ttl_s"] == defaults.default_ttl_s
    assert params["quarantine_cap_percent"] == defaults.quarantine_cap_percent
    assert params["throttle_messages_per_s"] is defaults.throttle_messages_per_s
    assert (params["key_prefix"] or "") == defaults.key_prefix
    assert params["bad_rows"] == defaults.bad_rows
    assert params["dry_run"] is False


SECTIONS = {
    "compacted_queue_gc": ["", "Rules", "Speed and time", "Files and records", "Connections and keys"],
    "event_upkeep": ["", "Rules", "Speed and time", "Connections and keys"],
    "expired_reference_cleanup": [
        "", "Rules", "Speed and time", "Approval", "Files and records", "Connections and keys"
    ],
    "fanout_repair": ["", "Rules", "Speed and time", "Connections and keys"],
    "partition_adoption": ["", "Speed and time", "Approval", "Connections and keys"],
    "partition_maintenance": ["", "Approval", "Files and records", "Connections and keys"],
    "queue_quality": ["", "Rules", "Speed and time", "Files and records", "Connections and keys"],
    "session_migration": ["", "Rules", "Speed and time", "Approval", "Connections and keys"],
    "session_repair": ["", "Speed and time", "Approval", "Files and records", "Connections and keys"],
    "session_rollback": ["", "Rules", "Speed and time", "Approval", "Connections and keys"],
}  # fmt: skip
"""Of each DAG's form, the sections below what is open from the beginning."""


def test_every_form_shows_its_parameters_section_by_section(dag_bag: DagBag) -> None:
    shown = {
        dag_id: [section for section, _ in groupby(_sections(dag).values())] for dag_id, dag in dag_bag.dags.items()
    }

    assert shown == SECTIONS
    for dag in dag_bag.dags.values():
        connections = {name: each for name, each in _sections(dag).items() if name.endswith("conn_id")}
        assert set(connections.values()) == {"Connections and keys"}


def _sections(dag: DAG) -> dict[str, str]:
    """Return the part of the form in which Airflow shows each parameter, in their order."""
    return {name: dag.params.get_param(name).schema.get("section", "") for name in dag.params}


@pytest.mark.parametrize(
    ("dag_id", "first"),
    [("partition_adoption", "table"), ("session_rollback", "plan_id"), ("session_repair", "remedy")],
)
def test_form_begins_with_what_has_to_be_filled_in(dag_bag: DagBag, dag_id: str, first: str) -> None:
    assert next(iter(dag_bag.dags[dag_id].params)) == first


def test_unknown_parameter_is_named_with_the_nearest_that_exists(session_migration: DAG) -> None:
    with pytest.raises(UsageError, match=r"unknown parameter 'limt' \(did you mean 'limit'\?\), 'zzz': this DAG has "):
        reject_unknown({"limt": 5, "zzz": 1, "cohorts": "all"}, session_migration.params)


def test_known_parameters_and_none_at_all_are_let_through(session_migration: DAG) -> None:
    reject_unknown(None, session_migration.params)
    reject_unknown({"limit": 5}, session_migration.params)

"""The form of a migration refuses what no migration could honour, and names that it does not have."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError

from queuekeeper.airflow.forms import reject_unknown
from queuekeeper.errors import UsageError
from queuekeeper.migration.model import MigrationParameters

pytestmark = pytest.mark.dags

BAD: list[tuple[str, Any]] = [
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
    ("approval_timeout_minutes", 0),
    ("postgres_conn_id", ""),
    ("postgres_conn_id", "a b"),
    ("redis_conn_id", "{{ conn.x.password }}"),
    ("spark_conn_id", "a|b"),
]

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
    ("key_prefix", "tbmq:"),
    ("dry_run", True),
    ("bad_rows", "leave"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_values_are_refused_by_the_form(session_migration: DAG, name: str, value: Any) -> None:
    with pytest.raises(ParamValidationError, match=f"Invalid input for param {name}"):
        session_migration.params[name] = value


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


def test_unknown_parameter_is_named_with_the_nearest_that_exists(session_migration: DAG) -> None:
    with pytest.raises(UsageError, match=r"unknown parameter 'limt' \(did you mean 'limit'\?\), 'zzz': this DAG has "):
        reject_unknown({"limt": 5, "zzz": 1, "cohorts": "all"}, session_migration.params)


def test_known_parameters_and_none_at_all_are_let_through(session_migration: DAG) -> None:
    reject_unknown(None, session_migration.params)
    reject_unknown({"limit": 5}, session_migration.params)

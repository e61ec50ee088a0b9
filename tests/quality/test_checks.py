from __future__ import annotations

import pytest

from queuekeeper.errors import UsageError
from queuekeeper.jobs.checks import CHECKS, Priority, Severity, check


def test_checks_are_numbered_without_a_gap_and_each_says_what_to_do() -> None:
    assert list(CHECKS) == [f"Q{number}" for number, _ in enumerate(CHECKS, 1)]
    assert all(each.title and each.computation.endswith(".") and each.advice.endswith(".") for each in CHECKS.values())


def test_two_findings_of_a_check_never_share_a_severity() -> None:
    for each in CHECKS.values():
        assert each.milder is None or each.milder.severity is not each.severity


def test_the_severity_of_a_finding_tells_its_priority() -> None:
    assert check("Q9").priority_of(Severity.WARNING) is Priority.P1
    assert check("Q9").priority_of(Severity.INFO) is Priority.P2
    assert check("Q1").severity is Severity.CRITICAL


def test_the_form_of_a_remedy_is_filled_in_and_begins_with_a_dry_run() -> None:
    remedy = check("Q11").remedy
    assert remedy is not None
    assert remedy.dag_id == "session_repair"
    assert remedy.filled(quality_run_id="q-1", cohorts="0-3", key_prefix=None) == {
        "remedy": "repair_counter", "quality_run_id": "q-1", "cohorts": "0-3", "key_prefix": None, "dry_run": True,
    }  # fmt: skip


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no check 'Q40': they are Q1 to Q39"):
        check("Q40")

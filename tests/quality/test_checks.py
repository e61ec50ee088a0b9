from __future__ import annotations

import re
from dataclasses import replace

import pytest

from queuekeeper.errors import UsageError
from queuekeeper.jobs.checks import CHECKS, Priority, Severity, Store, check
from queuekeeper.jobs.findings import Finding, Status
from tests import command_parser


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
        "remedy": "repair_counter", "quality_run_id": "q-1", "cohorts": "0-3", "dry_run": True,
    }  # fmt: skip


@pytest.mark.parametrize("words", [each.command for each in CHECKS.values() if each.command])
def test_the_command_of_a_check_is_one_that_can_be_run_as_it_is(words: str) -> None:
    assert re.search(r"[A-Z]|[{<]", words) is None
    command_parser.check(f"queuekeeper {words}")


def test_the_command_of_a_finding_names_a_client_only_where_its_evidence_does() -> None:
    found = Finding(
        check_id="Q23", severity=Severity.CRITICAL, description="d", examples=({"client_hash": "0f3c29d1a4b5e687"},)
    )
    named = replace(found, examples=({"client_hash": "0f3c29d1a4b5e687", "client_id": "meter 17"},))

    assert found.command() == "queuekeeper quality run --store compacted --show-client-ids"
    assert named.command() == "queuekeeper compacted repair 'meter 17' --dry-run"
    command_parser.check(named.command())
    assert named.without_client_ids() == found


def test_the_command_of_a_finding_without_a_dag_names_the_key_prefix_of_queues_in_redis() -> None:
    by_hand = {each.id: each for each in CHECKS.values() if each.command}
    for number, each in by_hand.items():
        found = Finding(check_id=number, severity=each.severity, description="d").with_remedy(key_prefix="my $p:")
        command = found.command()
        command_parser.check(command)
        assert ("--key-prefix 'my $p:'" in command) is (Store.REDIS in each.stores), command
        unprefixed = replace(found, remedy_conf={})
        assert "--key-prefix" not in unprefixed.command()
        # The shell would set another prefix than that of the queues.
        assert ("--key-prefix ''" in unprefixed.command(shell_prefix="other:")) is (Store.REDIS in each.stores)

    assert {Store.REDIS in each.stores for each in by_hand.values()} == {True, False}


@pytest.mark.parametrize("status", [Status.PASSED, Status.BROKEN])
def test_what_nobody_found_has_no_command(status: Status) -> None:
    assert Finding(check_id="Q33", severity=Severity.CRITICAL, description="d", status=status).command() == ""


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no check 'Q40': they are Q1 to Q39"):
        check("Q40")

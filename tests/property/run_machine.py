"""How state machines are tried: the same sequences in every run, however long one of them takes."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run_machine(machine: type[RuleBasedStateMachine], *, examples: int, steps: int = 40, **attributes: Any) -> None:
    """Try sequences of a machine's rules.

    :param machine: the rules.
    :param examples: how many sequences at the most.
    :param steps: how many rules a sequence has at the most.
    :param attributes: what the machine finds in its class: servers and worlds of the test.
    """
    run_state_machine_as_test(
        type("Machine", (machine,), attributes),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )

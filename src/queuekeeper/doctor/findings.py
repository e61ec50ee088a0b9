"""Findings of an examination."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from queuekeeper.errors import QueuekeeperError


class State(StrEnum):
    """Result of a check, from good to bad."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of one check.

    :param subject: what was checked: a server by its address, ``this machine``, ``Airflow``.
    :param check: name of the check.
    :param found: what was found.
    :param remedy: what to do; empty when there is nothing to do.
    :param command: statement or command that does it, to be pasted; empty where there is none.
    """

    subject: str
    check: str
    state: State
    found: str
    remedy: str = ""
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Examination:
    """All findings, in the order of the checks."""

    findings: tuple[Finding, ...]

    def count(self, state: State) -> int:
        """Return how many findings have this state."""
        return sum(finding.state is state for finding in self.findings)

    @property
    def fit(self) -> bool:
        """Whether no check has failed; a warning is a risk that one may accept."""
        return not self.count(State.FAILED)


class Notes:
    """Collects the findings on one subject."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.findings: list[Finding] = []

    def add(self, check: str, state: State, found: str, remedy: str = "", command: str = "") -> None:
        """Add a finding; a finding in order has no remedy."""
        self.findings.append(
            Finding(
                subject=self.subject,
                check=check,
                state=state,
                found=found,
                remedy="" if state is State.OK else remedy,
                command="" if state is State.OK else command,
            )
        )

    def unreachable(self, error: QueuekeeperError) -> None:
        """Add that the subject did not answer; the error says what to do."""
        self.add("connection", State.FAILED, str(error), "see the message; other checks of this server were left out")


CLOCK_WARNING_MS = 1_000
"""Messages' expiry instants are compared to a second."""

CLOCK_FAILURE_MS = 60_000


def clock_finding(notes: Notes, *, server_ms: int, before_ms: int, after_ms: int) -> None:
    """Add how far a server's clock is from this machine's, which was read before and after the server's."""
    skew_ms = max(before_ms - server_ms, server_ms - after_ms, 0)
    ahead = server_ms > after_ms
    state = State.FAILED if skew_ms > CLOCK_FAILURE_MS else State.WARNING if skew_ms > CLOCK_WARNING_MS else State.OK
    found = (
        f"within {after_ms - before_ms + 1:,} ms of this machine's"
        if skew_ms == 0
        else f"{skew_ms / 1_000:,.1f} s {'ahead of' if ahead else 'behind'} this machine's"
    )
    notes.add("clock", state, found, "messages expire by the servers' clocks: let NTP set the clocks of both machines")


def encryption_finding(notes: Notes, *, encrypted: bool, local: bool, how: str) -> None:
    """Add whether the connection is encrypted.

    :param local: whether the server is on this machine.
    :param how: how to switch encryption on.
    """
    if encrypted:
        notes.add("encryption", State.OK, "TLS")
    elif local:
        notes.add("encryption", State.OK, "none, and none is needed: the server is on this machine")
    else:
        notes.add("encryption", State.WARNING, "none: messages and passwords cross the network in the clear", how)

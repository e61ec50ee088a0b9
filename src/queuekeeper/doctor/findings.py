"""What an examination says of one thing that it looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from queuekeeper.errors import QueuekeeperError


class State(StrEnum):
    """How something stands, from good to bad."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    :param subject: what it belongs to: a server by its address, ``this machine``, ``Airflow``.
    :param check: what was looked at, in words.
    :param found: what is the case.
    :param remedy: what to do; empty when there is nothing to do.
    """

    subject: str
    check: str
    state: State
    found: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Examination:
    """All that was looked at, in order."""

    findings: tuple[Finding, ...]

    def count(self, state: State) -> int:
        """Return how many findings have this state."""
        return sum(finding.state is state for finding in self.findings)

    @property
    def fit(self) -> bool:
        """Whether nothing has failed; a warning is a risk that somebody may want to take."""
        return not self.count(State.FAILED)


class Notes:
    """Findings on one subject in the making."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.findings: list[Finding] = []

    def add(self, check: str, state: State, found: str, remedy: str = "") -> None:
        """Note a finding; a remedy is kept only for what is not in order."""
        self.findings.append(
            Finding(
                subject=self.subject,
                check=check,
                state=state,
                found=found,
                remedy="" if state is State.OK else remedy,
            )
        )

    def unreachable(self, error: QueuekeeperError) -> None:
        """Note that the subject did not answer; the error's words say what to do."""
        self.add("connection", State.FAILED, str(error), "see the message; what depends on it was not looked at")


CLOCK_WARNING_MS = 1_000
"""Messages' expiry instants are compared to a second."""

CLOCK_FAILURE_MS = 60_000


def clock_finding(notes: Notes, *, server_ms: int, before_ms: int, after_ms: int) -> None:
    """Note how far a server's clock is from ours, whose reading lies between two instants."""
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
    """Note whether what is sent can be read on the way.

    :param local: the server is on this machine.
    :param how: to switch encryption on.
    """
    if encrypted:
        notes.add("encryption", State.OK, "TLS")
    elif local:
        notes.add("encryption", State.OK, "none, and none is needed: the server is on this machine")
    else:
        notes.add("encryption", State.WARNING, "none: messages and passwords cross the network in the clear", how)

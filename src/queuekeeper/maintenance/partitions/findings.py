"""Findings on a table's partitions: their kinds, their severity, and whether maintenance mends them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from queuekeeper.jobs.checks import Severity
from queuekeeper.jobs.findings import Finding


class FindingKind(StrEnum):
    """Kinds of findings on a table's partitions."""

    GAP = "gap"
    SHORT = "short"  # head-room is a step or more less than the policy asks for
    STRANGER = "stranger"  # a table that is no partition has a partition's name
    FOREIGN_OWNER = "foreign_owner"
    UNMANAGED = "unmanaged"  # its bounds cannot be read, or it lies far beyond what the policy asks for
    PENDING_DETACH = "pending_detach"
    DEFAULT_ROWS = "default_rows"
    DRAIN_LEFT = "drain_left"  # copy and trigger of a drain that was interrupted, or is under way
    FAR_FUTURE = "far_future"  # rows further in the future than the policy allows
    CUT_SHORT = "cut_short"  # more partitions are missing than one plan creates
    QUARANTINE_OVERLAP = "quarantine_overlap"  # a retired partition whose range was created again


_CHECKS: Mapping[FindingKind, tuple[str, Severity]] = {
    FindingKind.GAP: ("Q27", Severity.CRITICAL),
    FindingKind.SHORT: ("Q27", Severity.WARNING),
    FindingKind.CUT_SHORT: ("Q27", Severity.WARNING),
    FindingKind.DEFAULT_ROWS: ("Q28", Severity.WARNING),
    FindingKind.DRAIN_LEFT: ("Q28", Severity.WARNING),
    FindingKind.PENDING_DETACH: ("Q29", Severity.WARNING),
}
"""Check and severity of the kinds that a check looks for; no form mends the other kinds."""


def finding(kind: FindingKind, *, table: str, subject: str, words: str, is_mended: bool = True) -> Finding:
    """Return a finding, with a filled-in form where maintenance mends it.

    :param table: name of the table in its policy.
    :param subject: partition or range.
    :param words: what is wrong, and what to do.
    :param is_mended: whether maintenance mends it.
    """
    found = Finding.of_kind(kind, _CHECKS, subject=subject, words=words)
    return found.with_remedy(besides={"tables": [table]}) if is_mended else found

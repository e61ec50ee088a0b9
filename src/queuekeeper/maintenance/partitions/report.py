"""Reports what the maintenance of partitions found and did, as a record and as two files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from queuekeeper.facts import plain
from queuekeeper.maintenance.partitions.model import ApplyReport, Coverage, HeldPartition, PartitionPlan
from queuekeeper.report.files import ReportKind
from queuekeeper.report.page import RunReport


class Verdict(StrEnum):
    """Verdict on all tables together."""

    IN_ORDER = "in_order"
    ATTENTION = "attention"  # a person should look at a finding
    IN_DANGER = "in_danger"  # inserts fail, or head-room is short


_VERDICTS = {
    Verdict.IN_ORDER: ("In order", "good", "✓"),
    Verdict.ATTENTION: ("Needs a look", "wait", "…"),
    Verdict.IN_DANGER: ("Head-room is short", "bad", "✗"),
}


UNREGISTERED = "archives were not registered in the Iceberg catalog: the log of the task retirement.register says why"


@dataclass(frozen=True, kw_only=True)
class TableReport:
    """One table.

    :param coverage: state of the table now; none when it could not be read.
    :param plans: plans by purpose.
    :param applied: reports of the plans that were applied, by purpose.
    :param archives: archives that were written or compared.
    :param registered: what the registration of archives came to; none when it was not asked for, or not done.
    :param is_unregistered: whether the policy asks for a registration that this run did not do.
    :param problem: why the table could not be read; empty when it could.
    """

    table: str
    coverage: Coverage | None
    plans: Mapping[str, PartitionPlan]
    applied: Mapping[str, ApplyReport]
    archives: tuple[Mapping[str, Any], ...] = ()
    registered: Mapping[str, Any] | None = None
    is_unregistered: bool = False
    problem: str = ""

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Steps that were planned and not done, in words."""
        steps = tuple(
            f"{report.purpose.value}: {each.kind.value} {each.partition} is {each.state.value}: {each.words}"
            for report in self.applied.values()
            for each in report.outcomes
            if each.words
        )
        return (*steps, UNREGISTERED) if self.is_unregistered else steps


@dataclass(frozen=True, kw_only=True)
class PartitionsReport(RunReport):
    """All tables of one run."""

    kind = ReportKind.PARTITIONS
    package = "queuekeeper.maintenance.partitions"
    at_length: ClassVar[tuple[str, ...]] = ("tables",)

    tables: tuple[TableReport, ...]

    @property
    def verdict(self) -> Verdict:
        """Verdict on all tables; a table that could not be read counts as in danger."""
        if any(each.coverage is None or not each.coverage.head_room_met for each in self.tables):
            return Verdict.IN_DANGER
        if any(each.unfinished or (each.coverage and each.coverage.findings) for each in self.tables):
            return Verdict.ATTENTION
        return Verdict.IN_ORDER

    @property
    def held(self) -> list[tuple[str, str, tuple[HeldPartition, ...]]]:
        """Table, purpose of the plan, and the partitions that the plan leaves although their retention is over."""
        return [
            (table.table, purpose, plan.held)
            for table in self.tables
            for purpose, plan in table.plans.items()
            if plan.held
        ]

    @property
    def trouble(self) -> str:
        """What must not wait, in a sentence; empty when nothing is, or nothing was to be changed."""
        in_danger = self.verdict is Verdict.IN_DANGER and not self.dry_run
        return "head-room is short, so that inserts will fail, or a table cannot be looked at" if in_danger else ""

    def facts(self) -> dict[str, Any]:
        """Return everything, the verdict, and what was found in all tables."""
        looked = [(each.table, each.coverage.findings) for each in self.tables if each.coverage]
        return super().facts() | {
            "tables": plain(self.tables),
            "verdict": str(self.verdict),
            "trouble": self.trouble,
            "findings": [{"table": table, **each.facts()} for table, found in looked for each in found],
        }

    def shown(self) -> dict[str, Any]:
        """Return the verdict as the page shows it."""
        return dict(zip(("verdict_title", "verdict_tone", "verdict_mark"), _VERDICTS[self.verdict], strict=True))

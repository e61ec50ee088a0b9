"""Puts what maintenance of partitions found and did into one record and two files; it works on no table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any

from queuekeeper import __version__
from queuekeeper.maintenance.partitions.model import ApplyReport, Coverage, PartitionPlan
from queuekeeper.report.files import ReportFiles, ReportKind, write_files
from queuekeeper.report.page import render_page

FORMAT = 1


class Verdict(StrEnum):
    """How all tables together stand."""

    IN_ORDER = "in_order"
    ATTENTION = "attention"  # something is found that a person should look at
    IN_DANGER = "in_danger"  # inserts fail, or will before the head-room that was asked for


_VERDICTS = {
    Verdict.IN_ORDER: ("In order", "good", "✓"),
    Verdict.ATTENTION: ("Needs a look", "wait", "…"),
    Verdict.IN_DANGER: ("Head-room is short", "bad", "✗"),
}


@dataclass(frozen=True, kw_only=True)
class TableReport:
    """One table.

    :param coverage: how it stands now; none when it could not be looked at.
    :param plans: what was planned, by purpose.
    :param applied: what was done, by purpose; without what was not reached.
    :param archives: archives that were written or compared.
    :param problem: why it could not be looked at; empty when it could.
    """

    table: str
    coverage: Coverage | None
    plans: Mapping[str, PartitionPlan]
    applied: Mapping[str, ApplyReport]
    archives: tuple[Mapping[str, Any], ...] = ()
    problem: str = ""

    @property
    def unfinished(self) -> tuple[str, ...]:
        """What was planned and not done, in words."""
        return tuple(
            f"{report.purpose.value}: {each.kind.value} {each.partition} is {each.state.value}: {each.words}"
            for report in self.applied.values()
            for each in report.outcomes
            if each.words
        )


@dataclass(frozen=True, kw_only=True)
class PartitionsReport:
    """All tables of one run."""

    run_name: str
    dry_run: bool
    tables: tuple[TableReport, ...]
    generated_at_ms: int
    generated_by: str = f"queuekeeper {__version__}"
    format: int = FORMAT

    @property
    def verdict(self) -> Verdict:
        """How all tables together stand; what could not be looked at may be in danger."""
        if any(each.coverage is None or not each.coverage.head_room_met for each in self.tables):
            return Verdict.IN_DANGER
        if any(each.unfinished or (each.coverage and each.coverage.findings) for each in self.tables):
            return Verdict.ATTENTION
        return Verdict.IN_ORDER

    @property
    def report_id(self) -> str:
        """Name of the report: one per run."""
        return sha256(self.run_name.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps(asdict(self) | {"verdict": str(self.verdict)}, ensure_ascii=False, indent=1)


def write_report(report: PartitionsReport, directory: Path) -> ReportFiles:
    """Write the report as JSON and as one HTML page; a reader sees a whole file or none.

    :param directory: made when it is not there.
    :raises RefusedError: when it cannot be written to.
    """
    title, tone, mark = _VERDICTS[report.verdict]
    return write_files(
        directory,
        kind=ReportKind.PARTITIONS,
        subject_id=report.report_id,
        at_ms=report.generated_at_ms,
        text=report.to_json(),
        page=lambda name, digest: render_page(
            "queuekeeper.maintenance.partitions",
            report=report,
            json_name=name,
            json_sha256=digest,
            verdict_title=title,
            verdict_tone=tone,
            verdict_mark=mark,
        ),
    )

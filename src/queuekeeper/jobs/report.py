"""Writes what a run of maintenance over shares planned, did and left; what its lines say is its own business."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from queuekeeper import __version__
from queuekeeper.report.files import ReportFiles, ReportKind, write_files
from queuekeeper.report.page import render_page

FORMAT = 1


def write_run_report(
    directory: Path,
    *,
    kind: ReportKind,
    template: str,
    facts: Mapping[str, Any],
    columns: Sequence[Sequence[tuple[str, str]]],
    **words: Any,
) -> ReportFiles:
    """Write a report as JSON and as one HTML page; a reader sees a whole file or none.

    :param directory: made when it is not there.
    :param facts: of the run, with its id and the instant.
    :param columns: names and texts: what was planned, done, and left at the second look; the same names in each.
    :param words: what else the page says.
    :raises RefusedError: when it cannot be written to.
    """
    report = dict(facts) | {"generated_by": f"queuekeeper {__version__}", "format": FORMAT}
    texts = [dict(column) for column in columns]
    return write_files(
        directory,
        kind=kind,
        subject_id=facts["maintenance_run_id"],
        at_ms=facts["generated_at_ms"],
        text=json.dumps(report, ensure_ascii=False, indent=1),
        page=lambda name, digest: render_page(
            "queuekeeper.maintenance",
            template=template,
            report=report,
            json_name=name,
            json_sha256=digest,
            lines=[(line, *(column[line] for column in texts)) for line in texts[0]],
            **words,
        ),
    )

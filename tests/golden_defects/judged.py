"""Stages of other queues as quality judges them, and what it finds there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from queuekeeper.jobs.findings import Status
from queuekeeper.quality.judge.run import QualityReport, run_quality
from tests.golden_defects.defect import Finding

PREFIX = "tenant:"


class Judged:
    """A stage that can be judged.

    :cvar suite: by which.
    :ivar urls: the servers, as arguments of a quality run.
    """

    suite: ClassVar[str]
    urls: dict[str, Any]
    world: Any
    runs = 0

    def judge(self, **wishes: Any) -> QualityReport:
        """Run quality on the queues, a millisecond later."""
        self.runs += 1
        self.world.now_ms += 1
        return run_quality(
            **self.urls,
            profile_ids=(),
            suites=(self.suite,),
            quality_run_id=f"golden-{self.runs}",
            now=datetime.fromtimestamp(self.world.now_ms / 1_000, UTC),
            key_prefix=PREFIX,
            show_client_ids=True,
            **wishes,
        )


def found(report: QualityReport) -> frozenset[Finding]:
    """Return what a run has found, by client; no check may have broken."""
    assert not [result for result in report.results if result.status is Status.BROKEN], report.results
    return frozenset(
        Finding(
            result.suite,
            result.check_id,
            str(example["client_id"]),
        )
        for result in report.findings
        for example in result.examples
    )

"""Stages of other queues as quality judges them, and what it finds there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar

from queuekeeper.config import Settings
from queuekeeper.identity import hash_key
from queuekeeper.jobs.findings import Status
from queuekeeper.postgres import Connection
from queuekeeper.quality.judge.live_queues import QueueReading
from queuekeeper.quality.judge.run import QualityReport, run_quality
from queuekeeper.quality.judge.store import QualityStore
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

    def keep(self, profile: Callable[[Connection, QueueReading], Any], *, runs: int) -> bytes:
        """Note the rows of the queues for so many further runs, ``kept-0`` and on; return the key of their hashes."""
        key = hash_key(Settings())
        for number in range(runs):
            name = f"kept-{number}"
            QualityStore(self.world.connection).begin(
                quality_run_id=name, mode="full", suites=[self.suite], profile_ids=[], numbers={},
                started_at=datetime.fromtimestamp(number, UTC),
            )  # fmt: skip
            reading = QueueReading(
                client=self.world.client, quality_run_id=name, prefix=PREFIX, now_ms=self.world.now_ms, hash_key=key
            )
            profile(self.world.connection, reading)
        return key


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

"""Compare source and target of a plan: ``spark-submit spark_jobs/verify_migration.py --plan-id 0123456789abcdef``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from queuekeeper.errors import CheckFailed
from queuekeeper.migration.job import Environment, run
from queuekeeper.migration.verify import verify_migration


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plan-id", required=True)
    parser.add_argument("--cohorts", help="some of the plan's cohorts, such as 0-47; all of them when absent")


def _verify(arguments: dict[str, Any], environment: Environment) -> dict[str, Any]:
    report = verify_migration(
        environment.spark("queuekeeper verify_migration"),
        postgres_url=environment.postgres_url,
        redis_url=environment.redis_url,
        **arguments,
    )
    if not report.balanced:
        unaccounted = sum(abs(row.unaccounted) for row in report.ledger)
        raise CheckFailed(
            f"source and target differ: {report.differences:,} differences, {unaccounted:,} messages unaccounted for; "
            f"see the report, or: queuekeeper migrate report {report.plan_id}"
        )
    summary = asdict(report)
    del summary["ledger"]
    return summary | {"balanced": report.balanced, "messages": sum(row.rows_seen for row in report.ledger)}


if __name__ == "__main__":
    sys.exit(run(__doc__, _arguments, _verify))

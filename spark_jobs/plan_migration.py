"""Make a migration plan: ``spark-submit spark_jobs/plan_migration.py --run-id nightly --cohorts all``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from queuekeeper.migration.job import Environment, run
from queuekeeper.migration.model import BadRows, MigrationParameters, Mode
from queuekeeper.migration.plan import plan_migration


def _arguments(parser: argparse.ArgumentParser) -> None:
    defaults = MigrationParameters()
    parser.add_argument("--run-id", required=True, help="who asks; a later step finds the plan by it")
    parser.add_argument("--cohorts", default=defaults.cohorts, help="cohorts to copy: all, or such as 0-3,7")
    parser.add_argument("--cohort-count", type=int, default=defaults.cohort_count)
    parser.add_argument("--limit", type=int, default=defaults.limit, help="newest live messages kept per session")
    parser.add_argument("--default-ttl-s", type=int, default=defaults.default_ttl_s)
    parser.add_argument("--quarantine-cap", type=float, default=defaults.quarantine_cap, help="share, 0 to 1")
    parser.add_argument("--throttle-messages-per-s", type=int)
    parser.add_argument("--key-prefix", default=defaults.key_prefix)
    parser.add_argument("--mode", default=str(defaults.mode), choices=list(map(str, Mode)))
    parser.add_argument("--bad-rows", default=str(defaults.bad_rows), choices=list(map(str, BadRows)))


def _plan(arguments: dict[str, Any], environment: Environment) -> dict[str, Any]:
    run_id = arguments.pop("run_id")
    plan = plan_migration(
        environment.spark("queuekeeper plan_migration"),
        postgres_url=environment.postgres_url,
        redis_url=environment.redis_url,
        parameters=MigrationParameters(**arguments),
        run_id=run_id,
    )
    report = asdict(plan)
    # The counts of each cohort are on record; a log line need not repeat them.
    del report["cohorts"]
    names = ("sessions", "clients", "messages", "to_copy", "expired", "trimmed", "quarantined", "forecast_bytes")
    return report | {name: plan.total(name) for name in names}


if __name__ == "__main__":
    sys.exit(run(__doc__, _arguments, _plan))

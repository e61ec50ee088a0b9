"""Copy the sessions of a plan into Redis: ``spark-submit spark_jobs/copy_sessions.py --plan-id 0123456789abcdef``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from queuekeeper.migration.apply import copy_sessions
from queuekeeper.migration.job import Environment, run


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plan-id", required=True)
    parser.add_argument("--cohorts", help="some of the plan's cohorts, such as 0-47; all of them when absent")


def _copy(arguments: dict[str, Any], environment: Environment) -> dict[str, Any]:
    report = copy_sessions(
        environment.spark("queuekeeper copy_sessions"),
        postgres_url=environment.postgres_url,
        redis_url=environment.redis_url,
        **arguments,
    )
    return asdict(report)


if __name__ == "__main__":
    sys.exit(run(__doc__, _arguments, _copy))

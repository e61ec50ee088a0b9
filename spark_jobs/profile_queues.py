"""Profile the queues of a store: ``spark-submit spark_jobs/profile_queues.py --store redis --mode full``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from queuekeeper.clock import system_clock
from queuekeeper.migration.job import Environment, run
from queuekeeper.quality.profile import profile_postgres, profile_redis
from queuekeeper.quality.profile_model import ProfileParameters


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", choices=("redis", "postgres"), required=True)
    parser.add_argument("--profile-id", help="name of the profile; another one of this name is replaced")
    parser.add_argument("--parquet-dir", help="folder for the rows of queues as Parquet, too")
    ProfileParameters.declare(parser)


def _profile(arguments: dict[str, Any], environment: Environment) -> dict[str, Any]:
    store, profile_id, parquet_dir = (arguments.pop(name) for name in ("store", "profile_id", "parquet_dir"))
    parameters = ProfileParameters.take(arguments)
    spark = environment.spark("queuekeeper profile_queues")
    if store == "redis":
        report = profile_redis(
            spark,
            redis_url=environment.redis_url,
            postgres_url=environment.postgres_url,
            parameters=parameters,
            now_ms=system_clock(),
            profile_id=profile_id,
            parquet_dir=parquet_dir,
        )
    else:
        report = profile_postgres(
            spark,
            postgres_url=environment.postgres_url,
            parameters=parameters,
            now_ms=system_clock(),
            profile_id=profile_id,
            parquet_dir=parquet_dir,
        )
    return asdict(report)


if __name__ == "__main__":
    sys.exit(run(__doc__, _arguments, _profile))

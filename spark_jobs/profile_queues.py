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
    defaults = ProfileParameters()
    parser.add_argument("--store", choices=("redis", "postgres"), required=True)
    parser.add_argument("--profile-id", help="name of the profile; another one of this name is replaced")
    parser.add_argument("--parquet-dir", help="folder for the rows of queues as Parquet, too")
    parser.add_argument("--mode", choices=("fast", "full"), default=defaults.mode)
    parser.add_argument("--cohorts", default=defaults.cohorts, help="cohorts to read: all, or such as 0-3,7")
    parser.add_argument("--cohort-count", type=int, default=defaults.cohort_count)
    parser.add_argument("--sample-percent", type=int, default=defaults.sample_percent, help="of the slots; 100: all")
    parser.add_argument("--turn", type=int, default=defaults.turn, help="which 1/96 of the cohorts mode fast reads")
    parser.add_argument("--contents", action="store_true", help="judge the messages' JSON, too: needs GET")
    parser.add_argument("--session-limit", type=int, default=defaults.session_limit)
    parser.add_argument("--default-ttl-s", type=int, default=defaults.default_ttl_s)
    parser.add_argument("--max-payload-bytes", type=int, default=defaults.max_payload_bytes)
    parser.add_argument("--key-prefix", default=defaults.key_prefix)
    parser.add_argument("--throttle-references-per-s", type=int)
    parser.add_argument("--keep-profiles", type=int, default=defaults.keep_profiles)


def _profile(arguments: dict[str, Any], environment: Environment) -> dict[str, Any]:
    store, profile_id, parquet_dir = (arguments.pop(name) for name in ("store", "profile_id", "parquet_dir"))
    parameters = ProfileParameters(**arguments)
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

"""Profile the queues of a store: ``spark-submit spark_jobs/profile_queues.py --store redis --mode full``."""

from __future__ import annotations

import sys
from typing import Any

from queuekeeper.clock import system_clock
from queuekeeper.migration.spark.job import Environment, run
from queuekeeper.quality.profile.model import ProfileParameters, ProfilePlace, ProfileReport
from queuekeeper.quality.profile.stores import profile_postgres, profile_redis


def _profile(environment: Environment, place: ProfilePlace, parameters: ProfileParameters) -> ProfileReport:
    spark = environment.spark("queuekeeper profile_queues")
    common: dict[str, Any] = {
        "postgres_url": environment.postgres_url,
        "parameters": parameters,
        "now_ms": system_clock(),
        "profile_id": place.profile_id,
        "parquet_dir": place.parquet_directory or None,
    }
    if place.store == "redis":
        return profile_redis(spark, redis_url=environment.redis_url, **common)
    return profile_postgres(spark, **common)


if __name__ == "__main__":
    sys.exit(run(__doc__, _profile, ProfilePlace, ProfileParameters))

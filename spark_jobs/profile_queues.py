"""Profile the queues of a store: ``spark-submit spark_jobs/profile_queues.py --store redis --mode full``."""

from __future__ import annotations

import sys

from queuekeeper.clock import system_clock
from queuekeeper.migration.spark.job import Environment, run
from queuekeeper.quality.profile.model import ProfileParameters, ProfilePlace, ProfileReport, SnapshotWish
from queuekeeper.quality.profile.stores import profile


def _profile(
    environment: Environment, place: ProfilePlace, snapshot: SnapshotWish, parameters: ProfileParameters
) -> ProfileReport:
    snapshot.check_beside(parameters, stores=place.store)
    return profile(
        environment.spark("queuekeeper profile_queues"),
        store=place.store,
        snapshot=snapshot,
        redis_url=environment.redis_url,
        postgres_url=environment.postgres_url,
        parameters=parameters,
        now_ms=system_clock(),
        profile_id=place.profile_id,
        parquet_dir=place.parquet_directory or None,
    )


def _needs_redis(place: ProfilePlace, snapshot: SnapshotWish, _: ProfileParameters) -> bool:
    return place.store == "redis" and not snapshot.rdb


if __name__ == "__main__":
    sys.exit(run(__doc__, _profile, ProfilePlace, SnapshotWish, ProfileParameters, on_redis=_needs_redis))

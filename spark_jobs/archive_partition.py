"""Archive retired partitions: ``spark-submit spark_jobs/archive_partition.py --directory /srv/old --retired-ids 7``."""

from __future__ import annotations

import sys
from typing import Any

from queuekeeper.clock import system_clock
from queuekeeper.errors import QueuekeeperError
from queuekeeper.maintenance.partitions.archive import ArchiveReport, archive_partition
from queuekeeper.maintenance.partitions.wishes import ArchiveWish
from queuekeeper.migration.spark.job import Environment, run


def _archive(environment: Environment, asked: ArchiveWish) -> dict[str, Any]:
    spark = environment.spark("queuekeeper archive_partition")
    archives = []
    first_error: QueuekeeperError | None = None
    for retired_id in map(int, asked.retired_ids):
        try:
            report = archive_partition(
                spark,
                postgres_url=environment.postgres_url,
                retired_id=retired_id,
                directory=asked.directory,
                now_ms=system_clock(),
            )
        except QueuekeeperError as error:
            # The others are archived all the same.
            print(f"retired partition {retired_id}: {error}", flush=True)
            first_error = first_error or error
            continue
        archives.append(_summary(retired_id, report))
        print(f"retired partition {retired_id}: {archives[-1]}", flush=True)
    if first_error is not None:
        missing = len(asked.retired_ids) - len(archives)
        raise type(first_error)(f"{missing} of {len(asked.retired_ids)} are not archived: {first_error}")
    return {"archives": archives}


def _summary(retired_id: int, report: ArchiveReport) -> dict[str, Any]:
    manifest = report.manifest
    return {
        "retired_id": retired_id,
        "partition": manifest.table,
        "path": report.path,
        "is_new": report.is_new,
        "rows": manifest.content.rows,
        "rows_hash": manifest.content.rows_hash,
        "size_bytes": manifest.size_bytes,
        "files": len(manifest.files),
    }


if __name__ == "__main__":
    sys.exit(run(__doc__, _archive, ArchiveWish, on_redis=False))

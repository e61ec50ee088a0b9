"""Judges the Parquet of a profile with Spark, by the same suites as ``quality run`` in PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from queuekeeper.errors import UsageError
from queuekeeper.jobs.checks import Store
from queuekeeper.migration.spark.parquet import parquet_of
from queuekeeper.migration.spark.session import set_task_count
from queuekeeper.quality.judge.suites import load
from queuekeeper.quality.judge.validation import SuiteReport, validate
from queuekeeper.quality.profile.model import PROFILES, profile_folder
from queuekeeper.sessions.pages import Layout


def judge_parquet(
    spark: SparkSession,
    *,
    path: str,
    suite: str,
    contents: bool,
    is_clustered: bool = False,
    show_client_ids: bool = False,
    data_docs: Path | None = None,
) -> SuiteReport:
    """Judge the queues of a profile by a suite of one store's sessions.

    The run is not recorded, so forms of remedies name no quality run, no limit and no prefix of keys.

    :param path: folder that the profile has written; a URL if it is in an object store.
    :param suite: name of a file in ``expectations/``.
    :param contents: whether the profile has read the contents of messages.
    :param is_clustered: whether the queues are on a Redis cluster, where a bad hash tag is worse.
    :param show_client_ids: show client ids in examples, not only their hashes.
    :param data_docs: folder for Great Expectations' pages of suite and result; ``None`` writes none.
    :raises UsageError: when the suite does not judge the sessions of one store, or the folder holds no Parquet.
    """
    chosen = load(suite)
    if len(chosen.stores) != 1:
        raise UsageError(f"suite {suite} does not judge the sessions of one store: Parquet holds nothing else")
    queues = parquet_of(spark, partial(profile_folder, path), what=PROFILES)
    if queues is None:
        raise UsageError(f"{path} holds no profile: name the folder that `parquet` of its report names")
    set_task_count(spark, rows=queues.count())
    # Each expectation reads the rows several times.
    frame = _with_neighbours(queues, is_clustered=is_clustered).persist()
    try:
        layouts = {Layout(row["layout"]) for row in frame.select("layout").distinct().collect()}
        asked = chosen.for_layouts(layouts or {Layout.TBMQ}) if Store.REDIS in chosen.stores else chosen
        asked = asked if contents else asked.without_contents()
        report = validate(asked, frame=frame, show_client_ids=show_client_ids, data_docs=data_docs)
    finally:
        frame.unpersist()
    if not chosen.is_mended:
        return report
    return replace(report, results=tuple(each if each.passed else each.with_remedy() for each in report.results))


def _with_neighbours(queues: DataFrame, *, is_clustered: bool) -> DataFrame:
    """Add the columns of ``sql/quality/redis_queues.sql``, by the same rules."""
    # Of a profile that read no packed sessions yet, or looked for no clients in both layouts.
    later = {
        "layout": F.lit(str(Layout.TBMQ)),
        "state_faults": F.lit(None).cast("bigint"),
        "in_both_layouts": F.lit(None).cast("int"),
    }
    queues = queues.withColumns({name: value for name, value in later.items() if name not in queues.columns})
    tag = F.substring_index("client_id", "}", 1)
    tags = queues.where(F.instr("client_id", "}") > 1).groupBy(tag.alias("tag")).agg(F.count("*").alias("clients"))
    shared = (F.col("clients") > 1) | (F.col("tag") == F.col("client_id"))
    return (
        queues.join(F.broadcast(tags), tag == F.col("tag"), "left")
        .withColumns(
            {
                "is_clustered": F.lit(int(is_clustered)),
                "shares_tag": F.coalesce(shared, F.lit(False)).cast("int"),
            }
        )
        .drop("tag", "clients")
    )

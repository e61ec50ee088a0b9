"""How Java runs the Sparks of tests: they live for seconds, and find what one before them has read of 280 jars."""

from __future__ import annotations

import os
from pathlib import Path

from queuekeeper.java import SHORT_LIVED, WITHOUT_COMPILING, java_home

_HOME = Path(__file__).parents[1] / "var" / "spark"
_CLASSES = _HOME / "classes.jsa"
# Java takes the archive only with the class path with which it was made, and with no folder in it that holds a file.
_CONFIGURATION = _HOME / "conf"

# The Spark of a worker lives long, and compiles more than the 48 MiB that Java would then keep: what is thrown out is
# interpreted.
_OPTIONS = (SHORT_LIVED, "-XX:ReservedCodeCacheSize=256m")


def environment(*, compiles: bool) -> dict[str, str]:
    """Return what every Spark that is started below has to find in its environment.

    :param compiles: let Spark compile its queries, as it does where nobody says anything.
    """
    return _environment(*[f"-XX:SharedArchiveFile={_CLASSES}"] * _CLASSES.is_file(), compiles=compiles)


def _environment(*archive: str, compiles: bool) -> dict[str, str]:
    settings = {} if compiles else dict(WITHOUT_COMPILING)
    # Without a word where another Java has made the archive.
    options = [*_OPTIONS, "-Xlog:disable", *archive]
    settings |= {"spark.executor.defaultJavaOptions": SHORT_LIVED}
    _CONFIGURATION.mkdir(parents=True, exist_ok=True)
    return {
        "SPARK_CONF_DIR": str(_CONFIGURATION),
        "SPARK_SUBMIT_OPTS": " ".join([*options, *(f"-D{name}={value}" for name, value in settings.items())]),
        "SPARK_DAEMON_JAVA_OPTS": " ".join(options),
    }


def keep_classes() -> None:
    """Let a Spark do a little of everything, and Java keep the classes that it has loaded for that."""
    from queuekeeper.migration.spark.session import build_session

    draft = _CLASSES.with_name("draft.jsa")
    os.environ |= _environment(f"-XX:ArchiveClassesAtExit={draft}", compiles=False)
    os.environ["JAVA_HOME"] = str(java_home(_HOME))
    spark = build_session("classes", master="local[2]")
    rows = spark.range(1_000).selectExpr("id", "id % 7 AS kind", "CAST(id AS string) AS name", "array(id) AS ids")
    read = rows.mapInArrow(lambda batches: batches, rows.schema).persist()
    sums = read.groupBy("kind").agg({"id": "sum", "name": "max"})
    ranked = read.selectExpr("*", "row_number() OVER (PARTITION BY kind ORDER BY id DESC) AS place")
    ranked.join(sums, "kind").where("place < 5 AND name LIKE '%1%'").orderBy("id").toPandas()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    # Some Java keeps none; it is not asked again.
    draft.touch()
    draft.replace(_CLASSES)


if __name__ == "__main__":
    keep_classes()

"""Starts Spark's Java for a command, without the lines by which it greets whoever starts it."""

from __future__ import annotations

import os
import re
import threading

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

_GREETING = re.compile(
    rb"WARNING: Using incubator modules: |Using Spark's default log4j profile: |Setting default log level to |"
    rb"To adjust logging level use |\S+ \S+ WARN NativeCodeLoader: Unable to load native-hadoop library "
)
"""Lines of each start that ask nobody to do anything."""


def start_java(conf: SparkConf) -> None:
    """Start Java for this process's Spark, or connect to the one that runs already, as it does under ``spark-submit``.

    What Java writes to its standard error goes to that of this process, also when the start fails.
    """
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized(conf=conf)
        return
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), name="java-errors", daemon=True).start()
    try:
        gateway = launch_gateway(conf, popen_kwargs={"stderr": writing})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
    finally:
        # Java has its own end, with which the thread ends.
        os.close(writing)


def _pass_on(reading: int) -> None:
    with open(reading, "rb") as lines:
        for line in lines:
            if not _GREETING.match(line):
                os.write(2, line)

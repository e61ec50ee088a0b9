"""Hears what a standalone master grants: Spark keeps that to its log, and waits for ever where no executor comes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext

_SOURCE = "org.apache.spark.deploy.client.StandaloneAppClient$ClientEndpoint"
_GRANTED = re.compile(r"^Executor added: (\S+) on \S+ \((\S+)\)", re.MULTILINE)
_CHANGED = re.compile(r"^Executor updated: (\S+) is now (.+)$", re.MULTILINE)


class Grants:
    """What was granted since :func:`heard` began; nothing where the master is none of a standalone cluster.

    :param text: of the log, a ``java.io.StringWriter``.
    """

    def __init__(self, text: Any) -> None:
        self._text = text

    def states(self) -> dict[str, str]:
        """Return, by the address of each worker that was to start an executor, what was heard of its last one."""
        text = str(self._text.toString())
        changes = dict(_CHANGED.findall(text))
        return {worker: changes.get(executor, "nothing was heard of it") for executor, worker in _GRANTED.findall(text)}


@contextmanager
def heard() -> Iterator[Grants]:
    """Hear, during the block, what a master says; it has to begin before the driver registers there.

    Java must run already. What Spark warns of in the same place goes to the log as before.
    """
    jvm: Any = SparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)
    configuration = context.getConfiguration()
    text = jvm.java.io.StringWriter()
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern("%m%n").build()
    appender = log4j.core.appender.WriterAppender.createAppender(layout, None, text, "grants", False, True)
    appender.start()
    logger = log4j.core.config.LoggerConfig(_SOURCE, log4j.Level.INFO, False)
    logger.addAppender(appender, log4j.Level.INFO, None)
    root = configuration.getRootLogger()
    for each in root.getAppenders().values():
        logger.addAppender(each, root.getLevel(), None)
    configuration.addLogger(_SOURCE, logger)
    context.updateLoggers()
    try:
        yield Grants(text)
    finally:
        configuration.removeLogger(_SOURCE)
        context.updateLoggers()

"""The frame of a Spark job: arguments, connections from the environment, a line of JSON, an exit code."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from queuekeeper.config import POSTGRES_VARIABLE, REDIS_VARIABLE
from queuekeeper.errors import QueuekeeperError, UsageError
from queuekeeper.facts import brief
from queuekeeper.jobs.parameters import Parameters
from queuekeeper.migration.spark.session import build_session, end_with_supervisor


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What a job gets from the process that started it; URLs hold passwords, so they are never arguments.

    :param redis_url: empty for a job that has no use for it.
    """

    postgres_url: str
    redis_url: str

    def spark(self, name: str) -> SparkSession:
        """Start Spark; called after the arguments were found good, since it takes seconds."""
        return build_session(name, stores=[url for url in (self.postgres_url, self.redis_url) if url])


def run(
    description: str | None,
    work: Callable[..., Any],
    *models: type[Parameters],
    on_redis: bool | Callable[..., bool] = True,
) -> int:
    """Run a job and print its result as the last line.

    :param work: does the work, given environment and parameters, and returns the result, a record or a mapping.
    :param models: of the parameters, from which the arguments are made.
    :param on_redis: false for a job that has no use for Redis; a function tells it by the parameters.
    :returns: the exit code: 0, or that of the exception (``queuekeeper.errors``).
    """
    end_with_supervisor()
    parser = argparse.ArgumentParser(description=description)
    for model in models:
        model.declare(parser)
    arguments = vars(parser.parse_args())
    try:
        asked = [model.take(arguments) for model in models]
        needs_redis = on_redis(*asked) if callable(on_redis) else on_redis
        environment = Environment(
            postgres_url=_url(POSTGRES_VARIABLE), redis_url=_url(REDIS_VARIABLE) if needs_redis else ""
        )
        result = work(environment, *asked)
    except QueuekeeperError as error:
        # spark-submit sends both streams of a driver to its own output, in this order: JSON has to be the last line.
        print(f"error: {error}", file=sys.stderr, flush=True)
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
        return error.exit_code
    print(json.dumps(brief(result)), flush=True)
    return 0


def _url(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise UsageError(f"{variable} is not set: it holds the URL to connect to")
    return value

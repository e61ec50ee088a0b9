"""Has an executor of a cluster say what it is, so that nothing is begun that no executor can carry out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from queuekeeper.errors import RefusedError, ServerUnavailable
from queuekeeper.migration.ledger.model import code_version
from queuekeeper.migration.spark.grants import Grants

EXECUTOR_WAIT_S = 120.0
"""How long a cluster may take to grant the first executor."""

START_WAIT_S = 45.0
"""How long an executor may take to come, once it is granted."""

ANSWER_WAIT_S = 45.0
"""How long an executor may take to answer, once it has come."""

_UNPACK_WAIT_S = 300.0
"""How much longer it may take where the driver sends archives, which are unpacked before the first task."""

TELL_S = 10.0
"""How often a wait for Spark prints how long it has lasted."""

_POLL_S = 0.1

Result = TypeVar("Result")


def asked(call: Callable[[], Result], *, name: str) -> Future[Result]:
    """Run a call of Spark's that may never return in a thread that nobody waits for at the end."""
    answer: Future[Result] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer


def probe_executor(
    context: SparkContext,
    *,
    stores: Sequence[str],
    grants: Grants,
    executor_wait_s: float = EXECUTOR_WAIT_S,
    start_wait_s: float = START_WAIT_S,
    answer_wait_s: float = ANSWER_WAIT_S,
) -> None:
    """Wait for the first executor and have it say its versions and whether it reaches the stores.

    :param stores: URLs.
    :param grants: heard since before the driver was registered.
    :raises ServerUnavailable: when there is no executor, or none that answers.
    :raises RefusedError: when the executor cannot run the jobs.
    """
    place = f"Spark at {context.master}"
    look = _look(stores, expected=code_version())
    answer = asked(lambda: context.parallelize([0], 1).mapPartitions(look).collect(), name="first-executor")
    _await_executor(answer, context, grants, place=place, executor_wait_s=executor_wait_s, start_wait_s=start_wait_s)
    # An executor without the package answers as soon as it has unpacked them; only one that is mute is waited for.
    if context.getConf().get("spark.archives"):
        answer_wait_s += _UNPACK_WAIT_S
    if not waited(answer.done, what=f"the first answer of an executor of {place}", longest_s=answer_wait_s):
        raise ServerUnavailable(
            f"an executor of {place} has come, and did not answer within {answer_wait_s:g} seconds: check its "
            f"log, and that it may connect to all ports of this driver at {_driver(context)} (spark.driver.port, "
            "spark.driver.blockManager.port)"
        )
    try:
        (found,) = answer.result()
    except (PySparkException, Py4JError, OSError) as error:
        words = telling_line(str(error))
        if "removed our application" in words or "SparkContext was shut down" in words:
            words += f"; the executors' own logs say why, and whether they reach this driver at {_driver(context)}"
        raise RefusedError(
            f"no executor of {place} can run Python tasks of this driver, which has Spark {context.version} and "
            f"Python {context.pythonVer}: {words}. Give all machines the same Spark, Python and packages, and name "
            "the executors' Python by PYSPARK_PYTHON (docs/deploying.md)"
        ) from None
    _judge(found, place=place, spark_version=context.version)


def waited(is_over: Callable[[], bool], *, what: str, longest_s: float) -> bool:
    """Wait for Spark, and print every :data:`TELL_S` seconds how long that has lasted.

    :param what: is waited for.
    :param longest_s: how long to wait, in seconds.
    :returns: whether it was over in time.
    """
    begun_s = told_s = time.monotonic()
    while not is_over():
        now_s = time.monotonic()
        waited_s = now_s - begun_s
        if waited_s > longest_s:
            return False
        if now_s - told_s >= TELL_S:
            told_s = now_s
            print(f"spark: waiting for {what}: {waited_s:.0f} of at most {longest_s:g} seconds", flush=True)
        time.sleep(_POLL_S)
    return True


def _await_executor(
    answer: Future[Any],
    context: SparkContext,
    grants: Grants,
    *,
    place: str,
    executor_wait_s: float,
    start_wait_s: float,
) -> None:
    """Wait until an executor has connected to this driver.

    :raises ServerUnavailable: when the cluster grants none, or none of those that it grants comes.
    """
    reach = (
        f"may connect to this driver at {_driver(context)}; another address of this machine is set by SPARK_LOCAL_IP "
        "or spark.driver.host"
    )

    def has_come() -> bool:
        return answer.done() or _executors(context) > 0

    def is_over(*ends: Callable[[], object]) -> bool:
        with suppress(Py4JError):  # Spark has stopped: the answer says why
            return any(each() for each in ends)
        return False

    if not waited(partial(is_over, has_come, grants.states), what=f"an executor of {place}", longest_s=executor_wait_s):
        raise ServerUnavailable(
            f"{place} granted no executor within {executor_wait_s:g} seconds: check on the master's page that workers "
            f"are registered and have a free core and memory, and that they {reach}"
        )
    if not waited(partial(is_over, has_come), what=f"the executor that {place} has granted", longest_s=start_wait_s):
        workers = "; ".join(f"{worker}: {state}" for worker, state in grants.states().items())
        raise ServerUnavailable(
            f"{place} has granted an executor, and none has come within {start_wait_s:g} seconds ({workers}): check on "
            f"the page of each of these workers that it has Spark {context.version}, since a worker of another version "
            f"starts no executor; and that it {reach}"
        )


def _executors(context: SparkContext) -> int:
    """Return how many executors there are; the driver is counted among them by Spark."""
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1


def _driver(context: SparkContext) -> str:
    return str(context.getConf().get("spark.driver.host"))


def _look(stores: Sequence[str], *, expected: str) -> Callable[[Any], Iterator[dict[str, Any]]]:
    """Return what an executor can run without having Queuekeeper: it travels by value."""
    urls = tuple(stores)

    def look(_: Any) -> Iterator[dict[str, Any]]:
        import socket  # noqa: PLC0415 - where it runs
        import sys  # noqa: PLC0415

        import pyspark  # noqa: PLC0415

        found: dict[str, Any] = {"host": socket.gethostname(), "python": sys.executable, "spark": pyspark.__version__}
        try:
            from queuekeeper.migration.ledger.model import code_version  # noqa: PLC0415 - may be missing there

            found["version"] = code_version()
            if found["version"] == expected:
                from queuekeeper.migration.spark.masters import unreached  # noqa: PLC0415

                found["unreached"] = unreached(urls)
        except ImportError as error:
            found["missing"] = str(error)
        yield found

    return look


def _judge(found: Mapping[str, Any], *, place: str, spark_version: str) -> None:
    executor = f"the executor of {place} on {found['host']}"
    if found["spark"] != spark_version:
        raise RefusedError(
            f"{executor} has Spark {found['spark']}, and this driver has {spark_version}: give all machines the same "
            "Spark (docs/deploying.md)"
        )
    if "missing" in found:
        raise RefusedError(
            f"{executor} cannot import Queuekeeper into {found['python']} ({found['missing']}): install "
            "queuekeeper[spark] there, or send it along as an archive, and name its Python by PYSPARK_PYTHON "
            "(docs/deploying.md)"
        )
    if found["version"] != code_version():
        raise RefusedError(
            f"{executor} has Queuekeeper {found['version']}, and this driver has {code_version()}: give all machines "
            "the same packages (docs/deploying.md)"
        )
    if found["unreached"]:
        raise ServerUnavailable(f"{executor} does not reach the stores: {'; '.join(found['unreached'])}")


def telling_line(text: str) -> str:
    """Return the line of an error of Spark's that says what has happened, without the traces around it."""
    lines = text.partition("\n\tat ")[0].partition("\nDriver stacktrace")[0].strip().splitlines()
    return lines[-1].strip()[:600] if lines else "no word"

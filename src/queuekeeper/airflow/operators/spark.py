"""Runs an application of ``spark_jobs/`` as a task, and handles its secrets, exit codes, result and end."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from queuekeeper.airflow.hooks import QueuekeeperPostgresHook, QueuekeeperRedisHook, get_connection
from queuekeeper.airflow.operators.asked import AsksOperator
from queuekeeper.airflow.settings import task_settings
from queuekeeper.config import DRIVER_SETTINGS, POSTGRES_VARIABLE, REDIS_VARIABLE, SUPERVISOR_VARIABLE
from queuekeeper.errors import CheckFailed, RefusedError, ServerUnavailable, StalePlan, UsageError
from queuekeeper.jobs.parameters import Parameters
from queuekeeper.jobs.resources import POSTGRES_CONNECTION, REDIS_CONNECTION, SPARK_CONNECTION
from queuekeeper.migration.spark.masters import check_master, is_local

if TYPE_CHECKING:
    from airflow.sdk import Context

_NEVER_RETRIED = frozenset({UsageError.exit_code, StalePlan.exit_code, RefusedError.exit_code})
_CONF = {
    **DRIVER_SETTINGS,
    "spark.log.level": "WARN",
}
_CLUSTER_MODE = "it follows a driver in deploy mode cluster, and a job's driver runs in its task"
_NOT_TAKEN = {
    "application": "the job names its file in spark_jobs/",
    "application_args": "the arguments of a job come from its form",
    "java_class": "jobs are written in Python",
    "track_driver_via_k8s_api": _CLUSTER_MODE,
    "yarn_track_via_rm_api": _CLUSTER_MODE,
}
"""Arguments of the provider's operator that are refused when they ask for something -> why."""

_SECRET_VARIABLES = ("AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW__", "_AIRFLOW")
"""Prefixes of environment variables that a job does not get: Airflow's keys, database and other connections."""


class QueuekeeperSparkHook(SparkSubmitHook):
    """Runs ``spark-submit`` in client mode with its own environment, and keeps the job's last line."""

    def __init__(self, *, environment: dict[str, str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._environment = environment
        self.result: dict[str, Any] | None = None

    @property
    def exit_code(self) -> int | None:
        """Exit code of ``spark-submit``, which in client mode is that of the job."""
        return None if self._submit_sp is None else self._submit_sp.returncode

    @property
    def deploy_mode(self) -> str:
        """Deploy mode, which says where the driver runs."""
        return self._connection["deploy_mode"] or "client"

    @property
    def master(self) -> str:
        """Master of Spark, where the executors run."""
        return str(self._connection["master"])

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run the application; its environment never appears in a command line."""
        # The standard input of a task is connected to the supervisor. If the driver inherited it, the supervisor would
        # wait for the driver after the task was killed.
        try:
            environment = self._environment | {name: str(value) for name, value in (self._env_vars or {}).items()}
            return super().submit(application, env=environment, stdin=subprocess.DEVNULL, **kwargs)
        finally:
            if self._submit_sp is not None and self._submit_sp.stdout is not None:
                self._submit_sp.stdout.close()

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command: list[str] = super()._build_spark_submit_command(application)
        # Otherwise `submit` uses the task's own environment, which has Airflow's secrets, instead of the job's.
        self._env = None
        return command

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        super()._process_spark_submit_log(self._watched(itr))

    def _watched(self, lines: Iterator[Any]) -> Iterator[Any]:
        for line in lines:
            found = _json_object(str(line))
            if found is not None:
                self.result = found
            yield line


class QueuekeeperSparkOperator(AsksOperator, SparkSubmitOperator):
    """Run a file of ``spark_jobs/`` and return its last JSON line.

    A job that refuses (exit code 2, 3 or 4) or whose check failed (1, with a result) fails for good. After any other
    failure, such as a killed driver or a lost server, the task may be retried: every job can be repeated.

    :param job: file name of the application; that of the class when absent.
    :param spark_jobs: folder of the applications; see :func:`queuekeeper.airflow.defaults.spark_jobs`.
    :param postgres_conn_id: connection of source and control database (templated).
    :param redis_conn_id: connection of the target; ``None`` for a job that does not use it (templated).
    :param spark_conn_id: connection of Spark, in client mode (templated).
    :param conn_id: the same, under the name that the provider's operator gives it.
    :param driver_memory: memory of the driver's JVM; with a ``local`` master it holds the executors, too.
    :param name: name of the application in Spark; by default ``queuekeeper-`` and the name of the job.

    All other arguments are those of the provider's ``SparkSubmitOperator``, templated as there. Refused by name are
    those that follow a driver in deploy mode cluster, and those that the job sets itself.
    """

    template_fields: Sequence[str] = (
        "postgres_conn_id",
        "redis_conn_id",
        "spark_conn_id",
        *(name for name in SparkSubmitOperator.template_fields if name not in _NOT_TAKEN),
    )
    ui_color = "#f7e3cf"
    job: str
    _hook: QueuekeeperSparkHook | None

    def __init__(
        self,
        *,
        spark_jobs: str,
        job: str = "",
        postgres_conn_id: str = POSTGRES_CONNECTION,
        redis_conn_id: str | None = REDIS_CONNECTION,
        spark_conn_id: str = SPARK_CONNECTION,
        conn_id: str | None = None,
        conf: dict[str, str] | None = None,
        driver_memory: str = "1g",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.check(kwargs)
        if conn_id is not None:
            if spark_conn_id not in (SPARK_CONNECTION, conn_id):
                raise UsageError(
                    f"{type(self).__name__} has two connections of Spark, conn_id {conn_id!r} and spark_conn_id "
                    f"{spark_conn_id!r}: give one of the two"
                )
            spark_conn_id = conn_id
        super().__init__(
            conf=conf,
            conn_id=spark_conn_id,
            driver_memory=driver_memory,
            name=name or f"queuekeeper-{Path(job or self.job).stem.replace('_', '-')}",
            **kwargs,
        )
        self.job = job or self.job
        self.spark_jobs = spark_jobs
        self.postgres_conn_id = postgres_conn_id
        self.redis_conn_id = redis_conn_id
        self.spark_conn_id = spark_conn_id

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        """Check that no argument is given that the job sets itself."""
        super().check(given)
        for argument, reason in _NOT_TAKEN.items():
            if given.get(argument):
                raise UsageError(f"{cls.__name__} takes no {argument}: {reason}")

    @abstractmethod
    def wishes(self, context: Context) -> Sequence[Parameters]:
        """Return the parameters of the application as its models; they are logged, so they must hold no secret."""

    def arguments(self, context: Context) -> list[str]:
        """Return the command-line arguments of the application."""
        return [argument for wish in self.wishes(context) for argument in wish.to_argv()]

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Run the application, write its output to the log and return its result."""
        # What is not shared would be missed by later tasks, on other workers.
        task_settings()
        application = Path(self.spark_jobs) / self.job
        if not application.is_file():
            raise UsageError(f"there is no Spark application {application}: deploy the folder spark_jobs/ beside dags/")
        self.application = str(application)
        self.application_args = self.arguments(context)
        self._unhook()
        self.log.info("Starting %s: %s", self.job, " ".join(self.application_args))
        try:
            super().execute(context)
        except AirflowException as error:
            self._fail(self._hook, error)
        if self._hook is None or self._hook.result is None:
            raise AirflowException(f"{self.job} ended without a result: its last line must be a JSON object")
        self.log.info("%s ended well", self.job)
        return self._hook.result

    def _unhook(self) -> None:
        """Drop the hook, so that a new one is made with what OpenLineage adds to ``conf``."""
        self._hook = None

    @property
    def result(self) -> dict[str, Any]:
        """Result of the application; empty until it has ended."""
        return (None if self._hook is None else self._hook.result) or {}

    def on_kill(self) -> None:
        """Stop ``spark-submit``, if it has been started, when the task is stopped."""
        if self._hook is not None:
            self._hook.on_kill()

    def _get_hook(self) -> QueuekeeperSparkHook:
        # The provider would use YARN if the connection does not exist.
        connection = get_connection(
            self.spark_conn_id, kinds=("spark", "yarn", "k8s"), example=r"'spark://local%5B2%5D?deploy-mode=client'"
        )
        binary = Path(sys.executable).parent / "spark-submit"
        # Arguments of the provider's operator, which keeps each under its name, with or without a leading underscore.
        given = {
            name: getattr(self, name, getattr(self, f"_{name}", None))
            for name in inspect.signature(SparkSubmitHook).parameters
        }
        # The rendered value: the provider's operator keeps the one before rendering.
        given["conn_id"] = self.spark_conn_id
        given["conf"] = {**_CONF, **(self.conf or {})}
        if given["spark_binary"] is None and "spark-binary" not in connection.extra_dejson and binary.is_file():
            # The PySpark of this environment, unless operator or connection names another one.
            given["spark_binary"] = str(binary)
        environment = self._environment()
        try:
            hook = QueuekeeperSparkHook(environment=environment, **given)
            check_master(hook.master)
        except (RuntimeError, ValueError, UsageError) as error:
            raise UsageError(f"connection {self.spark_conn_id!r}: {error}") from None
        if hook.deploy_mode != "client":
            raise UsageError(
                f"connection {self.spark_conn_id!r} has deploy-mode {hook.deploy_mode!r}: set it to client, as only "
                "client mode keeps passwords off the command line and ends the driver with its task"
            )
        if is_local(hook.master):
            hook._environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        return hook

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_SECRET_VARIABLES)}
        kept.setdefault("PYSPARK_PYTHON", sys.executable)
        # A relative one is in the archive that executors unpack, which the driver has no use for.
        there = kept["PYSPARK_PYTHON"]
        kept.setdefault("PYSPARK_DRIVER_PYTHON", there if Path(there).is_absolute() else sys.executable)
        if self.redis_conn_id is not None:
            kept[REDIS_VARIABLE] = QueuekeeperRedisHook(self.redis_conn_id).url
        return kept | {
            "PYTHONUNBUFFERED": "1",
            POSTGRES_VARIABLE: QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).url,
            SUPERVISOR_VARIABLE: str(os.getpid()),
        }

    def _fail(self, hook: QueuekeeperSparkHook | None, error: AirflowException) -> NoReturn:
        if hook is None:  # no driver was started
            raise error
        code = hook.exit_code
        if (hook.result or {}).get("error") == ServerUnavailable.__name__:
            # The server may be back for the next try, which continues where this one stopped.
            words = _words(hook.result, error)
            raise AirflowException(f"{self.job} lost a server; it can be repeated: {words}") from None
        if code in _NEVER_RETRIED or (code == CheckFailed.exit_code and hook.result is not None):
            raise AirflowFailException(
                f"{self.job} stopped with exit code {code}: {_words(hook.result, error)}"
            ) from None
        raise AirflowException(f"{self.job} broke off with exit code {code}; it can be repeated. {error}") from None


def _json_object(line: str) -> dict[str, Any] | None:
    text = line.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _words(result: dict[str, Any] | None, error: AirflowException) -> str:
    for name in ("message", "error"):
        if result and result.get(name):
            return str(result[name])
    return json.dumps(result) if result else str(error)

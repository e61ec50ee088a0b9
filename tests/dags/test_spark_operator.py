"""A Spark application as a task: what it is given, how its end is understood, and that it never outlives its task.

The applications here are small probes; ``spark-submit``, its JVM and the Python driver are real.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.providers.apache.spark.operators import spark_submit
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from queuekeeper.airflow.operators.spark import QueuekeeperSparkHook, QueuekeeperSparkOperator
from queuekeeper.errors import UsageError
from queuekeeper.java import java_home
from queuekeeper.jobs.parameters import Parameters
from queuekeeper.migration.ledger.parameters import PlanChoice
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.dags

SECRET = "ge/heim@1"
CONNECTIONS = {
    "queuekeeper_postgres": json.dumps(
        {"conn_type": "postgres", "host": "db", "login": "u", "password": SECRET, "schema": "tbmq"}
    ),
    "queuekeeper_redis": json.dumps({"conn_type": "redis", "host": "cache", "password": SECRET}),
    "queuekeeper_spark": json.dumps({"conn_type": "spark", "host": "local[1]", "extra": {"deploy-mode": "client"}}),
    "own-conn_id": json.dumps({"conn_type": "spark", "host": "local[3]"}),
}


class ProbeOperator(QueuekeeperSparkOperator):
    """Run a probe with fixed arguments."""

    def wishes(self, context: Any) -> Sequence[Parameters]:
        return (PlanChoice(plan_id="0123456789abcdef"),)


@pytest.fixture(scope="session")
def java(server_home: Path) -> Path:
    return java_home(server_home)


@pytest.fixture
def environment(java: Path, monkeypatch: pytest.MonkeyPatch, connections: Callable[..., None]) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java))
    monkeypatch.setenv("PATH", os.pathsep.join([str(java / "bin"), os.environ["PATH"]]))
    connections(**CONNECTIONS)


@pytest.fixture
def run(environment: None, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """Run a probe as an application and return the operator's result."""

    def probe(source: str) -> dict[str, Any]:
        (tmp_path / "probe.py").write_text(source, "utf-8")
        return ProbeOperator(task_id="probe", job="probe.py", spark_jobs=str(tmp_path)).execute({})

    return probe


def test_job_gets_its_secrets_by_environment_and_its_last_line_is_the_result(
    run: Callable[[str], dict[str, Any]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "not for jobs")
    found = run(
        "import json, os, sys\n"
        "print('copy 1/2 messages')\n"
        "print(json.dumps({'not': 'the last'}))\n"
        "command = open(f'/proc/{os.getppid()}/cmdline').read()\n"
        "print(json.dumps({'environment': dict(os.environ), 'arguments': sys.argv[1:], 'jvm': command,\n"
        "                  'python': sys.executable}))\n"
    )

    given = found["environment"]
    assert given["QUEUEKEEPER_POSTGRES_URL"] == "postgresql://u:ge%2Fheim%401@db:5432/tbmq"
    assert given["QUEUEKEEPER_REDIS_URL"] == "redis://:ge%2Fheim%401@cache:6379/0"
    assert given["QUEUEKEEPER_SUPERVISOR_PID"] == str(os.getpid())
    assert given["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert found["python"] == sys.executable
    assert found["arguments"] == ["--plan-id=0123456789abcdef"]
    assert [name for name in given if name.startswith(("AIRFLOW_CONN_", "AIRFLOW__"))] == []
    for setting in ("spark.ui.enabled=false", "spark.ui.showConsoleProgress=false", "spark.log.level=WARN"):
        assert setting in found["jvm"]
    assert "spark.sql.session.timeZone=UTC" in found["jvm"]
    assert "heim" not in found["jvm"]
    log = "".join(capfd.readouterr())
    assert "copy 1/2 messages" in log
    commands = [line for line in log.splitlines() if "Spark-Submit cmd" in line]
    assert len(commands) == 1
    assert "heim" not in commands[0]


@pytest.mark.parametrize(
    ("end", "kind", "words"),
    [
        ("print(json.dumps({'error': 'StalePlan', 'message': 'plan again'})); sys.exit(3)", AirflowFailException,
         "probe.py stopped with exit code 3: plan again"),
        ("print('Redis evicts'); sys.exit(4)", AirflowFailException,
         r"(?s)probe.py stopped with exit code 4: .*Redis evicts"),
        ("print(json.dumps({'differences': 3})); sys.exit(1)", AirflowFailException,
         r"probe.py stopped with exit code 1: \{\"differences\": 3\}"),
        ("print(json.dumps({'error': 'ServerUnavailable', 'message': 'Redis is down'})); sys.exit(4)", AirflowException,
         "probe.py lost a server; it can be repeated: Redis is down"),
        ("raise RuntimeError('unforeseen')", AirflowException,
         r"(?s)probe.py broke off with exit code 1; it can be repeated.*unforeseen"),
        ("os.kill(os.getppid(), 9); time.sleep(60)", AirflowException,
         r"probe.py broke off with exit code -9; it can be repeated"),
        ("pass", AirflowException, "probe.py ended without a result: its last line must be a JSON object"),
    ],
    ids=["stale", "refused", "check-failed", "server-lost", "crashed", "killed", "silent"],
)  # fmt: skip
def test_only_what_a_retry_can_mend_is_retried(
    run: Callable[[str], dict[str, Any]], end: str, kind: type[AirflowException], words: str
) -> None:
    with pytest.raises(AirflowException, match=words) as caught:
        run(f"import json, os, sys, time\n{end}\n")

    assert type(caught.value) is kind


def test_no_secret_is_a_rendered_field() -> None:
    operator = ProbeOperator(task_id="probe", job="probe.py", spark_jobs="/nowhere")

    ours = {"postgres_conn_id", "redis_conn_id", "spark_conn_id"}
    # What a DAG writes into the provider's arguments is rendered as everywhere; URLs and arguments of a job are not.
    assert set(operator.template_fields) - set(SparkSubmitOperator.template_fields) == ours
    assert not {"application", "application_args"} & set(operator.template_fields)
    assert {name: getattr(operator, name) for name in operator.template_fields if getattr(operator, name)} == {
        "postgres_conn_id": "queuekeeper_postgres",
        "redis_conn_id": "queuekeeper_redis",
        "spark_conn_id": "queuekeeper_spark",
        "name": "queuekeeper-probe",
    }


def test_missing_spark_connection_is_an_error_and_not_yarn(
    run: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_QUEUEKEEPER_SPARK")

    with pytest.raises(UsageError, match="Airflow has no connection 'queuekeeper_spark': airflow connections add"):
        run("raise AssertionError('started')")


def test_every_argument_of_the_providers_operator_reaches_spark_submit(environment: None, tmp_path: Path) -> None:
    operator = ProbeOperator(
        task_id="probe", job="probe.py", spark_jobs=str(tmp_path), archives="packed.tar.gz#environment",
        py_files="more.zip", files="settings.json", jars="a.jar", executor_memory="2g", executor_cores=3,
        num_executors=4, total_executor_cores=12, driver_memory="3g", properties_file="spark.properties",
        conf={"spark.log.level": "INFO"}, name="mine", verbose=True,
    )  # fmt: skip

    hook = operator._get_hook()
    command = hook._build_spark_submit_command("probe.py")

    asked = dict(pairwise(command))
    for option, value in {
        "--archives": "packed.tar.gz#environment", "--py-files": "more.zip", "--files": "settings.json",
        "--jars": "a.jar", "--executor-memory": "2g", "--executor-cores": "3", "--num-executors": "4",
        "--total-executor-cores": "12", "--driver-memory": "3g", "--properties-file": "spark.properties",
        "--name": "mine",
    }.items():  # fmt: skip
        assert asked[option] == value
    assert "--verbose" in command
    assert "spark.log.level=INFO" in command
    assert "spark.ui.enabled=false" in command


REFUSED = {
    "application": "the job names its file",
    "application_args": "the arguments of a job come from its form",
    "java_class": "jobs are written in Python",
    "track_driver_via_k8s_api": "it follows a driver in deploy mode cluster",
    "yarn_track_via_rm_api": "it follows a driver in deploy mode cluster",
}
OF_LINEAGE = {"openlineage_inject_parent_job_info", "openlineage_inject_transport_info"}
"""The provider's operator takes these and does not hand them on: they add to `conf`."""

OF_RETRIES = {"durable", "reconnect_on_retry"}
"""It keeps these itself, the second under the name of the first."""


def _arguments() -> list[inspect.Parameter]:
    given = inspect.signature(SparkSubmitOperator.__init__).parameters.values()
    return [each for each in given if each.kind is inspect.Parameter.KEYWORD_ONLY]


def _sample(argument: inspect.Parameter) -> Any:
    """Return a value of an argument's type that is none's default."""
    if argument.name == "deploy_mode":
        return "client"
    if argument.name in OF_RETRIES:
        return False
    kinds: dict[str, Any] = {"dict": {"spark.one": "two"}, "list": ["true"], "int": 7, "bool": True}
    return kinds.get(str(argument.annotation).partition(" ")[0].partition("[")[0], f"own-{argument.name}")


@pytest.mark.filterwarnings("ignore:`reconnect_on_retry` is deprecated")
@pytest.mark.parametrize("argument", _arguments(), ids=lambda each: each.name)
def test_each_argument_of_the_providers_operator_is_handed_on_or_refused_by_name(
    environment: None, tmp_path: Path, argument: inspect.Parameter, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = _sample(argument)

    def operator() -> ProbeOperator:
        return ProbeOperator(task_id="probe", job="probe.py", spark_jobs=str(tmp_path), **{argument.name: sample})

    if argument.name in REFUSED:
        with pytest.raises(
            UsageError, match=f"ProbeOperator takes no {argument.name}: {re.escape(REFUSED[argument.name])}"
        ):
            operator()
        return
    if argument.name in OF_LINEAGE:
        words = (
            argument.name.removeprefix("openlineage_inject_").removesuffix("_info").replace("job", "job_information")
        )
        words = words.replace("transport", "transport_information")
        monkeypatch.setattr(
            spark_submit, f"inject_{words}_into_spark_properties", lambda conf, _: conf | {"spark.openlineage": "told"}
        )
        (tmp_path / "probe.py").touch()
        handed: list[Any] = []

        def submit(hook: QueuekeeperSparkHook, _: str) -> None:
            handed.append(hook._conf["spark.openlineage"])
            hook.result = {}

        monkeypatch.setattr(QueuekeeperSparkHook, "submit", submit)
        operator().execute({})
        assert handed == ["told"]
        return
    if argument.name in OF_RETRIES:
        assert operator().durable is False
        return
    hook = operator()._get_hook()
    found = getattr(hook, f"_{argument.name}", getattr(hook, argument.name, None))
    assert found == (hook._conf | sample if argument.name == "conf" else sample)


@pytest.mark.parametrize("argument", ["track_driver_via_k8s_api", "yarn_track_via_rm_api"])
def test_an_argument_that_asks_for_nothing_is_refused_to_nobody(
    environment: None, tmp_path: Path, argument: str
) -> None:
    asked: dict[str, Any] = {argument: False}

    ProbeOperator(task_id="probe", job="probe.py", spark_jobs=str(tmp_path), **asked)._get_hook()


def test_the_page_on_deploying_says_which_arguments_are_refused() -> None:
    page = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text("utf-8")

    assert set(REFUSED) <= set(re.findall(r"`([a-z_0-9]+)(?:=True)?`", page))


def test_connection_has_the_name_that_the_providers_operator_gives_it_too(environment: None, tmp_path: Path) -> None:
    def operator(**names: Any) -> ProbeOperator:
        return ProbeOperator(task_id="probe", job="probe.py", spark_jobs=str(tmp_path), **names)

    assert operator(conn_id="own-conn_id")._get_hook().master == "local[3]"
    assert operator(conn_id="own-conn_id", spark_conn_id="own-conn_id").spark_conn_id == "own-conn_id"
    with pytest.raises(UsageError, match="two connections of Spark, conn_id 'theirs' and spark_conn_id 'ours': give"):
        operator(conn_id="theirs", spark_conn_id="ours")


def test_arguments_of_the_providers_operator_are_templated_as_there(environment: None, tmp_path: Path) -> None:
    operator = ProbeOperator(
        task_id="probe", job="probe.py", spark_jobs=str(tmp_path), files="{{ params.folder }}/settings.json",
        conf={"spark.executor.cores": "{{ params.cores }}"},
    )  # fmt: skip
    operator.render_template_fields({"params": {"folder": "/srv", "cores": "3"}})

    command = operator._get_hook()._build_spark_submit_command("probe.py")

    assert dict(pairwise(command))["--files"] == "/srv/settings.json"
    assert "spark.executor.cores=3" in command


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        (
            {"host": "sc://connect:15002"},
            "jobs do not run on the Spark master 'sc://connect:15002'; Spark Connect keeps",
        ),
        ({"host": "mesos://m:5050"}, "jobs do not run on the Spark master 'mesos://m:5050': write local"),
        ({"host": "local[1]", "extra": {"spark-binary": "spark5-submit"}}, "The spark-binary extra can be one of"),
        ({"host": "local[1]", "extra": {"spark-home": "/opt/spark"}}, "The `spark-home` extra is not allowed any more"),
    ],
    ids=["connect", "mesos", "binary", "home"],
)
def test_connection_that_names_what_there_is_not_is_refused_by_its_name(
    environment: None, tmp_path: Path, connections: Callable[..., None], connection: dict[str, Any], words: str
) -> None:
    connections(queuekeeper_spark=json.dumps({"conn_type": "spark", **connection}))
    operator = ProbeOperator(task_id="probe", job="probe.py", spark_jobs=str(tmp_path))

    with pytest.raises(UsageError, match=f"connection 'queuekeeper_spark': {re.escape(words)}"):
        operator._get_hook()


def test_connection_that_a_template_names_is_used(environment: None, tmp_path: Path) -> None:
    operator = ProbeOperator(
        task_id="probe", job="probe.py", spark_jobs=str(tmp_path), spark_conn_id="{{ params.spark_conn_id }}"
    )
    operator.render_template_fields({"params": {"spark_conn_id": "queuekeeper_spark"}})

    assert "local[1]" in operator._get_hook()._build_spark_submit_command("probe.py")


def test_driver_keeps_its_own_python_where_executors_take_that_of_an_archive(
    run: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")

    found = run(
        "import json, os, sys\nprint(json.dumps({'driver': sys.executable, 'there': os.environ['PYSPARK_PYTHON']}))\n"
    )

    assert found == {"driver": sys.executable, "there": "./environment/bin/python"}


def test_environment_of_an_operator_is_the_jobs_and_brings_no_secret_of_airflow(
    environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "not for jobs")
    (tmp_path / "probe.py").write_text("import json, os\nprint(json.dumps(dict(os.environ)))\n", "utf-8")
    operator = ProbeOperator(
        task_id="probe", job="probe.py", spark_jobs=str(tmp_path), env_vars={"CACHE_PREFIX": "tbmq:"}
    )

    given = operator.execute({})

    assert given["CACHE_PREFIX"] == "tbmq:"
    assert given["QUEUEKEEPER_REDIS_URL"].startswith("redis://")
    assert [name for name in given if name.startswith(("AIRFLOW_CONN_", "AIRFLOW__"))] == []


def test_cluster_mode_is_refused(run: Callable[[str], dict[str, Any]], connections: Callable[..., None]) -> None:
    connections(
        queuekeeper_spark=json.dumps(
            {"conn_type": "spark", "host": "spark://master:7077", "extra": {"deploy-mode": "cluster"}}
        )
    )

    with pytest.raises(UsageError, match=r"has deploy-mode 'cluster': set it to client, as only client mode keeps"):
        run("raise AssertionError('started')")


def test_missing_application_says_where_it_should_be(environment: None, tmp_path: Path) -> None:
    words = f"there is no Spark application {tmp_path}/absent.py: deploy the folder spark_jobs/"
    with pytest.raises(UsageError, match=words):
        ProbeOperator(task_id="probe", job="absent.py", spark_jobs=str(tmp_path)).execute({})


WAITING = """
import json, os, sys, time
from queuekeeper.migration.spark.session import end_with_supervisor
end_with_supervisor(poll_s=0.2)
with open(sys.argv[0] + ".pids.part", "w") as file:
    json.dump([os.getpid(), os.getppid()], file)
os.rename(sys.argv[0] + ".pids.part", sys.argv[0] + ".pids")
time.sleep(120)
"""

TASK = """
import sys
from tests.dags.test_spark_operator import ProbeOperator
ProbeOperator(task_id="probe", job="probe.py", spark_jobs=sys.argv[1]).execute({})
"""


@pytest.fixture
def task(environment: None, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[psutil.Process]]]:
    """A task in a process of its own whose driver waits, with driver and JVM."""
    (tmp_path / "probe.py").write_text(WAITING, "utf-8")
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", TASK, str(tmp_path)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    pids = tmp_path / "probe.py.pids"
    deadline = time.monotonic() + PATIENCE_S
    while not pids.exists():
        assert process.poll() is None, "the task ended before its driver was up"
        assert time.monotonic() < deadline, "the driver did not come up"
        time.sleep(0.05)
    started = [psutil.Process(pid) for pid in json.loads(pids.read_text("utf-8"))]
    yield process, started
    for each in (process, *started):
        _end(each)
    process.wait()


def _end(process: subprocess.Popen[bytes] | psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        process.kill()


def _gone(processes: Sequence[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert alive == []


def test_killed_task_leaves_no_driver_behind(task: tuple[subprocess.Popen[bytes], list[psutil.Process]]) -> None:
    process, started = task

    process.send_signal(signal.SIGKILL)

    _gone(started)

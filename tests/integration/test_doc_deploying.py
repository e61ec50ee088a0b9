"""``docs/deploying.md``, carried out as far as that goes without a container engine and a cluster.

Pools and connections of that page are held in ``tests/dags/test_documented_connections.py``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from packaging.specifiers import SpecifierSet
from uv import find_uv_bin

from queuekeeper import __version__
from queuekeeper.config import Settings

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploying.md").read_text("utf-8")
CONNECTIONS = ("queuekeeper_postgres", "queuekeeper_redis", "queuekeeper_spark")


def snippets(kind: str) -> list[str]:
    """Return the page's blocks of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


class Image:
    """A folder that stands for the file system of an image.

    :param context: where files are copied from.
    """

    def __init__(self, root: Path, *, context: Path) -> None:
        self.root = root
        self.python = root / "venv" / "bin" / "python"
        self._context = context

    def place(self, path: str) -> Path:
        """Return where a path of the image is."""
        return self.root / path.lstrip("/")

    def build(self, recipe: str) -> list[str]:
        """Carry out a recipe; return the commands that were run."""
        self._run("uv", "venv", "--quiet", "--python", sys.executable, str(self.root / "venv"))
        ran = []
        for instruction in recipe.replace("\\\n", " ").splitlines():
            word, _, rest = instruction.partition(" ")
            if word == "COPY":
                self._copy(*(each for each in rest.split() if not each.startswith("--")))
            elif word == "RUN":
                for command in rest.split("&&"):
                    # A package manager of the system, and the installer, which is there.
                    if command.split()[0] == "apt-get" or re.fullmatch(r"\s*pip install \S+ uv\s*", command):
                        continue
                    ran.append(command.strip())
                    words = [found for each in shlex.split(command) for found in self._expanded(each)]
                    self._run(*words)
            else:
                assert word in ("FROM", "USER"), instruction
        return ran

    def _expanded(self, word: str) -> Iterator[str]:
        """Return a word as a shell in the image would: paths are below its root, and patterns have a match."""
        if not word.startswith("/"):
            yield word
            return
        path = self.place(word)
        found = sorted(path.parent.glob(path.name))
        assert found, f"nothing in the image is like {word}"
        yield from map(str, found)

    def _copy(self, *words: str) -> None:
        *sources, target = words
        place = self.place(target)
        place.mkdir(parents=True, exist_ok=True)
        for source in sources:
            found = sorted(self._context.glob(source))
            assert found, f"there is no {source} to copy"
            for each in found:
                # What is in a folder, as COPY does.
                members = sorted(each.rglob("*")) if each.is_dir() else [each]
                for path in members:
                    if path.is_file() and "__pycache__" not in path.parts:
                        copied = place / path.relative_to(each if each.is_dir() else each.parent)
                        copied.parent.mkdir(parents=True, exist_ok=True)
                        copied.write_bytes(path.read_bytes())

    def _run(self, *words: str) -> None:
        assert words[0] == "uv", words
        environment = {**os.environ, "VIRTUAL_ENV": str(self.root / "venv"), "UV_NO_PROGRESS": "1"}
        done = subprocess.run(
            [find_uv_bin(), *words[1:]], env=environment, cwd=self.root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The recipe's image, of this checkout and its wheel."""
    context = tmp_path_factory.mktemp("context")
    for name in ("requirements.lock", "overrides.txt", "dags", "plugins", "spark_jobs"):
        (context / name).symlink_to(ROOT / name)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(context / "dist")],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (recipe,) = snippets("dockerfile")
    built = Image(tmp_path_factory.mktemp("image"), context=context)
    ran = built.build(recipe)
    assert [command.split()[:3] for command in ran] == [["uv", "pip", "sync"], ["uv", "pip", "install"]]
    return built


@pytest.mark.nightly
def test_image_finds_its_dags_plugin_and_jobs(image: Image) -> None:
    home = image.place("/opt/airflow")
    assert {path.name for path in (home / "dags").glob("*.py")} == {path.name for path in (ROOT / "dags").glob("*.py")}
    assert (home / "spark_jobs" / "profile_queues.py").is_file()
    looked = """
import json, logging, os, sys
logging.disable(logging.CRITICAL)
from airflow import plugins_manager
from airflow.dag_processing.dagbag import DagBag
from queuekeeper import __file__ as package, assets
from queuekeeper.airflow.defaults import spark_jobs
found, errors = plugins_manager._get_plugins()
bag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
path = bag.dags["queue_quality"].fileloc
print(json.dumps({
    "package": package, "dags": sorted(bag.dags), "wrong": {**bag.import_errors, **errors},
    "plugins": [each.name for each in found], "jobs": spark_jobs(path), "sql": str(assets.directory("sql")),
}))
"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON", "QUEUE"))}
    environment = {
        **kept,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(home / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # Ten files after each other on a machine that may have other things to do.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "180",
    }
    done = subprocess.run(
        [image.python, "-c", looked], env=environment, cwd=image.root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == {}
    assert found["dags"] == sorted(path.stem for path in (ROOT / "dags").glob("*.py"))
    assert "queuekeeper" in found["plugins"]
    assert found["package"].startswith(str(image.root / "venv"))
    assert found["sql"].startswith(str(image.root / "venv"))
    assert found["jobs"] == str(home / "spark_jobs")


def settings_read() -> set[str]:
    """Return the variables that Queuekeeper reads."""
    return {f"QUEUEKEEPER_{name.upper()}" for name in Settings.model_fields}


def test_variables_of_the_page_are_read() -> None:
    assert set(re.findall(r"(?<![A-Z_])QUEUEKEEPER_[A-Z_]+", PAGE)) <= settings_read()


def test_values_of_the_chart_fit_what_is_read() -> None:
    (text,) = snippets("yaml")
    values: dict[str, Any] = yaml.safe_load(text)
    variables = {each["name"]: each["value"] for each in values["env"]}
    assert variables.keys() <= settings_read()
    # What pods share is where the variables say.
    for name in ("workers", "apiServer"):
        (mount,), (volume,) = values[name]["extraVolumeMounts"], values[name]["extraVolumes"]
        assert mount["name"] == volume["name"]
        for variable, path in variables.items():
            assert Path(path).is_relative_to(mount["mountPath"]), variable
    secrets = {each["envName"] for each in values["secret"]}
    wanted = {f"AIRFLOW_CONN_{name.upper()}" for name in CONNECTIONS[:2]}
    assert secrets == wanted | {"QUEUEKEEPER_HASH_KEY"}
    assert not secrets & variables.keys()
    assert values["images"]["airflow"]["tag"] == __version__


RUNS = {
    "integration/test_planted_runs.py": ("AIRFLOW__METRICS__", "OTEL_"),
    "integration/test_celery_executor.py": (
        "AIRFLOW__CORE__",
        "AIRFLOW__CELERY",
        "AIRFLOW__LOGGING__",
        "QUEUEKEEPER_",
    ),
    "spark/cluster.py": ("SPARK_CONF_DIR", "PYSPARK_PYTHON"),
}
"""Begins of the variables that the page sets, by what runs with them."""


def test_variables_that_the_page_sets_are_those_that_tests_run_with() -> None:
    said = dict(re.findall(r"^export (\w+)=(\S+)$", PAGE, re.MULTILINE))
    assert said["AIRFLOW__METRICS__OTEL_ON"] == "True"
    assert said["AIRFLOW__CORE__EXECUTOR"] == "CeleryExecutor"
    for name in said:
        (place,) = (place for place, begins in RUNS.items() if name.startswith(begins))
        assert f'"{name}"' in (ROOT / "tests" / place).read_text("utf-8"), name
    tried = (ROOT / "tests" / "integration" / "test_planted_runs.py").read_text("utf-8")
    assert f'"{said["OTEL_EXPORTER_OTLP_PROTOCOL"]}"' in tried


def test_base_image_is_of_the_locked_airflow() -> None:
    (recipe,) = snippets("dockerfile")
    (tag,) = re.findall(r"^FROM apache/airflow:(\S+)$", recipe, re.MULTILINE)
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    (locked,) = re.findall(r"^apache-airflow==(\S+)", lock, re.MULTILINE)
    version, _, python = tag.partition("-python")
    (values,) = snippets("yaml")
    assert version == yaml.safe_load(values)["airflowVersion"] == locked
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert python in SpecifierSet(project["requires-python"])


def test_each_way_to_deploy_names_the_tests_that_run_it_or_says_that_none_does() -> None:
    table = PAGE.partition("### Which ways were run")[2].partition("\n\nEach worker")[0]
    _, _, *rows = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)
    for way, ran in rows:
        by_day, _, _ = ran.partition("at night")
        tests = re.findall(r"`(tests/\S+\.py)`", ran)
        assert tests or ran.startswith("not run"), way
        for test in tests:
            at_night = re.search(r"^pytestmark = .*nightly", (ROOT / test).read_text("utf-8"), re.MULTILINE)
            assert not at_night or test not in by_day, f"{test} runs {way} at night alone"

    ways = " ".join(way.lower() for way, _ in rows)
    places = re.findall(r"^\| (.+?) \| `spark://", PAGE, re.MULTILINE)
    assert places
    assert [place for place in places if place.lower() not in ways] == []

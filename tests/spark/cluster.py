"""A standalone Spark on hosts of its own, to which the package travels as docs/deploying.md describes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import psutil
from uv import find_uv_bin

from tests.chaos.support import until
from tests.conformance.cutting_proxy import CuttingProxy
from tests.object_store import ObjectStore
from tests.spark.hosts import (
    SPARK_HOME,
    Network,
    free_port,
    network,
    spark_daemon,
    spark_master,
    spark_worker,
    without_local_address,
)

ROOT = Path(__file__).parents[2]
_PAGE = ROOT / "docs" / "deploying.md"


def pack_environment(folder: Path, *, compiled: bool) -> Path:
    """Pack the package and all that it needs beside Spark by the commands of the page, and return the archive.

    :param compiled: as on the page; else executors compile what they import, which takes less time where they are few.
    """
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    for name in ("requirements.lock", "overrides.txt"):
        (folder / name).symlink_to(ROOT / name)
    (recipe,) = re.findall(r"^```sh\n([^`]*^venv-pack .*?)^```$", _PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    if not compiled:
        recipe = recipe.replace("--compile-bytecode", "")
    programs = [str(Path(find_uv_bin()).parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {"PATH": os.pathsep.join(programs), "UV_PYTHON": sys.executable, "UV_NO_PROGRESS": "1"}
    done = subprocess.run(
        ["sh", "-e", "-c", recipe], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "environment.tar.gz"


class Search:
    """Looks for secrets in all that Spark shows while it works, and in what it leaves behind.

    :param secrets: that must not be found.
    :param roots: processes whose command line and environment are read, and those of all that they start.
    :ivar found: where a secret was, and which.
    :ivar read: command lines, pages and files that were read.
    """

    def __init__(self, secrets: Sequence[str], roots: Sequence[psutil.Process]) -> None:
        self._secrets = secrets
        self._roots = roots
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="search")
        self.found: set[tuple[str, str]] = set()
        self.read: set[str] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def look(self, where: str, text: str) -> None:
        """Search a text."""
        self.read.add(where)
        self.found |= {(where, secret) for secret in self._secrets if secret in text}

    def processes(self, roots: Sequence[psutil.Process], *, environments: bool = True) -> None:
        """Search the command lines of processes and of what they have started."""
        for root in roots:
            with suppress(psutil.Error):
                for process in (root, *root.children(recursive=True)):
                    with suppress(psutil.Error):
                        words = " ".join(process.cmdline())
                        self.look(words, words)
                        if environments:
                            self.look(words, str(process.environ()))

    def files(self, folder: Path) -> None:
        """Search all files in a folder but those of the packages that executors were sent."""
        for path in folder.rglob("*"):
            if path.is_file() and "environment" not in path.relative_to(folder).parts and path.suffix != ".gz":
                self.look(str(path), path.read_text("utf-8", errors="replace"))

    def page(self, url: str) -> str:
        """Search a page, and return it."""
        with urlopen(url) as answer:
            text = answer.read().decode()
        self.look(url, text)
        return str(text)

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            self.processes(self._roots)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Spark on hosts of its own, and how a driver on this host is told of it.

    :param pages: address of the master's web pages.
    :param folder: with a folder for each daemon, and in ``events`` what drivers have told of their work.
    :param workers: the process of each worker; its executors are its children.
    :param variables: what the environment of a driver has to say.
    :param store_variables: what tells drivers and executors of an object store.
    """

    master: str
    pages: str
    network: Network
    folder: Path
    variables: dict[str, str]
    store_variables: dict[str, str]
    hidden: Sequence[Path]
    workers: list[psutil.Process] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack, repr=False)

    @classmethod
    @contextmanager
    def started(
        cls, *, count: int, archive: Path, folder: Path, hidden: Sequence[Path], store: ObjectStore
    ) -> Iterator[Self]:
        """Run a master on this host and a worker of one core on each of others that have no file of the driver's.

        :param archive: what :func:`pack_environment` has made.
        :param store: an object store of this host, which all hosts reach.
        :param hidden: folders that the others do not have.
        """
        settings, events, daemon = (folder / name for name in ("settings", "events", "master"))
        for each in (settings, events, daemon):
            each.mkdir()
        lines = {
            "spark.archives": f"{archive}#environment",
            "spark.executor.memory": "640m",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
        }
        (settings / "spark-defaults.conf").write_text("".join(f"{name} {lines[name]}\n" for name in lines), "utf-8")
        with ExitStack() as stack:
            joined = stack.enter_context(network(count))
            door = stack.enter_context(CuttingProxy(store.url, host=joined.here))
            pages = free_port(joined.here)
            made = cls(
                master=stack.enter_context(spark_master(joined.here, daemon, pages=pages)),
                pages=f"http://{joined.here}:{pages}",
                network=joined,
                folder=folder,
                variables={"SPARK_CONF_DIR": str(settings), "PYSPARK_PYTHON": "./environment/bin/python"},
                store_variables=replace(store.writer, url=door.url).environment(),
                hidden=[*hidden, archive.parent, settings, events],
                stack=stack,
            )
            made.workers.extend(made._worker(place) for place in range(count))
            yield made

    def _worker(self, place: int) -> psutil.Process:
        folder = self.folder / f"worker-{place}-{free_port(self.network.here)}"
        folder.mkdir()
        return self.stack.enter_context(
            spark_worker(
                self.network.hosts[place],
                self.master,
                folder,
                hidden=self.hidden,
                home=SPARK_HOME,
                **self.store_variables,
            )
        )

    def lose(self, worker: psutil.Process) -> None:
        """Kill a worker, and run another one on its host."""
        worker.kill()
        place = self.workers.index(worker)
        self.workers[place] = self._worker(place)

    def tidy(self) -> None:
        """Remove what executors have left behind: half a gigabyte each."""
        for left in self.folder.glob("worker-*/app-*"):
            shutil.rmtree(left, ignore_errors=True)  # an executor may still be ending

    @contextmanager
    def command(self, *words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command of this host with this Spark for the block."""
        with self.program("queuekeeper", *words, "--spark-master", self.master, "--json", **variables) as process:
            yield process

    @contextmanager
    def program(self, name: str, *words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
        """Run a program of this run's environment for the block."""
        process = subprocess.Popen(
            [Path(sys.executable).with_name(name), *words],
            env=without_local_address() | self.variables | self.store_variables | variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, 9)

    def executors(self) -> list[psutil.Process]:
        """Return the executors that are at work, on any host."""
        found = []
        for worker in self.workers:
            with suppress(psutil.Error):
                for each in worker.children(recursive=True):
                    with suppress(psutil.Error):
                        found += [each] * ("CoarseGrainedExecutorBackend" in " ".join(each.cmdline()))
        return found

    @contextmanager
    def search(self, secrets: Sequence[str]) -> Iterator[Search]:
        """Look for secrets in all that this Spark shows in the block, and in the end in all that it has left behind."""
        with Search(secrets, [*self.workers, *psutil.Process().children()]) as search:
            yield search
            search.page(f"{self.pages}/")
            told = json.loads(search.page(f"{self.pages}/json/"))
            for application in told["completedapps"]:
                search.page(f"{self.pages}/app/?appId={application['id']}")
            for worker in told["workers"]:
                if worker["state"] == "ALIVE":
                    search.page(worker["webuiaddress"])
        search.files(self.folder)

    def history(self, search: Search) -> None:
        """Search the pages of Spark's own UI, and what its REST API answers, for all that drivers have told."""
        here, folder = self.network.here, self.folder / "history"
        folder.mkdir(exist_ok=True)
        port = free_port(here)
        options = (
            f"-Dspark.history.fs.logDirectory={(self.folder / 'events').as_uri()} -Dspark.history.ui.port={port} "
            "-Dspark.history.fs.update.interval=1s"
        )
        told = {path.name.removeprefix("eventlog_v2_") for path in (self.folder / "events").iterdir()}
        base = f"http://{here}:{port}"
        server = spark_daemon(
            "history.HistoryServer", says="started at http", folder=folder, SPARK_HISTORY_OPTS=options
        )
        with server:

            def known() -> list[str]:
                return [each["id"] for each in json.loads(search.page(f"{base}/api/v1/applications"))]

            until(lambda: told <= set(known()), what="what drivers have told")
            for application in known():
                for page in ("jobs", "stages", "storage", "environment", "executors", "SQL"):
                    search.page(f"{base}/history/{application}/{page}/")
                for answer in (
                    "jobs",
                    "stages",
                    "environment",
                    "allexecutors",
                    "sql?details=true&planDescription=true",
                ):
                    search.page(f"{base}/api/v1/applications/{application}/{answer}")
                stages = json.loads(search.page(f"{base}/api/v1/applications/{application}/stages"))
                for stage in stages:
                    search.page(f"{base}/history/{application}/stages/stage/?id={stage['stageId']}&attempt=0")


def result_of(process: subprocess.Popen[str], search: Search | None = None) -> Any:
    """Wait for the end of a program that ends well, and return what its last line says, or all of them."""
    said, problem = process.communicate()
    assert process.returncode == 0, problem
    if search is not None:
        search.look(f"what {process.args!r} says", said + problem)
    try:
        return json.loads(said)
    except ValueError:
        return json.loads(said.splitlines()[-1])

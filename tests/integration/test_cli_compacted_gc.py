"""``queuekeeper compacted gc`` on real servers: planned, collected, taken back, and found by ``quality run``."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queuekeeper.errors import ServerUnavailable
from queuekeeper.jobs.engine import Engine
from queuekeeper.keyspace import compacted_registry_key
from queuekeeper.postgres import connect as connect_postgres
from queuekeeper.redis_client import connect
from queuekeeper.schema_migrations import migrate
from tests.compacted_gc_world import World
from tests.integration.command_line import CommandLine

pytestmark = pytest.mark.integration

commands = CommandLine()
run, as_json = commands.run, commands.as_json


@pytest.fixture
def world(named_redis: str, named_postgres: str, own_home: Path) -> Iterator[World]:
    """Servers that the environment names, and a queue whose messages are old."""
    with connect(named_redis) as client, connect_postgres(named_postgres, autocommit=True) as connection:
        made = World(client=client, connection=connection, undo=own_home / "undo", now_ms=1_600_000_000_000)
        made.append("meter-7", "a", "b")
        yield made


def test_collection_is_tried_done_and_taken_back(world: World) -> None:
    planned = as_json("compacted", "gc", "--dry-run")
    assert (planned["plan"]["counts"]["messages"], planned["counts"]["messages"]) == (2, 0)
    refused = run("compacted", "gc", "--json")
    assert (refused.exit_code, "2 messages will be removed" in refused.stderr) == (4, True)
    done = as_json("compacted", "gc", "--yes")
    assert (done["counts"]["messages"], done["clean"]) == (2, True)
    assert world.live("meter-7") == []
    run_id = done["maintenance_run_id"]
    status = as_json("compacted", "gc-status")
    assert (status["maintenance_run_id"], status["state"]) == (run_id, "done")
    assert status["finished_ms"] == done["finished_ms"]
    assert as_json("compacted", "gc", "--undo", run_id, "--dry-run")["restored"] == 2
    assert as_json("compacted", "gc", "--undo", run_id, "--yes")["restored"] == 2
    assert world.live("meter-7") == [b"a", b"b"]


def test_collection_needs_no_postgresql_and_is_taken_back_by_its_undo_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUEUEKEEPER_POSTGRES_URL")
    refused = run("compacted", "gc", "--json")
    assert (refused.exit_code, "2 messages will be removed" in refused.stderr) == (4, True)
    result = run("compacted", "gc", "--yes", "--json")
    assert result.exit_code == 0, result.stderr
    assert "this run is not on record" in result.stderr
    done = json.loads(result.stdout)
    assert (done["counts"]["messages"], done["clean"], world.live("meter-7")) == (2, True, [])
    run_id = done["maintenance_run_id"]
    unknown = run("compacted", "gc", "--go-on", run_id, "--yes")
    assert (unknown.exit_code, "without PostgreSQL: name the database" in " ".join(unknown.stderr.split())) == (2, True)
    assert as_json("compacted", "gc", "--undo", run_id, "--dry-run")["restored"] == 2
    assert world.live("meter-7") == []
    assert as_json("compacted", "gc", "--undo", run_id, "--yes")["restored"] == 2
    assert world.live("meter-7") == [b"a", b"b"]


def test_status_says_how_many_queues_there_are_and_which_have_messages(world: World) -> None:
    empty = {"queues": 0, "first_client_id": None, "last_client_id": None, "is_complete": True}
    assert as_json("compacted", "status", "--key-prefix", "other:") == empty
    for client_id in ("aaa", "meter-8", "zzz"):
        world.append(client_id, "a")
    world.purge("aaa")
    world.purge("zzz")
    found = {"queues": 4, "first_client_id": "meter-7", "last_client_id": "meter-8", "is_complete": True}
    assert as_json("compacted", "status") == found
    shown = run("compacted", "status").stdout
    assert "meter-7" in shown
    assert "of those that were looked at" not in shown


def test_status_of_more_queues_than_it_looks_at_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuekeeper.maintenance.compacted.registry.LOOKED_AT_QUEUES", 1)
    for client_id in ("aaa", "zzz"):
        world.append(client_id, "a")
        world.purge(client_id)
    assert as_json("compacted", "status")["is_complete"] is False
    assert "of those that were looked at" in run("compacted", "status").stdout


def test_person_reads_what_was_planned_and_what_is_left(world: World) -> None:
    result = run("compacted", "gc", "--policy", "compact", "--retention-s", "60")
    assert result.exit_code == 0, result.stderr
    assert "clean: a second look finds nothing that was due" in result.stdout
    assert "tombstones alone" in result.stdout
    assert "second look" in run("compacted", "gc", "--yes").stdout
    assert "registry last finished" in run("compacted", "gc-status").stdout


def test_run_is_paused_slowed_and_gone_on_with(world: World) -> None:
    run_id = as_json("compacted", "gc", "--dry-run")["maintenance_run_id"]
    assert as_json("compacted", "gc-pause", run_id)["paused"] is True
    assert as_json("compacted", "gc-resume", run_id)["paused"] is False
    assert as_json("compacted", "gc-throttle", run_id, "5000")["throttle_operations_per_s"] == 5_000
    assert as_json("compacted", "gc", "--go-on", run_id, "--yes")["counts"]["messages"] == 2


def test_collector_goes_on_at_its_interval_though_a_server_was_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first collection finds no server, the second one collects, and the third one is ended in its middle."""
    rounds: list[int] = []
    apply = Engine.apply

    def watched(*args: Any, **options: Any) -> Any:
        rounds.append(len(world.live("meter-7")))
        if len(rounds) == 1:
            raise ServerUnavailable("it is away")
        if len(rounds) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return apply(*args, **options)

    monkeypatch.setattr(Engine, "apply", watched)
    result = run("compacted", "gc", "--gc-interval", "1ms", "--yes")
    assert (result.exit_code, rounds) == (0, [2, 2, 0]), result.stderr
    assert "it is away" in result.stderr
    assert result.stdout.count("clean: a second look finds nothing") == 1


def test_queue_that_nobody_knows_is_found_by_quality_and_registered(world: World) -> None:
    client: Any = world.client
    client.delete(compacted_registry_key("meter-7"))
    migrate(world.connection)
    result = run("quality", "run", "--store", "compacted")
    assert result.exit_code == 0, result.stderr
    assert "The collector knows of each queue." in result.stdout
    assert "queuekeeper compacted gc --dry-run" in result.stdout
    assert as_json("compacted", "gc-rebuild") == {"queues": 1, "registered": 1, "dry_run": False}
    assert as_json("compacted", "gc", "--dry-run")["plan"]["counts"]["messages"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gc", "--policy", "all"), "it must be one of delete, acked_only, compact"),
        (("gc", "--retention-s", "-1"), "retention_s is -1"),
        (("gc", "--undo", "a", "--go-on", "b"), "not both"),
        (("gc", "--gc-interval", "1h"), "add --yes or --dry-run"),
        (("gc", "--gc-interval", "1h", "--yes", "--go-on", "b"), "leave out --undo and --go-on"),
        (("gc", "--gc-interval", "soon", "--yes"), "gc_interval is 'soon'"),
        (("gc", "--gc-interval", "0", "--yes"), "gc_interval is 0"),
        (("gc-status",), "there is no collection yet"),
        (("gc-pause", "nothing"), "there is no run 'nothing'"),
    ],
)
def test_wrong_wishes_are_named(world: World, arguments: tuple[str, ...], words: str) -> None:
    migrate(world.connection)
    result = run("compacted", *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())

"""``queuekeeper fanout repair-all`` on real servers: planned, refused, repaired, and watched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from queuekeeper.cli import app
from queuekeeper.postgres import connect as connect_postgres
from queuekeeper.redis_client import connect
from queuekeeper.schema_migrations import migrate
from tests.fanout_repair_world import World
from tests.integration.command_line import CommandLine

pytestmark = pytest.mark.integration

LONG_AGO_MS = 1_600_000_000_000

commands = CommandLine(group="fanout")
run, as_json = commands.run, commands.as_json


@pytest.fixture
def world(named_redis: str, named_postgres: str) -> Iterator[World]:
    """Servers that the environment names, and a queue whose consumer took a message long ago and died."""
    with connect(named_redis) as client, connect_postgres(named_postgres, autocommit=True) as connection:
        made = World(client=client, connection=connection, now_ms=LONG_AGO_MS)
        made.register("orders", "billing")
        made.publish("orders", 2, ttl_ms=3_650 * 86_400_000)
        made.kill("orders", "billing")
        yield made


def test_repair_is_tried_refused_done_and_then_finds_all_healthy(world: World, tmp_path: Path) -> None:
    planned = as_json("repair-all", "--dry-run")
    assert (planned["plan"]["counts"]["overdue_leases"], planned["counts"]["overdue_leases"]) == (1, 0)
    assert (planned["clean"], planned["plan"]["unseen"][0]["consumer"]) == (False, "billing")
    refused = run("repair-all", "--json")
    assert (refused.exit_code, "1 repair will be made in 1 queue. Repair?" in refused.stderr) == (4, True)

    shown = run("repair-all", "orders", "--yes", "--report-directory", str(tmp_path / "here"))
    assert shown.exit_code == 0, shown.stderr
    assert "clean: a second look finds nothing that was to be done" in shown.stdout
    assert "Consumers that may be dead" in shown.stdout
    [page] = (tmp_path / "here").glob("fanout-*.html")
    assert "clean" in page.read_text("utf-8")
    world.now_ms += 30_000
    assert world.process("orders", "billing", 5) == [1, 2]

    healthy = as_json("repair-all")
    assert (healthy["clean"], healthy["verdict"]) == (
        True, "healthy: there was nothing to do, and nothing was changed",
    )  # fmt: skip
    assert as_json("repair-status")["state"] == "done"


def test_dead_consumers_go_when_that_is_asked_for(world: World) -> None:
    done = as_json("repair-all", "--idle-expiry-s", "86400", "--yes")
    assert done["counts"]["idle_consumers"] == 1
    assert world.queues.inspect("orders").consumers == ()


def test_run_can_be_paused_slowed_down_and_gone_on_with(world: World) -> None:
    run_id = as_json("repair-all", "--dry-run")["maintenance_run_id"]
    assert as_json("repair-pause", run_id) == {"maintenance_run_id": run_id, "paused": True}
    assert as_json("repair-throttle", run_id, "5000")["throttle_operations_per_s"] == 5_000
    status = as_json("repair-status", run_id)
    assert (status["paused"], status["throttle_operations_per_s"], status["state"]) == (True, 5_000, "planned")
    assert f"Run {run_id}: goes on." in run("repair-resume", run_id).stdout
    assert as_json("repair-all", "--go-on", run_id, "--yes")["clean"] is True
    assert "00-63" in run("repair-status", run_id).stdout


def test_wrong_usage_is_named_and_a_broken_queue_fails(world: World) -> None:
    for arguments, words in (
        (("repair-all", "order"), "there is no queue 'order'"),
        (("repair-status",), "there is no repair of fan-out queues yet: make one by `queuekeeper fanout repair-all`"),
        (("repair-status", "nothing"), "there is no run 'nothing'"),
        (("repair-all", "--no-unregister", "--idle-expiry-s", "5"), "idle_expiry_s says which consumers to remove"),
        (("repair-all", "--max-operations-per-s", "few"), "few"),
    ):
        result = run(*arguments)
        assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
    client: Any = world.client
    client.hset(world.keys("orders").options, "billing", "of another kind")
    result = run("repair-all", "--yes")
    assert result.exit_code == 1
    assert "queue 'orders' cannot be repaired: its fields cannot be read" in result.stderr


def test_quality_finds_what_is_left_and_names_the_repair(world: World) -> None:
    migrate(world.connection)
    client: Any = world.client
    client.hset(world.keys("orders").references, "2", 5)
    result = CliRunner().invoke(app, ["quality", "run", "--store", "fanout", "--mode", "full"])
    assert result.exit_code == 1, result.stderr
    assert "queuekeeper fanout repair-all --dry-run" in CliRunner().invoke(app, ["quality", "results"]).stdout
    as_json("repair-all", "--yes")
    again = CliRunner().invoke(app, ["quality", "run", "--suite", "fanout", "--json"])
    assert again.exit_code == 0, again.stderr
    assert {each["check_id"] for each in json.loads(again.stdout)["results"]} == {"Q25", "Q26"}

"""``queuekeeper cleanup`` on real servers: planned, approved, applied, slowed, taken back, and refused in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuekeeper import postgres, schema_migrations
from queuekeeper.maintenance.cleanup.expired_references import acl_rules
from queuekeeper.redis_client import connect
from tests.cleanup_world import World
from tests.integration.command_line import CommandLine

pytestmark = pytest.mark.integration

commands = CommandLine(group="cleanup")
run, as_json, fails = commands.run, commands.as_json, commands.fails


@pytest.fixture
def world(named_redis: str, named_postgres: str, own_home: Path) -> Iterator[World]:
    """A store with something to clean, named by the environment."""
    with connect(named_redis) as client, postgres.connect(named_postgres, autocommit=True) as connection:
        found = World(client, connection, own_home / "undo")
        for number in range(5):
            device = found.device(f"secret-{number}")
            device.add(4)
            device.expire(1, 2)
            device.received(3)
        yield found


def test_plan_apply_status_report_and_undo(world: World) -> None:
    planned = as_json("plan")
    run_id = planned["maintenance_run_id"]
    assert (planned["to_do"], planned["empty"], planned["counts"]["dead_references"]) == (15, False, 10)
    assert (planned["worst"][0]["dead"], len(planned["worst"][0]["client_hash"])) == (2, 16)
    status = as_json("status")
    assert (status["maintenance_run_id"], status["state"], status["progress"]) == (run_id, "planned", [])

    done = as_json("apply", run_id, "--yes")
    assert (done["clean"], done["counts"]["dead_references"]) == (True, 10)
    assert [Path(path).parent for path in done["undo_files"]] == [world.undo]
    status = as_json("status", run_id)
    assert (status["state"], status["progress"][0]["done"], status["report"]["clean"]) == ("done", True, True)
    assert "(command line)" in status["approved_by"]
    assert as_json("report")["left"]["dead_references"] == 0
    assert as_json("plan")["empty"] is True

    assert as_json("undo", run_id, "--dry-run")["references"] == 10
    assert world.device("secret-1").references() == [3, 4]
    assert as_json("undo", run_id, "--yes") == {
        "maintenance_run_id": run_id, "dry_run": False, "files": 1, "noted": 15, "references": 10, "expiries": 5,
        "left": 0, "wrong_type_keys": 0,
    }  # fmt: skip
    assert world.device("secret-1").references() == [1, 2, 3, 4]


def test_plan_that_is_reported_on_before_anybody_has_agreed_still_waits_for_an_approval(world: World) -> None:
    every = CommandLine(group="run")
    dry_run = every.as_json("start", "expired_reference_cleanup", "--dry-run")
    waits, dry = as_json("plan")["maintenance_run_id"], dry_run["maintenance_run_id"]
    before = {run_id: every.run("status", run_id).stdout for run_id in (waits, dry)}
    assert "It waits for an approval" in before[waits]
    assert "It was a dry run" in before[dry]

    for run_id in (waits, dry):
        every.as_json("report", run_id, code=1)

    assert {run_id: every.run("status", run_id).stdout for run_id in (waits, dry)} == before
    assert as_json("apply", waits, "--yes")["clean"] is True
    assert as_json("status", waits)["report"]["clean"] is True


def test_people_read_tables_without_client_ids(world: World) -> None:
    shown = run("plan")
    run_id = as_json("status")["maintenance_run_id"]
    assert f"Next: queuekeeper cleanup apply {run_id}" in shown.stdout
    done = run("apply", run_id, "--yes")
    assert "clean: a second look finds nothing to do" in done.stdout
    assert f"Undo file: {world.undo}" in done.stdout
    assert "changes made, 20 keys" in done.stderr
    texts = [each.output for each in (shown, done, run("status"), run("report"), run("undo", run_id, "--yes"))]
    assert all("secret" not in text for text in texts)
    assert "Dead references" in texts[0]


def test_pause_resume_and_throttle_are_kept(world: World) -> None:
    run_id = as_json("plan", "--max-operations-per-s", "100")["maintenance_run_id"]
    assert as_json("status")["throttle_operations_per_s"] == 100
    assert as_json("pause", run_id) == {"maintenance_run_id": run_id, "paused": True}
    assert as_json("throttle", run_id, "5,000")["throttle_operations_per_s"] == 5_000
    status = as_json("status")
    assert (status["paused"], status["throttle_operations_per_s"]) == (True, 5_000)
    assert as_json("resume", run_id)["paused"] is False
    assert as_json("throttle", run_id, "none")["throttle_operations_per_s"] is None


def test_refusals_have_words_and_exit_codes(world: World) -> None:
    fails("status", code=4, words="queuekeeper database migrate")
    fails("plan", "--idle-days", "0", code=2, words="idle_days is 0: it must be an integer from 1 to 3,650")
    fails("plan", "--key-prefix", "{", code=2, words="it must be text of at most 200 characters without a brace")
    run_id = as_json("plan", "--shares", "2")["maintenance_run_id"]
    before = world.contents()
    fails("apply", run_id, code=4, words="References and messages to be removed: 10; .* repeat the command with --yes")
    fails("apply", run_id, "--yes", "--share", "x:1", code=2, words="has no share 'x:1'")
    fails("apply", run_id, "--yes", "--shard", "x:1", code=2, words="has no share 'x:1'")
    fails("apply", "0123", "--yes", code=2, words=f"there is no run '0123': the newest (is|are) .*{run_id}")
    rate = "the rate is 'fast': write operations per second, 1 to 2,147,483,647, or none"
    fails("throttle", run_id, "fast", code=2, words=rate)
    fails("undo", run_id, "--yes", code=2, words="has no undo file")
    fails("report", code=1, words="not done: .* slots 0-8191, .*; `queuekeeper cleanup apply")
    other = world.runs.save_plan(kind="repair_ttl", parameters={}, plan={}).maintenance_run_id
    fails("pause", other, code=2, words=f"run {other} is a remedy repair_ttl, not a cleanup")
    assert world.contents() == before
    world.connection.execute(
        "UPDATE queuekeeper.maintenance_runs SET plan = jsonb_set(plan, '{as_of_ms}', '0') WHERE kind <> 'repair_ttl'"
    )
    fails("apply", run_id, "--yes", code=3, words="a plan counts for 8 days: plan again")


def test_there_is_no_newest_run_before_the_first(world: World) -> None:
    schema_migrations.migrate(world.connection)
    fails("status", code=2, words="there is no cleanup yet: make one by `queuekeeper cleanup plan`")


def test_documented_rights_are_those_that_are_checked() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cleanup.md").read_text("utf-8")
    (rules,) = re.findall(r"^ACL SETUSER cleaner on >password (.*)$", text, re.MULTILINE)
    assert sorted(rules.split()) == sorted(acl_rules("").removeprefix("ACL SETUSER <user> ").split())

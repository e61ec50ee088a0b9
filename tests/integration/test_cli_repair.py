"""``queuekeeper repair`` on real servers: sessions are planned for, mended and brought back, also by quality run."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from queuekeeper import assets, audit
from queuekeeper.cli import app
from queuekeeper.clock import system_clock
from queuekeeper.config import Settings
from queuekeeper.identity import client_hash, hash_key
from queuekeeper.jobs.store import MaintenanceRuns, RunState
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.maintenance.remedies.model import REMEDY_NAMES
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests.integration.command_line import CommandLine, Servers
from tests.quality_rows import queue, save_profile

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_home")]

C = "meter-17"

commands = CommandLine(group="repair")
run, as_json, fails = commands.run, commands.as_json, commands.fails


class Faulty(Servers):
    """A Redis with a session whose messages have lost their expiry, and a PostgreSQL with our schema."""

    def __init__(self, redis_url: str, postgres_url: str) -> None:
        super().__init__(redis_url, postgres_url)
        self.postgres_url = postgres_url
        store = RedisSessionStore(self.client)
        for client_id in (C, "meter-18"):
            message = NewMessage(topic="t", payload=b"secret", qos=1, time_ms=system_clock(), expiry_interval_s=3_600)
            store.save_messages([SessionSave(client_id=client_id, messages=(message,) * 3)])
            for packet_id in (1, 2):
                self.client.persist(payload_key(client_id, packet_id))

    def lasting(self, client_id: str = C) -> int:
        """Return how many messages of a session never expire."""
        return sum(self.client.pexpiretime(payload_key(client_id, n)) == -1 for n in (1, 2, 3))


@pytest.fixture
def servers(valkey_url: str, postgres_url: str, control_schema: None) -> Iterator[Faulty]:
    found = Faulty(valkey_url, postgres_url)
    yield found
    found.close()


def test_session_is_mended_and_taken_back(servers: Faulty) -> None:
    plan = as_json("repair_ttl", C, "--dry-run", *servers.options)
    assert plan["effects"] == {"life given where there was no end": 2}
    assert servers.lasting() == 2

    report = as_json("repair_ttl", C, "--yes", *servers.options)

    assert report["done"] == plan["effects"]
    assert servers.lasting() == 0
    assert servers.lasting("meter-18") == 2
    kept = MaintenanceRuns(servers.connection).load(report["maintenance_run_id"])
    assert (kept.kind, kept.state) == ("repair_ttl", RunState.DONE)
    assert kept.approved_by is not None
    assert C not in json.dumps([kept.plan, kept.report, kept.parameters, report])
    path = Path(report["undo_file"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert as_json("repair_ttl", C, "--yes", *servers.options)["effects"] == {}

    assert as_json("undo", str(path), "--dry-run", *servers.options[:2])["restored"] == 2
    assert as_json("undo", str(path), "--yes", *servers.options) == {
        "remedy": "repair_ttl", "dry_run": False, "restored": 2, "left": {},
    }  # fmt: skip
    assert servers.lasting() == 2
    undone = audit.latest(servers.connection, wanted=audit.AuditFilter(subject=report["maintenance_run_id"]))
    assert [each.action for each in reversed(undone)] == ["approve", "apply", "approve", "undo"]
    assert {each.actor for each in undone} == {kept.approved_by}


def test_people_read_plan_and_report(servers: Faulty, tmp_path: Path) -> None:
    shown = run("repair_ttl", C, "--dry-run", *servers.options)
    assert re.search(r"life given where there was no end +2", shown.stdout)
    assert "Messages that still exist get their old expiry back" in " ".join(shown.stdout.split())
    assert C not in shown.stdout + shown.stderr
    done = run("repair_ttl", C, "--yes", "--undo-file", str(tmp_path / "my.jsonl"), *servers.options)
    assert done.exit_code == 0, done.stderr
    assert re.search(r"sessions treated +1", done.stdout)
    assert "secret" not in done.stdout + done.stderr
    assert "There is nothing to do." in run("repair_ttl", C, *servers.options).stdout
    undone = run("undo", str(tmp_path / "my.jsonl"), "--yes", *servers.options)
    assert re.search(r"restored +2", undone.stdout)


def test_undo_file_may_be_in_an_object_store(servers: Faulty, tmp_path: Path) -> None:
    place = f"memory://{tmp_path.name}/my.undo.jsonl"
    report = as_json("repair_ttl", C, "--yes", "--undo-file", place, *servers.options)
    assert (report["undo_file"], servers.lasting()) == (place, 0)
    assert as_json("undo", place, "--yes", *servers.options)["restored"] == 2
    assert servers.lasting() == 2


def test_queues_of_a_quality_run_are_mended(servers: Faulty) -> None:
    key = hash_key(Settings())
    save_profile(
        servers.postgres_url,
        *(queue(name, client_hash=client_hash(name, key=key), without_ttl=2) for name in (C, "meter-18")),
        queue("healthy", client_hash=client_hash("healthy", key=key)),
    )
    servers.connection.execute(
        "INSERT INTO queuekeeper.quality_runs (quality_run_id, mode, suites, profile_ids)"
        " VALUES ('q1', 'full', '{sessions_redis}', '{redis-1}')"
    )

    chosen = client_hash(C, key=key)
    report = as_json("repair_ttl", "--quality-run", "q1", "--client-hash", chosen, "--yes", *servers.options)
    assert report["done"] == {"life given where there was no end": 2}
    assert servers.lasting("meter-18") == 2
    report = as_json("repair_ttl", "--quality-run", "latest", "--yes", *servers.options)
    assert report["queues"] == 1
    assert servers.lasting("meter-18") == 0
    assert as_json("unlink_orphans", "--quality-run", "q1", "--dry-run", *servers.options)["looked_at"] == 0

    # `run start` takes no session: a quality run chooses them, by default the newest, and the record keeps its id.
    for words in ((), ("--quality-run-id", "latest")):
        call = ["run", "start", "unlink_orphans", "--dry-run", *words, *servers.options]
        assert CliRunner().invoke(app, call).exit_code == 0
    kept = MaintenanceRuns(servers.connection).newest(kind="unlink_orphans", limit=2)
    assert [each.parameters["quality_run_id"] for each in kept] == ["q1", "q1"]

    fails("repair_ttl", "--quality-run", "q2", "--yes", *servers.options, code=2, words="there is no quality run 'q2'")
    fails(
        "repair_ttl", "--quality-run", "q1", "--cohorts", "4", *servers.options, code=2, words="cohort 4 is out of"
    )  # fmt: skip
    fails(
        "repair_ttl", "--quality-run", "q1", "--client-hash", "0" * 16, *servers.options,
        code=2, words="quality run q1 knows no queue 0000000000000000 in these cohorts",
    )  # fmt: skip


def test_without_a_quality_run_the_sentence_says_how_to_make_one(servers: Faulty) -> None:
    fails(
        "repair_ttl", "--quality-run", "latest", *servers.options,
        code=2, words="there is no quality run yet with a profile of Redis: run `queuekeeper quality run` first",
    )  # fmt: skip


def test_run_of_a_remedy_is_listed_steered_reported_and_undone_like_that_of_any_job(servers: Faulty) -> None:
    key = hash_key(Settings())
    save_profile(servers.postgres_url, queue(C, client_hash=client_hash(C, key=key), without_ttl=2))
    servers.connection.execute(
        "INSERT INTO queuekeeper.quality_runs (quality_run_id, mode, suites, profile_ids)"
        " VALUES ('q1', 'full', '{sessions_redis}', '{redis-1}')"
    )

    def of_runs(*arguments: str) -> Any:
        result = CliRunner().invoke(app, ["run", *arguments, "--json"])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    redis, records = servers.options[:2], servers.options[2:]
    run_id = as_json("repair_ttl", "--quality-run", "q1", "--dry-run", *servers.options)["maintenance_run_id"]
    (listed,) = of_runs("list", "--kind", "repair_ttl", *records)
    assert (listed["run"], listed["state"], listed["dry_run"]) == (run_id, "planned", True)
    words = " ".join(CliRunner().invoke(app, ["run", "list", *records]).stdout.split())
    assert f"{run_id} repair_ttl planned, dry run no" in words
    words = " ".join(CliRunner().invoke(app, ["run", "status", run_id, *records]).stdout.split())
    assert (
        "what next It was a dry run, which changed nothing. "
        f"`queuekeeper repair repair_ttl --go-on {run_id}` carries its plan out, once you agree." in words
    )
    assert of_runs("pause", run_id, *records)["paused"] is True
    assert of_runs("resume", run_id, *records)["paused"] is False
    assert of_runs("throttle", run_id, "5000", *records)["throttle_operations_per_s"] == 5_000

    # The clients are in the profile, and in no record of the run.
    done = as_json("repair_ttl", "--go-on", run_id, "--yes", *servers.options)

    assert (done["maintenance_run_id"], done["done"]) == (run_id, {"life given where there was no end": 2})
    (listed,) = of_runs("list", "--kind", "repair_ttl", *records)
    assert (listed["state"], listed["dry_run"]) == ("done", False)
    assert servers.lasting() == 0
    status = of_runs("status", run_id, *records)
    assert (status["state"], status["progress"][0]["repaired"]) == ("done", 2)
    assert of_runs("report", run_id, *servers.options)["left"]["effects"] == {}
    assert of_runs("undo", run_id, "--dry-run", *servers.options)["restored"] == 2
    assert servers.lasting() == 0
    assert of_runs("undo", run_id, "--yes", *servers.options)["restored"] == 2
    assert servers.lasting() == 2
    assert as_json("repair_ttl", C, "--dry-run", *redis)["looked_at"] == 1


def test_undo_file_of_an_earlier_release_is_found_by_its_run_and_taken_back(servers: Faulty) -> None:
    done = as_json("repair_ttl", C, "--yes", *servers.options)
    path, run_id = Path(done["undo_file"]), done["maintenance_run_id"]
    header, *lines = path.read_text("utf-8").splitlines()
    known = json.loads(header)
    parameters = {"default_ttl_s": 604_800, "limit": 10_000, "keep_s": 604_800, "grace_s": 600, "key_prefix": ""}
    earlier = {"format": known["format"], "kind": known["kind"], "run_id": run_id, "parameters": parameters}
    path.unlink()
    (path.parent / f"{run_id}.repair.undo.jsonl").write_text("\n".join([json.dumps(earlier), *lines]) + "\n", "utf-8")

    result = CliRunner().invoke(app, ["run", "undo", run_id, "--yes", "--json", *servers.options])

    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["restored"] == 2
    assert servers.lasting() == 2


def test_bad_input_is_refused_before_anything_is_done(servers: Faulty, tmp_path: Path) -> None:
    fails("repair_ttl", *servers.options, code=2, words="name either client ids or --quality-run")
    fails("repair_ttl", C, "--quality-run", "q1", *servers.options, code=2, words="name either client ids or")
    fails("repair_ttl", "", *servers.options, code=2, words="client id is empty")
    fails(
        "trim_dead_first",
        C,
        "--limit",
        "0",
        *servers.options,
        code=2,
        words="limit is 0: it must be an integer from",
    )
    fails("repair_ttl", C, "--key-prefix", "{a}", *servers.options, code=2, words="characters without a brace")
    fails(
        "repair_ttl",
        C,
        *servers.options,
        code=4,
        words="repair_ttl: 2 changes to be made in Redis. Go on. Nobody can be asked here",
    )
    fails("undo", str(tmp_path / "none"), *servers.options[:2], code=2, words="cannot be read: No such file")
    taken = tmp_path / "taken"
    taken.write_text("another file\n", "utf-8")
    fails(
        "repair_ttl", C, "--yes", "--undo-file", str(taken), *servers.options,
        code=4, words="is the undo file of something else",
    )  # fmt: skip
    assert servers.lasting() == 2


def test_dry_run_on_named_sessions_needs_no_postgresql(servers: Faulty) -> None:
    plan = as_json("repair_ttl", C, "--dry-run", *servers.options[:2])
    assert plan["effects"] == {"life given where there was no end": 2}


@pytest.mark.parametrize("remedy", REMEDY_NAMES)
def test_every_remedy_is_a_command(servers: Faulty, remedy: str) -> None:
    servers.connection.execute(assets.read("sql", "sessions/vendor_schema.sql").encode())
    assert f"queuekeeper repair {remedy}" in run(remedy, "--help").stdout
    assert as_json(remedy, C, "meter-18", "--dry-run", *servers.options)["remedy"] == remedy


def test_run_keeps_to_its_throttle_and_notes_its_progress(servers: Faulty) -> None:
    for client_id in (C, "meter-18"):
        servers.client.set(session_keys(client_id).last_packet_id, 1)
        servers.client.hdel(session_keys(client_id).session, "saved_last_packet_id")
    report = as_json("repair_counter", C, "meter-18", "--yes", "--max-operations-per-s", "1000", *servers.options)
    runs = MaintenanceRuns(servers.connection)
    run_id = report["maintenance_run_id"]
    assert runs.load(run_id).throttle_operations_per_s == 1_000
    (progress,) = runs.progress(run_id)
    assert (progress.scanned, progress.repaired, progress.done) == (2, 2, True)

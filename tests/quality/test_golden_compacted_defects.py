"""Published defects of compacted queues: each found by its check, and not where ours work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from queuekeeper.compacted.model import Position, Retention, RetentionPolicy
from queuekeeper.errors import UsageError
from queuekeeper.identity import client_hash
from queuekeeper.jobs.checks import check
from queuekeeper.keyspace import COMPACTED_REGISTRIES, client_slot, compacted_registry_key
from queuekeeper.postgres import connect
from queuekeeper.quality.judge.compacted_queues import profile_compacted_queues
from queuekeeper.quality.judge.live_queues import part_of_turn
from queuekeeper.quality.judge.run import QualityReport
from queuekeeper.quality.judge.store import QualityStore, Verdict
from queuekeeper.quality.profile.model import TURNS
from queuekeeper.redis_client import connect as connect_redis
from tests.compacted_gc_world import DAY_MS, HOUR_MS, World
from tests.golden_defects.compacted_defects import COMPACTED, DEFECTS, CompactedStage
from tests.golden_defects.defect import act_out
from tests.golden_defects.judged import PREFIX, Judged, found

pytestmark = pytest.mark.quality


class Stage(Judged, CompactedStage):
    """A stage that can be judged."""

    suite = COMPACTED


@pytest.fixture
def stage(
    valkey_url: str, postgres_url: str, control_schema: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CompactedStage]:
    """Queues in which nothing is wrong: in use, idle, empty, with rules of their own; the collector has been there."""
    monkeypatch.setenv("QUEUEKEEPER_HOME", str(tmp_path))
    with ExitStack() as opened:
        connection = opened.enter_context(connect(postgres_url, autocommit=True))
        client = opened.enter_context(connect_redis(valkey_url))
        world = World(client=client, connection=connection, undo=tmp_path / "undo", prefix=PREFIX)
        world.append("busy", *(f"key-{number}" for number in range(50)))
        world.append("busy", "gone", tombstone=True)
        world.consume("busy", acks=20)
        world.append("busy", "key-3", "key-60")
        world.append("{odd}/{id}*", b"\xff\x00", "")
        world.append("keeps", "a", "b")
        world.consume("keeps")
        world.queues.rewind("keeps", to=Position.earliest())
        world.queues.configure("keeps", retention=Retention(policy=RetentionPolicy.COMPACT))
        world.append("empty", "a")
        world.purge("empty")
        world.append("unacked", "a")
        world.queues.configure("unacked", retention=Retention(policy=RetentionPolicy.ACKED_ONLY, retention_ms=1_000))
        world.now_ms += 2 * DAY_MS
        world.consume("unacked")
        world.now_ms += HOUR_MS
        world.collected()
        world.now_ms += HOUR_MS
        made = Stage(world=world, is_ours=False)
        made.urls = {"postgres_url": postgres_url, "redis_url": valkey_url}
        yield made


def test_nothing_is_found_in_healthy_queues(stage: Stage) -> None:
    stage.judge()
    report = stage.judge()

    assert found(report) == frozenset()
    assert report.verdict is Verdict.PASSED
    assert {result.check_id for result in report.results} == {"Q23", "Q24"}
    assert (report.queues, report.messages) == (5, 56)


def test_published_defects_of_compacted_queues_are_found_by_their_checks_and_mended(stage: Stage) -> None:
    *others, stopped = DEFECTS
    act_out(others, stage, short_life_s=0)

    report = stage.judge()
    assert found(report) == frozenset().union(*(defect.finds for defect in others))
    assert {(result.check_id, result.remedy) for result in report.findings} == {("Q23", "")}
    assert "queuekeeper compacted repair" in check("Q23").advice
    for defect in others:
        assert stage.world.queues.repair(*defect.clients, dry_run=False).remaining == 0

    # A stopped collector is late for every queue, and a result shows five, in the server's order: five are left.
    for client_id in ("empty", *(one for each in others for one in each.clients)):
        assert stage.world.queues.drop(client_id).existed
    act_out([stopped], stage, short_life_s=0)
    report = stage.judge()
    assert stopped.finds <= found(report)
    assert {(result.check_id, result.remedy) for result in report.findings} == {("Q24", "compacted_queue_gc")}
    assert {result.remedy_conf["key_prefix"] for result in report.findings} == {PREFIX}
    # Whom the collector has left alone, and all for whom it has not finished.
    assert set(columns(report)["overdue_s"]) >= {"grows"}
    assert len(columns(report)["heartbeat_s"]) == 5

    stage.world.collected()
    assert found(stage.judge()) == frozenset()


def test_same_events_leave_no_trace_in_our_compacted_queues(stage: Stage) -> None:
    stage.is_ours = True
    *others, _ = DEFECTS

    act_out(others, stage, short_life_s=0)
    kept = {client_id: [key for key, _ in stage.values(client_id)] for each in others for client_id in each.clients}
    stage.judge()
    act_out(DEFECTS[-1:], stage, short_life_s=0)

    assert found(stage.judge()) == frozenset()
    assert kept == {"compacts": [b"state"], "crashes": [b"a", b"b"], "races": [b"state"], "replays": [b"a", b"b", b"c"]}
    assert stage.values("grows") == []


def columns(report: QualityReport) -> dict[str, dict[str, int]]:
    """Return what was found: column -> queue -> value."""
    told: dict[str, dict[str, int]] = {}
    for result in report.findings:
        for example in result.examples:
            [name] = set(example) - {"client_hash", "client_id"}
            told.setdefault(name, {})[str(example["client_id"])] = int(example[name])
    return told


def test_cursor_that_came_back_is_told_from_a_rewind(stage: Stage) -> None:
    stage.world.append("replays", "a", "b", "c")
    stage.acknowledge("replays", [1, 2, 3])
    stage.judge()
    stage.world.queues.rewind("replays", to=Position.earliest())
    assert columns(stage.judge()) == {}
    stage.acknowledge("replays", [1, 2, 3])
    stage.judge()
    stage.client.hset(stage.world.keys("replays").state, mapping={"acked": 1, "sent": 1})
    assert columns(stage.judge()) == {"moved_back": {"replays": 1}}


def test_cursor_that_came_back_since_the_fast_run_of_yesterday_is_found(stage: Stage) -> None:
    stage.world.append("replays", "a", "b", "c")
    stage.acknowledge("replays", [1, 2, 3])
    turn = next(each for each in range(TURNS) if part_of_turn(each) == client_slot("replays") % COMPACTED_REGISTRIES)
    assert columns(stage.judge(turn=turn)) == {}
    for other in range(1, TURNS):
        QualityStore(stage.world.connection).begin(
            quality_run_id=f"other-{other}", mode="fast", suites=[COMPACTED], profile_ids=[], numbers={},
            started_at=datetime.fromtimestamp((stage.world.now_ms + other) / 1_000, UTC),
        )  # fmt: skip
    stage.world.now_ms += TURNS
    stage.client.hset(stage.world.keys("replays").state, mapping={"acked": 1, "sent": 1})
    assert columns(stage.judge(turn=turn)) == {"moved_back": {"replays": 1}}


def test_each_fault_has_its_number(stage: Stage) -> None:
    stage.world.append("wrong", "a", "b", "c")
    keys = stage.world.keys("wrong")
    stage.client.hset(keys.state, "bytes", 1)
    stage.client.zrem(keys.times, "b")
    stage.client.zadd(keys.in_flight, {"9": 9})
    stage.client.zrem(compacted_registry_key("wrong", prefix=PREFIX), "wrong")
    stage.world.append("broken", "a")
    stage.client.delete(stage.world.keys("broken").order)
    stage.client.set(stage.world.keys("broken").order, "no sorted set")

    assert columns(stage.judge()) == {
        "wrong_bytes": {"wrong": 1},
        "index_faults": {"wrong": 2},
        "cursor_faults": {"wrong": 2},
        "registered": {"wrong": 0},
        "unreadable": {"broken": 1},
    }


@pytest.mark.parametrize(
    "damage",
    [{"retention_policy": "forever", "retention_ms": 1, "tombstone_ms": 1}, {"acks": "many"}, {"sent": 10**30}],
)
def test_damaged_state_is_one_queue_that_cannot_be_read(stage: Stage, damage: dict[str, Any]) -> None:
    stage.world.append("damaged", "a")
    stage.world.append("sound", "a")
    stage.client.hset(stage.world.keys("damaged").state, mapping=damage)
    assert columns(stage.judge()) == {"unreadable": {"damaged": 1}}


def test_collector_that_never_ran_is_found_once_queues_are_old_enough(stage: Stage) -> None:
    stage.client.flushall()
    stage.world.append("alone", "a")
    made_ms = (stage.world.queues.inspect("alone").incarnation or 0) // 1_000
    stage.world.now_ms = made_ms + 2 * HOUR_MS
    assert columns(stage.judge()) == {}
    stage.world.now_ms = made_ms + 4 * HOUR_MS
    assert columns(stage.judge()) == {"heartbeat_s": {"alone": 4 * 3_600}}


def test_fast_judgement_reads_one_part_and_a_day_reads_all(stage: Stage) -> None:
    turn = next(each for each in range(TURNS) if part_of_turn(each) == client_slot("busy") % COMPACTED_REGISTRIES)
    report = stage.judge(turn=turn, throttle_references_per_s=100_000)
    assert (report.mode, report.queues) == ("fast", 1)
    assert {part_of_turn(each) for each in range(TURNS)} == set(range(COMPACTED_REGISTRIES))


def test_rows_are_kept_for_the_newest_judgements_and_name_clients_by_hash(stage: Stage) -> None:
    connection, key = stage.world.connection, stage.keep(profile_compacted_queues, runs=12)
    rows = connection.execute("SELECT count(DISTINCT quality_run_id), count(*) FROM queuekeeper.compacted_profiles")
    assert rows.fetchone() == (10, 50)
    busy = connection.execute(
        "SELECT live, in_flight FROM queuekeeper.compacted_profiles WHERE client_hash = %s LIMIT 1",
        (client_hash("busy", key=key),),
    )
    assert busy.fetchone() == (52, 31)


def test_suite_needs_the_servers(stage: Stage) -> None:
    del stage.urls["redis_url"]
    with pytest.raises(UsageError, match="suite compacted reads settings of the Redis servers: give their address"):
        stage.judge()

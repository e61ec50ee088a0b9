"""Published defects of queues with consumers on Redis: each found by its check, and not where ours work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from queuekeeper.errors import UsageError
from queuekeeper.fanout.model import ConsumerOptions, Mode
from queuekeeper.identity import client_hash
from queuekeeper.keyspace import FANOUT_PARTS, fanout_part
from queuekeeper.postgres import connect
from queuekeeper.quality.judge.fanout_queues import profile_fanout_queues
from queuekeeper.quality.judge.live_queues import PARTS, part_of_turn
from queuekeeper.quality.judge.run import QualityReport
from queuekeeper.quality.judge.store import Verdict
from queuekeeper.quality.profile.model import TURNS
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.schema_migrations import migrate
from tests.fanout_lists import line_up
from tests.fanout_repair_world import HOUR_MS, World
from tests.golden_defects.defect import act_out
from tests.golden_defects.fanout_defects import DEFECTS, FANOUT, A, B, FanoutStage
from tests.golden_defects.judged import PREFIX, Judged, found

pytestmark = pytest.mark.quality


class Stage(Judged, FanoutStage):
    """A stage that can be judged."""

    suite = FANOUT


@pytest.fixture
def stage(valkey_url: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Queues in which nothing is wrong: in use, in order, held by nobody, without messages, with odd names."""
    monkeypatch.setenv("QUEUEKEEPER_HOME", str(tmp_path))
    with ExitStack() as opened:
        connection = opened.enter_context(connect(postgres_url, autocommit=True))
        client = opened.enter_context(connect_redis(valkey_url))
        migrate(connection)
        world = World(client=client, connection=connection, prefix=PREFIX)
        world.register("busy", A, B)
        world.publish("busy", 50)
        world.kill("busy", A, 5)
        world.process("busy", A, 7)
        claimed = world.claim("busy", B, 2)
        world.queues.nack("busy", consumer=B, token=claimed.token, message_id=1, delay_ms=HOUR_MS)
        world.queues.nack("busy", consumer=B, token=claimed.token, message_id=2, max_attempts=1, reason="no")
        world.register("in order", A, options=ConsumerOptions(mode=Mode.ORDERED, lanes=3))
        world.publish("in order", 3)
        world.kill("in order", A)
        world.publish("held", 2)
        world.register("{odd}/{queue}*", A)
        alive = (("busy", A), ("busy", B), ("in order", A), ("{odd}/{queue}*", A))
        made = Stage(world=world, is_ours=False, alive=alive)
        made.urls = {"postgres_url": postgres_url, "redis_url": valkey_url}
        yield made


def columns(report: QualityReport) -> dict[str, dict[tuple[str, str], float]]:
    """Return what was found: column -> queue and consumer -> value."""
    told: dict[str, dict[tuple[str, str], float]] = {}
    for result in report.findings:
        for example in result.examples:
            [name] = set(example) - {"client_hash", "client_id", "queue", "consumer"}
            told.setdefault(name, {})[str(example["queue"]), str(example["consumer"])] = float(example[name])
    return told


def test_nothing_is_found_in_healthy_fanout_queues(stage: Stage) -> None:
    report = stage.judge()

    assert found(report) == frozenset()
    assert report.verdict is Verdict.PASSED
    assert {result.check_id for result in report.results} == {"Q25", "Q26"}
    assert (report.queues, report.messages) == (4, 55)


def test_published_defects_of_fanout_queues_are_found_by_their_checks_and_repaired(stage: Stage) -> None:
    *others, dead = DEFECTS
    act_out(others, stage, short_life_s=0)

    report = stage.judge()

    assert found(report) == frozenset().union(*(defect.finds for defect in others))
    assert report.verdict is Verdict.FAILED
    assert {(result.remedy, result.remedy_conf["key_prefix"]) for result in report.findings} == {
        ("fanout_repair", PREFIX)
    }
    told = columns(report)
    assert {name: set(rows) for name, rows in told.items()} == {
        "missing_payloads": {("expires", "")},
        "lost_references": {("pops", "")},
        "orphan_payloads": {("publishes", "")},
        "wrong_counts": {("counts", "")},
        "lost_leases": {("locks", A)},
        "lease_left_s": {("locks", A)},
    }
    assert stage.world.repaired().clean
    assert found(stage.judge()) == frozenset()

    stage.alive += tuple((queue, name) for each in others for queue in each.clients for name in (A, B))
    act_out([dead], stage, short_life_s=0)
    report = stage.judge()
    assert found(report) == dead.finds
    assert report.verdict is Verdict.PASSED
    assert columns(report) == {"forsaken_s": {("grows", A): 2 * 86_400 + 3_600 + 0.001}}
    assert stage.world.repaired(unregister=True, idle_expiry_s=86_400).counts.idle_consumers == 1
    assert found(stage.judge()) == frozenset()


def test_same_events_leave_no_trace_in_our_fanout_queues(stage: Stage) -> None:
    stage.is_ours = True
    *others, _ = DEFECTS

    act_out(others, stage, short_life_s=0)
    assert found(stage.judge()) == frozenset()
    assert stage.world.process("pops", A) == [1]
    assert stage.world.process("locks", A) == [1]
    assert stage.world.process("counts", B) == [1]
    assert stage.world.process("expires", A, 5) == [1]
    stage.alive += tuple((queue, name) for each in others for queue in each.clients for name in (A, B))
    act_out(DEFECTS[-1:], stage, short_life_s=0)

    assert found(stage.judge()) == frozenset()
    assert [each.consumer for each in stage.world.queues.inspect("grows").consumers] == [B]


def test_each_fault_of_a_fanout_queue_has_its_number(stage: Stage) -> None:
    world = stage.world
    world.register("wrong", A, options=ConsumerOptions(dead_retention_ms=HOUR_MS))
    _, endless, doubled, died, _ = world.publish("wrong", 5)
    keys, own = world.keys("wrong"), world.consumer_keys("wrong", A)
    line_up(stage.client, "wrong", A, prefix=world.prefix)
    stage.client.zrem(keys.expiries, endless)
    stage.client.rpush(own.ready[0], doubled)
    stage.client.hset(own.details, 77, "1 0 0 -")
    claimed = world.claim("wrong", A, 4)
    world.queues.nack("wrong", consumer=A, token=claimed.token, message_id=died, max_attempts=1, reason="no")
    world.publish("held", ttl_ms=HOUR_MS)
    world.register("broken", A)
    stage.client.hset(world.keys("broken").options, A, "of another kind")
    world.now_ms += 5 * HOUR_MS

    told = columns(stage.judge())

    assert {name: rows for name, rows in told.items() if not name.endswith("_s")} == {
        "wrong_expiries": {("wrong", ""): 1},
        "doubled": {("wrong", A): 1},
        "left_notes": {("wrong", A): 1},
        "unreadable": {("broken", ""): 1},
    }
    assert told["expired_s"] == {("held", ""): pytest.approx(4 * 3_600, abs=1)}
    assert told["dead_overdue_s"] == {("wrong", A): pytest.approx(4 * 3_600, abs=1)}
    assert set(told["overdue_s"]) == {("wrong", A), ("busy", A), ("in order", A)}


def test_fast_judgement_reads_one_part_of_the_fanout_queues_and_a_day_reads_all(stage: Stage) -> None:
    turn = next(each for each in range(TURNS) if part_of_turn(each) == fanout_part("busy"))
    report = stage.judge(turn=turn, throttle_references_per_s=100_000)
    assert (report.mode, report.queues) == ("fast", 1)
    assert {part_of_turn(each) for each in range(TURNS)} == set(range(FANOUT_PARTS))
    assert PARTS == FANOUT_PARTS


def test_rows_of_fanout_queues_are_kept_for_the_newest_judgements(stage: Stage) -> None:
    connection, key = stage.world.connection, stage.keep(profile_fanout_queues, runs=12)
    rows = connection.execute("SELECT count(DISTINCT quality_run_id), count(*) FROM queuekeeper.fanout_profiles")
    assert rows.fetchone() == (10, 80)
    busy = connection.execute(
        "SELECT consumer, messages, dead_letters FROM queuekeeper.fanout_profiles "
        "WHERE client_hash = %s AND quality_run_id = 'kept-11' ORDER BY consumer",
        (client_hash("busy", key=key),),
    )
    assert busy.fetchall() == [("", 50, 1), (A, 43, 0), (B, 49, 1)]


def test_suite_of_fanout_queues_needs_the_servers(stage: Stage) -> None:
    del stage.urls["redis_url"]
    with pytest.raises(UsageError, match="suite fanout reads settings of the Redis servers: give their address"):
        stage.judge()

"""What was set aside comes back: once, in a place that overwrites nothing, where its session may be written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import redis
from tbmq_broker import Broker

from queuekeeper.errors import RefusedError, ServerUnavailable
from queuekeeper.keyspace import packed_keys, payload_key, session_keys
from queuekeeper.migration.ledger.ledger import MigrationLedger, QuarantinedRow
from queuekeeper.migration.ledger.parameters import Mode
from queuekeeper.migration.offline import quarantine as quarantine_of_plans
from queuekeeper.migration.offline.quarantine import ReplayReport, reopen_lost, replay
from queuekeeper.migration.offline.undo import drop_import, drop_imports
from queuekeeper.sessions import quarantine
from queuekeeper.sessions.model import Ack, SessionSave
from queuekeeper.sessions.packed_record import expires_at_ms
from queuekeeper.sessions.packed_state import PackedContent, PackedMessage, state_faults, state_of
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.quarantine import AsideMessage, SessionQuarantine, Stores
from queuekeeper.sessions.router import SessionRouter
from tests.conformance.online_worlds import DEFAULT_TTL_S, PLAN_ID, OnlineWorld, message, mirrored, until_none_is_late
from tests.integration.command_line import CommandLine

pytestmark = pytest.mark.conformance

C = "meter-7"


@pytest.fixture
def layout() -> Layout:
    """Layout of the sessions in Redis."""
    return Layout.TBMQ


@pytest.fixture
def world(postgres_url: str, valkey_url: str, control_schema: None, layout: Layout) -> Iterator[OnlineWorld]:
    """Empty tables of TBMQ 1.x and an empty Valkey."""
    world = OnlineWorld(postgres_url, valkey_url, layout=layout)
    yield world
    world.close()


# --- rows of a migration's own quarantine ------------------------------------------------------------------------


in_each_layout = pytest.mark.parametrize("layout", Layout)


def publish(world: OnlineWorld) -> int | None:
    """Add a message as the session's broker does, and return its packet id."""
    if world.layout is Layout.TBMQ:
        return int(Broker(world.client, C).add("plant/new"))
    save = SessionSave(client_id=C, messages=(replace(message(b"new"), topic="plant/new"),))
    return world.at_redis.save_messages([save])[0].packet_ids[0]


def faults(world: OnlineWorld) -> Sequence[str]:
    """Return what a packed session says of itself that does not hold for its messages."""
    if world.layout is Layout.TBMQ:
        return ()
    fields = world.client.hgetall(packed_keys(C).session)
    state = state_of(fields[b"s"])
    assert state is not None
    messages = [
        PackedMessage(int(name), int.from_bytes(record[:2]), expires_at_ms(record) or -1, len(record))
        for name, record in sorted(fields.items(), key=lambda field: (len(field[0]), field[0]))
        if name.isdigit()
    ]
    return state_faults(state, PackedContent(messages=messages, others=len(fields) - len(messages)))


def imported(world: OnlineWorld, waiting: dict[int, int], *, counter: int | None, aside: dict[int, int]) -> None:
    """Put messages into a session as a plan's copy does, and others into its quarantine; both packet id by serial."""
    world.long_queue(C, 1)
    world.plan(count=1, mode=Mode.OFFLINE)
    world.import_session(C, waiting, counter=counter)
    fields: dict[str, Any] = {"topic": "mended", "time": time.time_ns() // 1_000_000, "packet_type": "PUBLISH"}
    rows = [
        QuarantinedRow(
            cohort=0, kind="message", reason="packet_id_duplicate", detail="", client_id=C, serial_number=serial,
            packet_id=packet_id, qos=1, payload=b"aside", **fields,
        )
        for serial, packet_id in aside.items()
    ]  # fmt: skip
    world.ledger.replace_quarantine(PLAN_ID, [0], rows)


def replay_all(world: OnlineWorld, **options: Any) -> ReplayReport:
    """Replay the rows of the plan."""
    return replay(world.connection, world.client, plan_id=PLAN_ID, **options)


# Waiting by serial, the counter, set aside by serial, whether ids are assigned, and what a broker gives out next.
REPLAYS: dict[str, tuple[dict[int, int], int | None, dict[int, int], bool, int]] = {
    "the next packet id": ({1: 1, 2: 2, 3: 3}, 3, {9: 4}, False, 5),
    "the next ones, one after the other": ({1: 1, 2: 2}, 2, {8: 3, 9: 4}, False, 5),
    "a gap before those that wait": ({1: 1, 2: 4, 3: 5}, 2, {9: 3}, False, 6),
    "one behind the counter": ({1: 1, 2: 3}, 3, {9: 2}, False, 4),
    "no counter": ({1: 1, 2: 2}, None, {9: 3}, False, 4),
    "over the end of the round": ({1: 65_534, 2: 1}, 65_534, {3: 65_535}, False, 2),
    "an assigned one before those that wait": ({1: 2, 2: 5}, 3, {9: 2}, True, 6),
}


@in_each_layout
@pytest.mark.parametrize("case", REPLAYS)
def test_message_that_a_broker_adds_after_a_replay_overwrites_none_that_waits(world: OnlineWorld, case: str) -> None:
    waiting, counter, aside, assign, following = REPLAYS[case]
    imported(world, waiting, counter=counter, aside=aside)
    done = replay_all(world, assign_packet_ids=assign)
    assert (done.replayed, done.packet_id_in_use) == (len(aside), 0)
    before = [each.packet_id for each in world.at_redis.fetch_pending(C).messages]
    assert len(before) == len(waiting) + len(aside)
    assert faults(world) == ()

    assert publish(world) == following
    assert faults(world) == ()

    found = world.at_redis.fetch_pending(C).messages
    assert sorted(each.packet_id for each in found) == sorted([*before, following])
    assert [each.topic for each in found].count("plant/new") == 1
    assert [each.topic for each in found].count("mended") == len(aside)


@pytest.mark.parametrize(
    "others", [{f"foreign {number}": 0.0 for number in range(1_100)}, {"foreign": 1.5}, {"foreign": float("-inf")}]
)
def test_members_of_other_programs_hold_up_no_replay(world: OnlineWorld, others: dict[str, float]) -> None:
    imported(world, {1: 1, 2: 2}, counter=2, aside={9: 3})
    keys = session_keys(C)
    world.client.zadd(keys.messages, others)
    world.client.zadd(keys.messages, {payload_key(C, 2): 2.5})
    assert replay_all(world, dry_run=True).replayed == 1
    assert replay_all(world).replayed == 1
    assert publish(world) == 4


def put_behind(world: OnlineWorld, **options: Any) -> ReplayReport:
    """Replay the rows of the plan, those of sessions that are no longer its own as new messages."""
    with world.router() as router:
        stores = Stores(
            world.connection, postgres=world.at_postgres, redis=lambda _: world.at_redis, router=router, choice="redis"
        )
        return replay_all(world, as_new=stores, **options)


def stored(world: OnlineWorld) -> list[tuple[bytes, int, int]]:
    """Return payload, packet id and serial of what waits in Redis, in order."""
    return [(each.payload, each.packet_id, each.serial) for each in world.at_redis.fetch_pending(C).messages]


@in_each_layout
def test_message_whose_session_is_no_longer_the_plans_comes_back_as_a_new_one_once(
    world: OnlineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(world, {1: 1, 2: 2}, counter=2, aside={3: 1})
    publish(world)
    before = stored(world)
    assert [serial for _, _, serial in before] == [1, 2, 3]
    assert (replay_all(world, dry_run=True).moved_on, replay_all(world).moved_on) == (1, 1)
    would = put_behind(world, dry_run=True)
    assert (would.as_new, would.moved_on, stored(world)) == (1, 0, before)

    def killed(*_: Any, **__: Any) -> None:
        raise _Killed

    with monkeypatch.context() as patched:
        patched.setattr(MigrationLedger, "mark_replayed", killed)
        with pytest.raises(_Killed):
            put_behind(world)
    # The broker's message is acknowledged: its serial is free, and no place for what is behind all others already.
    world.at_redis.ack(C, [Ack(packet_id=3)])
    assert (replay_all(world).moved_on, put_behind(world, dry_run=True).unchanged) == (1, 1)
    again = put_behind(world)

    assert (again.unchanged, again.as_new, again.why) == (1, 0, {})
    assert stored(world) == [*before[:2], (b"aside", 4, 4)]
    (row,) = world.ledger.quarantined(PLAN_ID, status="replayed")
    assert row.assigned_packet_id == 4
    assert put_behind(world) == ReplayReport(plan_id=PLAN_ID, dry_run=False)


def refuse_once(patched: pytest.MonkeyPatch) -> None:
    """Have the first message that is to be put behind the others refused."""
    of, asked = Stores.of, []

    def refusing(self: Stores, client_id: str) -> Any:
        asked.append(client_id)
        if len(asked) == 1:
            raise ServerUnavailable("the server is starting")
        return of(self, client_id)

    patched.setattr(Stores, "of", refusing)


@in_each_layout
def test_new_messages_keep_their_order_when_the_first_one_was_refused(
    world: OnlineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(world, {1: 1, 2: 2}, counter=2, aside={3: 3, 4: 4})
    publish(world)
    publish(world)
    before = stored(world)
    with monkeypatch.context() as patched:
        refuse_once(patched)
        assert (put_behind(world).moved_on, stored(world)) == (2, before)

    assert put_behind(world).as_new == 2

    assert stored(world) == [*before, (b"aside", 5, 5), (b"aside", 6, 6)]
    rows = world.ledger.quarantined(PLAN_ID, status="replayed")
    assert [(row.serial_number, row.assigned_packet_id) for row in rows] == [(3, 5), (4, 6)]


@in_each_layout
def test_message_is_replayed_again_when_its_session_is_taken_out_and_copied_again(world: OnlineWorld) -> None:
    waiting = {1: 1, 2: 2}
    imported(world, waiting, counter=2, aside={0: 1, 9: 3})
    assert replay_all(world, assign_packet_ids=True).replayed == 2
    plan = world.ledger.load_plan(PLAN_ID)
    assert reopen_lost(world.ledger, world.client, plan, plan.chosen) == 0

    assert (
        drop_imports(world.client, [C], plan_id=PLAN_ID, prefix="", layout=world.layout, dry_run=False).messages_dropped
        == 4
    )
    assert reopen_lost(world.ledger, world.client, plan, plan.chosen) == 0
    world.import_session(C, waiting, counter=2)

    assert reopen_lost(world.ledger, world.client, plan, []) == 0
    assert reopen_lost(world.ledger, world.client, plan, plan.chosen) == 2
    assert replay_all(world, assign_packet_ids=True).replayed == 2
    assert [serial for _, _, serial in stored(world)] == [0, 1, 2, 9]
    assert world.ledger.quarantined(PLAN_ID) == []


@in_each_layout
def test_message_that_is_mended_later_than_one_behind_it_takes_its_place_in_a_session_in_use(
    world: OnlineWorld,
) -> None:
    imported(world, {1: 1, 2: 2}, counter=2, aside={9: 3})
    world.at_redis.ack(C, [Ack(packet_id=1)])
    assert replay_all(world).replayed == 1
    (row,) = world.ledger.quarantined(PLAN_ID, status="replayed")
    mended_later = [replace(row, serial_number=serial, packet_id=packet_id) for serial, packet_id in ((8, 5), (10, 6))]
    world.ledger.replace_quarantine(PLAN_ID, [0], mended_later)
    publish(world)

    would, done = replay_all(world, dry_run=True), replay_all(world)

    assert (would.replayed, would.moved_on) == (done.replayed, done.moved_on) == (1, 1)
    assert [(packet_id, serial) for _, packet_id, serial in stored(world)] == [(2, 2), (5, 8), (3, 9), (4, 10)]
    assert faults(world) == ()
    drop = drop_imports(world.client, [C], plan_id=PLAN_ID, prefix="", layout=world.layout, dry_run=False)
    assert drop.messages_dropped == 0


@in_each_layout
def test_message_at_its_place_that_is_not_noted_yet_does_not_come_back_as_a_new_one(
    world: OnlineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(world, {1: 1, 2: 2}, counter=2, aside={0: 1})

    def killed(*_: Any, **__: Any) -> None:
        raise _Killed

    with monkeypatch.context() as patched:
        patched.setattr(MigrationLedger, "mark_replayed", killed)
        with pytest.raises(_Killed):
            replay_all(world, assign_packet_ids=True)
    before = stored(world)
    assert replay_all(world, assign_packet_ids=True, dry_run=True).unchanged == 1
    world.client.hdel(world.own_key(C), "plan")

    done = put_behind(world)

    assert (done.unchanged, done.as_new, stored(world)) == (1, 0, before)
    (row,) = world.ledger.quarantined(PLAN_ID, status="replayed")
    assert row.assigned_packet_id == 3


@in_each_layout
def test_message_that_comes_while_a_session_is_read_costs_another_look_and_no_packet_id_twice(
    world: OnlineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(world, {1: 1, 2: 2}, counter=2, aside={0: 1})
    free_packet_id, came = quarantine_of_plans._Replayer._free_packet_id, []

    def interrupted(self: Any, session: Any) -> int | None:
        found = free_packet_id(self, session)
        came.append(found)
        if len(came) == 1:
            assert publish(world) == found
        return found

    monkeypatch.setattr(quarantine_of_plans._Replayer, "_free_packet_id", interrupted)

    assert replay_all(world, assign_packet_ids=True).replayed == 1
    assert came == [3, 4]
    assert [(packet_id, serial) for _, packet_id, serial in stored(world)] == [(4, 0), (1, 1), (2, 2), (3, 3)]
    assert faults(world) == ()


@in_each_layout
@pytest.mark.parametrize(
    ("by", "words"),
    [("plan", "plan later has imported the session since"), ("owner", "moved with devices connected since")],
)
def test_message_of_a_session_that_was_copied_again_is_left_to_that_copy(
    world: OnlineWorld, by: str, words: str
) -> None:
    imported(world, {1: 1, 2: 2}, counter=2, aside={0: 1})
    if by == "plan":
        world.client.hset(world.own_key(C), "plan", "later")
    else:
        world.client.hdel(world.own_key(C), "plan")
        world.sql(
            "INSERT INTO queuekeeper.session_owners (client_id, slot, owner, epoch) VALUES (%s, 0, 'redis', 1)", C
        )
    before = stored(world)

    report = put_behind(world)

    (row,) = world.ledger.quarantined(PLAN_ID)
    assert (report.moved_on, report.as_new, stored(world)) == (1, 0, before)
    assert words in report.why[row.quarantine_id or 0]


@in_each_layout
def test_replay_and_undo_say_in_words_that_redis_is_lost(world: OnlineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    imported(world, {1: 1, 2: 2}, counter=2, aside={9: 3})
    assert replay_all(world).replayed == 1
    (row,) = world.ledger.quarantined(PLAN_ID, status="replayed")
    world.ledger.replace_quarantine(PLAN_ID, [0], [replace(row, serial_number=10)])
    plan = world.ledger.load_plan(PLAN_ID)

    def lost(*_: Any, **__: Any) -> None:
        raise redis.ConnectionError("connection reset by peer")

    for name in ("hget", "hmget"):
        monkeypatch.setattr(world.client, name, lost)
    steps: list[Callable[[], object]] = [
        lambda: replay_all(world),
        lambda: reopen_lost(world.ledger, world.client, plan, plan.chosen),
        lambda: drop_imports(world.client, [C], plan_id=PLAN_ID, prefix="", layout=world.layout, dry_run=False),
        lambda: drop_import(world.client, C, prefix="", layout=world.layout),
    ]
    for step in steps:
        with pytest.raises(ServerUnavailable):
            step()


@in_each_layout
def test_rows_of_a_plan_with_devices_connected_are_not_put_into_a_copy_that_may_be_made_again(
    world: OnlineWorld,
) -> None:
    imported(world, {1: 1, 2: 2}, counter=2, aside={0: 1})
    world.sql('UPDATE queuekeeper.plans SET parameters = parameters || \'{"mode": "online"}\'')
    before = stored(world)

    with pytest.raises(RefusedError, match=r"while devices are connected: .*`queuekeeper sessions replay` brings them"):
        put_behind(world, dry_run=True)

    assert stored(world) == before


@in_each_layout
def test_dry_run_counts_as_the_work_does_when_two_messages_want_one_packet_id(world: OnlineWorld) -> None:
    imported(world, {1: 1, 2: 2}, counter=2, aside={8: 3, 9: 3})

    would, done = replay_all(world, dry_run=True), replay_all(world)

    assert (would.replayed, would.packet_id_in_use) == (done.replayed, done.packet_id_in_use) == (1, 1)


@in_each_layout
@pytest.mark.parametrize(
    ("state", "why"), [("half", "the copy of its session is not done"), (None, "its session is not there any more")]
)
def test_message_of_a_session_without_a_whole_copy_in_redis_stays(
    world: OnlineWorld, state: str | None, why: str
) -> None:
    imported(world, {1: 1, 2: 2}, counter=2, aside={0: 1})
    if state is None:
        world.client.delete(*world.client.scan_iter())
    else:
        world.client.hset(world.own_key(C), "import", state)
    keys = {key: world.client.dump(key) for key in world.client.scan_iter()}

    report = put_behind(world)

    (row,) = world.ledger.quarantined(PLAN_ID)
    assert (report.moved_on, report.as_new, dict(report.why)) == (1, 0, {row.quarantine_id: why})
    assert {key: world.client.dump(key) for key in world.client.scan_iter()} == keys


@in_each_layout
@pytest.mark.usefixtures("own_home")
def test_command_needs_not_be_told_in_which_layout_the_plan_has_imported(world: OnlineWorld) -> None:
    imported(world, {1: 1, 2: 2}, counter=2, aside={0: 1, 3: 3})
    publish(world)
    replayed = partial(
        CommandLine(group="migrate").as_json, "replay", PLAN_ID, "--assign-packet-ids", "--as-new",
        "--redis-url", world.redis_url, "--postgres-url", world.postgres_url,
    )  # fmt: skip

    before = stored(world)
    would, untouched = replayed("--dry-run"), stored(world)
    done = replayed("--yes")

    assert untouched == before
    assert would == done | {"dry_run": True}
    assert (done["replayed"], done["as_new"], done["moved_on"]) == (1, 1, 0)
    assert [(packet_id, serial) for _, packet_id, serial in stored(world)] == [(4, 0), (1, 1), (2, 2), (3, 3), (5, 4)]
    assert faults(world) == ()


# --- messages that a store has set aside -------------------------------------------------------------------------

PERSON = "ada (command line)"


def fill(world: OnlineWorld) -> None:
    """Give a client three good messages, two without a topic, and one whose payload format MQTT does not know."""
    messages = tuple(message(b"%d" % number) for number in range(1, 4))
    (report,) = world.at_postgres.save_messages([SessionSave(client_id=C, messages=messages)])
    assert report.error is None
    for serial, columns in {5: ("", None), 6: ("", None), 7: ("odd", 2)}.items():
        world.sql(
            "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos,"
            " payload, payload_format_indicator) VALUES (%s, %s, %s, %s, %s, 'PUBLISH', 1, %s, %s)",
            C, serial, columns[0], time.time_ns() // 1_000_000, serial, b"aside %d" % serial, columns[1],
        )  # fmt: skip
    world.sql("UPDATE device_session_ctx SET last_serial_number = 7, last_packet_id = 7 WHERE client_id = %s", C)


@pytest.fixture(params=["postgres", "redis"])
def aside(request: pytest.FixtureRequest, world: OnlineWorld) -> OnlineWorld:
    """Three rows that were set aside, of a client that PostgreSQL owns, and of one that Redis owns with a mirror."""
    fill(world)
    if request.param == "redis":
        world.plan(count=1)
        world.to_redis()
    else:
        assert world.at_postgres.fetch_pending(C).unreadable == 3
    assert [row.serial_number for row in rows(world)] == [5, 6, 7]
    return world


def rows(world: OnlineWorld, status: str | None = "open") -> list[AsideMessage]:
    """Return what was set aside."""
    return SessionQuarantine(world.connection).rows(status=status)


def mend(world: OnlineWorld) -> None:
    """Mend the rows without a topic."""
    world.sql("UPDATE queuekeeper.session_quarantine SET topic = 'mended' WHERE topic = ''")


def put_back(world: OnlineWorld, router: SessionRouter, **options: Any) -> quarantine.ReplayReport:
    """Replay what was set aside."""
    choice = options.pop("choice", "owner")
    stores = Stores(
        world.connection, postgres=world.at_postgres, redis=lambda _: world.at_redis, router=router, choice=choice
    )
    return quarantine.replay(world.connection, stores, person=PERSON, default_ttl_s=DEFAULT_TTL_S, **options)


def waiting(router: SessionRouter) -> list[tuple[bytes, int, int]]:
    """Return payload, packet id and serial of what waits, in order."""
    return [(each.payload, each.packet_id, each.serial) for each in router.fetch_pending(C).messages]


def test_mended_messages_come_back_at_the_end_under_new_ids_and_the_rest_stays(aside: OnlineWorld) -> None:
    with aside.router() as router:
        before = waiting(router)
        assert [payload for payload, *_ in before] == [b"1", b"2", b"3"]
        # Nothing is mended: each stays, with the rule that it breaks.
        report = put_back(aside, router)
        assert (report.not_repaired, report.replayed) == (3, 0)
        assert set(report.why) == {row.quarantine_id for row in rows(aside)}
        mend(aside)
        would = put_back(aside, router, dry_run=True)
        assert (would.replayed, would.not_repaired, would.dry_run) == (2, 1, True)
        assert (waiting(router), len(rows(aside))) == (before, 3)

        done = put_back(aside, router)

        assert (done.replayed, done.not_repaired) == (2, 1)
        found = waiting(router)
        assert found == [*before, (b"aside 5", 8, 8), (b"aside 6", 9, 9)]
        marked = [row for row in rows(aside, "replayed") if row.replayed_at is not None]
        assert [(row.assigned_serial_number, row.assigned_packet_id, row.replayed_by) for row in marked] == [
            (8, 8, PERSON), (9, 9, PERSON),
        ]  # fmt: skip
        assert put_back(aside, router).replayed == 0
        assert waiting(router) == found


def test_message_that_comes_back_reaches_the_other_store_too(world: OnlineWorld) -> None:
    fill(world)
    world.plan(count=1)
    driver = world.to_redis()
    mend(world)
    with world.router() as router:
        assert put_back(world, router).replayed == 2
        assert mirrored(driver) == 1
        assert {key[1]: row[7] for key, row in world.rows().items() if key[1] >= 8} == {8: b"aside 5", 9: b"aside 6"}
        assert until_none_is_late(driver.roll_back).left == {}
        assert [payload for payload, *_ in waiting(router)] == [b"1", b"2", b"3", b"aside 5", b"aside 6"]


class _Killed(Exception):
    pass


def test_message_behind_a_refused_one_of_its_client_waits_so_that_a_repetition_keeps_their_order(
    aside: OnlineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    mend(aside)
    with aside.router() as router:
        before = waiting(router)
        with monkeypatch.context() as patched:
            refuse_once(patched)
            report = put_back(aside, router)
        assert (report.refused, report.replayed, report.not_repaired, waiting(router)) == (2, 0, 1, before)
        assert put_back(aside, router).replayed == 2
        assert [payload for payload, *_ in waiting(router)] == [b"1", b"2", b"3", b"aside 5", b"aside 6"]


@pytest.mark.parametrize("moves", [False, True])
def test_replay_that_is_killed_before_it_notes_stores_nothing_twice(
    aside: OnlineWorld, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    mend(aside)
    with aside.router() as router:

        def killed(*_: Any, **__: Any) -> None:
            raise _Killed

        with monkeypatch.context() as patched:
            patched.setattr(SessionQuarantine, "mark_replayed", killed)
            with pytest.raises(_Killed):
                put_back(aside, router)
        assert len(rows(aside)) == 3
        assert [payload for payload, *_ in waiting(router)] == [b"1", b"2", b"3", b"aside 5"]
        if moves:
            if aside.sql("SELECT owner FROM queuekeeper.session_owners WHERE client_id = %s", C) == [("redis",)]:
                assert until_none_is_late(aside.driver().roll_back).left == {}
            else:
                aside.plan(count=1)
                aside.to_redis()

        would, again = put_back(aside, router, dry_run=True), put_back(aside, router)

        assert (again.unchanged, again.replayed) == (1, 1)
        assert replace(would, dry_run=False) == again
        assert [payload for payload, *_ in waiting(router)] == [b"1", b"2", b"3", b"aside 5", b"aside 6"]
        ids = [(row.assigned_serial_number, row.assigned_packet_id) for row in rows(aside, "replayed")]
        # Who has moved a session knows only that the message was saved.
        assert ids == [(None, None) if moves else (8, 8), (9, 9)]


def test_session_that_is_on_its_way_takes_nothing_and_its_rows_stay(world: OnlineWorld) -> None:
    fill(world)
    world.plan(count=1)
    world.to_redis()
    mend(world)
    with world.router(patience_s=0.05) as router:
        # Redis has heard that the session leaves; PostgreSQL has not decided yet.
        epoch = world.owner(C).epoch
        assert epoch is not None
        assert world.at_redis.set_owner(C, epoch=epoch + 1, owner="fenced")
        report = put_back(world, router)
        assert (report.refused, report.replayed, len(rows(world))) == (2, 0, 3)
        assert all(report.why.values())
    # Who knows no Redis is refused by PostgreSQL itself.
    alone = Stores(world.connection, postgres=world.at_postgres)
    report = quarantine.replay(world.connection, alone, person=PERSON)
    assert report.replayed == 0
    assert report.refused == 2


def test_what_cannot_come_back_stays_and_says_why(world: OnlineWorld) -> None:
    fill(world)
    assert world.at_postgres.fetch_pending(C).unreadable == 3
    mend(world)
    world.sql("UPDATE queuekeeper.session_quarantine SET packet_type = 'PUBREL' WHERE serial_number = 5")
    world.sql("UPDATE queuekeeper.session_quarantine SET time = 1000 WHERE serial_number = 6")
    world.sql(
        "UPDATE queuekeeper.session_quarantine SET client_id = 'gone', payload_format_indicator = 1"
        " WHERE serial_number = 7"
    )
    with world.router() as router:
        report = put_back(world, router)
        assert (report.released, report.expired, report.no_session, report.replayed) == (1, 1, 1, 0)
        assert len(rows(world)) == 3
        assert not world.at_postgres.inspect("gone").exists


@pytest.mark.parametrize("naming", ["quarantine_ids", "client_id", "reason"])
def test_what_a_commit_has_put_aside_comes_back_only_where_it_is_named(world: OnlineWorld, naming: str) -> None:
    fill(world)
    assert world.at_postgres.fetch_pending(C).unreadable == 3
    mend(world)
    world.sql("UPDATE queuekeeper.session_quarantine SET reason = 'client_id_scattered' WHERE serial_number = 5")
    number = rows(world)[0].quarantine_id
    with world.router() as router:
        bare = put_back(world, router)
        assert (bare.replayed, bare.not_repaired, bare.scattered) == (1, 1, 1)
        assert "by row, --client or --reason client_id_scattered" in bare.why[number]
        assert [payload for payload, *_ in waiting(router)] == [b"1", b"2", b"3", b"aside 6"]
        names: dict[str, Any] = {"quarantine_ids": [number], "client_id": C, "reason": "client_id_scattered"}
        named = put_back(world, router, **{naming: names[naming]})
        assert (named.replayed, named.scattered) == (1, 0)
        assert [payload for payload, *_ in waiting(router)] == [b"1", b"2", b"3", b"aside 6", b"aside 5"]


def test_row_of_a_session_in_both_stores_without_an_owner_waits_for_a_persons_word(world: OnlineWorld) -> None:
    fill(world)
    assert world.at_postgres.fetch_pending(C).unreadable == 3
    mend(world)
    # As an offline migration leaves it: the broker reads Redis, and PostgreSQL's tables are still there.
    (report,) = world.at_redis.save_messages([SessionSave(client_id=C, messages=(message(b"r"),))])
    assert report.error is None
    with world.router() as router:
        assert put_back(world, router).in_both_stores == 2
        done = put_back(world, router, choice="redis")
        assert (done.replayed, done.not_repaired) == (2, 1)
    assert [each.payload for each in world.at_redis.fetch_pending(C).messages] == [b"r", b"aside 5", b"aside 6"]
    assert [each.payload for each in world.at_postgres.fetch_pending(C).messages] == [b"1", b"2", b"3"]

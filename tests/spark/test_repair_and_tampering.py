"""What a person repairs is accounted for, and what somebody spoils is found: each kind of damage under its own name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from queuekeeper.clock import system_clock
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.migration.audit.recount import audit_migration
from queuekeeper.migration.ledger.model import Difference, MigrationPlan, PlanState, VerifyReport
from queuekeeper.migration.offline import quarantine
from queuekeeper.migration.offline.quarantine import ReplayReport
from tests.property.migration_rules import Message
from tests.spark.test_profile_queues import saved
from tests.spark.world import Client, World, sessions_in

REASONS_BY_HAND = ("topic_empty", "qos_out_of_range", "packet_type_unknown", "time_out_of_range")

MENDED = "mended"
# Client, serial and other columns of rows as the source has them, and what a person makes of them in the quarantine.
MENDABLE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"payload_format_indicator": 2}, {"payload_format_indicator": 1, "content_type": "text/plain", "retain": True}),
    ({"correlation_data": b"x" * 70_000}, {"correlation_data": b"x", "payload": b"y", "msg_expiry_interval": 86_400}),
    ({"serial_number": -5}, {"serial_number": 17}),
    ({"client_id": ""}, {"client_id": MENDED, "serial_number": 18}),
]
ELSEWHERE = 2
"""Rows that are given another place."""


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """A migration whose quarantine was worked off."""

    world: World
    plan: MigrationPlan
    clients: dict[str, Client]
    following: dict[str, int]
    reports: dict[str, ReplayReport]
    dry_run_changed: bool
    verified: VerifyReport


@pytest.fixture(scope="module")
def repaired(make_world: Callable[..., World], hostile_template: str) -> Repaired:
    world = make_world(template=hostile_template)
    for number, (columns, _) in enumerate(MENDABLE, 1):
        row = {
            "client_id": MENDED, "serial_number": number, "topic": "t", "time": system_clock(), "packet_id": number,
            "packet_type": "PUBLISH", "qos": 1, "payload": b"mend %d" % number, **columns,
        }  # fmt: skip
        places = ", ".join(["%s"] * len(row))
        world.connection.execute(
            f"INSERT INTO device_publish_msg ({', '.join(row)}) VALUES ({places})", list(row.values())
        )
    world.connection.execute("INSERT INTO device_session_ctx VALUES (%s, 0, 9, 9)", (MENDED,))
    plan = world.plan()
    world.copy(plan.plan_id)

    def replay(**options: Any) -> ReplayReport:
        return quarantine.replay(world.connection, world.client, plan_id=plan.plan_id, **options)

    first = replay(assign_packet_ids=True)
    # The server is lost with all that was in it, and the copy is repeated.
    world.reset()
    world.copy(plan.plan_id)

    before = world.contents()
    reports = {"first": first, "dry": replay(assign_packet_ids=True, drop_user_properties=True, dry_run=True)}
    changed = world.contents() != before
    reports["none"] = replay(reason="topic_empty")
    reports["ids"] = replay(assign_packet_ids=True)
    reports["properties"] = replay(drop_user_properties=True, reason="user_properties_invalid")
    world.connection.execute(
        "UPDATE queuekeeper.quarantine SET topic = 'repaired', qos = 1, packet_type = 'PUBLISH', packet_id = 9000,"
        " time = %s, user_properties = NULL WHERE reason = ANY(%s) AND kind = 'message'",
        (plan.as_of_ms - 1_000, list(REASONS_BY_HAND)),
    )
    following = _following(world)
    for (client_id,) in world.connection.execute(
        "SELECT client_id FROM queuekeeper.quarantine WHERE reason = 'topic_empty' AND kind = 'message'"
    ).fetchall():
        world.connection.execute(
            "UPDATE queuekeeper.quarantine SET packet_id = %s WHERE client_id = %s AND reason = 'topic_empty'",
            (following[client_id], client_id),
        )
    reports["hand"] = replay()
    for number, (_, columns) in enumerate(MENDABLE, 1):
        names = ", ".join(f"{name} = %s" for name in columns)
        world.connection.execute(
            f"UPDATE queuekeeper.quarantine SET {names} WHERE payload = %s", [*columns.values(), b"mend %d" % number]
        )
    reports["mended"] = replay(client_id=MENDED)
    return Repaired(
        world=world,
        plan=plan,
        clients=world.expected(plan),
        following=following,
        reports=reports,
        dry_run_changed=changed,
        verified=world.verify(plan.plan_id),
    )


def _following(world: World) -> dict[str, int]:
    """Return which packet id each session gives out next."""
    found = {}
    for client_id in {
        client_id for (client_id,) in world.connection.execute("SELECT client_id FROM device_session_ctx")
    }:
        last: Any = world.client.get(session_keys(client_id).last_packet_id) if client_id else None
        found[client_id] = int(last or 0) % 65_535 + 1
    return found


def _quarantined(repaired: Repaired, *reasons: str) -> list[Message]:
    return [
        message
        for client in repaired.clients.values()
        for message in client.messages
        if client.decision.messages[message.serial_number].reason in reasons
    ]


def _expires(message: Message) -> int:
    life = 604_800 if message.msg_expiry_interval is None else message.msg_expiry_interval
    return message.time + 1_000 * life


def test_dry_run_counts_and_writes_nothing(repaired: Repaired) -> None:
    assert not repaired.dry_run_changed
    report = repaired.reports["dry"]
    ids = _quarantined(repaired, "packet_id_duplicate", "packet_id_out_of_range", "user_properties_invalid")
    assert report.replayed == len(ids) > 0
    assert report.not_repaired == sum(
        len(_quarantined(repaired, reason))
        for reason in (
            *REASONS_BY_HAND, "client_id_empty", "serial_out_of_range", "payload_format_invalid",
            "correlation_data_too_long",
        )
    )  # fmt: skip


def test_rows_that_still_break_a_rule_stay(repaired: Repaired) -> None:
    topics = len(_quarantined(repaired, "topic_empty"))
    assert asdict(repaired.reports["none"]) == asdict(
        ReplayReport(plan_id=repaired.plan.plan_id, dry_run=False, not_repaired=topics)
    )
    assert topics > 0


def test_repaired_messages_are_in_their_sessions_in_order_under_free_packet_ids(repaired: Repaired) -> None:
    ids = _quarantined(repaired, "packet_id_duplicate", "packet_id_out_of_range")
    properties = _quarantined(repaired, "user_properties_invalid")
    by_hand = _quarantined(repaired, *REASONS_BY_HAND)
    next_ones = _quarantined(repaired, "topic_empty")
    assert repaired.reports["ids"].replayed == repaired.reports["first"].replayed == len(ids) > 0
    assert repaired.reports["properties"].replayed == len(properties) > 0
    assert repaired.reports["hand"].replayed == len(by_hand) > 0

    found = sessions_in(repaired.world.contents(), set(repaired.clients))
    for message in [*ids, *properties, *by_hand]:
        target = found[message.client_id]
        packet_ids = [
            packet_id for packet_id, stored in target.messages.items() if stored.score == message.serial_number
        ]
        assert len(packet_ids) == 1, message
        stored = target.messages[packet_ids[0]]
        assert stored.json is not None
        assert stored.json["packetId"] == packet_ids[0]
        assert len(target.messages) == len(repaired.clients[message.client_id].copied) + 1
        if message in ids:
            assert target.last_packet_id == packet_ids[0]
            assert stored.expires_at_ms == _expires(message)
        if message in by_hand:
            given = repaired.following[message.client_id] if message in next_ones else 9_000
            assert (packet_ids[0], stored.json["topicName"]) == (given, "repaired")
        if message in next_ones:
            assert target.last_packet_id == packet_ids[0]
        if message in properties:
            assert "userProperties" not in stored.json
            assert stored.expires_at_ms == _expires(message)


def test_ledger_balances_after_repairs_and_counts_them_as_copied(repaired: Repaired) -> None:
    assert repaired.world.ledger.differences(repaired.plan.plan_id) == []
    assert repaired.verified.balanced
    assert repaired.reports["mended"].replayed == len(MENDABLE)
    everywhere = sum(repaired.reports[step].replayed for step in ("ids", "properties", "hand", "mended"))
    # Whose place was mended is no row of the source: that one stays set aside.
    replayed = everywhere - ELSEWHERE
    ledger = repaired.verified.ledger
    assert sum(row.copied for row in ledger) == repaired.plan.total("to_copy") + replayed
    assert sum(row.quarantined for row in ledger) == repaired.plan.total("quarantined") - replayed
    counts = repaired.world.ledger.quarantine_counts(repaired.plan.plan_id)
    assert sum(count.replayed for count in counts) == everywhere


def test_audit_comes_to_the_same_ledger_after_repairs(repaired: Repaired) -> None:
    report = audit_migration(
        repaired.world.connection, plan_id=repaired.plan.plan_id, paths=[saved(repaired.world.client)]
    )

    assert report.findings == ()
    assert report.agrees


# Each client suffers one kind of damage.
@dataclass(frozen=True, kw_only=True)
class Damage:
    """A client, and the difference that must be reported for it."""

    kind: str
    client_id: str
    serial_number: int | None
    expected: str | None = None
    found: str | None = None


@pytest.fixture(scope="module")
def damages(repaired: Repaired) -> list[Damage]:
    """Spoil one session after the other."""
    client: Any = repaired.world.client
    untouched = iter(
        sorted(
            (name, each)
            for name, each in repaired.clients.items()
            if name.startswith("sample-") and len(each.copied) >= 4 and len(each.copied) == len(each.messages)
        )
    )
    done: list[Damage] = []

    def suffer(
        kind: str, spoil: Callable[[str, Message, bytes], dict[str, str] | None], *, of_session: bool = False
    ) -> None:
        name, each = next(untouched)
        message = each.copied[1]
        told = spoil(name, message, payload_key(name, message.packet_id or 0).encode()) or {}
        done.append(
            Damage(kind=kind, client_id=name, serial_number=None if of_session else message.serial_number, **told)
        )

    def rewrite(key: bytes, **fields: Any) -> None:
        client.set(key, json.dumps(json.loads(client.get(key)) | fields), keepttl=True)

    def removed(name: str, message: Message, key: bytes) -> None:
        client.zrem(session_keys(name).messages, key)
        client.delete(key)

    def dangling(name: str, message: Message, key: bytes) -> None:
        client.delete(key)

    def payload(name: str, message: Message, key: bytes) -> None:
        rewrite(key, payload="c2VjcmV0")

    def topic(name: str, message: Message, key: bytes) -> None:
        rewrite(key, topicName="secret/topic")

    def packet_id(name: str, message: Message, key: bytes) -> dict[str, str]:
        rewrite(key, packetId=60_001)
        return {"expected": str(message.packet_id), "found": "60001"}

    def expiry(name: str, message: Message, key: bytes) -> dict[str, str]:
        end = client.pexpiretime(key)
        client.pexpireat(key, end + 1)
        return {"expected": str(end), "found": str(end + 1)}

    def immortal(name: str, message: Message, key: bytes) -> dict[str, str]:
        client.persist(key)
        return {"found": "-1"}

    def unreadable(name: str, message: Message, key: bytes) -> None:
        client.set(key, "secret, not JSON", keepttl=True)

    def counter(name: str, message: Message, key: bytes) -> dict[str, str]:
        right = client.get(session_keys(name).last_packet_id).decode()
        wrong = "1" if right != "1" else "2"
        client.set(session_keys(name).last_packet_id, wrong)
        return {"expected": right, "found": wrong}

    def no_number(name: str, message: Message, key: bytes) -> dict[str, str]:
        client.set(session_keys(name).last_packet_id, "no number")
        return {"found": "no number"}

    def no_base64(name: str, message: Message, key: bytes) -> None:
        rewrite(key, payload="abcde")

    def no_counter(name: str, message: Message, key: bytes) -> dict[str, str]:
        client.delete(session_keys(name).last_packet_id)
        return {"found": "none"}

    def unfinished(name: str, message: Message, key: bytes) -> dict[str, str]:
        client.hset(session_keys(name).session, "import", "1")
        return {"expected": "done", "found": "1"}

    def fractional(name: str, message: Message, key: bytes) -> dict[str, str]:
        client.zincrby(session_keys(name).messages, 0.25, key)
        return {"expected": f"{message.serial_number} at place 2", "found": f"{message.serial_number}.25 at place 2"}

    suffer("order", fractional)
    suffer("missing", removed)
    suffer("missing", dangling)
    suffer("payload", payload)
    suffer("properties", topic)
    suffer("packet_id", packet_id)
    suffer("expiry", expiry)
    suffer("expiry", immortal)
    suffer("unreadable", unreadable)
    suffer("last_packet_id", counter, of_session=True)
    suffer("last_packet_id", no_counter, of_session=True)
    suffer("last_packet_id", no_number, of_session=True)
    suffer("payload", no_base64)
    suffer("session_missing", unfinished, of_session=True)

    name, _ = next(untouched)
    key = payload_key(name, 65_000)
    client.set(key, json.dumps({"clientId": name, "packetId": 65_000, "payload": "c2VjcmV0"}))
    client.zadd(session_keys(name).messages, {key: 2**40})
    done.append(Damage(kind="unexpected", client_id=name, serial_number=2**40))

    # Two neighbours change places: packet id, payload and expiry move with the score, so both are wrong in all.
    name, each = next(untouched)
    first, second = each.copied[0], each.copied[1]
    keys = [payload_key(name, message.packet_id or 0) for message in (first, second)]
    client.zadd(session_keys(name).messages, {keys[0]: second.serial_number, keys[1]: first.serial_number})
    done += [
        Damage(kind="packet_id", client_id=name, serial_number=first.serial_number),
        Damage(kind="packet_id", client_id=name, serial_number=second.serial_number),
    ]

    # A score that is no serial.
    name, each = next(untouched)
    spoilt = each.copied[1]
    client.zadd(session_keys(name).messages, {payload_key(name, spoilt.packet_id or 0): float("inf")})
    done += [
        Damage(kind="missing", client_id=name, serial_number=spoilt.serial_number),
        Damage(kind="unexpected", client_id=name, serial_number=None),
    ]

    # Nothing of the session is left at all.
    name, each = next(untouched)
    client.delete(*session_keys(name), *(payload_key(name, message.packet_id or 0) for message in each.copied))
    done += [Damage(kind="missing", client_id=name, serial_number=message.serial_number) for message in each.copied]
    done += [
        Damage(kind=kind, client_id=name, serial_number=None, found=found)
        for kind, found in (("session_missing", "nothing"), ("last_packet_id", "none"))
    ]
    return done


@pytest.fixture(scope="module")
def found(repaired: Repaired, damages: list[Damage]) -> list[Difference]:
    report = repaired.world.verify(repaired.plan.plan_id)
    assert not report.balanced
    differences = repaired.world.ledger.differences(repaired.plan.plan_id, limit=None)
    assert report.differences == len(differences)
    return differences


def test_each_damage_is_reported_as_what_it_is_and_nothing_else_is(
    repaired: Repaired, damages: list[Damage], found: list[Difference]
) -> None:
    swapped = [damage.client_id for damage in damages if damage.kind == "packet_id"][1]
    plain = sorted((each.kind, each.client_id, each.serial_number or -1) for each in found if each.client_id != swapped)
    assert plain == sorted(
        (damage.kind, damage.client_id, damage.serial_number or -1) for damage in damages if damage.client_id != swapped
    )
    for damage in damages:
        for each in found:
            if (each.kind, each.client_id, each.serial_number) == (damage.kind, damage.client_id, damage.serial_number):
                assert damage.expected in (None, each.expected)
                assert damage.found in (None, each.found)


def test_exchanged_messages_are_found(damages: list[Damage], found: list[Difference]) -> None:
    swapped = [damage for damage in damages if damage.kind == "packet_id"][1:]
    for damage in swapped:
        kinds = {
            each.kind
            for each in found
            if (each.client_id, each.serial_number) == (damage.client_id, damage.serial_number)
        }
        assert {"packet_id", "payload"} <= kinds


def test_differences_show_no_content(found: list[Difference]) -> None:
    shown = json.dumps([asdict(each) for each in found])
    assert "secret" not in shown
    assert "c2VjcmV0" not in shown
    for each in found:
        if each.kind in {"payload", "properties"}:
            assert len(each.expected) == len(each.found) == 12
            int(each.expected + each.found, 16)


def test_differences_are_counted_by_kind(repaired: Repaired, found: list[Difference]) -> None:
    counts = repaired.world.ledger.difference_counts(repaired.plan.plan_id)
    assert counts == Counter(each.kind for each in found)


def test_plan_with_differences_is_failed_and_says_how_many(repaired: Repaired, found: list[Difference]) -> None:
    plan = repaired.world.ledger.load_plan(repaired.plan.plan_id)
    assert plan.state is PlanState.FAILED
    assert plan.state_reason.startswith(f"{len(found)} differences, ")
    assert "0 messages unaccounted" not in plan.state_reason

"""Sessions that are copied into the packed layout: as the rules say, as in TBMQ's layout, and back again."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest

from queuekeeper.keyspace import packed_keys
from queuekeeper.migration.ledger.model import CopyReport, MigrationPlan, VerifyReport
from queuekeeper.migration.offline.quarantine import replay
from queuekeeper.migration.offline.undo import drop_imports
from queuekeeper.migration.report.memory import estimate_memory
from queuekeeper.sessions.model import Ack, StoreRules
from queuekeeper.sessions.packed_record import expires_at_ms, fields_of, message_of, record_of
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.wire import MAX_INTERVAL_S
from tests.conftest import nightly
from tests.spark.world import PARAMETERS, Client, Stored, Target, World

PACKED = replace(PARAMETERS, layout=Layout.PACKED)


@dataclass(frozen=True, kw_only=True)
class Copied:
    """A plan that was carried out."""

    world: World
    plan: MigrationPlan
    clients: dict[str, Client]
    report: CopyReport

    @cached_property
    def verified(self) -> VerifyReport:
        """What a verification finds when it is first asked for."""
        return self.world.verify(self.plan.plan_id)

    @property
    def imported(self) -> list[str]:
        """Clients whose sessions must be in Redis."""
        return [name for name, client in sorted(self.clients.items()) if name and client.imported]

    @property
    def store(self) -> RedisSessionStore:
        """The store of the plan's layout."""
        return RedisSessionStore(
            self.world.client, rules=StoreRules(limit=PARAMETERS.limit), layout=self.plan.parameters.layout
        )

    def records(self, name: str) -> dict[int, bytes]:
        """Return a packed session's records by serial."""
        found: Any = self.world.client.hgetall(packed_keys(name).session)
        return {int(field): record for field, record in found.items() if field.isdigit()}


def carried_out(world: World, parameters: Any) -> Copied:
    plan = world.plan(parameters)
    report = world.copy(plan.plan_id)
    return Copied(world=world, plan=plan, clients=world.expected(plan), report=report)


@pytest.fixture(scope="module", params=[*nightly("valkey"), "cluster"])
def packed(make_world: Callable[..., World], hostile_template: str, request: pytest.FixtureRequest) -> Copied:
    return carried_out(make_world(template=hostile_template, target=request.param), PACKED)


@pytest.fixture(scope="module")
def tbmq(make_world: Callable[..., World], hostile_template: str) -> Copied:
    return carried_out(make_world(template=hostile_template), PARAMETERS)


def _target(copied: Copied, name: str) -> Target:
    messages: dict[int, Stored] = {}
    for serial, record in copied.records(name).items():
        fields, payload = fields_of(record)
        ends_ms = expires_at_ms(record)
        assert ends_ms is not None
        fields |= {"clientId": name, "payload": b64encode(payload).decode()}
        if "msgExpiryInterval" in fields:
            fields["msgExpiryInterval"] = min(fields["msgExpiryInterval"], MAX_INTERVAL_S)
        messages[fields["packetId"]] = Stored(serial, fields, ends_ms)
    return Target(messages=messages, last_packet_id=copied.store.get_last_packet_id(name))


def test_every_packed_session_is_what_the_rules_say(packed: Copied) -> None:
    wanted = {name: packed.clients[name].target() for name in packed.imported}
    wanted = {name: replace(each, last_packet_id=each.last_packet_id or None) for name, each in wanted.items()}
    assert {name: _target(packed, name) for name in packed.imported} == wanted
    keys = {key.decode() for key in packed.world.contents()}
    assert keys == {packed_keys(name).session for name in packed.imported}


def test_records_are_byte_for_byte_those_of_the_store(packed: Copied) -> None:
    records = {(serial, record) for name in packed.imported for serial, record in packed.records(name).items()}
    assert len(records) > 1_000
    for serial, record in records:
        message = message_of(record, serial=serial, redelivery=False)
        assert _written(message, end_ms=message.expires_at_ms or 0) == record


def _written(message: PendingMessage, *, end_ms: int) -> bytes:
    return record_of(message, packet_id=message.packet_id, end_ms=end_ms, packet_type=message.packet_type)


def _all(store: RedisSessionStore, name: str) -> list[PendingMessage]:
    found: list[PendingMessage] = []
    while True:
        page = store.fetch_pending(name, limit=100, after_serial=found[-1].serial if found else -1)
        found += page.messages
        if not page.messages:
            return found


def test_both_layouts_answer_the_same(packed: Copied, tbmq: Copied) -> None:
    names = [name for name in packed.imported if name in tbmq.imported]
    assert len(names) > 100
    for name in names:
        assert _all(packed.store, name) == _all(tbmq.store, name)
        one, other = packed.store.inspect(name), tbmq.store.inspect(name)
        assert one.last_packet_id == (other.last_packet_id or None)
        same = ("exists", "messages", "page", "last_serial", "delivered_serial", "counts", "owner", "epoch")
        assert {each: getattr(one, each) for each in same} == {each: getattr(other, each) for each in same}


def _rows(verified: VerifyReport) -> list[dict[str, Any]]:
    return [{name: getattr(row, name) for name in _COUNTS} for row in verified.ledger]


_COUNTS = ("cohort", "rows_seen", "copied", "expired", "trimmed", "quarantined", "sessions_seen", "differences")


def test_verification_balances_and_counts_as_in_the_other_layout(packed: Copied, tbmq: Copied) -> None:
    assert packed.verified.balanced
    assert packed.verified.differences == 0
    total = {name: sum(row[name] for row in _rows(packed.verified)) for name in _COUNTS[1:]}
    assert total["copied"] == packed.report.messages_written
    if len(packed.plan.cohorts) == len(tbmq.plan.cohorts) and not packed.plan.target_clustered:
        assert _rows(packed.verified) == _rows(tbmq.verified)


def test_repeated_copy_changes_nothing(packed: Copied) -> None:
    before = packed.world.contents()
    again = packed.world.copy(packed.plan.plan_id)
    assert (again.sessions_written, again.messages_written) == (0, 0)
    assert again.sessions_unchanged == len(packed.imported)
    assert packed.world.contents() == before


def test_memory_is_forecast_and_measured(packed: Copied) -> None:
    wish: Any = {"prefix": "", "messages": packed.report.messages_written, "sessions": len(packed.imported)}
    assert estimate_memory(packed.world.client, **wish, layout=Layout.TBMQ) is None
    measured = estimate_memory(packed.world.client, **wish, layout=Layout.PACKED)
    assert measured is not None
    assert measured.keys_measured == len(packed.imported)
    if packed.plan.target_clustered:
        return  # the tables of 16,384 slots outweigh a few sessions
    forecast = sum(cohort.forecast_bytes for cohort in packed.plan.chosen_cohorts)
    assert forecast == pytest.approx(measured.bytes, rel=0.1)


@pytest.fixture
def fresh(make_world: Callable[..., World], healthy_template: str) -> Copied:
    return carried_out(make_world(template=healthy_template), PACKED)


def test_repaired_messages_are_at_their_places_and_the_ledger_balances(
    make_world: Callable[..., World], hostile_template: str
) -> None:
    copied = carried_out(make_world(template=hostile_template), PACKED)
    world, plan = copied.world, copied.plan
    mending: dict[str, Any] = {"plan_id": plan.plan_id, "assign_packet_ids": True, "drop_user_properties": True}
    would = replay(world.connection, world.client, **mending, dry_run=True)
    done = replay(world.connection, world.client, **mending)
    assert replace(would, dry_run=False) == done
    assert done.replayed > 10
    put = {
        (row.client_id, row.serial_number): row.assigned_packet_id or row.packet_id
        for row in world.ledger.quarantined(plan.plan_id, status="replayed", limit=None)
    }
    assert len(put) == done.replayed
    for (client_id, serial), packet_id in put.items():
        assert serial is not None
        assert _read(copied.records(client_id)[serial]).packet_id == packet_id

    verified = world.verify(plan.plan_id)

    assert (verified.balanced, verified.differences) == (True, 0)
    assert sum(row.copied for row in verified.ledger) == plan.total("to_copy") + done.replayed


def _long(copied: Copied) -> list[str]:
    return [name for name in copied.imported if len(copied.clients[name].copied) >= 4]


def _differences(copied: Copied) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in copied.world.ledger.differences(copied.plan.plan_id, limit=100):
        found.setdefault(each.client_id, []).append(each.kind)
    return found


def test_what_was_changed_behind_the_stores_back_is_found(fresh: Copied) -> None:
    client: Any = fresh.world.client
    lost, payload, expiry, packet_id, broken, counter = _long(fresh)[:6]

    def spoil(name: str, change: Callable[[bytes], bytes]) -> None:
        serial, record = min(fresh.records(name).items())
        client.hset(packed_keys(name).session, str(serial), change(record))

    client.hdel(packed_keys(lost).session, str(min(fresh.records(lost))))
    spoil(payload, lambda record: record[:-1] + bytes([record[-1] ^ 1]))
    spoil(expiry, lambda record: _written(_read(record), end_ms=(expires_at_ms(record) or 0) + 1))
    spoil(packet_id, lambda record: b"\xff\xff" + record[2:])
    spoil(broken, lambda _: b"no record")
    last = fresh.store.get_last_packet_id(counter)
    fresh.store.set_last_packet_id(counter, packet_id=(last or 0) % 65_535 + 1, expected=last)

    verified = fresh.world.verify(fresh.plan.plan_id)

    assert not verified.balanced
    assert _differences(fresh) == {
        lost: ["missing"],
        payload: ["payload"],
        expiry: ["expiry"],
        packet_id: ["packet_id"],
        broken: ["unreadable"],
        counter: ["last_packet_id"],
    }


def _read(record: bytes) -> PendingMessage:
    return message_of(record, serial=0, redelivery=False)


def test_undo_removes_what_nobody_has_used(fresh: Copied) -> None:
    acked, released, *_ = _long(fresh)
    first = fresh.store.fetch_pending(acked, limit=1).messages[0]
    fresh.store.ack(acked, [Ack(packet_id=first.packet_id)])
    # A broker that reads without marking what it delivers is noticed by the PUBREC of its client.
    publish = next(each for each in _all(fresh.store, released) if each.packet_type == "PUBLISH")
    assert fresh.store.mark_released(released, packet_id=publish.packet_id) == "released"
    before = fresh.world.contents()

    def drop(*, dry_run: bool) -> Any:
        return drop_imports(
            fresh.world.client, sorted(fresh.clients), plan_id=fresh.plan.plan_id, prefix="", layout=Layout.PACKED,
            dry_run=dry_run,
        )  # fmt: skip

    dry = drop(dry_run=True)
    assert fresh.world.contents() == before
    dropped = drop(dry_run=False)

    assert (dropped.sessions_dropped, dropped.messages_dropped) == (dry.sessions_dropped, dry.messages_dropped)
    assert dropped.sessions_moved_on == 2
    assert {key.decode() for key in fresh.world.contents()} == {
        packed_keys(acked).session,
        packed_keys(released).session,
    }


def test_untouched_imports_of_an_earlier_plan_are_replaced(fresh: Copied) -> None:
    smaller = carried_out(fresh.world, replace(PACKED, limit=3))
    assert smaller.report.sessions_written == len(smaller.imported)
    assert smaller.verified.differences == 0
    assert max(len(smaller.records(name)) for name in smaller.imported) == 3

"""A target that is not empty: imports of an earlier plan, sessions in use, lives that ended since; and going back.

All of it in a database that ends idle transactions after an instant, as some providers do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from queuekeeper.clock import DAY_MS, system_clock
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.migration import preflight
from queuekeeper.migration.ledger.model import CopyReport, MigrationPlan, PlanState, VerifyReport
from queuekeeper.migration.offline.undo import DropReport, drop_imports
from tests.spark.world import PARAMETERS, Client, World, sessions_in


@dataclass(frozen=True, kw_only=True)
class Second:
    """A second plan after the first one was copied, and its undoing."""

    world: World
    first: MigrationPlan
    plan: MigrationPlan
    clients: dict[str, Client]
    used: str
    stranger: str
    copied: CopyReport
    verified: VerifyReport
    after_copy: dict[bytes, tuple[Any, int]]
    dry: DropReport
    after_dry: dict[bytes, tuple[Any, int]]
    dropped: DropReport
    after_drop: dict[bytes, tuple[Any, int]]


@pytest.fixture(scope="module")
def second(make_world: Callable[..., World], hostile_template: str) -> Second:
    world = make_world(template=hostile_template)
    world.connection.execute(
        f"ALTER DATABASE {world.connection.info.dbname} SET idle_in_transaction_session_timeout = '150ms'"
    )
    client: Any = world.client
    # The first plan is a day old, so that it holds messages whose life has ended since.
    first = world.plan(replace(PARAMETERS, limit=300))
    rows = world.expected(first)
    used, stranger = [
        name for name, each in sorted(rows.items()) if name.startswith("sample-") and len(each.copied) >= 3
    ][:2]
    client.set(session_keys(stranger).last_packet_id, "7")
    world.copy(first.plan_id)
    oldest = payload_key(used, rows[used].copied[0].packet_id or 0)
    client.zrem(session_keys(used).messages, oldest)
    client.delete(oldest)

    plan = world.plan()
    copied = world.copy(plan.plan_id)
    verified = world.verify(plan.plan_id)
    after_copy = world.contents()

    def drop(*, dry_run: bool) -> DropReport:
        return drop_imports(
            world.client, [name for name in sorted(rows) if name], plan_id=plan.plan_id, prefix="", dry_run=dry_run
        )

    dry = drop(dry_run=True)
    after_dry = world.contents()
    return Second(
        world=world,
        first=first,
        plan=plan,
        clients=world.expected(plan),
        used=used,
        stranger=stranger,
        copied=copied,
        verified=verified,
        after_copy=after_copy,
        dry=dry,
        after_dry=after_dry,
        dropped=drop(dry_run=False),
        after_drop=world.contents(),
    )


def _left_alone(second: Second) -> list[Client]:
    return [second.clients[name] for name in (second.used, second.stranger)]


def test_plan_id_changes_with_the_parameters_only_as_they_matter(second: Second) -> None:
    assert second.plan.plan_id != second.first.plan_id
    assert second.plan.source_fingerprint == second.first.source_fingerprint


def test_untouched_imports_of_an_earlier_plan_are_replaced(second: Second) -> None:
    alone = {second.used.encode(), second.stranger.encode()}
    contents = {
        key: value for key, value in second.after_copy.items() if not any(b"{" + name + b"}" in key for name in alone)
    }
    assert sessions_in(contents, set(second.clients)) == {
        name: client.target()
        for name, client in second.clients.items()
        if name and client.imported and name.encode() not in alone
    }
    assert any(len(client.copied) > 300 for client in second.clients.values()), "the new limit was not needed"


def test_sessions_in_use_are_left_alone_and_counted_superseded(second: Second) -> None:
    world: Any = second.world
    assert second.copied.sessions_moved_on == 2
    keys = session_keys(second.used)
    assert second.after_copy[keys.session.encode()][0][b"plan"] == second.first.plan_id.encode()
    assert len(second.after_copy[keys.messages.encode()][0]) == len(second.clients[second.used].copied) - 1
    assert second.after_copy[session_keys(second.stranger).last_packet_id.encode()] == (b"7", -1)
    assert session_keys(second.stranger).messages.encode() not in second.after_copy

    assert second.verified.balanced, world.ledger.differences(second.plan.plan_id)
    superseded = sum(len(client.copied) for client in _left_alone(second))
    assert sum(row.superseded for row in second.verified.ledger) == superseded
    assert sum(row.copied for row in second.verified.ledger) == second.plan.total("to_copy") - superseded
    assert sum(row.sessions_seen - row.sessions_copied for row in second.verified.ledger) == 2


def test_dry_run_of_undo_counts_and_leaves_everything(second: Second) -> None:
    assert second.after_dry == second.after_copy
    assert second.dry == replace(second.dropped, dry_run=True)


def test_undo_takes_out_what_the_plan_imported_and_nothing_else(second: Second) -> None:
    assert second.dropped.sessions_dropped == second.copied.sessions_written
    assert second.dropped.messages_dropped == sum(row.copied for row in second.verified.ledger)
    kept = {
        key: value
        for key, value in second.after_copy.items()
        if any(b"{" + name.encode() + b"}" in key for name in (second.used, second.stranger))
    }
    assert second.after_drop == kept
    assert len(kept) > 3


# By day: tests/sql/test_preflight.py, for the fingerprint; test_ledger.py, for who agrees meanwhile; the tests above.
@pytest.mark.nightly
def test_same_wishes_give_the_same_plan_and_a_changed_source_another(
    make_world: Callable[..., World], healthy_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also: somebody agrees to the plan while it is made again, and that stands."""
    world = make_world(template=healthy_template)
    now_ms = world.plan().as_of_ms
    yesterday = world.plan(now_ms=now_ms - 2 * DAY_MS)
    with monkeypatch.context() as patch:
        patch.setattr(preflight, "check_heap", lambda *_: world.ledger.approve(yesterday.plan_id, "Ada"))
        again = world.plan(replace(PARAMETERS, throttle_messages_per_s=1_000_000), now_ms=now_ms - 2 * DAY_MS)
    assert again == replace(yesterday, state=PlanState.APPROVED)

    world.connection.execute("DELETE FROM device_publish_msg WHERE ctid = (SELECT min(ctid) FROM device_publish_msg)")
    assert world.plan().plan_id != again.plan_id


def test_messages_whose_life_ends_between_plan_and_copy_are_not_written_and_are_accounted_for(
    make_world: Callable[..., World], healthy_template: str
) -> None:
    world = make_world(template=healthy_template)
    now_ms = system_clock()
    plan = world.plan(now_ms=now_ms - 2 * DAY_MS)

    copied = world.copy(plan.plan_id)
    clients = world.expected(plan)
    ended = sum(
        1
        for client in clients.values()
        for message in client.copied
        if (client.decision.messages[message.serial_number].expires_at_ms or 0) <= now_ms
    )
    assert copied.messages_expired == ended > 0
    assert copied.messages_written == plan.total("to_copy") - ended
    report = world.verify(plan.plan_id)
    assert report.balanced, world.ledger.differences(plan.plan_id)
    assert sum(row.expired for row in report.ledger) == plan.total("expired") + ended


# Copies meet such sessions above, scripts in tests/lua, and the undo in tests/conformance/test_plan_is_apply.py.
@pytest.mark.nightly
def test_sessions_that_the_broker_has_used_are_told_by_a_second_copy_a_verification_and_an_undo(
    make_world: Callable[..., World], healthy_template: str
) -> None:
    world = make_world(template=healthy_template)
    client: Any = world.client
    plan = world.plan()
    first = world.copy(plan.plan_id)
    clients = world.expected(plan)
    acknowledged, added = [name for name, each in sorted(clients.items()) if len(each.copied) >= 3][:2]
    message = payload_key(acknowledged, clients[acknowledged].copied[0].packet_id or 0)
    client.zrem(session_keys(acknowledged).messages, message)
    client.delete(message)
    new = payload_key(added, 65_001)
    client.set(session_keys(added).last_packet_id, 65_001)
    client.set(new, "{}")
    client.zadd(session_keys(added).messages, {new: 2**40})

    again = world.copy(plan.plan_id)
    assert (again.sessions_written, again.sessions_moved_on) == (0, 2)
    assert again.sessions_unchanged == first.sessions_written - 2
    report = world.verify(plan.plan_id)
    assert report.balanced, world.ledger.differences(plan.plan_id)
    assert sum(row.superseded for row in report.ledger) == sum(
        len(clients[name].copied) for name in (acknowledged, added)
    )

    before = world.contents()
    said, done = [
        drop_imports(client, [name for name in sorted(clients) if name], plan_id=plan.plan_id, prefix="", dry_run=dry)
        for dry in (True, False)
    ]
    assert said == replace(done, dry_run=True)
    assert (done.sessions_dropped, done.sessions_moved_on) == (first.sessions_written - 2, 2)
    left = {
        key: value for key, value in before.items() if any(b"{%s}" % n.encode() in key for n in (acknowledged, added))
    }
    assert world.contents() == left

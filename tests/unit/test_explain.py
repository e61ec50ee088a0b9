"""What became of each message of a queue, judged from what both stores hold."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from queuekeeper.quality.explain import Aside, Explanation, Fate, QueueReading, explain
from queuekeeper.sessions.reports import ImportView, MessageView, Problem, SessionCounts, SessionView

pytestmark = pytest.mark.unit

NOW_MS = 1_760_000_000_000
KEY = b"k" * 32
HOUR_MS = 3_600_000


def message(serial: int, *, ends_in_ms: int = HOUR_MS, **more: Any) -> MessageView:
    values: dict[str, Any] = {
        "packet_id": serial,
        "packet_type": "PUBLISH",
        "qos": 1,
        "topic": "secret/topic",
        "payload_bytes": 9,
    }
    return MessageView(serial=serial, expires_at_ms=NOW_MS + ends_in_ms, time_ms=NOW_MS - HOUR_MS, **values | more)


def view(store: str, *messages: MessageView, total: int | None = None, **more: Any) -> SessionView:
    return SessionView(
        client_id="meter-17",
        store=store,
        exists=True,
        messages=len(messages) if total is None else total,
        offset=0,
        page=messages,
        last_packet_id=9,
        **more,
    )


def imported(*, state: str = "done", touched: bool = False) -> ImportView:
    return ImportView(plan_id="0" * 16, state=state, references=3, last_packet_id=9, touched=touched)


def explained(
    source: SessionView | None = None, target: SessionView | None = None, *aside: Aside, **more: Any
) -> Explanation:
    reading = QueueReading(source=source, target=target, aside=aside, problems=more.pop("problems", {}))
    return explain("meter-17", reading=reading, hash_key=KEY, now_ms=NOW_MS, **more)


def fates(found: Explanation) -> dict[tuple[int, int], Fate]:
    return {(line.first_serial, line.last_serial): line.fate for line in found.lines}


def test_messages_of_a_session_in_redis_wait_are_sent_or_owe_a_pubcomp() -> None:
    found = explained(
        None, view("redis", message(1, packet_type="PUBREL"), message(2), message(3), delivered_serial=2, last_serial=3)
    )

    assert fates(found) == {(1, 1): Fate.RELEASED, (2, 2): Fate.SENT, (3, 3): Fate.WAITING}
    assert found.served_from == "redis"
    assert found.advice == "Every message is accounted for."


def test_gap_that_was_sent_is_acknowledged_and_one_that_was_not_has_the_name_of_its_counter() -> None:
    def gap(counts: SessionCounts | None, delivered: int | None = 2) -> dict[tuple[int, int], Fate]:
        return fates(
            explained(
                None,
                view("redis", message(1), message(7), delivered_serial=delivered, last_serial=9, counts=counts),
            )
        )

    known = {(1, 1): Fate.SENT, (7, 7): Fate.WAITING, (2, 2): Fate.ACKED}
    for counts, fate in (
        (SessionCounts(trimmed=4), Fate.TRIMMED),
        (SessionCounts(expired=4), Fate.EXPIRED),
        (SessionCounts(quarantined=4), Fate.QUARANTINED),
        (SessionCounts(), Fate.UNKNOWN),
    ):
        assert gap(counts) == known | {(3, 6): fate, (8, 9): fate}
    assert gap(None, None)[2, 6] is Fate.UNKNOWN


def test_reference_without_payload_is_expired_unless_the_source_knows_better() -> None:
    dangling = message(5, problem=Problem.DANGLING)
    over, alive = message(5, ends_in_ms=-1), message(5)

    assert fates(explained(None, view("redis", dangling)))[5, 5] is Fate.EXPIRED
    assert fates(explained(view("postgres", over), view("redis", dangling)))[5, 5] is Fate.EXPIRED
    lost = explained(view("postgres", alive), view("redis", dangling))
    assert fates(lost)[5, 5] is Fate.UNKNOWN
    assert lost.unknown == 1
    assert "unaccounted for" in lost.advice
    for problem in (Problem.FOREIGN, Problem.UNREADABLE):
        assert fates(explained(None, view("redis", message(5, problem=problem))))[5, 5] is Fate.UNKNOWN


def test_row_that_is_not_in_redis_is_expired_trimmed_quarantined_or_not_copied() -> None:
    rows = view("postgres", message(1, ends_in_ms=-1), message(2), message(3), message(4))
    aside = Aside(place="plan 00", kind="message", reason="packet_id_duplicate", detail="7", serial=3, status="open")
    target = view("redis", message(4), imported=imported())

    found = explained(rows, target, aside, session_limit=2)
    assert fates(found) == {
        (1, 1): Fate.EXPIRED, (2, 2): Fate.TRIMMED, (3, 3): Fate.QUARANTINED, (4, 4): Fate.WAITING,
    }  # fmt: skip
    assert found.counts == {"expired": 1, "trimmed": 1, "quarantined": 1, "waiting": 1}
    assert fates(explained(rows, replace(target, imported=None)))[2, 2] is Fate.NOT_COPIED
    assert fates(explained(rows, replace(target, imported=imported(state="2"))))[2, 2] is Fate.NOT_COPIED
    assert fates(explained(rows, target))[2, 2] is Fate.UNKNOWN


def test_row_of_a_session_that_was_used_since_its_migration_is_acknowledged() -> None:
    rows = view("postgres", message(1), message(2), message(3))
    used = view("redis", message(3), imported=imported(touched=True))

    assert fates(explained(rows, used))[2, 2] is Fate.ACKED
    assert fates(explained(rows, replace(used, page=(message(1), message(3)))))[2, 2] is Fate.UNKNOWN
    sent = replace(used, page=(message(1), message(3)), delivered_serial=2)
    assert fates(explained(rows, sent))[2, 2] is Fate.ACKED


def test_queue_that_postgresql_serves_is_judged_by_its_rows() -> None:
    rows = view("postgres", message(1, ends_in_ms=-1), message(2), delivered_serial=2, last_serial=2)

    assert fates(explained(rows)) == {(1, 1): Fate.EXPIRED, (2, 2): Fate.SENT}
    both = explained(rows, view("redis", message(2), owner="postgres"))
    assert both.served_from == "postgres"
    assert fates(both)[2, 2] is Fate.UNKNOWN


def test_what_was_not_read_is_not_judged() -> None:
    target = view("redis", message(1), message(2), total=10, imported=imported())
    rows = view("postgres", *(message(serial) for serial in range(1, 9)))

    found = explained(rows, target)

    assert set(fates(found)) == {(1, 1), (2, 2)}
    assert not found.complete


def test_client_that_nobody_knows_and_store_that_is_down_are_told_apart() -> None:
    nobody = replace(view("redis"), exists=False)

    assert "Neither store knows this client" in explained(replace(view("postgres"), exists=False), nobody).advice
    down = explained(None, nobody, problems={"PostgreSQL": "it is down"})
    assert down.advice == "Not everything was reached (PostgreSQL): explain the queue again later."
    assert not down.complete


def test_evidence_names_the_client_by_hash_and_holds_no_topic_and_any_change_changes_its_hash() -> None:
    found = explained(view("postgres", message(1)), view("redis", message(1)))

    text = found.to_json()
    assert "meter-17" not in text
    assert "secret/topic" not in text
    assert json.loads(text)["client_hash"] == found.client_hash
    assert found.evidence_hash() == explained(view("postgres", message(1)), view("redis", message(1))).evidence_hash()
    assert found.evidence_hash() != replace(found, as_of_ms=NOW_MS + 1).evidence_hash()

"""Scripts that judge and mend records: each looks again before it writes, and leaves alone what is another by now."""

from __future__ import annotations

from hashlib import sha1
from typing import Any

import pytest
from lua_sessions import FAR_MS, HOSTILE_IDS, Message, Session, command, contents, now_ms, readable, unchanged

from queuekeeper.errors import MovedOn, PacketIdInUse, StoreFull, UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua

C = "meter-7"


@pytest.fixture
def session(client: RedisClient) -> Session:
    """Four messages of equal content."""
    saved = Session(client=client)
    saved.save_messages([readable(C, n) for n in range(1, 5)])
    return saved


def serials(session: Session) -> list[float]:
    return [serial for _, serial in session.references()]


# judge_messages


@pytest.mark.parametrize("client_id", HOSTILE_IDS)
def test_messages_are_judged_without_leaving_the_server(client: RedisClient, client_id: str) -> None:
    session = Session(client=client, client_id=client_id)
    session.save_messages([readable(client_id, 1, msgExpiryInterval=-1), readable(client_id, 2, packetType="PUBREL")])
    first, second = session.judge_messages([1, 2])
    assert (first.verdict, first.pexpiretime, first.packet_id) == (b"publish", FAR_MS, 1)
    assert (first.time_ms, first.interval_s) == (b"1800000000000", b"4294967295")
    assert (second.verdict, second.pexpiretime, second.packet_id) == (b"pubrel", FAR_MS, 2)
    assert (second.time_ms, second.interval_s) == (b"1800000000000", b"")
    assert len(first.digest) == 40
    assert first.digest == second.digest, "topic, time and payload are the same"


@pytest.mark.parametrize(
    "fields",
    [
        {"topicName": None}, {"topicName": 7}, {"payload": None}, {"qos": 3}, {"qos": 1.5}, {"time": -1}, {"time": "1"},
        {"packetId": 0}, {"packetId": 65_536}, {"packetType": "PUBACK"}, {"clientId": None},
        {"msgExpiryInterval": 4_294_967_296}, {"msgExpiryInterval": "1"},
    ],
)  # fmt: skip
def test_what_no_broker_can_read_is_unreadable(client: RedisClient, fields: dict[str, Any]) -> None:
    session = Session(client=client)
    session.save_messages([readable(C, 1, **fields)])
    (judged,) = session.judge_messages([1])
    assert (judged.verdict, judged.pexpiretime) == (b"unreadable", FAR_MS)
    assert (judged.packet_id, judged.time_ms, judged.interval_s, judged.digest) == (b"", b"", b"", b"")


@pytest.mark.parametrize("json", ["", "{", "[]", "7", "null", '"text"', "[" * 2_000])
def test_what_is_no_object_is_unreadable(client: RedisClient, json: str) -> None:
    session = Session(client=client)
    session.save_messages([Message(1, 0, FAR_MS, json)])
    assert session.judge_messages([1])[0].verdict == b"unreadable"


def test_other_keys_are_told_apart(session: Session) -> None:
    anything: Any = session.client
    anything.delete(session.payload(2))
    anything.delete(session.payload(3))
    anything.rpush(session.payload(3), "x")
    anything.set(session.payload(4), readable("other", 4).json)
    assert [(each.verdict, each.pexpiretime) for each in session.judge_messages([1, 2, 3, 4])] == [
        (b"publish", FAR_MS),
        (b"missing", -2),
        (b"wrong_type", -1),
        (b"other_client", -1),
    ]


def test_judging_stops_when_enough_was_read(session: Session) -> None:
    size = len(readable(C, 1).json)
    assert len(session.judge_messages([1, 2, 3, 4], max_bytes=2 * size)) == 2
    assert len(session.judge_messages([1, 2, 3, 4], max_bytes=1)) == 1


@pytest.mark.parametrize("max_bytes", [0, "", "x"])
def test_judging_needs_a_bound(session: Session, max_bytes: Any) -> None:
    with pytest.raises(UsageError, match=r"^max_bytes is not an integer of 1 or more$"):
        session.judge_messages([1], max_bytes=max_bytes)


# set_expiry


def test_expiry_is_set_where_it_is_as_expected(session: Session) -> None:
    sooner = now_ms() + 60_000
    changes = ((1, 1, FAR_MS, sooner), (2, 9, FAR_MS, sooner), (3, 3, FAR_MS - 1, sooner))
    assert session.set_expiry(*changes).done == (1, 0, 0)
    found = contents(session.client)
    assert found[session.payload(1)][1] == sooner
    assert found[session.payload(2)][1] == found[session.payload(3)][1] == FAR_MS
    assert session.state()["earliest_expiry_ms"] == str(sooner)
    assert session.set_expiry((1, 1, sooner, FAR_MS), may_lengthen=1).done == (1,)
    assert session.set_expiry((1, 1, FAR_MS, -1), may_lengthen=1).done == (1,)
    assert contents(session.client)[session.payload(1)][1] == -1


def test_message_is_not_made_to_end_at_once(session: Session) -> None:
    assert session.set_expiry((1, 1, FAR_MS, now_ms() - 1)).done == (0,)
    assert session.client.exists(session.payload(1)) == 1


@pytest.mark.parametrize(
    ("change", "may_lengthen", "words"),
    [
        ((1, 1, 5, 6), 0, "the life of message 1 would be made longer"),
        ((1, 1, 5, -1), 0, "the life of message 1 would be made longer"),
        ((1, "x", 5, 4), 0, "serial or expiry of message 1 is not an integer"),
        ((1, 1, -2, 4), 1, "serial or expiry of message 1 is not an integer"),
        ((1, 1, 5, 4), 2, "the leave to lengthen is neither 0 nor 1"),
    ],
)
def test_bad_expiry_is_refused(session: Session, change: Any, may_lengthen: int, words: str) -> None:
    with unchanged(session.client), pytest.raises(UsageError) as caught:
        session.set_expiry(change, may_lengthen=may_lengthen)
    assert str(caught.value) == words


# reorder_messages


def test_references_get_other_serials_all_or_none(session: Session) -> None:
    before = contents(session.client)
    assert session.reorder_messages((1, 1, 12), (2, 9, 11), highest=12) is None
    assert contents(session.client) == before
    session.mark_delivered(2)
    assert session.reorder_messages((1, 1, 12), (2, 2, 11), highest=12, delivered_serial=12).done == (1, 1)
    assert [member[-1] for member, _ in session.references()] == ["3", "4", "2", "1"]
    assert session.state()["last_serial"] == "12"
    assert session.state()["delivered_serial"] == "12"
    assert session.reorder_messages((1, 1, 12), (2, 2, 11), highest=12) is None, "repeated, it writes nothing"
    session.save_messages([readable(C, 5)], expected=4)
    assert serials(session)[-1] == 13, "what comes now comes behind"


def test_serials_that_were_none_are_mended(session: Session) -> None:
    anything: Any = session.client
    anything.zadd(session.keys.messages, {session.payload(1): float("inf"), session.payload(2): 1.5})
    assert session.reorder_messages((1, "inf", 1), (2, "1.5", 2), highest=4, last_score="inf").done == (1, 1)
    assert serials(session) == [1, 2, 3, 4]


def test_references_stay_when_the_queue_is_another_by_now(session: Session) -> None:
    before = contents(session.client)
    assert session.reorder_messages((1, 1, 12), highest=12, references=5, last_score=4) is None
    assert session.reorder_messages((1, 1, 12), highest=12, references=4, last_score=3) is None
    assert contents(session.client) == before
    assert session.reorder_messages((9, 9, 13), (1, 1, 12), highest=13, references=4, last_score=4).done == (0, 1)
    assert session.reorder_messages((9, 9, 13), highest=13).done == (0,)
    for wrong in ({"references": "x"}, {"last_score": "x"}):
        with pytest.raises(UsageError, match="references or last score is not a number"):
            session.reorder_messages((1, 12, 13), highest=13, **wrong)


@pytest.mark.parametrize(("serial", "highest"), [(-1, 5), ("1.5", 5), (6, 5), (1, "")])
def test_bad_serial_is_refused(session: Session, serial: Any, highest: Any) -> None:
    with pytest.raises(UsageError, match="serial"):
        session.reorder_messages((1, 1, serial), highest=highest)
    assert serials(session) == [1, 2, 3, 4]


# find_orphans, unlink_orphan, restore_message


def test_orphan_is_found_moved_and_brought_back(session: Session) -> None:
    anything: Any = session.client
    anything.zrem(session.keys.messages, session.payload(2))
    anything.set(session.payload(2), readable(C, 2, time=now_ms() - 60_000).json, keepttl=True)
    assert session.find_orphans([1, 2, 9]).expiries == (-2, FAR_MS, -2)
    assert session.unlink_orphan(1) == 0
    assert session.unlink_orphan(9) == 0
    assert session.unlink_orphan(2, expires_at_ms=-1) == 0, "another record by now"
    assert session.unlink_orphan(2, grace_ms=90_000) == 0, "its reference may be about to come"
    assert session.unlink_orphan(2, keep_ms=3_600_000) == 1
    assert session.unlink_orphan(2) == 0
    left_ms = contents(session.client)[session.orphan(2)][1] - now_ms()
    assert 0 < left_ms <= 3_600_000
    assert session.restore_message(session.orphan(2), 2, expires_at_ms=FAR_MS) == b"restored"
    assert contents(session.client)[session.payload(2)][1] == FAR_MS
    assert session.restore_message(session.orphan(2), 2) == b"missing"


def test_orphan_that_nobody_can_read_has_no_age(session: Session) -> None:
    anything: Any = session.client
    anything.zrem(session.keys.messages, session.payload(2), session.payload(3))
    anything.set(session.payload(2), "{broken")
    anything.delete(session.payload(3))
    anything.rpush(session.payload(3), "x")
    assert session.unlink_orphan(2, expires_at_ms=-1) == 1
    assert session.unlink_orphan(3, expires_at_ms=-1) == 1


def test_earlier_orphan_is_not_overwritten(session: Session) -> None:
    anything: Any = session.client
    anything.zrem(session.keys.messages, session.payload(2))
    anything.set(session.payload(2), "{broken", keepttl=True)
    anything.set(session.orphan(2), "earlier")
    assert session.unlink_orphan(2) == 0
    assert anything.get(session.orphan(2)) == b"earlier"


# quarantine_duplicate, restore_message


def test_repetition_leaves_its_place_and_comes_back(session: Session) -> None:
    before = contents(session.client)
    assert session.quarantine_duplicate((1, 1), (3, 3)) == 1
    assert serials(session) == [1, 2, 4]
    assert contents(session.client)[session.quarantined(3)][1] == FAR_MS
    assert session.state()["quarantined"] == "1"
    assert session.quarantine_duplicate((1, 1), (3, 3)) == 0
    assert session.restore_message(session.quarantined(3), 3, serial=3, client_id="other") == b"unreadable"
    assert session.restore_message(session.quarantined(3), 9, serial=3, client_id=C) == b"unreadable"
    assert session.restore_message(session.quarantined(3), 4, serial=3) == b"occupied"
    assert session.restore_message(session.quarantined(3), 3, serial=4) == b"occupied"
    assert session.restore_message(session.quarantined(3), 3, serial=3, client_id=C) == b"restored"
    session.client.hdel(session.keys.session, "quarantined")
    assert contents(session.client) == before


@pytest.mark.parametrize(("kept", "going"), [((1, 9), (3, 3)), ((1, 1), (3, 4)), ((9, 1), (3, 3))])
def test_other_messages_are_not_taken_for_repetitions(session: Session, kept: Any, going: Any) -> None:
    if kept[1] < going[1]:
        assert session.quarantine_duplicate(kept, going) == 0
    else:
        with pytest.raises(UsageError, match="two serials in their order"):
            session.quarantine_duplicate(kept, going)
    assert serials(session) == [1, 2, 3, 4]


@pytest.mark.parametrize("fields", [{"payload": "b3RoZXI="}, {"topicName": "u"}, {"time": 5}, {"packetType": "PUBREL"}])
def test_message_that_differs_stays(session: Session, fields: dict[str, Any]) -> None:
    session.client.set(session.payload(3), readable(C, 3, **fields).json, keepttl=True)
    assert session.quarantine_duplicate((1, 1), (3, 3)) == 0
    assert serials(session) == [1, 2, 3, 4]


def test_repetition_stays_when_the_other_expires_earlier(session: Session) -> None:
    anything: Any = session.client
    anything.pexpireat(session.payload(1), FAR_MS - 10)
    assert session.quarantine_duplicate((1, 1), (2, 2), tolerance_ms=9) == 0
    anything.persist(session.payload(2))
    assert session.quarantine_duplicate((1, 1), (2, 2), tolerance_ms=60_000) == 0
    assert session.quarantine_duplicate((1, 1), (3, 3), tolerance_ms=10) == 1
    assert session.quarantine_duplicate((2, 2), (4, 4)) == 1, "what stays never expires"


def test_earlier_record_in_quarantine_is_not_overwritten(session: Session) -> None:
    session.client.set(session.quarantined(3), "earlier")
    before = contents(session.client)
    assert session.quarantine_duplicate((1, 1), (3, 3)) == 0
    assert contents(session.client) == before


def test_repetition_needs_a_tolerance(session: Session) -> None:
    with pytest.raises(UsageError, match="tolerance is not an integer of 0 or more"):
        session.quarantine_duplicate((1, 1), (3, 3), tolerance_ms=-1)


@pytest.mark.parametrize(("serial", "expires_at_ms"), [("x", ""), ("1.5", ""), (1, "x"), (1, -2)])
def test_bad_place_is_refused(session: Session, serial: Any, expires_at_ms: Any) -> None:
    with pytest.raises(UsageError, match=r"serial|expiry"):
        session.restore_message(session.quarantined(1), 9, serial=serial, expires_at_ms=expires_at_ms)


# rekey_messages, unlink_copied, remove_references


def test_move_can_be_repeated_and_extended(client: RedisClient) -> None:
    session = Session(client=client)
    first = [Message(1, 11, FAR_MS, "a"), Message(2, 12, -1, "b"), Message(3, 13, now_ms() - 1, "c")]
    assert session.rekey_messages(first, last_packet_id=3) == {"written": 2, "present": 0, "expired": 1}
    before = contents(client)
    assert session.rekey_messages(first, last_packet_id=9) == {"written": 0, "present": 2, "expired": 1}
    assert contents(client) == before
    assert session.rekey_messages([Message(4, 14, FAR_MS, "d")]) == {"written": 1, "present": 0, "expired": 0}
    assert before[session.payload(1)] == (b"a", FAR_MS)
    assert before[session.payload(2)] == (b"b", -1)
    assert before[session.keys.last_packet_id] == (b"3", -1)
    assert serials(session) == [11, 12, 14]


def test_move_into_a_session_that_exists_is_refused(session: Session) -> None:
    with unchanged(session.client), pytest.raises(MovedOn, match="the session exists and was not moved here"):
        session.rekey_messages([Message(9, 11, FAR_MS, "a")])


def test_finished_move_leaves_no_note_and_is_not_taken_up_again(client: RedisClient) -> None:
    session = Session(client=client)
    session.rekey_messages([Message(1, 11, FAR_MS, "a")], last_packet_id=1)
    assert session.finish_rekey() == 1
    assert session.finish_rekey() == 0
    assert session.keys.session not in contents(client)
    with pytest.raises(MovedOn):
        session.rekey_messages([Message(2, 12, FAR_MS, "b")])


def test_move_onto_another_message_is_refused_as_a_whole(client: RedisClient) -> None:
    session = Session(client=client)
    session.rekey_messages([Message(1, 11, FAR_MS, "a")])
    with unchanged(client), pytest.raises(PacketIdInUse, match="another message has the payload key of message 2"):
        session.rekey_messages([Message(2, 12, FAR_MS, "b"), Message(1, 13, FAR_MS, "c")])


def test_original_goes_only_while_it_is_what_was_copied(session: Session) -> None:
    digest = sha1(readable(C, 1).json.encode()).hexdigest()
    assert session.unlink_copied(session.payload(1), sha1(b"other").hexdigest()) == 0
    assert session.unlink_copied(session.keys.messages, digest) == 0
    assert session.unlink_copied(session.payload(1), digest) == 1
    assert session.unlink_copied(session.payload(1), digest) == 0
    with pytest.raises(UsageError, match="1 key and a digest are expected"):
        session.unlink_copied(session.payload(1), "x")


def test_references_go_while_they_have_their_scores(session: Session) -> None:
    anything: Any = session.client
    anything.zadd(session.keys.messages, {b"\xff": 7})
    pairs: list[Any] = [(session.payload(1), 1), (session.payload(2), 9), ("none", 1), (b"\xff", "7")]
    assert session.remove_references(*pairs) == 2
    assert serials(session) == [2, 3, 4]
    with pytest.raises(UsageError, match="1 key and 1 to 500 pairs are expected"):
        session.remove_references()


# A full server.


def test_full_server_refuses_what_adds_and_does_what_frees(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session(client=client)
        session.save_messages([readable(C, n, time=5) for n in range(1, 5)])
        session.quarantine_duplicate((1, 1), (3, 3))
        client.config_set("maxmemory", 1)
        before = contents(client)
        for adding in (
            lambda: session.restore_message(session.quarantined(3), 3, serial=3),
            lambda: session.reorder_messages((1, 1, 7), highest=7),
            lambda: Session(client=client, client_id="}x").rekey_messages([Message(1, 1, FAR_MS, "a")]),
        ):
            with pytest.raises(StoreFull):
                adding()
        assert contents(client) == before
        assert session.quarantine_duplicate((1, 1), (2, 2)) == 1
        assert session.set_expiry((1, 1, FAR_MS, FAR_MS - 1)).done == (1,)
        assert session.remove_references((session.payload(4), 4)) == 1
        assert session.unlink_orphan(4, grace_ms=1) == 1


@pytest.mark.parametrize(
    "script",
    [
        "judge_messages", "set_expiry", "reorder_messages", "find_orphans", "unlink_orphan", "quarantine_duplicate",
        "restore_message", "rekey_messages", "finish_rekey", "unlink_copied", "remove_references",
    ],
)  # fmt: skip
def test_call_without_its_keys_is_refused(client: RedisClient, script: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        ScriptCaller(client).call(load(f"sessions/{script}"), [f"{{{C}}}_messages"], ["x", "y", "z"])
    assert command(client, "EXISTS", f"{{{C}}}_messages") == 0

"""``save_messages``: messages are stored behind all others, once, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lua_sessions import HOSTILE_IDS, HOUR_MS, Message, Session, contents, messages, now_ms, stored, unchanged
from tbmq_broker import Broker

from queuekeeper.errors import NotOwner, StoreFull, UsageError
from queuekeeper.lua import ScriptCaller
from queuekeeper.redis_client import RedisClient, connect
from tests.patience import short_lives_ms

pytestmark = pytest.mark.lua

FAR_MS = 4_000_000_000_000
"""A multiple of an hour would hide the rounding; this is not one."""
UNTIL_MS = 4_000_003_200_000 + HOUR_MS
"""End of the hour in which an hour of session expiry after ``FAR_MS`` ends."""


@pytest.fixture
def session(client: RedisClient) -> Session:
    """A session that holds nothing yet."""
    return Session(client=client)


def far(count: int, *, first: int = 1) -> list[Message]:
    return [message._replace(expires_at_ms=FAR_MS) for message in messages(count, first=first)]


def replayed(*, first_serial: int, packet_ids: bytes, expired: bytes = b"") -> dict[str, Any]:
    return {"word": "replayed", "first_serial": first_serial, "packet_ids": packet_ids, "expired": expired}


def text(number: int) -> bytes:
    return str(number).encode()


def expiry(session: Session) -> list[int]:
    """Return the expiry of set, last packet id and hash."""
    client: Any = session.client
    return [client.pexpiretime(key) for key in session.keys]


@pytest.mark.parametrize("client_id", HOSTILE_IDS)
def test_first_save_makes_exactly_these_keys(client: RedisClient, client_id: str) -> None:
    session = Session(client=client, client_id=client_id, prefix="p:")
    assert session.save_messages(far(3)) == stored(first_serial=1, references=3)
    members = [(session.payload(n).encode(), float(n)) for n in (1, 2, 3)]
    assert contents(client) == {
        session.keys.messages: (members, UNTIL_MS),
        session.keys.last_packet_id: (b"3", UNTIL_MS),
        session.keys.session: (
            {
                b"last_serial": b"3",
                b"saved_last_packet_id": b"3",
                b"until_ms": text(UNTIL_MS),
                b"earliest_expiry_ms": text(FAR_MS),
            },
            UNTIL_MS,
        ),
        **{session.payload(message.packet_id): (message.json.encode(), FAR_MS) for message in far(3)},
    }


def test_next_save_goes_behind_the_others(session: Session) -> None:
    session.save_messages(far(2))
    assert session.save_messages(far(3, first=3), expected=2) == stored(first_serial=3, references=5)
    assert session.references() == [(session.payload(n), n) for n in range(1, 6)]
    assert session.client.get(session.keys.last_packet_id) == b"5"


def test_json_is_stored_byte_for_byte(session: Session) -> None:
    json = '{"a":[],"n":12345678901234567890,"s":"\\/ é 😀 \\u0000"}'
    session.save_messages([Message(1, 0, FAR_MS, json)])
    assert session.client.get(session.payload(1)) == json.encode()


def test_packet_ids_wrap_and_serials_go_on(session: Session) -> None:
    session.save_messages(far(1, first=65_535))
    assert session.save_messages(far(2), expected=65_535) == stored(first_serial=2, references=3)
    assert [key for key, _ in session.references()] == [session.payload(n) for n in (65_535, 1, 2)]
    assert session.client.get(session.keys.last_packet_id) == b"2"


def test_256_messages_fit_and_257_do_not(session: Session) -> None:
    assert session.save_messages(far(256)) == stored(first_serial=1, references=256)
    with pytest.raises(UsageError, match=r"^a call takes at most 256 messages$"):
        session.save_messages(far(257, first=257), expected=256)


# Messages whose life is over.


def test_expired_messages_are_passed_over_and_counted_and_serials_stay_contiguous(session: Session) -> None:
    batch = far(5)
    for position in (0, 2, 3):
        batch[position] = batch[position]._replace(expires_at_ms=now_ms() - position)
    assert session.save_messages(batch) == stored(first_serial=1, references=2, expired=b"0,2,3")
    assert session.references() == [(session.payload(2), 1), (session.payload(5), 2)]
    assert session.state()["expired"] == "3"
    assert session.client.exists(session.payload(1)) == 0
    assert session.client.get(session.keys.last_packet_id) == b"5"


def test_message_that_ends_within_the_second_is_stored(session: Session) -> None:
    lives_ms = short_lives_ms(900)
    while True:
        ends_at_ms = now_ms() + next(lives_ms)
        reply = session.save_messages([Message(1, 0, ends_at_ms, "{}")])
        if now_ms() < ends_at_ms:
            break
        # The machine stood still, so the life may have ended before the server saw the message: once more.
        session.client.flushall()
    assert reply == stored(first_serial=1, references=1)


@pytest.mark.parametrize("off_ms", [-HOUR_MS + 60_000, -1, 0, 1, 24 * HOUR_MS, FAR_MS])
def test_callers_clock_does_not_decide_what_has_expired(session: Session, off_ms: int) -> None:
    batch = [
        message._replace(expires_at_ms=now_ms() + life_ms)
        for message, life_ms in zip(far(4), (-1, 20_000, -20_000, 2 * HOUR_MS), strict=True)
    ]
    assert session.save_messages(batch, callers_now_ms=now_ms() + off_ms) == stored(
        first_serial=1, references=2, expired=b"0,2"
    )


def test_caller_whose_clock_is_hours_behind_leaves_a_reference_to_what_had_expired_and_no_message(
    session: Session,
) -> None:
    batch = [far(1)[0]._replace(expires_at_ms=now_ms() - 1), *far(1, first=2)]
    assert session.save_messages(batch, callers_now_ms=now_ms() - 2 * HOUR_MS) == stored(first_serial=1, references=2)
    assert session.client.exists(session.payload(1)) == 0
    assert session.remove_dead_references([1, 2]).removed == 1
    assert session.references() == [(session.payload(2), 2)]


def test_server_is_asked_for_its_time_once_and_only_where_a_life_ends_soon(own_server: Any) -> None:
    def asked() -> int:
        statistics: Any = client.info("commandstats")
        return int(statistics.get("cmdstat_time", {"calls": 0})["calls"])

    with connect(own_server.url) as client:
        session = Session(client=client)
        session.save_messages(far(3))
        assert asked() == 0
        soon = [message._replace(expires_at_ms=now_ms() + 60_000) for message in far(3, first=4)]
        session.save_messages(soon, expected=3)
        assert asked() == 1


@pytest.mark.parametrize("count", [1, 10, 100])
def test_save_gives_the_server_no_more_commands_than_its_proof_asks_beside_those_of_the_broker(
    own_server: Any, count: int
) -> None:
    """What a save costs is measured elsewhere (docs/performance.md); that it does not become more is held here."""
    with connect(own_server.url) as client:
        session, broker = Session(client=client), Broker(client, "other")

        def commands(work: Callable[[int], Any]) -> dict[str, int]:
            """Count what the second of two saves, which meets a session, has the server do."""
            work(1)
            client.config_resetstat()
            work(count + 1)
            statistics: Any = client.info("commandstats")
            found = {name.removeprefix("cmdstat_"): each["calls"] for name, each in statistics.items()}
            return {name: calls for name, calls in found.items() if name not in {"eval", "evalsha", "config|resetstat"}}

        ours = commands(lambda first: session.save_messages(far(count, first=first), expected=first - 1 or ""))
        theirs = commands(lambda _: broker.save([{"msgExpiryInterval": 600}] * count))
    assert ours == {"hmget": 1, "pexpiretime": 1, "set": count + 1, "zadd": 1, "zcard": 1, "hset": 1}
    assert sum(ours.values()) <= sum(theirs.values()) + (count == 1)


def test_save_of_expired_messages_only_makes_no_session(session: Session) -> None:
    batch = [message._replace(expires_at_ms=5) for message in far(2)]
    assert session.save_messages(batch, source="a", packet_ids="1-2", refused=2) == stored(
        first_serial=1, references=0, expired=b"0,1"
    )
    assert contents(session.client) == {}


def test_save_of_expired_messages_only_changes_counters_and_the_source_of_a_session(session: Session) -> None:
    session.save_messages(far(2))
    before = session.state()
    batch = [message._replace(expires_at_ms=1) for message in far(2, first=3)]
    reply = session.save_messages(batch, expected=2, source="a", offset=7, packet_ids="3-4")
    assert reply == stored(first_serial=3, references=2, expired=b"0,1")
    assert session.state() == {**before, "source:a": "7;0:3:3-4:0,1", "expired": "2"}
    assert session.client.get(session.keys.last_packet_id) == b"2"
    again = session.save_messages(batch, expected=2, source="a", offset=7, packet_ids="3-4")
    assert again == replayed(first_serial=3, packet_ids=b"3-4", expired=b"0,1")
    assert session.state()["expired"] == "2"


def test_conflict_is_told_even_when_all_have_expired(session: Session) -> None:
    session.save_messages(far(2))
    batch = [message._replace(expires_at_ms=1) for message in far(1)]
    assert session.save_messages(batch) == {"word": "conflict", "last_packet_id": b"2"}
    session.client.set(session.keys.last_packet_id, 9)
    assert session.save_messages(batch, expected=2) == {"word": "conflict", "last_packet_id": b"9"}


def test_refused_messages_are_counted(session: Session) -> None:
    session.save_messages(far(1), refused=2)
    session.save_messages(far(1, first=2), expected=1, refused=3)
    assert session.state()["refused"] == "5"


# Sources: a repeated call stores nothing twice.


def test_repeated_call_of_a_source_answers_what_the_first_one_did_and_writes_nothing(session: Session) -> None:
    batch = far(3)
    batch[1] = batch[1]._replace(expires_at_ms=1)
    options: dict[str, Any] = {"source": "kafka-3", "offset": 12, "packet_ids": "1-3"}
    assert session.save_messages(batch, **options) == stored(first_serial=1, references=2, expired=b"1")
    before = contents(session.client)
    assert session.save_messages(batch, **options) == replayed(first_serial=1, packet_ids=b"1-3", expired=b"1")
    assert session.save_messages(far(1, first=9), expected=3, **options) == replayed(
        first_serial=1, packet_ids=b"1-3", expired=b"1"
    )
    assert contents(session.client) == before


def test_repeated_call_is_known_after_its_messages_are_gone(session: Session) -> None:
    session.save_messages(far(2), source="a", packet_ids="1-2")
    assert session.ack((1, 1), (2, 2)).removed == (1, 1)
    assert session.save_messages(far(2), source="a", packet_ids="1-2") == replayed(first_serial=1, packet_ids=b"1-2")


def test_chunks_of_the_last_batch_are_all_known_and_an_older_batch_is_forgotten(session: Session) -> None:
    for chunk in range(12):
        reply = session.save_messages(
            far(1, first=chunk + 1), expected=chunk or "", source="a", offset=5, chunk=chunk, packet_ids=str(chunk + 1)
        )
        assert reply == stored(first_serial=chunk + 1, references=chunk + 1)
    for chunk in range(12):
        reply = session.save_messages(far(1), source="a", offset=5, chunk=chunk)
        assert reply == replayed(first_serial=chunk + 1, packet_ids=text(chunk + 1))
    assert session.save_messages(far(1), source="a", offset=4).word == "forgotten"
    session.save_messages(far(1, first=13), expected=12, source="a", offset=6, packet_ids="13")
    assert session.state()["source:a"] == "6;0:13:13:"
    assert session.save_messages(far(1), source="a", offset=5).word == "forgotten"


def test_sources_do_not_know_each_other(session: Session) -> None:
    session.save_messages(far(1), source="a", offset=9, packet_ids="1")
    assert session.save_messages(far(1, first=2), expected=1, source="b", packet_ids="2") == stored(
        first_serial=2, references=2
    )
    assert session.save_messages(far(1, first=3), expected=2) == stored(first_serial=3, references=3)
    assert session.save_messages(far(1), source="a", offset=9) == replayed(first_serial=1, packet_ids=b"1")


# Conflicts: nothing is written, and the true state is told.


@pytest.mark.parametrize("expected", ["", 1, 3, "x"])
def test_other_last_packet_id_than_the_expected_one_is_a_conflict(session: Session, expected: int | str) -> None:
    session.save_messages(far(2))
    before = contents(session.client)
    assert session.save_messages(far(1, first=4), expected=expected) == {"word": "conflict", "last_packet_id": b"2"}
    assert contents(session.client) == before


def test_last_packet_id_that_another_program_has_moved_is_a_conflict(session: Session) -> None:
    session.save_messages(far(2))
    session.client.set(session.keys.last_packet_id, 7, keepttl=True)
    before = contents(session.client)
    assert session.save_messages(far(1, first=3), expected=2) == {"word": "conflict", "last_packet_id": b"7"}
    assert contents(session.client) == before


def test_last_packet_id_that_is_gone_is_a_conflict(session: Session) -> None:
    session.save_messages(far(2))
    session.client.delete(session.keys.last_packet_id)
    before = contents(session.client)
    assert session.save_messages(far(1, first=3), expected=2) == {"word": "conflict", "last_packet_id": b""}
    assert contents(session.client) == before
    assert session.save_messages(far(1, first=3)) == stored(first_serial=3, references=3)


def test_packet_ids_in_use_are_a_conflict_that_names_them_and_leaves_no_trace(session: Session) -> None:
    session.save_messages(far(6))
    session.ack((2, ""), (4, ""))
    before = contents(session.client)
    assert session.save_messages(far(6), expected=6, last_packet_id=6) == {
        "word": "conflict",
        "last_packet_id": b"6",
        "positions": (0, 2, 4, 5),
    }
    assert contents(session.client) == before


def test_packet_ids_in_use_are_a_conflict_in_a_session_of_another_program_too(session: Session) -> None:
    client: Any = session.client
    client.set(session.keys.last_packet_id, 4)
    client.zadd(session.keys.messages, {session.payload(6): 9})
    client.set(session.payload(6), "{}")
    before = contents(session.client)
    assert session.save_messages(far(3, first=5), expected=4) == {
        "word": "conflict",
        "last_packet_id": b"4",
        "positions": (1,),
    }
    assert contents(session.client) == before


def test_packet_id_of_a_dead_reference_is_free(session: Session) -> None:
    session.save_messages(far(3))
    session.client.delete(session.payload(1))
    assert session.save_messages(far(1), expected=3) == stored(first_serial=4, references=3, replaced=[1])
    assert session.state()["expired"] == "1", "the reference that went with it is counted"
    assert session.references() == [(session.payload(2), 2), (session.payload(3), 3), (session.payload(1), 4)]


# Serials never start again.


def test_serials_go_on_after_the_set_was_empty(session: Session) -> None:
    session.save_messages(far(3))
    session.ack((1, ""), (2, ""), (3, ""))
    assert session.save_messages(far(1, first=4), expected=3) == stored(first_serial=4, references=1)
    assert expiry(session) == [UNTIL_MS] * 3


def test_serials_of_a_session_of_another_program_go_on_from_the_highest_score(session: Session) -> None:
    client: Any = session.client
    client.set(session.keys.last_packet_id, 7)
    client.zadd(session.keys.messages, {session.payload(6): 900_000, session.payload(7): 900_001})
    assert session.save_messages(far(1, first=8), expected=7) == stored(first_serial=900_002, references=3)


def test_serials_of_a_session_without_messages_go_on_from_the_last_packet_id(session: Session) -> None:
    client: Any = session.client
    client.set(session.keys.last_packet_id, 7)
    assert session.save_messages(far(1, first=8), expected=7) == stored(first_serial=8, references=1)


def test_serials_stay_above_what_was_delivered_from_an_import(session: Session) -> None:
    session.import_session(messages(2), last_packet_id=2)
    session.mark_delivered(1_002)
    session.ack((1, ""), (2, ""))
    assert session.save_messages(far(1, first=3), expected=2) == stored(first_serial=1_003, references=1)


def test_serials_stay_above_those_of_a_program_that_saved_meanwhile(session: Session) -> None:
    session.save_messages(far(3))
    client: Any = session.client
    client.zadd(session.keys.messages, {session.payload(4): 50})
    client.set(session.keys.last_packet_id, 4)
    assert session.save_messages(far(1, first=5), expected=4) == stored(first_serial=51, references=5)
    client.zadd(session.keys.messages, {session.payload(6): 20})
    client.set(session.keys.last_packet_id, 6)
    session.ack((5, ""))
    client.zrem(session.keys.messages, session.payload(4))
    assert session.save_messages(far(1, first=7), expected=6) == stored(first_serial=52, references=5)


@pytest.mark.parametrize("score", [2**53 - 1, "inf"])
def test_serials_end_where_scores_are_no_longer_exact(session: Session, score: int | str) -> None:
    client: Any = session.client
    client.zadd(session.keys.messages, {"other": score})
    with unchanged(client), pytest.raises(UsageError, match=r"^serials of the session have reached 2\^53$"):
        session.save_messages(far(2))


# Keys outlive the last message by the session's own expiry.


def test_expiry_of_the_session_moves_with_its_latest_message_by_whole_hours(session: Session) -> None:
    session.save_messages(far(1))
    session.save_messages([Message(2, 0, FAR_MS + 1, "{}")], expected=1)
    assert expiry(session) == [UNTIL_MS] * 3
    session.save_messages([Message(3, 0, FAR_MS + HOUR_MS, "{}")], expected=2)
    assert expiry(session) == [UNTIL_MS + HOUR_MS] * 3
    assert session.state()["until_ms"] == str(UNTIL_MS + HOUR_MS)


def test_expiry_of_the_session_is_never_shortened(session: Session) -> None:
    session.save_messages(far(1))
    session.save_messages([Message(2, 0, now_ms() + 60_000, "{}")], expected=1, session_expiry_ms=0)
    assert expiry(session) == [UNTIL_MS] * 3
    session.ack((1, ""), (2, ""))
    session.save_messages([Message(3, 0, now_ms() + 60_000, "{}")], expected=2, session_expiry_ms=0)
    assert expiry(session) == [UNTIL_MS] * 3


def test_session_without_expiry_stays_for_ever(session: Session) -> None:
    session.save_messages(far(1), session_expiry_ms="")
    assert expiry(session) == [-1] * 3
    assert session.state()["until_ms"] == "never"
    session.save_messages(far(1, first=2), expected=1, session_expiry_ms="")
    assert expiry(session) == [-1] * 3


def test_session_that_had_an_expiry_loses_it_when_there_is_none_any_more(session: Session) -> None:
    session.save_messages(far(1))
    session.save_messages(far(1, first=2), expected=1, session_expiry_ms="")
    assert expiry(session) == [-1] * 3


def test_expiry_beyond_what_is_exact_is_cut(session: Session) -> None:
    session.save_messages([Message(1, 0, 2**53, "{}")])
    assert expiry(session) == [2**53] * 3
    assert session.client.pexpiretime(session.payload(1)) == 2**53


def test_keys_of_an_import_get_an_expiry_once_the_set_has_been_empty(session: Session) -> None:
    session.import_session(messages(1), last_packet_id=1)
    session.save_messages(far(1, first=2), expected=1)
    assert expiry(session) == [-1] * 3
    assert session.state()["until_ms"] == "never"
    assert session.state()["earliest_expiry_ms"] == ""
    session.ack((1, ""), (2, ""))
    session.save_messages(far(1, first=3), expected=2)
    assert expiry(session) == [UNTIL_MS] * 3
    assert session.state()["earliest_expiry_ms"] == str(FAR_MS)


def test_messages_of_another_program_are_not_lost_with_the_keys_of_ours(session: Session) -> None:
    session.save_messages(far(1))
    client: Any = session.client
    client.set(session.payload(2), "{}")
    client.zadd(session.keys.messages, {session.payload(2): 2})
    client.set(session.keys.last_packet_id, 2)
    assert session.save_messages(far(1, first=3), expected=2) == stored(first_serial=3, references=3)
    assert expiry(session) == [-1] * 3
    assert session.state()["earliest_expiry_ms"] == ""


def test_earliest_expiry_goes_down_and_begins_anew_with_an_empty_set(session: Session) -> None:
    soon = now_ms() + 600_000
    session.save_messages(far(1))
    session.save_messages([Message(2, 0, soon, "{}")], expected=1)
    assert session.state()["earliest_expiry_ms"] == str(soon)
    session.save_messages(far(1, first=3), expected=2)
    assert session.state()["earliest_expiry_ms"] == str(soon)
    session.ack((1, ""), (2, ""), (3, ""))
    session.save_messages(far(1, first=4), expected=3)
    assert session.state()["earliest_expiry_ms"] == str(FAR_MS)


# Who may save.


def test_session_that_postgres_owns_takes_nothing(session: Session) -> None:
    session.import_session(messages(1), last_packet_id=1, owner="postgres")
    with (
        unchanged(session.client),
        pytest.raises(NotOwner, match=r"^the other store owns the session, or its import is not complete$"),
    ):
        session.save_messages(far(1, first=2), expected=1)


def test_session_whose_import_goes_on_takes_nothing(session: Session) -> None:
    session.import_session(messages(1), last=False)
    with (
        unchanged(session.client),
        pytest.raises(NotOwner, match=r"^the other store owns the session, or its import is not complete$"),
    ):
        session.save_messages(far(1, first=2))


def test_imported_session_counts_as_used_after_a_save(session: Session) -> None:
    session.import_session(messages(2), last_packet_id=2)
    session.save_messages(far(1, first=3), expected=2)
    assert session.import_session(messages(2), last_packet_id=2) == {"word": "used", "written": 0, "expired": 0}


# Bad arguments are refused before anything is written.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"last_packet_id": 0}, "packet id of the last message is not an integer from 1 to 65535"),
        ({"last_packet_id": "x"}, "heading is not epoch:expected:last_packet_id:until_ms:soon:batch"),
        ({"last_packet_id": -1}, "heading is not epoch:expected:last_packet_id:until_ms:soon:batch"),
        ({"last_packet_id": ""}, "packet id of the last message is not an integer from 1 to 65535"),
        ({"last_packet_id": 65_536}, "packet id of the last message is not an integer from 1 to 65535"),
        ({"last_packet_id": "01"}, "packet id of the last message is not an integer from 1 to 65535"),
        ({"source": "a", "offset": -1}, "batch is not refused:over:offset:chunk:packet_ids:source"),
        ({"source": "a", "offset": ""}, "batch is not refused:over:offset:chunk:packet_ids:source"),
        ({"source": "a", "offset": 2**53 + 2}, "batch is not refused:over:offset:chunk:packet_ids:source"),
        ({"source": "a", "chunk": "-0"}, "batch is not refused:over:offset:chunk:packet_ids:source"),
        ({"source": "a", "packet_ids": "1;2"}, "batch is not refused:over:offset:chunk:packet_ids:source"),
        ({"until_ms": -1}, "heading is not epoch:expected:last_packet_id:until_ms:soon:batch"),
        ({"until_ms": "1.5"}, "heading is not epoch:expected:last_packet_id:until_ms:soon:batch"),
        ({"soon": "x"}, "heading is not epoch:expected:last_packet_id:until_ms:soon:batch"),
        ({"soon": "11"}, "heading is not epoch:expected:last_packet_id:until_ms:soon:batch"),
        ({"expected": "1:2"}, "heading is not epoch:expected:last_packet_id:until_ms:soon:batch"),
        ({"refused": -1}, "batch is not refused:over:offset:chunk:packet_ids:source"),
        ({"over": -1}, "batch is not refused:over:offset:chunk:packet_ids:source"),
        ({"refused": "x"}, "batch is not refused:over:offset:chunk:packet_ids:source"),
    ],
)
def test_bad_argument_is_refused_before_anything_is_written(
    session: Session, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        session.save_messages(far(2), **options)
    assert str(caught.value) == message
    assert contents(session.client) == {}


@pytest.mark.parametrize(
    "expires_at_ms", ["", "x", "0", "-5", "1e15", "04000000000000", "4000000000000.5", str(2**53 + 2), str(10**17)]
)
def test_bad_expiry_of_one_message_refuses_the_call(session: Session, expires_at_ms: str) -> None:
    script, keys, (*args, _, json) = session.save_call(far(2))
    with pytest.raises(UsageError, match=r"^expiry of message 2 is not an integer from 1 to 2\^53$"):
        ScriptCaller(session.client).call(script, keys, [*args, expires_at_ms, json])
    assert contents(session.client) == {}


@pytest.mark.parametrize(("keys", "args"), [(3, 2), (4, 2), (4, 5), (5, 3), (2, 1)])
def test_wrong_number_of_keys_or_arguments_is_refused(session: Session, keys: int, args: int) -> None:
    script, names, values = session.save_call(far(2))
    with pytest.raises(UsageError, match=r"^3 keys and a key per message, 1 argument and 2 per message are expected$"):
        ScriptCaller(session.client).call(script, names[:keys], [*values, 1, 2][:args])
    assert contents(session.client) == {}


def test_payload_key_that_comes_twice_stores_nothing(session: Session) -> None:
    batch = far(3)
    assert session.save_messages([batch[0], batch[1], batch[0]]) == {"word": "conflict", "last_packet_id": b""}
    assert contents(session.client) == {}


# A full server.


def test_full_server_refuses_a_save_as_a_whole(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session(client=client)
        session.save_messages(far(2), source="a", packet_ids="1-2")
        before = contents(client)
        client.config_set("maxmemory", 1)
        expired = [message._replace(expires_at_ms=1) for message in far(1, first=3)]
        for batch in (far(2, first=3), expired):
            with pytest.raises(StoreFull, match=r"is full"):
                session.save_messages(batch, expected=2, source="a", offset=1, packet_ids="3")
        with pytest.raises(StoreFull):
            Session(client=client, client_id="fresh").save_messages(far(1))
        assert contents(client) == before
        client.config_set("maxmemory", 0)
        assert session.save_messages(far(2, first=3), expected=2, source="a", offset=1, packet_ids="3-4") == stored(
            first_serial=3, references=4
        )

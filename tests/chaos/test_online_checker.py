"""The checker of online migration finds what it is there to find: each kind of wrong is told to it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from queuekeeper.sessions.reports import PendingMessage
from tests.chaos.online_checker import Balance, settle
from tests.chaos.online_load import Journal, life_s, payload_of, qos_of

pytestmark = pytest.mark.chaos

CLIENT = "meter-7"
TIME_MS = 1_000_000


def stored(number: int, **fields: Any) -> PendingMessage:
    """Return a message as the store has it; its serial is its number."""
    message = PendingMessage(
        serial=number,
        packet_id=number + 1,
        packet_type="PUBLISH",
        topic="t",
        payload=payload_of(number),
        qos=qos_of(number),
        time_ms=TIME_MS,
        expires_at_ms=None,
        redelivery=False,
        expiry_interval_s=life_s(number),
    )
    return replace(message, **fields)


class Books:
    """A journal in which a test writes; three messages were saved, the first was sent and acknowledged."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)
        self.path = path
        self.held = [stored(1), stored(2)]
        self.note("offered", offset=0, numbers=[0, 3], time_ms=TIME_MS)
        self.note("saved", offset=0, replayed=False)
        self.sent(0)
        self.note("acking", numbers=[0])
        self.note("acked", numbers=[0])

    def note(self, event: str, **facts: Any) -> None:
        """Write down that something has happened."""
        self._journal.note(event, CLIENT, **facts)

    def sent(
        self, number: int, *, serial: int | None = None, packet_id: int | None = None, redelivery: bool = False,
        kind: str = "PUBLISH",
    ) -> None:  # fmt: skip
        """Write down that a message was sent."""
        place = number if serial is None else serial
        self.note("sent", messages=[(number, place, packet_id or place + 1, redelivery, kind)])

    def close(self) -> None:
        """End the journal."""
        self._journal.close()

    def balance(self) -> Balance:
        """Settle the account."""
        return settle([self.path], {CLIENT: self.held})


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    found = Books(tmp_path / "broker.jsonl")
    yield found
    found.close()


def test_account_that_balances_has_no_problems(books: Books) -> None:
    books.sent(1)
    books.sent(1, redelivery=True)
    found = books.balance()

    assert found.problems == ()
    assert (found.accepted, found.acknowledged, found.stored, found.expired) == (3, 1, 2, 0)


def lost(books: Books) -> None:
    books.held.pop()


def acknowledged_and_stored(books: Books) -> None:
    books.held.insert(0, stored(0))


def out_of_order(books: Books) -> None:
    books.held.reverse()


def stored_twice(books: Books) -> None:
    books.held.append(stored(2, serial=3, packet_id=9))


def same_packet_id(books: Books) -> None:
    books.held[1] = stored(2, packet_id=2)


def changed(books: Books) -> None:
    books.held[1] = stored(2, payload=b"2 other")


def longer_life(books: Books) -> None:
    books.held[1] = stored(2, time_ms=TIME_MS + 1)


def released_by_nobody(books: Books) -> None:
    books.sent(2)
    books.held[1] = stored(2, packet_type="PUBREL", payload=b"")


def published_by_nobody(books: Books) -> None:
    books.held.append(stored(3))


def delivered_though_published_by_nobody(books: Books) -> None:
    books.sent(3)


def delivered_after_its_acknowledgement(books: Books) -> None:
    books.sent(0, redelivery=True)


def delivered_out_of_order(books: Books) -> None:
    books.sent(2)
    books.sent(1)


def repeated_without_a_word(books: Books) -> None:
    books.sent(1)
    books.sent(1)


def repeated_under_another_packet_id(books: Books) -> None:
    books.sent(1)
    books.sent(1, packet_id=7, redelivery=True)


def two_in_flight_under_one_packet_id(books: Books) -> None:
    books.sent(1)
    books.sent(2, packet_id=2)


def sent_again_after_its_pubrec(books: Books) -> None:
    books.sent(2)
    books.note("releasing", number=2)
    books.note("released", number=2)
    books.sent(2, redelivery=True)


def pubrel_without_pubrec(books: Books) -> None:
    books.sent(2)
    books.sent(2, redelivery=True, kind="PUBREL")


def read_lacks_one(books: Books) -> None:
    books.note("read", begun_s=1e12, numbers=[1])


def read_shows_an_acknowledged_one(books: Books) -> None:
    books.note("read", begun_s=1e12, numbers=[0, 1, 2])


def batch_without_an_answer(books: Books) -> None:
    books.note("offered", offset=1, numbers=[3, 5], time_ms=TIME_MS)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lost, "lost [2], 1 in all, of 3 accepted"),
        (acknowledged_and_stored, "still holds [0], which were acknowledged"),
        (out_of_order, "twice, or in another order"),
        (stored_twice, "twice, or in another order"),
        (same_packet_id, "a packet id stands for two stored messages"),
        (changed, "message 2 was changed"),
        (longer_life, "message 2 has another life"),
        (released_by_nobody, "serial 2 is a PUBREL"),
        (published_by_nobody, "holds [3], which nobody published"),
        (delivered_though_published_by_nobody, "was delivered, but nobody has published it"),
        (delivered_after_its_acknowledgement, "delivered again after its acknowledgement"),
        (delivered_out_of_order, "message 1 came behind 2: out of order"),
        (repeated_without_a_word, "without being marked as a redelivery"),
        (repeated_under_another_packet_id, "came again under packet id 7"),
        (two_in_flight_under_one_packet_id, "while 1 is in flight under it"),
        (sent_again_after_its_pubrec, "sent again after its PUBREC"),
        (pubrel_without_pubrec, "PUBREL of 2 was sent"),
        (read_lacks_one, "a read did not find [2]"),
        (read_shows_an_acknowledged_one, "a read found [0], which were acknowledged"),
        (batch_without_an_answer, "batch 1 was offered and never saved"),
    ],
)
def test_each_wrong_is_found(books: Books, wrong: Callable[[Books], None], words: str) -> None:
    wrong(books)

    assert any(words in problem for problem in books.balance().problems)


def test_message_of_a_short_life_may_be_gone(books: Books) -> None:
    books.note("offered", offset=1, numbers=[3, 7], time_ms=TIME_MS)
    books.note("saved", offset=1, replayed=True)
    books.held += [stored(number) for number in (3, 4, 5)]
    found = books.balance()

    assert found.problems == ()
    assert (found.accepted, found.expired, found.repeated) == (7, 1, 1)


def test_what_a_client_has_forgotten_is_not_lost(books: Books) -> None:
    books.note("purging", below=3)
    books.note("purged", below=3)
    books.held.clear()
    found = books.balance()

    assert found.problems == ()
    assert (found.acknowledged, found.forgotten, found.stored) == (1, 2, 0)


def test_acknowledgement_that_a_killed_broker_may_have_passed_on_is_in_doubt(books: Books) -> None:
    books.sent(1)
    books.note("acking", numbers=[1])

    assert books.balance().problems == ()
    books.held.pop(0)
    found = books.balance()
    assert found.problems == ()
    assert found.acknowledged == 2

"""Accounts for every message of a load: from what brokers have noted and what the stores hold; it causes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from pathlib import Path
from typing import Any

from queuekeeper.sessions.reports import PendingMessage
from tests.chaos.online_load import is_short, life_s, payload_of, qos_of
from tests.chaos.trace_recorder import read_journal


@dataclass(frozen=True, kw_only=True)
class Balance:
    """What all messages have come to.

    :param accepted: messages that publishers were told are saved.
    :param acknowledged: those that their client has confirmed.
    :param stored: those that wait in the store of their owner.
    :param expired: those of a short life that are neither.
    :param forgotten: those that went with their session, on its client's wish.
    :param delivered: how often a message was sent, PUBREL included.
    :param repeated: batches that were stored already when they came again.
    :param failures: failed calls by kind; each was repeated.
    :param longest_wait_s: longest time that a call took with all its repetitions.
    :param problems: what should not be, in words.
    """

    accepted: int = 0
    acknowledged: int = 0
    stored: int = 0
    expired: int = 0
    forgotten: int = 0
    delivered: int = 0
    repeated: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    longest_wait_s: float = 0.0
    seconds: float = 0.0
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        failures = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.failures.items())) or "none"
        return (
            f"accepted {self.accepted} ({self.accepted / max(self.seconds, 0.001):.0f}/s) = acknowledged "
            f"{self.acknowledged} + stored {self.stored} + expired {self.expired} + forgotten {self.forgotten}; "
            f"delivered {self.delivered}, repeated batches {self.repeated}, failed calls {failures}, longest wait "
            f"{self.longest_wait_s:.2f} s"
        )


def settle(journals: Iterable[Path], stored: Mapping[str, Sequence[PendingMessage]]) -> Balance:
    """Account for every message.

    :param journals: of all brokers.
    :param stored: of each client what its owner holds, live messages in their order.
    """
    accounts: dict[str, _Account] = {}
    failures: Counter[str] = Counter()
    longest_wait_s = 0.0
    first_s = last_s = 0.0
    # Each journal is in order, and all have one clock.
    for note in merge(*map(read_journal, journals), key=lambda each: each["at_s"]):
        first_s, last_s = first_s or note["at_s"], note["at_s"]
        if note["event"] == "failed":
            failures[note["kind"]] += 1
        elif note["event"] == "waited":
            longest_wait_s = max(longest_wait_s, note["seconds"])
        elif note["event"] != "began":
            accounts.setdefault(note["client_id"], _Account(note["client_id"])).take(note)
    for client_id in stored:
        accounts.setdefault(client_id, _Account(client_id))
    for client_id, account in accounts.items():
        account.close(stored.get(client_id, ()))
    each = accounts.values()
    return Balance(
        accepted=sum(len(account.accepted) for account in each),
        acknowledged=sum(len(account.acknowledged & account.accepted.keys()) for account in each),
        stored=sum(len(account.stored) for account in each),
        expired=sum(account.expired for account in each),
        forgotten=sum(len(account.forgotten) for account in each),
        delivered=sum(account.delivered for account in each),
        repeated=sum(account.repeated for account in each),
        failures=dict(failures),
        longest_wait_s=longest_wait_s,
        seconds=last_s - first_s,
        problems=tuple(problem for account in each for problem in account.problems),
    )


class _Account:
    """The messages of one client, and what a device that keeps to MQTT would have to complain about."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.problems: list[str] = []
        self.accepted: dict[int, float] = {}
        self.acknowledged: set[int] = set()
        self.forgotten: set[int] = set()
        self.stored: set[int] = set()
        self.expired = self.delivered = self.repeated = 0
        self._offered: dict[int, int] = {}
        self._batches: dict[int, range] = {}
        self._acknowledged_at_s: dict[int, float] = {}
        self._confirming: dict[int, float] = {}
        self._releasing: set[int] = set()
        self._released: set[int] = set()
        self._packet_ids: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._in_flight: dict[int, int] = {}
        self._newest = -1
        self._seen: set[int] = set()
        self._answered: set[int] = set()

    def _complain(self, text: str) -> None:
        self.problems.append(f"{self.client_id!r}: {text}")

    def take(self, note: dict[str, Any]) -> None:
        """Go on to the next thing that has happened."""
        match note["event"]:
            case "offered":
                numbers = range(*note["numbers"])
                self._batches[note["offset"]] = numbers
                self._offered |= dict.fromkeys(numbers, note["time_ms"])
            case "saved":
                self.accepted |= dict.fromkeys(self._batches.pop(note["offset"], ()), note["at_s"])
                self.repeated += note["replayed"]
            case "sent":
                self.delivered += len(note["messages"])
                for number, serial, packet_id, redelivery, kind in note["messages"]:
                    self._sent(number, serial, packet_id, redelivery, kind)
            case "read":
                self._read(note["begun_s"], note["numbers"])
            case "releasing":
                self._releasing.add(note["number"])
            case "released":
                self._released.add(note["number"])
            case "acking":
                self._confirming |= dict.fromkeys(note["numbers"], note["at_s"])
                gone = set(note["numbers"])
                self._answered |= gone
                self._in_flight = {key: number for key, number in self._in_flight.items() if number not in gone}
            case "acked":
                self.acknowledged |= set(note["numbers"])
                self._acknowledged_at_s |= dict.fromkeys(note["numbers"], note["at_s"])
            case "purging":
                self._confirming |= dict.fromkeys(range(note["below"]), note["at_s"])
                self._in_flight.clear()
            case "purged":
                gone = self.accepted.keys() & range(note["below"])
                self.forgotten |= gone - self.acknowledged
                self._acknowledged_at_s |= dict.fromkeys(gone, note["at_s"])
                self._numbers.clear()
            case "violation":
                self._complain(note["text"])

    def _sent(self, number: int, serial: int, packet_id: int, redelivery: bool, kind: str) -> None:
        if number not in self._offered:
            self._complain(f"message {number} (serial {serial}) was delivered, but nobody has published it")
            return
        if number in self._acknowledged_at_s:
            self._complain(f"message {number} was delivered again after its acknowledgement")
        if kind == "PUBREL" and number not in self._releasing:
            self._complain(f"PUBREL of {number} was sent, but the client has sent no PUBREC")
        if kind == "PUBLISH" and number in self._released:
            self._complain(f"message {number} was sent again after its PUBREC: QoS 2 is delivered once")
        known = self._packet_ids.setdefault(number, packet_id)
        if known != packet_id:
            self._complain(f"message {number} came again under packet id {packet_id}, and had {known}")
        other = self._in_flight.get(packet_id, number)
        if other != number and not is_short(other):
            self._complain(f"packet id {packet_id} stands for {number}, while {other} is in flight under it")
        self._in_flight[packet_id] = number
        if self._numbers.setdefault(serial, number) != number:
            self._complain(f"serial {serial} stands for {number} and {self._numbers[serial]}")
        if number <= self._newest:
            if number in self._seen and not redelivery:
                self._complain(f"message {number} came again without being marked as a redelivery")
            if number not in self._seen:
                self._complain(f"message {number} came behind {self._newest}: out of order")
        self._newest = max(self._newest, number)
        self._seen.add(number)

    def _read(self, begun_s: float, numbers: Sequence[int]) -> None:
        """Judge what a client has found that came back: all that was there when it began to read."""
        found = set(numbers)
        if list(numbers) != sorted(found):
            self._complain(f"a read found {numbers}: twice, or in another order")
        missing = [
            number
            for number, at_s in self.accepted.items()
            if at_s < begun_s and number not in found and number not in self._confirming and not is_short(number)
        ]
        if missing:
            self._complain(f"a read did not find {missing[:10]}, which were saved before it began")
        again = [number for number in found if self._acknowledged_at_s.get(number, begun_s) < begun_s]
        if again:
            self._complain(f"a read found {again[:10]}, which were acknowledged before it began")

    def close(self, stored: Sequence[PendingMessage]) -> None:
        """Compare with what the owner holds in the end."""
        numbers = []
        for one in stored:
            number = self._numbers.get(one.serial, -1)
            if one.packet_type == "PUBLISH":
                number = int(one.payload.split()[0])
                if one.payload != payload_of(number) or one.qos != qos_of(number):
                    self._complain(f"message {number} was changed")
            elif number not in self._releasing:
                self._complain(f"serial {one.serial} is a PUBREL, but the client has sent no PUBREC")
            if one.time_ms != self._offered.get(number, -1) or one.expiry_interval_s != life_s(number):
                self._complain(f"message {number} has another life than its publisher gave it")
            numbers.append(number)
        self.stored = set(numbers)
        if numbers != sorted(self.stored):
            self._complain(f"the store holds {numbers}: twice, or in another order")
        serials = [one.serial for one in stored]
        if serials != sorted(set(serials)):
            self._complain("serials of the store are not in order")
        if len({one.packet_id for one in stored}) < len(stored):
            self._complain("a packet id stands for two stored messages")
        for offset in self._batches:
            self._complain(f"batch {offset} was offered and never saved, though its broker ended well")
        # A broker that was killed may have passed the acknowledgement on, or not.
        self.acknowledged |= self._answered - self.stored
        gone = self.acknowledged | self.forgotten
        left = self.accepted.keys() - gone - self.stored
        lost = sorted(number for number in left if not is_short(number))
        self.expired = len(left) - len(lost)
        if lost:
            self._complain(f"lost {lost[:10]}, {len(lost)} in all, of {len(self.accepted)} accepted")
        if self.stored & gone:
            self._complain(f"the store still holds {sorted(self.stored & gone)[:10]}, which were acknowledged")
        if self.stored - self._offered.keys():
            self._complain(f"the store holds {sorted(self.stored - self._offered.keys())[:10]}, which nobody published")

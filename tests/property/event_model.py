"""The event broker without a database: what is published, dispatched and delivered, as the rules say and no faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event as a reader knows it.

    :param number: of the test's own, in its payload.
    :param sent_to: group whose subscription it was sent to; none when it was published to all.
    """

    number: int
    topic: str
    sent_to: str | None = None


@dataclass(kw_only=True)
class Transaction:
    """A transaction that may still be open.

    :param transaction_id: as the server gave it: the order of dispatch.
    :param events: in the order of their ids.
    """

    transaction_id: int
    events: list[Event] = field(default_factory=list)


@dataclass(kw_only=True)
class Group:
    """A group with one subscription.

    :param wants: whether its condition holds.
    :param deliveries: what it is to get, in order.
    :param confirmed: how many of them it has confirmed.
    """

    name: str
    wants: Callable[[Event], bool]
    deliveries: list[Event] = field(default_factory=list)
    confirmed: int = 0

    @property
    def waiting(self) -> list[Event]:
        """What it has not confirmed."""
        return self.deliveries[self.confirmed :]


@dataclass(kw_only=True)
class BrokerModel:
    """Events of committed transactions are dispatched window by window, in the order of transactions.

    :param chunk: most events of a poll.
    """

    chunk: int
    groups: dict[str, Group] = field(default_factory=dict)
    committed: list[Transaction] = field(default_factory=list)
    window: list[Event] = field(default_factory=list)

    def commit(self, transaction: Transaction) -> None:
        """Let others see a transaction."""
        self.committed.append(transaction)

    def poll(self) -> int:
        """Hand out the next events and answer how many matches there were."""
        if not self.window:
            ordered = sorted(self.committed, key=lambda each: each.transaction_id)
            self.window = [event for transaction in ordered for event in transaction.events]
            self.committed.clear()
        now, self.window = self.window[: self.chunk], self.window[self.chunk :]
        matches = 0
        for event in now:
            for group in self.groups.values():
                if group.wants(event) if event.sent_to is None else event.sent_to == group.name:
                    group.deliveries.append(event)
                    matches += 1
        return matches

"""Expectation on the order of a queue's messages."""

from __future__ import annotations

from typing import ClassVar

from queuekeeper.quality.expectations.rule import QueueExpectation, reads


class ExpectQueueSerialsToIncrease(QueueExpectation):
    """Serials of a queue increase strictly: each message has one of its own, a whole number of 0 to 2^53.

    Ties and bad serials were counted message by message. From lowest to highest there must also be room for as many
    serials as there are messages.
    """

    faults: ClassVar[tuple[str, ...]] = ("tied_serials", "bad_serials")
    column_list: list[str] = reads("messages", "lowest_serial", "highest_serial", "tied_serials", "bad_serials")

    def rule(self) -> str:
        """Return the rule."""
        room = "(messages = 0 OR highest_serial - lowest_serial + 1 >= messages)"
        if self.tolerated_share:
            return self.few("tied_serials + bad_serials")
        return f"tied_serials = 0 AND bad_serials = 0 AND coalesce({room}, true)"

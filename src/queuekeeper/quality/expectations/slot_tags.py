"""Expectations on hash tags, which keep a client's keys in one slot."""

from __future__ import annotations

from typing import ClassVar

from queuekeeper.quality.expectations.rule import QueueExpectation, reads


class ExpectHashTagToHoldClientTogether(QueueExpectation):
    """The client id neither empties nor shifts the hash tag, so all keys of the client are in one slot."""

    faults: ClassVar[tuple[str, ...]] = ("bad_tag",)
    column_list: list[str] = reads("slot", "bad_tag")

    def rule(self) -> str:
        """Return the rule."""
        return "bad_tag = 0"


class ExpectKeysToBeTheClientsOwn(QueueExpectation):
    """Each key has its type, and references are those of the client whose key holds them."""

    faults: ClassVar[tuple[str, ...]] = ("wrong_type_keys", "foreign_references")
    column_list: list[str] = reads("messages", "wrong_type_keys", "foreign_references")

    def rule(self) -> str:
        """Return the rule."""
        return f"coalesce(wrong_type_keys, 0) = 0 AND {self.few('coalesce(foreign_references, 0)')}"

"""Counts of a job: what its plan found, what it did, and what moved on between the two."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, Self


class Counts:
    """Base of dataclasses whose fields are numbers.

    :cvar looked_at: fields that say how much was looked at, not what there was to do.
    """

    looked_at: ClassVar[frozenset[str]] = frozenset()

    def add(self, other: Self) -> None:
        """Add what was counted elsewhere."""
        for each in self._fields():
            setattr(self, each, getattr(self, each) + getattr(other, each))

    def moved_on(self, done: Self) -> dict[str, int]:
        """Return, by name, how much of a plan was not done: planned = done + moved on.

        A number less than 0 has come since the plan. What is the same in both is left out.
        """
        to_do = [each for each in self._fields() if each not in self.looked_at]
        found = {each: getattr(self, each) - getattr(done, each) for each in to_do}
        return {name: number for name, number in found.items() if number}

    def _fields(self) -> list[str]:
        counted: Any = self
        return [each.name for each in fields(counted)]

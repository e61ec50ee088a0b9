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

    def add_changes(self, other: Self) -> None:
        """Add what was changed of a step that is to be repeated: all of it will be looked at once more."""
        for each in self._to_do():
            setattr(self, each, getattr(self, each) + getattr(other, each))

    def moved_on(self, done: Self) -> dict[str, int]:
        """Return, by name, how much of a plan was not done: planned = done + moved on.

        A number less than 0 has come since the plan. What is the same in both is left out.
        """
        found = {each: getattr(self, each) - getattr(done, each) for each in self._to_do()}
        return {name: number for name, number in found.items() if number}

    @property
    def changes(self) -> int:
        """Everything that there is to do, or was done."""
        return sum(getattr(self, each) for each in self._to_do())

    @property
    def broken(self) -> int:
        """What cannot be worked on; the job has said why."""
        return 0

    @property
    def scanned(self) -> int:
        """What was looked at, for whoever watches a run; the first field says it."""
        return int(getattr(self, self._fields()[0]))

    @property
    def removed(self) -> int:
        """Those of the changes that remove something."""
        return 0

    @property
    def repaired(self) -> int:
        """Those of the changes that mend something."""
        return self.changes - self.removed

    def rows(self) -> list[tuple[str, str]]:
        """Return the counts as names and texts, for a person."""
        return [(each.replace("_", " ").capitalize(), f"{getattr(self, each):,}") for each in self._fields()]

    def _to_do(self) -> list[str]:
        return [each for each in self._fields() if each not in self.looked_at]

    def _fields(self) -> list[str]:
        counted: Any = self
        return [each.name for each in fields(counted)]

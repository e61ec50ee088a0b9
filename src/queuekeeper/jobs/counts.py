"""Counts of a job: what its plan found, what it did, and what changed between the two."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, Self


class Counts:
    """Base of dataclasses whose fields are numbers.

    :cvar looked_at: fields that count what was looked at, not what there was to do.
    """

    looked_at: ClassVar[frozenset[str]] = frozenset()

    def add(self, other: Self) -> None:
        """Add other counts."""
        for each in self._fields():
            setattr(self, each, getattr(self, each) + getattr(other, each))

    def add_changes(self, other: Self) -> None:
        """Add the changes of an interrupted step, without what it looked at: the repeated step looks at all again."""
        for each in self._to_do():
            setattr(self, each, getattr(self, each) + getattr(other, each))

    def moved_on(self, done: Self) -> dict[str, int]:
        """Return, by name, how much of a plan was not done: planned = done + moved on.

        A number below 0 means that more has come since the plan. Counts without a difference are left out.
        """
        found = {each: getattr(self, each) - getattr(done, each) for each in self._to_do()}
        return {name: number for name, number in found.items() if number}

    @property
    def changes(self) -> int:
        """Number of all changes."""
        return sum(getattr(self, each) for each in self._to_do())

    @property
    def broken(self) -> int:
        """Number of keys or queues that could not be worked on; the job has logged why."""
        return 0

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to do."""
        return not self.changes and not self.broken

    @property
    def scanned(self) -> int:
        """Number of keys or queues that were looked at: the first field, for the progress of a run."""
        return int(getattr(self, self._fields()[0]))

    @property
    def removed(self) -> int:
        """Number of changes that remove something."""
        return 0

    @property
    def repaired(self) -> int:
        """Number of changes that mend something."""
        return self.changes - self.removed

    def rows(self) -> list[tuple[str, str]]:
        """Return the counts as pairs of name and text."""
        return [(each.replace("_", " ").capitalize(), f"{getattr(self, each):,}") for each in self._fields()]

    def _to_do(self) -> list[str]:
        return [each for each in self._fields() if each not in self.looked_at]

    def _fields(self) -> list[str]:
        counted: Any = self
        return [each.name for each in fields(counted)]

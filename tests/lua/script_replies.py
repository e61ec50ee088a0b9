"""Replies of scripts as their tests read them: a list as a whole, or its parts by the names of the script's header."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from queuekeeper import lua


@dataclass(frozen=True, eq=False, repr=False)
class Reply:
    """A list that a script has answered: equal to that list, and without an index.

    :ivar values: the list.
    :ivar named: the same as a record; its attributes are those of the reply, too.
    """

    values: list[Any]
    named: Any

    def __eq__(self, other: object) -> bool:
        return self.values == (other.values if isinstance(other, Reply) else other)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.named, name)

    def __repr__(self) -> str:
        return repr(self.values)

    def pick(self, *names: str) -> tuple[Any, ...]:
        """Return the parts with these names."""
        return tuple(getattr(self.named, name) for name in names)


def reply_of(call: lua.Call, found: Any) -> Any:
    """Return what a script has answered; a list has the names of its header."""
    return Reply(found, call.script.read(found)) if isinstance(found, list) else found

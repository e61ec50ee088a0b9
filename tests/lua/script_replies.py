"""Replies of scripts as their tests read them: by the names of the script's header."""

from __future__ import annotations

from typing import Any

from queuekeeper import lua


class Reply(dict[str, Any]):
    """A list or a text that a script has answered, by the names of its header, and so is each of its rows.

    A word or a list that is empty is left out. As an attribute, each part is what the package reads.
    """

    def __init__(self, record: Any) -> None:
        super().__init__({name: part for name, part in _named(record).items() if part not in ("", ())})
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def pick(self, *names: str) -> tuple[Any, ...]:
        """Return the parts with these names."""
        return tuple(getattr(self._record, name) for name in names)


def reply_of(call: lua.Call, found: Any) -> Any:
    """Return what a script has answered; a list or a text of several parts has the names of its header."""
    record = call.script.read(found)
    return Reply(record) if hasattr(record, "_fields") else record


def _named(part: Any) -> Any:
    if hasattr(part, "_fields"):
        return {name: _named(value) for name, value in part._asdict().items()}
    return tuple(map(_named, part)) if isinstance(part, tuple) else part

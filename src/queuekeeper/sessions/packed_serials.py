"""Where the messages of a packed session are: listed page by page, whoever makes the calls."""

from __future__ import annotations

from typing import Any

from queuekeeper import lua
from queuekeeper.lua import scripts

_FIELDS_PER_PAGE = 200
_HOLES = 500
"""Places without a message that are looked through before all fields are listed instead."""


def is_sparse(*, head: int, last: int, messages: int) -> bool:
    """Tell whether listing the fields of a packed session is cheaper than looking at each place.

    :param head: serial before which there is no message.
    :param last: serial of the newest place.
    """
    return last - head > 4 * messages + _HOLES


class SerialPages:
    """The serials of a session that has far more places than messages.

    Make each :meth:`call` and give its reply to :meth:`take`, until there are no :attr:`more` pages.

    :param keys: key of the session, in any form that its calls have.
    :param largest: bytes of the largest message; the server reads the messages with their names.
    :param max_bytes: most bytes that the server should read for one page.
    :ivar fields: fields of a full page.
    """

    def __init__(self, keys: Any, *, largest: int, max_bytes: int) -> None:
        self.fields = max(1, min(_FIELDS_PER_PAGE, max_bytes // max(1, largest)))
        self._keys = keys
        self._cursor = b"0"
        self._found: set[int] = set()
        self.more = True

    def call(self, fields: int | None = None) -> lua.Call:
        """Return the call that lists the next page.

        :param fields: fields of the page; by default those of a full one.
        """
        return scripts.packed.list_serials(self._keys, cursor=self._cursor, count=fields or self.fields)

    def take(self, reply: Any) -> None:
        """Take the reply of the last call, read by the names of the script's header."""
        self._found.update(map(int, reply.serials))
        self._cursor = reply.cursor
        self.more = self._cursor != b"0"

    def serials(self) -> list[int]:
        """Return in order the serials of the pages so far, each once."""
        return sorted(self._found)

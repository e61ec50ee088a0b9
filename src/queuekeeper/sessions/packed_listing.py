"""Lists where the messages of a packed session are, page by page, whichever server answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Listing:
    """Places that the pages of ``list_serials`` have named so far; a message that stays in the session is among them.

    Each process of a server orders the fields of a hash in its own way. After a restart of the server, a failover or a
    move of the slot another process answers. The cursor means nothing to it, so the listing begins again.

    :ivar cursor: what to ask for next.
    :ivar is_done: whether all pages have been read.
    """

    cursor: bytes = b"0"
    is_done: bool = False
    _serials: set[int] = field(default_factory=set)
    _server: bytes = b""

    def take(self, reply: Any) -> None:
        """Take a page, as the script returns it."""
        goes_on = self.cursor == b"0" or self._server == reply.server
        self._serials.update(map(int, reply.serials))
        self._server = reply.server
        self.cursor = reply.cursor if goes_on else b"0"
        self.is_done = goes_on and reply.cursor == b"0"

    @property
    def serials(self) -> list[int]:
        """The places, in order."""
        return sorted(self._serials)

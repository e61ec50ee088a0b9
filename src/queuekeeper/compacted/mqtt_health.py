"""What is wrong with a door, for its log: said when it begins, at intervals while it lasts, and when it is over."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

REMIND_S = 60.0
MOST_CLIENTS = 10_000
"""Clients whose failures are counted at once; those that failed longest ago are forgotten."""

_log = logging.getLogger(__name__)


class Outage:
    """Something that fails for all clients at once; however often it is met, the log has few lines of it.

    :param what: fails, as a sentence without its end.
    :param meanwhile: what the door does as long as it lasts, as a sentence.
    :param over: that it has ended, as a sentence without its end.
    """

    def __init__(
        self,
        what: str,
        *,
        meanwhile: str,
        over: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._meanwhile = meanwhile
        self._over = over
        self._now_s = now_s
        self._began_at_s: float | None = None
        self._said_at_s = 0.0
        self._met = 0

    @property
    def is_on(self) -> bool:
        """Whether it lasts."""
        return self._began_at_s is not None

    def meet(self, cause: Exception) -> bool:
        """Take note that it was met.

        :returns: whether it begins.
        """
        now_s = self._now_s()
        begins = self._began_at_s is None
        if self._began_at_s is None:
            self._began_at_s, self._said_at_s, self._met = now_s, now_s, 0
            _log.error("%s: %s. %s", self._what, cause, self._meanwhile)
        elif now_s - self._said_at_s >= REMIND_S:
            self._said_at_s = now_s
            _log.error(
                "%s, for %.0f s now, met %d times: %s. %s",
                *(self._what, now_s - self._began_at_s, self._met + 1, cause, self._meanwhile),
            )
        self._met += 1
        return begins

    def end(self) -> None:
        """Take note that it works."""
        if self._began_at_s is not None:
            _log.warning("%s, after %.0f s", self._over, self._now_s() - self._began_at_s)
            self._began_at_s = None


class FailedDeliveries:
    """Failures to deliver a client's queue to it, in a row: from a threshold on they are errors in the log.

    :param error_after: failures without an acknowledgement between them from which each is an ERROR, not a WARNING.
    """

    def __init__(self, *, error_after: int) -> None:
        self._error_after = error_after
        self._in_a_row: OrderedDict[str, int] = OrderedDict()

    def meet(self, client_id: str, why: str, *, level: int = logging.WARNING) -> None:
        """Take note of a failure, and say it.

        :param level: at the least.
        """
        count = self._in_a_row.pop(client_id, 0) + 1
        self._in_a_row[client_id] = count
        if len(self._in_a_row) > MOST_CLIENTS:
            self._in_a_row.popitem(last=False)
        if count >= self._error_after:
            level = max(level, logging.ERROR)
        _log.log(level, "client %r %s (failure %d without an acknowledgement between)", client_id, why, count)

    def end(self, client_id: str) -> None:
        """Take note that the client has acknowledged."""
        self._in_a_row.pop(client_id, None)

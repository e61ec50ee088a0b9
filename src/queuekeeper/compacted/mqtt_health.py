"""Log lines about failures of the door: when a failure begins, every minute while it lasts, and when it ends."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

REMIND_S = 60.0
MOST_CLIENTS = 10_000
"""Most clients whose failures are counted; beyond that, the door forgets the client whose last failure is oldest."""

_log = logging.getLogger(__name__)


class Outage:
    """A failure that affects all clients; the log has one line when it begins, one a minute, and one when it ends.

    :param what: sentence without full stop that says what fails.
    :param meanwhile: sentence that says what the door does until the failure ends.
    :param over: sentence without full stop that says that the failure has ended.
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
        """Whether the failure has begun and not ended."""
        return self._began_at_s is not None

    def meet(self, cause: Exception) -> bool:
        """Count a failure, and log it if a line is due.

        :returns: whether the outage begins with this failure.
        """
        now_s = self._now_s()
        begins = self._began_at_s is None
        if self._began_at_s is None:
            self._began_at_s, self._said_at_s, self._met = now_s, now_s, 0
            _log.error("%s: %s. %s", self._what, cause, self._meanwhile)
        elif now_s - self._said_at_s >= REMIND_S:
            self._said_at_s = now_s
            _log.error(
                "%s, for %.0f s now, after %d failures: %s. %s",
                *(self._what, now_s - self._began_at_s, self._met + 1, cause, self._meanwhile),
            )
        self._met += 1
        return begins

    def end(self) -> None:
        """End the outage, if it had begun, and log its duration."""
        if self._began_at_s is not None:
            _log.warning("%s, after %.0f s", self._over, self._now_s() - self._began_at_s)
            self._began_at_s = None


class FailedDeliveries:
    """Counts and logs each client's failed deliveries since its last acknowledgement.

    :param error_after: number of the failure since the last acknowledgement from which each is logged as an ERROR;
        the failures before it are WARNINGs.
    """

    def __init__(self, *, error_after: int) -> None:
        self._error_after = error_after
        self._in_a_row: OrderedDict[str, int] = OrderedDict()

    def meet(self, client_id: str, why: str, *, level: int = logging.WARNING) -> None:
        """Count a failed delivery, and log it.

        :param why: what happened to the client; the log line begins with the client id and continues with this text.
        :param level: lowest level of the log line.
        """
        count = self._in_a_row.pop(client_id, 0) + 1
        self._in_a_row[client_id] = count
        if len(self._in_a_row) > MOST_CLIENTS:
            self._in_a_row.popitem(last=False)
        if count >= self._error_after:
            level = max(level, logging.ERROR)
        _log.log(level, "client %r %s (failure %d since its last acknowledgement)", client_id, why, count)

    def end(self, client_id: str) -> None:
        """Count from 0 again: the client has acknowledged a message."""
        self._in_a_row.pop(client_id, None)

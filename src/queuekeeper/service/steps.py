"""Steps and messages of any service; a service carries out all other steps at its server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

END_S = 5.0
"""Seconds that the end may take after the handlers' time limit."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Message: stop the service in good order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Step: wait for a message, a notification of the server, or the time-out; the answer is :class:`Happened`.

    :param timeout_s: longest time to wait, in seconds.
    :param notifiable: whether a notification ends this wait; otherwise it ends a later wait.
    """

    timeout_s: float
    notifiable: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Happened:
    """Reason why a wait has ended.

    :param told: messages, in order.
    :param notified: whether the server has sent a notification.
    """

    told: tuple[Any, ...]
    notified: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Begin:
    """Step: begin work beside the operation; there is no answer, and the message :class:`Ended` comes when it ends.

    :param work: function, for asyncio a coroutine function, without arguments.
    :param token: identifies the work for :class:`Cut`; ``None`` for work that is never cut off.
    """

    work: Callable[[], Any]
    token: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """Message: work has ended.

    :param result: return value of the work.
    :param error: exception of the work, if it failed.
    """

    token: Any
    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Step: end work that has a token; the answer is whether that is possible."""

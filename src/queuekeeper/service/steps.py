"""Steps that any service is asked for, and what it is told; the other steps go to its server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

END_S = 5.0
"""How long the end may take, once handlers have had their time."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Told to end a service in good order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Step: wait until somebody tells something, the server notifies, or time is up; the answer is :class:`Happened`.

    :param timeout_s: time to wait at most.
    :param notifiable: whether the server can end it; else it notifies the wait after this one.
    """

    timeout_s: float
    notifiable: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Happened:
    """What ended a wait.

    :param told: what others told, in order.
    :param notified: whether the server notified.
    """

    told: tuple[Any, ...]
    notified: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Begin:
    """Step: begin work beside the operation; the answer is none, and :class:`Ended` is told when it ends.

    :param work: function, for asyncio a coroutine function, without arguments.
    :param token: by which it is known; none for work that :class:`Cut` leaves alone.
    """

    work: Callable[[], Any]
    token: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """Told when work has ended.

    :param result: what it returned.
    :param error: what it raised instead.
    """

    token: Any
    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Step: end work that has a token; the answer is whether that can be done."""

"""Options of queues and consumers, made from the texts of the command line."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Any, TypeVar

from queuekeeper.checks import check_choice
from queuekeeper.durations import duration_ms
from queuekeeper.fanout.model import ConsumerOptions, Mode, QueueOptions, Start, WhenFailed, WhenFull, WhenNobody

NONE = "none"
Choice = TypeVar("Choice", bound=StrEnum)


def consumer_options(
    before: ConsumerOptions | None = None,
    *,
    mode: Mode | str | None = None,
    when_failed: WhenFailed | str | None = None,
    lanes: int | None = None,
    max_length: int | None = None,
    when_full: WhenFull | str | None = None,
    dead_retention: str | None = None,
    idle_expiry: str | None = None,
) -> ConsumerOptions:
    """Return a consumer's options, with those that are given changed.

    :param before: present options; the defaults when absent.
    :param mode: ``fifo``: workers handle many messages at once. ``ordered``: each lane hands out one message at a time.
        [default: fifo]
    :param when_failed: what an ordered consumer does after a message has become a dead letter: go on, or stop until
        `fanout resume`. [default: skip]
    :param lanes: number of lanes of an ordered consumer, 1 to 64. The order key chooses the lane. [default: 1]
    :param max_length: largest number of messages that may wait in a lane; 0 sets no limit. [default: 0]
    :param when_full: what a publish does when ``max_length`` is reached. [default: reject]
    :param dead_retention: time after which a dead letter is deleted, such as 1h or 7d. [default: 7d]
    :param idle_expiry: time without a sign of life after which upkeep may remove the consumer; none is never.
        [default: none]
    :raises UsageError: naming option, value and rule.
    """
    changes: dict[str, Any] = {}
    if mode is not None:
        changes["mode"] = _choice(Mode, "mode", mode)
    if when_failed is not None:
        changes["when_failed"] = _choice(WhenFailed, "when_failed", when_failed)
    if lanes is not None:
        changes["lanes"] = lanes
    if max_length is not None:
        changes["max_length"] = max_length or None
    if when_full is not None:
        changes["when_full"] = _choice(WhenFull, "when_full", when_full)
    if dead_retention is not None:
        changes["dead_retention_ms"] = duration_ms("dead_retention", dead_retention)
    if idle_expiry is not None:
        changes["idle_expiry_ms"] = None if idle_expiry == NONE else duration_ms("idle_expiry", idle_expiry)
    return replace(before or ConsumerOptions(), **changes)


def queue_options(
    before: QueueOptions,
    *,
    when_nobody: WhenNobody | str | None = None,
    max_held: int | None = None,
    deduplication_window: str | None = None,
) -> QueueOptions:
    """Return a queue's options, with those that are given changed.

    :param before: present options.
    :param when_nobody: what a publish to the queue does while no consumer is registered.
    :param max_held: largest number of messages that the queue holds while no consumer is registered.
    :param deduplication_window: time for which the queue remembers deduplication ids.
    :raises UsageError: naming option, value and rule.
    """
    changes: dict[str, Any] = {}
    if when_nobody is not None:
        changes["when_nobody"] = _choice(WhenNobody, "when_nobody", when_nobody)
    if max_held is not None:
        changes["max_held"] = max_held
    if deduplication_window is not None:
        changes["deduplication_ms"] = duration_ms("deduplication_window", deduplication_window)
    return replace(before, **changes)


def start(text: str) -> Start:
    """Return the :class:`Start` for a text: ``new``, ``held`` or ``retained``.

    :raises UsageError: for any other text.
    """
    return _choice(Start, "start", text)


def _choice(kind: type[Choice], name: str, text: str) -> Choice:
    try:
        return kind(text)
    except ValueError:
        check_choice(name, text, kind)
        raise

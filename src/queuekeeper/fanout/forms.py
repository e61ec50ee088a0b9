"""What people write to say how a queue or a consumer behaves, as values of ``model``."""

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
    mode: str | None = None,
    when_failed: str | None = None,
    lanes: int | None = None,
    max_length: int | None = None,
    when_full: str | None = None,
    dead_retention: str | None = None,
    idle_expiry: str | None = None,
) -> ConsumerOptions:
    """Return a consumer's options with those that are named; the others are as before.

    :param before: none for the defaults.
    :param max_length: 0 for no bound.
    :param dead_retention: such as ``7d``, as ``durations.duration_ms`` reads it; ``idle_expiry`` likewise.
    :param idle_expiry: also ``none``: it is never removed for being idle.
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
    when_nobody: str | None = None,
    max_held: int | None = None,
    deduplication_window: str | None = None,
) -> QueueOptions:
    """Return a queue's options with those that are named; the others are as before.

    :param deduplication_window: such as ``1d``, as ``durations.duration_ms`` reads it.
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
    """Return what a new consumer is to get of earlier messages: ``new``, ``held`` or ``retained``.

    :raises UsageError: for anything else.
    """
    return _choice(Start, "start", text)


def _choice(kind: type[Choice], name: str, text: str) -> Choice:
    try:
        return kind(text)
    except ValueError:
        check_choice(name, text, kind)
        raise

"""Calls the notifiers of Airflow's configuration when a question waits or a task has failed."""

from __future__ import annotations

import inspect
import pkgutil
from copy import deepcopy
from enum import StrEnum
from typing import Any

from airflow.sdk import BaseNotifier, conf
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from queuekeeper.airflow.provider import CONFIGURATION, NOTIFIERS
from queuekeeper.errors import UsageError

_OPTION = f"option {NOTIFIERS} of section [{CONFIGURATION}] in Airflow's configuration"


class Event(StrEnum):
    """Events for which a notifier is called."""

    APPROVAL = "approval"
    """A person is asked."""

    QUALITY_GATE = "quality_gate"
    """A quality run has found something critical."""

    FAILURE = "failure"
    """A task of one of our DAGs has failed and is not retried."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    notifier: str = Field(alias="class")
    arguments: dict[str, Any] = {}
    events: frozenset[Event] = Field(default=frozenset(Event), min_length=1)


class ConfiguredNotifier(BaseNotifier):
    """Makes a notifier of a configured class for each message; a failure of the notifier is only logged.

    A new notifier is made each time, because a notifier keeps its rendered templates.

    :param notifier: name of the class.
    :param arguments: arguments of the class; the notifier renders templates in them.
    """

    def __init__(self, notifier: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.notifier = notifier
        self.arguments = arguments

    def __call__(self, *args: Any) -> None:
        """Call the notifier."""
        try:
            pkgutil.resolve_name(self.notifier)(**deepcopy(self.arguments))(*args)
        except Exception:
            # A question and the record of a failure must not be lost because a mail server is down.
            self.log.exception("%s could not be called", self.notifier)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfiguredNotifier) and (self.notifier, self.arguments) == (
            other.notifier,
            other.arguments,
        )

    def __repr__(self) -> str:
        # This is part of the serialized DAG: it is the same at each parse, and without arguments.
        return f"ConfiguredNotifier({self.notifier})"


def notifiers(event: Event) -> list[ConfiguredNotifier]:
    """Return the notifiers of an event.

    :raises UsageError: when the configuration is not a list of notifiers, or one of them cannot be made.
    """
    text = conf.get(CONFIGURATION, NOTIFIERS, fallback="") or ""
    if not text.strip():
        return []
    try:
        entries = TypeAdapter(list[_Entry]).validate_json(text)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'the text'}: {each['msg']}" for each in error.errors()
        )
        raise UsageError(f"{_OPTION} is not a JSON list of notifiers: {problems}") from None
    for entry in entries:
        _check(entry)
    return [ConfiguredNotifier(entry.notifier, entry.arguments) for entry in entries if event in entry.events]


def _check(entry: _Entry) -> None:
    try:
        found = pkgutil.resolve_name(entry.notifier)
    except (AttributeError, ImportError, ValueError) as error:
        raise UsageError(f"{_OPTION} names {entry.notifier!r}, which cannot be imported: {error}") from None
    if not (isinstance(found, type) and issubclass(found, BaseNotifier)):
        raise UsageError(f"{_OPTION} names {entry.notifier!r}, which is not a notifier of Airflow (a BaseNotifier)")
    try:
        inspect.signature(found).bind(**entry.arguments)
    except TypeError as error:
        raise UsageError(f"{_OPTION}: {entry.notifier} does not take these arguments: {error}") from None

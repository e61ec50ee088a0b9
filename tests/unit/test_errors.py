from __future__ import annotations

import copy
import inspect

import pytest

from queuekeeper import errors
from queuekeeper.errors import QueuekeeperError, ScriptError, StoreFull, from_lua

EXIT_CODES = {
    "CheckFailed": 1,
    "ConsumerLeaving": 4,
    "ForeignOwner": 4,
    "HasLeases": 4,
    "ImportedBefore": 4,
    "InvalidLife": 2,
    "InvalidName": 2,
    "InvalidPolicy": 2,
    "InvalidTopic": 2,
    "MissingExtra": 2,
    "KeyFromFuture": 4,
    "ListsTooLong": 4,
    "MaintenanceRunning": 4,
    "MembershipChanged": 4,
    "MovedOn": 4,
    "NoConsumer": 4,
    "NotOwner": 4,
    "NotPartitioned": 4,
    "OutOfOrder": 1,
    "NumberReused": 4,
    "PacketIdInUse": 4,
    "PayloadTooLarge": 2,
    "QueueBusy": 4,
    "QueueFull": 4,
    "QueuekeeperError": 1,
    "RefusedError": 4,
    "ScatteredClient": 2,
    "SchemaMismatch": 4,
    "Rejected": 1,
    "TimeLimitExceeded": 1,
    "ScriptError": 1,
    "SequenceConflict": 4,
    "ServerUnavailable": 4,
    "SessionFenced": 4,
    "StaleDriver": 4,
    "StaleEpoch": 1,
    "StalePlan": 3,
    "StoreFull": 1,
    "UnknownConsumer": 2,
    "UnknownLayout": 4,
    "UnknownQueue": 2,
    "UnknownTable": 2,
    "UnreadableRecord": 1,
    "UsageError": 2,
}


def exceptions() -> dict[str, type[QueuekeeperError]]:
    return {
        name: cls
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, QueuekeeperError) and cls.__module__ == errors.__name__
    }


def test_every_exception_has_the_exit_code_that_scripts_rely_on() -> None:
    assert {name: cls.exit_code for name, cls in exceptions().items()} == EXIT_CODES


@pytest.mark.parametrize("name", EXIT_CODES)
def test_the_module_docstring_shows_every_exception(name: str) -> None:
    assert name in (errors.__doc__ or "")


@pytest.mark.parametrize("name", EXIT_CODES)
def test_an_exception_without_a_message_says_what_its_class_means(name: str) -> None:
    cls = exceptions()[name]

    assert str(cls()) == inspect.getdoc(cls)
    assert str(cls("because")) == "because"


@pytest.mark.parametrize("name", EXIT_CODES)
def test_an_exception_keeps_what_it_is_about_in_other_words_and_as_a_copy(name: str) -> None:
    error = exceptions()[name]("because")
    assert (error.queue, error.consumer, error.client_id) == (None, None, None)
    error.queue, error.consumer, error.client_id = "orders", "billing", "meter-7"

    for other in (error.reworded("because"), copy.copy(error)):
        assert type(other) is type(error)
        assert (str(other), other.queue, other.consumer, other.client_id) == (
            *("because", "orders", "billing", "meter-7"),
        )


@pytest.mark.parametrize(("word", "cls"), errors.LUA_ERRORS.items())
@pytest.mark.parametrize("mark", ["", "-"])
def test_a_script_error_becomes_its_exception_with_the_servers_sentence(
    word: str, cls: type[QueuekeeperError], mark: str
) -> None:
    error = from_lua(RuntimeError(f"{mark}{word} session {{a}} is not what it was"))

    assert type(error) is cls
    assert str(error) == "session {a} is not what it was"


def test_a_bare_error_word_falls_back_to_the_meaning_of_its_class() -> None:
    assert str(from_lua("OOM")) == inspect.getdoc(StoreFull)


@pytest.mark.parametrize("reply", ["WRONGTYPE Operation against a key", "ERR user_script:12: oops", "STALENESS x", ""])
def test_an_unknown_error_word_is_a_script_error_with_the_whole_reply(reply: str) -> None:
    error = from_lua(reply)

    assert type(error) is ScriptError
    assert str(error) == (reply or inspect.getdoc(ScriptError))

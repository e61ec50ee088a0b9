from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from queuekeeper import errors
from queuekeeper.compacted.operations import CompactedOperations
from queuekeeper.errors import NotOwner, QueuekeeperError, ScriptError, ServerUnavailable, StoreFull, from_lua
from queuekeeper.events import NewEvent, NotPublished
from queuekeeper.events.operations import EventOperations
from queuekeeper.fanout.operations import FanoutOperations
from queuekeeper.sessions import SaveReport
from queuekeeper.sessions.owners import OwnerOperations
from queuekeeper.sessions.postgres_operations import PostgresSessionOperations
from queuekeeper.sessions.redis_operations import RedisSessionOperations
from queuekeeper.sessions.router.routing import RouterOperations

ABOUT = {
    "queue": "orders", "consumer": "billing", "client_id": "meter-7", "group_id": "billing", "subscription_id": "9",
}  # fmt: skip
OF_SERVERS = {"ServerUnavailable", "StoreFull", "RefusedError", "NotAllowed", "ScriptError"}

EXIT_CODES = {
    "CheckFailed": 1,
    "ConsumerBehind": 4,
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
    "NotAllowed": 4,
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
    "WrongType": 1,
    "StalePlan": 3,
    "StoodStill": 4,
    "StoreFull": 1,
    "UnknownConsumer": 2,
    "UnknownLayout": 4,
    "UnknownQueue": 2,
    "UnknownTable": 2,
    "UnreadableRecord": 1,
    "UnreadableSnapshot": 1,
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
    assert [getattr(error, each) for each in ABOUT] == [None] * len(ABOUT)
    for each, value in ABOUT.items():
        setattr(error, each, value)

    for other in (error.reworded("because"), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == "because"
        assert {each: getattr(other, each) for each in ABOUT} == ABOUT


@pytest.mark.parametrize("name", EXIT_CODES)
def test_what_an_exception_is_about_is_noted_once_and_not_where_it_is_a_servers(name: str) -> None:
    error = exceptions()[name]("because")

    assert error.about(**ABOUT).about(**dict.fromkeys(ABOUT, "another")) is error

    expected = dict.fromkeys(ABOUT) if name in OF_SERVERS else ABOUT
    assert {each: getattr(error, each) for each in ABOUT} == expected


def operations_about() -> Iterator[Any]:
    """Every public operation that is about a name, in each of the stores."""
    for kind in (
        FanoutOperations, CompactedOperations, EventOperations, OwnerOperations, RedisSessionOperations,
        PostgresSessionOperations, RouterOperations,
    ):  # fmt: skip
        for method, form in inspect.getmembers(kind, inspect.isgeneratorfunction):
            about = [each for each in ABOUT if each in inspect.signature(form).parameters]
            if about and not method.startswith("_"):
                yield pytest.param(form, about, id=f"{kind.__name__}.{method}")


class Refusing:
    """Operations, or what they are given, whose every use is refused."""

    def __getattr__(self, name: str) -> Any:
        raise NotOwner("another store has it")

    def __iter__(self) -> Any:
        raise NotOwner("another store has it")

    __len__ = __iter__


@pytest.mark.parametrize(("form", "about"), [*operations_about()])
def test_error_of_an_operation_says_whom_it_was_about(form: Any, about: list[str]) -> None:
    given = {each: ABOUT[each] for each in about}
    needed = [each for each in inspect.signature(form).parameters.values() if each.default is each.empty]
    others = {each.name: Refusing() for each in needed[1:] if each.name not in given}

    operation = form(Refusing(), **given, **others)
    with pytest.raises(QueuekeeperError) as caught:
        # Whatever it asks is refused.
        [operation.throw(NotOwner("another store has it")) for _ in operation]

    assert {each: getattr(caught.value, each) for each in about} == given


def test_error_that_has_ended_the_saves_of_many_sessions_names_in_each_report_whose_it_is() -> None:
    failed, away = NotOwner("these are the other store's"), ServerUnavailable("it is away")

    reports = [SaveReport(client_id=name, error=failed) for name in ("meter-7", "meter-8")]
    lost = [SaveReport(client_id=name, error=away) for name in ("meter-7", "meter-8")]

    assert [report.error and report.error.client_id for report in reports] == ["meter-7", "meter-8"]
    assert [report.error and report.error.client_id for report in lost] == [None, None]


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


def test_copy_of_an_error_whose_class_wants_more_than_a_text_says_all_that_it_says() -> None:
    # Another process gets it in the same form.
    error = NotPublished([NewEvent(topic="order.paid", payload=7)], ValueError("no room")).about(group_id="billing")
    for again in (copy.copy(error), copy.deepcopy(error)):
        assert type(again) is NotPublished
        assert (str(again), again.events, again.group_id) == (str(error), error.events, "billing")

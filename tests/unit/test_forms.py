"""Blocking and asyncio stores are two forms of the same operations: they send the same steps and answer the same.

That is why the conformance lane plays a contract with one form for each kind of server, and with the other at night.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from queuekeeper import sessions
from queuekeeper.compacted import AsyncCompactedQueues, CompactedQueues
from queuekeeper.errors import RefusedError, ServerUnavailable, UsageError
from queuekeeper.events import AsyncEventBroker, EventBroker
from queuekeeper.fanout import AsyncFanoutQueues, FanoutQueues
from queuekeeper.operation import Operation, awaited, blocking
from queuekeeper.sessions.owners import AsyncOwnerStore, OwnerStore

PAIRS: list[tuple[type, type]] = [
    (sessions.RedisSessionStore, sessions.AsyncRedisSessionStore),
    (sessions.PostgresSessionStore, sessions.AsyncPostgresSessionStore),
    (sessions.SessionRouter, sessions.AsyncSessionRouter),
    (OwnerStore, AsyncOwnerStore),
    (FanoutQueues, AsyncFanoutQueues),
    (CompactedQueues, AsyncCompactedQueues),
    (EventBroker, AsyncEventBroker),
]


def forms(store: type) -> dict[str, Any]:
    """Return the operation that each method of a store carries out."""
    methods = {name: getattr(store, name) for name in dir(store) if not name.startswith("_")}
    return {name: method.__wrapped__ for name, method in methods.items() if hasattr(method, "__wrapped__")}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_both_forms_of_a_store_carry_out_the_same_operation_under_the_same_name(pair: tuple[type, type]) -> None:
    blocked, awaiting = map(forms, pair)

    both = blocked.keys() & awaiting.keys()
    assert len(both) > 3
    assert {name: blocked[name] for name in both} == {name: awaiting[name] for name in both}
    for found in (blocked, awaiting):
        assert {name: form.__name__ for name, form in found.items()} == {name: name for name in found}


class Operations:
    """Operations with every kind of step: answered, failed and mended, failed for good, and none at all."""

    def adds(self, count: int) -> Operation[list[Any]]:
        answers = [(yield "first")]
        for number in range(count):
            answers += [(yield number)]
        return answers

    def mends(self, count: int) -> Operation[list[Any]]:
        answers = []
        for number in range(count):
            try:
                answers.append((yield number))
            except ServerUnavailable as error:
                answers.append((yield f"mend {error}"))
        return answers

    def renames(self, count: int) -> Operation[None]:
        try:
            yield count
        except ServerUnavailable as error:
            raise RefusedError(f"refused: {error}") from error


class Answers:
    """Answers steps, and notes them; every third is a failure."""

    def __init__(self) -> None:
        self.operations = Operations()
        self.steps: list[Any] = []

    def answered(self, step: Any) -> Any:
        self.steps.append(step)
        if len(self.steps) % 3 == 0:
            raise ServerUnavailable(f"no answer to {step}")
        return ("answer", step)


class Blocking(Answers):
    answer = Answers.answered
    adds, mends, renames = blocking(Operations.adds), blocking(Operations.mends), blocking(Operations.renames)


class Awaiting(Answers):
    async def answer(self, step: Any) -> Any:
        return self.answered(step)

    adds, mends, renames = awaited(Operations.adds), awaited(Operations.mends), awaited(Operations.renames)


def outcomes(store: Any, name: str, *arguments: Any, skipped: int) -> Iterator[Any]:
    """Yield what a call comes to, and the steps that it has sent."""
    store.steps = [None] * skipped
    try:
        result = getattr(store, name)(*arguments)
        yield asyncio.run(result) if asyncio.iscoroutine(result) else result
    except (ServerUnavailable, RefusedError, UsageError) as error:
        yield type(error), str(error)
    yield store.steps[skipped:]


@pytest.mark.parametrize("skipped", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "arguments"), [("adds", (0,)), ("adds", (1,)), ("adds", (4,)), ("mends", (7,)), ("renames", (1,)),
                            ("mends", ("many",)), ("adds", (None,))],
)  # fmt: skip
def test_both_forms_send_the_same_steps_and_come_to_the_same_end(
    name: str, arguments: tuple[Any, ...], skipped: int
) -> None:
    blocked = list(outcomes(Blocking(), name, *arguments, skipped=skipped))

    assert list(outcomes(Awaiting(), name, *arguments, skipped=skipped)) == blocked
    if isinstance(arguments[0], int):
        assert len(blocked[1]) >= min(arguments[0], 1)
    else:
        assert (blocked[0][0], blocked[1]) == (UsageError, [])

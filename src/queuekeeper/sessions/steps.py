"""Steps of operations in Redis, whatever the layout of the keys: each is a list of calls, answered by their replies."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from queuekeeper import lua
from queuekeeper.errors import QueuekeeperError
from queuekeeper.operation import Operation

SESSIONS_PER_STEP = 1_000

HMGET = lua.reading("HMGET")

T = TypeVar("T")

Step: TypeAlias = list[lua.Call]
Reply: TypeAlias = Any
Steps: TypeAlias = Generator[Step, Sequence[Reply], T]


def ask(call: lua.Call) -> Steps[Reply]:
    """Return the reply of one call by the names of its header, or raise its error."""
    return call.script.read(checked((yield [call])[0]))


def checked(reply: Reply) -> Reply:
    """Return a reply; raise it when it is an error."""
    if isinstance(reply, QueuekeeperError):
        raise reply
    return reply


def runs_of(numbers: Sequence[int]) -> list[list[int]]:
    """Return the first and last number of each run of successive numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def write_runs(ids: Sequence[int]) -> str:
    """Return packet ids as text such as ``17-40,42``."""
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs_of(ids))


def read_runs(text: bytes) -> list[int]:
    """Return the numbers in a text that :func:`write_runs` or a script wrote."""
    ids: list[int] = []
    for run in text.decode().split(",") if text else ():
        first, _, last = run.partition("-")
        ids += range(int(first), int(last or first) + 1)
    return ids


def together(branches: Iterator[Steps[None]]) -> Operation[None]:
    """Run operations concurrently: calls that they make at the same time share a step.

    A step that fails as a whole fails for each of them.
    """
    waiting: list[tuple[Steps[None], Step]] = []
    going = True
    while going or waiting:
        while going and len(waiting) < SESSIONS_PER_STEP:
            branch = next(branches, None)
            if branch is None:
                going = False
                break
            try:
                waiting.append((branch, next(branch)))
            except StopIteration:
                continue
        if not waiting:
            return
        step = [call for _, calls in waiting for call in calls]
        replies: Sequence[Reply]
        try:
            replies = yield step
        except QueuekeeperError as error:
            replies = [error] * len(step)
        asked: list[tuple[Steps[None], Step]] = []
        at = 0
        for branch, calls in waiting:
            end = at + len(calls)
            with suppress(StopIteration):
                asked.append((branch, branch.send(part_of(replies, at, end))))
            at = end
        waiting = asked


def part_of(replies: Sequence[Reply], start: int, end: int) -> Sequence[Reply]:
    """Return some replies of a step, with what is known of their replicas."""
    part = replies[start:end]
    if isinstance(replies, lua.Replies) and replies.replicated[start] is not None:
        answered = lua.Replies(end - start)
        answered[:] = part
        answered.replicated = replies.replicated[start:end]
        return answered
    return part

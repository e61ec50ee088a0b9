"""Blocking and asyncio callers behind one face, so that one test says what both do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from queuekeeper import lua, redis_async, redis_client
from queuekeeper.lua import Call, Replies, Script, ScriptCaller, Value
from tests.patience import PATIENCE_S

HEADER = """#!lua{flags}
--[[
Purpose
    {purpose}
KEYS
    [1] list  what is appended to
    [2+] others  what is only declared
ARGV
    [1] text  what to append
Returns
    length
Errors
    MOVED_ON  the text is "refuse"
Cost
    O(1)
]]
"""

APPEND = """
if ARGV[1] == 'refuse' then
    return redis.error_reply('MOVED_ON refused')
end
return redis.call('RPUSH', KEYS[1], ARGV[1])"""


def script(folder: Path, name: str, body: str, *, flags: str = "") -> Script:
    """Return a script with this body."""
    (folder / f"{name}.lua").write_text(f"{HEADER.format(purpose=name, flags=flags)}{body}\n", "utf-8")
    return lua.load_from(folder, name)


class Caller(Protocol):
    """What both callers do."""

    def call(self, wanted: Script, keys: Sequence[Value] = (), args: Sequence[Value] = ()) -> Any: ...

    def execute(self, calls: Sequence[Call]) -> Replies: ...

    def await_wake(self, key: str, *, timeout_s: float) -> bool: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class BlockingCaller:
    """``ScriptCaller`` with a client of its own."""

    def __init__(self, url: str, **options: Any) -> None:
        self._client = redis_client.connect(url)
        self._caller = ScriptCaller(self._client, **options)
        self.call = self._caller.call
        self.execute = self._caller.execute
        self.await_wake = self._caller.await_wake

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


class AwaitedCaller:
    """``AsyncScriptCaller`` with an event loop that runs while somebody waits."""

    def __init__(self, url: str, **options: Any) -> None:
        async def opened() -> redis_async.AsyncScriptCaller:
            return await redis_async.connect(url, **options)

        self._runner = asyncio.Runner()
        try:
            self._caller = self._runner.run(opened())
        except BaseException:
            self._runner.close()
            raise

    def call(self, wanted: Script, keys: Sequence[Value] = (), args: Sequence[Value] = ()) -> Any:
        async def called() -> Any:
            # What happened to the connection meanwhile is seen first.
            await asyncio.sleep(0.01)
            return await self._caller.call(wanted, keys, args)

        return self._runner.run(called())

    def execute(self, calls: Sequence[Call]) -> Replies:
        async def executed() -> Replies:
            await asyncio.sleep(0.01)
            return await self._caller.execute(calls)

        return self._runner.run(executed())

    def await_wake(self, key: str, *, timeout_s: float) -> bool:
        return self._runner.run(self._caller.await_wake(key, timeout_s=timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._caller.close())
        self._runner.close()


def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)

"""Writes down each step of a process: what was asked of a server, what came back, and when; a line of JSON for each.

A process records itself, for as long as it lives: its classes are changed, so none but processes of a test's own do it.
A question is written before it is asked, so that what a killed process has asked is known, too.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from queuekeeper.errors import ServerUnavailable
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.sessions.owners import AsyncOwnerStore, Ownership, OwnerStore
from queuekeeper.sessions.postgres_store import AsyncPostgresSessionStore
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore, RedisSessionStore
from queuekeeper.sessions.reports import PendingMessage, PendingPage
from queuekeeper.sessions.router import AsyncSessionRouter, SessionRouter
from queuekeeper.sessions.router.steps import AtPostgres, AtRedis
from queuekeeper.sessions.snapshot import Outbox, SessionSnapshot

LOST = "lost"
"""Error of a question whose answer has not come, because a server was lost."""


class Recorder:
    """The file of one process."""

    def __init__(self, folder: Path, by: str) -> None:
        self._file = (folder / f"steps-{by}-{os.getpid()}.jsonl").open("ab", buffering=0)
        self._numbers = count(1)

    def asked(self, what: str, **facts: Any) -> int:
        """Write a question down; return its number."""
        number = next(self._numbers)
        self._write({"number": number, "at_s": time.monotonic(), "asked": what} | facts)
        return number

    def told(self, number: int, reply: Any) -> None:
        """Write down what came back."""
        self._write({"number": number, "at_s": time.monotonic(), "told": _plain(reply)})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(orjson.dumps(line) + b"\n")

    def watch(
        self,
        kind: type[Any],
        name: str,
        asked: Callable[..., tuple[str, dict[str, Any]] | None],
        read: Callable[..., Any] = lambda reply, *_, **__: reply,
    ) -> None:
        """Write down each call of a method.

        :param asked: given what the method is given, returns what is asked; none for what nobody wants to know.
        :param read: given the reply and what the method was given, returns what is written down of it.
        """
        method = getattr(kind, name)
        is_awaited = inspect.iscoroutinefunction(method)

        @wraps(method)
        def called(store: Any, *args: Any, **kwargs: Any) -> Any:
            wanted = asked(store, *args, **kwargs)
            if wanted is None:
                return method(store, *args, **kwargs)
            number = self.asked(wanted[0], **wanted[1])
            try:
                reply = method(store, *args, **kwargs)
            except Exception as error:
                self.told(number, error)
                raise
            self.told(number, read(reply, *args, **kwargs))
            return reply

        @wraps(method)
        async def awaited(store: Any, *args: Any, **kwargs: Any) -> Any:
            wanted = asked(store, *args, **kwargs)
            if wanted is None:
                return await method(store, *args, **kwargs)
            number = self.asked(wanted[0], **wanted[1])
            try:
                reply = await method(store, *args, **kwargs)
            except Exception as error:
                self.told(number, error)
                raise
            self.told(number, read(reply, *args, **kwargs))
            return reply

        setattr(kind, name, awaited if is_awaited else called)


def record_end(folder: Path, pid: int) -> None:
    """Write down that the server has carried out by now what a killed process has asked for, or never will."""
    for path in folder.glob(f"steps-*-{pid}.jsonl"):
        with path.open("ab", buffering=0) as file:
            file.write(orjson.dumps({"over_s": time.monotonic()}) + b"\n")


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all that processes have written into a file, in order."""
    with path.open("rb") as file:
        for line in file:
            yield orjson.loads(line)


def _plain(reply: Any) -> Any:
    """Return a reply as JSON has it, as far as a trace needs it."""
    match reply:
        case ServerUnavailable():
            return {"error": LOST}
        case Exception():
            return {"error": type(reply).__name__}
        case Ownership():
            return [reply.owner, reply.epoch, reply.fenced_until_ms is not None, reply.mirrored]
        case SessionSnapshot():
            return [_message(each) for each in reply.messages]
        case (SessionSnapshot() as snapshot, _):
            return _plain(snapshot)
        case PendingPage():
            return {"all": not reply.more, "messages": [_message(each) for each in reply.messages]}
        case Outbox():
            return [] if reply.serials is None else [list(reply.serials)]
        case tuple() if hasattr(reply, "_asdict"):
            return _plain(reply._asdict())
        case tuple():
            return [_plain(each) for each in reply]
        case dict():
            return {key: _plain(value) for key, value in reply.items()}
        case bytes():
            return reply.decode("utf-8", "replace")
        case bool() | int() | str() | None:
            return reply
        case list():
            return [_plain(each) for each in reply]
    return str(reply)


def _message(one: PendingMessage) -> list[int | None]:
    """Return serial and number of a message; a released one has no content, and so no number."""
    return [one.serial, int(one.payload.split()[0]) if one.payload else None]


def record_driver(folder: Path) -> None:
    """Record what this process, a driver or a mirror, does to each client."""
    recorder = Recorder(folder, "driver")

    def about_client(what: str, _: Any, client_id: str, *args: Any, **facts: Any) -> tuple[str, dict[str, Any]]:
        chosen = {
            name: facts[name] for name in ("epoch", "owner", "to", "mirrored", "version", "driver") if name in facts
        }
        return what, {"client_id": client_id, "is_part": facts.get("serials") is not None} | chosen

    def about_clients(_: Any, client_ids: Sequence[str], **__: Any) -> tuple[str, dict[str, Any]]:
        return "look", {"client_ids": list(client_ids)}

    def about_cohorts(_: Any, __: str, cohorts: Sequence[int]) -> tuple[str, dict[str, Any]]:
        return "take", {"cohorts": list(cohorts)}

    def of_owners(_: Any, calls: Sequence[Any]) -> tuple[str, dict[str, Any]] | None:
        told = [_call(each) for each in calls if each.script.name.endswith("/set_owner")]
        return ("told", {"calls": told}) if told else None

    for kind in (AsyncOwnerStore, OwnerStore):
        recorder.watch(kind, "look_up", about_clients)
        for name in ("fence", "unfence", "flip", "hold", "end_mirror"):
            recorder.watch(kind, name, partial(about_client, name))
    recorder.watch(AsyncPostgresSessionStore, "read_snapshot", partial(about_client, "read_rows"))
    recorder.watch(AsyncPostgresSessionStore, "apply_snapshot", partial(about_client, "write_rows"))
    for name in ("set_owner", "read_snapshot", "read_copy", "apply_snapshot", "read_outbox", "trim_outbox"):
        recorder.watch(AsyncRedisSessionStore, name, partial(about_client, name))
    recorder.watch(RedisSessionStore, "answer", of_owners)
    recorder.watch(OnlineCohorts, "take", about_cohorts)


def record_router(folder: Path, by: str) -> None:
    """Record what the routers of this process, a broker, ask and are told."""
    recorder = Recorder(folder, by)

    def about_step(router: Any, step: Any) -> tuple[str, dict[str, Any]] | None:
        known = router.operations._known
        if type(step) is AtRedis:
            calls = [_call(each) for each in step.calls]
            return "redis", {"calls": [call | {"claimed": known.epoch_of(call["client_id"])} for call in calls]}
        if type(step) is AtPostgres:
            queries = step.step.queries
            clients = {each for query in queries for each in _clients(query.parameters)}
            return "postgres", {
                "operation": id(step.operation),
                "queries": [query.name for query in queries],
                "ends": step.step.end,
                "undoes": step.step.undo,
                "claimed": {each: known.epoch_of(each) for each in clients},
            }
        return None

    def about_page(_: Any, client_id: str, *, after_serial: int, **__: Any) -> tuple[str, dict[str, Any]] | None:
        return ("fetch", {"client_id": client_id}) if after_serial < 0 else None

    for kind in (SessionRouter, AsyncSessionRouter):
        recorder.watch(kind, "answer", about_step)
        recorder.watch(kind, "fetch_pending", about_page)


def record_scripts(folder: Path, by: str, *kinds: type[Any]) -> Recorder:
    """Record each script that the stores of this process call, and its reply, by the names in the script's header.

    :param kinds: classes of stores whose steps are lists of calls.
    :returns: what records them.
    """
    recorder = Recorder(folder, by)

    def about_calls(_: Any, step: Any) -> tuple[str, dict[str, Any]] | None:
        return ("calls", {"calls": [_named(each) for each in step]}) if isinstance(step, list) else None

    def read(replies: Any, step: Sequence[Any]) -> list[Any]:
        return [
            reply if isinstance(reply, Exception) else call.script.read(reply)
            for call, reply in zip(step, replies, strict=True)
        ]

    for kind in kinds:
        recorder.watch(kind, "answer", about_calls, read)
    return recorder


def _named(call: Any) -> dict[str, Any]:
    """Return what a call of a script is, with its arguments by their names; the last one may take the rest."""
    found: dict[str, Any] = {"script": call.script.name.rpartition("/")[2], "of": _plain(call.client_id)}
    found["keys"] = _plain(list(call.keys))
    for place, parameter in enumerate(call.script.args):
        found[parameter.name] = _plain(list(call.args[place:]) if parameter.repeats else call.args[place])
    return found


def _call(call: Any) -> dict[str, Any]:
    """Return what a call of a script is, and for which client."""
    # The tag of its keys, without braces.
    found: dict[str, Any] = {
        "script": call.script.name.rpartition("/")[2],
        "client_id": call.client_id.decode("utf-8")[1:-1],
    }
    if found["script"] == "set_owner":
        epoch, owner, mirror = (each.decode() if isinstance(each, bytes) else each for each in call.args)
        found |= {"epoch": int(epoch), "owner": owner, "mirrored": int(mirror) == 1}
    return found


def _clients(parameters: Any) -> Iterator[str]:
    if "client_id" in parameters:
        yield parameters["client_id"]
    yield from parameters.get("client_ids", ())

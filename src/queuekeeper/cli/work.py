"""``fanout work``, ``events work`` and ``compacted work``: run handlers of your own, in processes and threads."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from queuekeeper import compacted, events, fanout
from queuekeeper.cli import context
from queuekeeper.cli.command import Call, OutOfPostgres
from queuekeeper.errors import UsageError
from queuekeeper.fanout.model import DEFAULT_WORKERS, MAX_CLAIM
from queuekeeper.service.app import App, Service, run_together, stop_all
from queuekeeper.service.blocking import LoopPool
from queuekeeper.service.handlers import handler_of
from queuekeeper.service.processes import Processes, end_with_parent, is_worker, load

A = TypeVar("A", bound=App)
Queues = TypeVar("Queues")
Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:NAME", help="Function that handles a message, such as billing:bill, or an app of several."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, max=MAX_CLAIM, help=f"Messages that one process handles at once; {DEFAULT_WORKERS} by default."
    ),
]
ProcessCount = Annotated[int, typer.Option("--processes", min=1, max=64, help="Number of processes.")]
Reload = Annotated[
    bool, typer.Option("--reload", help="Start the processes anew when a Python file of the current folder changes.")
]


class OutOfRedis(Call):
    """A call of a command that works on Redis until it is stopped."""

    takes = ("key_prefix", "redis_url")


def fanout_work(
    call: OutOfRedis,
    target: Target,
    queue: Annotated[str | None, typer.Argument(metavar="QUEUE")] = None,
    consumer: Annotated[str | None, typer.Argument(metavar="CONSUMER")] = None,
    *,
    workers: Workers = None,
    processes: ProcessCount = 1,
    reload: Reload = False,
) -> None:
    """Run a handler on the messages of a consumer.

    It works until SIGTERM or Ctrl-C; handlers at work are finished first. Handlers of an app work on the messages of
    several consumers. A process that dies is replaced. A coroutine function runs in an event loop.

    Example: `queuekeeper fanout work billing:bill orders billing --processes 2`

    :param queue: Name of the queue; without an app.
    :param consumer: Name of the consumer; registered if it is new.
    """
    app = _app(target, fanout.App, {"QUEUE": queue, "CONSUMER": consumer}, {"--workers": workers})
    if app is None:
        app = fanout.App(rules=fanout.WorkRules() if workers is None else fanout.WorkRules(workers=workers))
        app.handler(queue or "", consumer=consumer or "")(load(target))

    async def serve() -> None:
        async with _opened(call, fanout.AsyncFanoutQueues) as queues:
            await _serve(app.services(fanout.FanoutQueues(call.client, prefix=call.key_prefix), queues))

    _run(app, serve, processes=processes, reload=reload)


def events_work(
    call: OutOfPostgres,
    target: Target,
    group: Annotated[str | None, typer.Argument(metavar="GROUP")] = None,
    *,
    topics: Annotated[list[str] | None, typer.Option("--topic")] = None,
    retry: Annotated[list[float] | None, typer.Option(metavar="SECONDS")] = None,
    processes: ProcessCount = 1,
    reload: Reload = False,
) -> None:
    """Run a handler, or an app's handlers, on a group's events.

    It works until SIGTERM or Ctrl-C. Of several processes one reads, and another goes on where it stopped. A handler
    works on one delivery at a time; the handlers of an app work at once, in threads (`events.App(threads=8)`).

    Example: `queuekeeper events work billing:bill billing --topic order.paid --retry 1 --retry 10`

    :param group: Name of the consumer group; without an app.
    :param topics: Topic to handle; may be repeated. Without it, all topics.
    :param retry: Pause before a retry, one per retry; after the last failure events become dead letters. Without it,
        the order is kept and a delivery comes again until it is done. A handler made by events.handler has its own.
    """
    app = _app(target, events.App, {"GROUP": group}, {"--topic": topics, "--retry": retry})
    if app is None:
        app = events.App(group_id=group or "")
        interest = events.Interest.topics(*topics) if topics else None
        app.handler(name=target.partition(":")[2], interest=interest, retries_s=retry)(load(target))

    async def serve() -> None:
        await _serve(await app.services(context.postgres_address(call.postgres_url)))

    _run(app, serve, processes=processes, reload=reload)


def compacted_work(
    call: OutOfRedis,
    target: Target,
    client_id: Annotated[str | None, typer.Argument(metavar="CLIENT_ID")] = None,
    *,
    processes: ProcessCount = 1,
    reload: Reload = False,
) -> None:
    """Run a handler on the messages of a queue, in order.

    It works until SIGTERM or Ctrl-C. Handlers of an app work on the messages of several queues at once, each in a
    thread of its own, or in the event loop if they are coroutine functions.

    A message that the handler fails on comes again, after a pause that grows. While another consumer holds the queue,
    it waits: of several processes one works, and another goes on where it stopped.

    Example: `queuekeeper compacted work display:show meter-7 --processes 2`

    :param client_id: Client whose queue it is; without an app.
    """
    app = _app(target, compacted.App, {"CLIENT_ID": client_id}, {})
    if app is None:
        app = compacted.App()
        app.handler(client_id or "")(load(target))

    async def serve() -> None:
        async with _opened(call, compacted.AsyncCompactedQueues) as queues:
            await _serve(app.services(queues))

    _run(app, serve, processes=processes, reload=reload)


def _app(target: str, kind: type[A], place: dict[str, str | None], options: dict[str, Any]) -> A | None:
    """Return the app that is named, or none for a function, which has its place in the command.

    :param place: arguments that say where a function works; an app says it itself.
    :param options: of a function, by their names; an app has its own.
    """
    found = load(target)
    if not isinstance(found, App):
        handler_of(kind.kind, found, name=target)
        if missing := [name for name, value in place.items() if value is None]:
            raise UsageError(f"{target} is a function: say where it works, by {' and '.join(missing)}")
        return None
    if not isinstance(found, kind):
        raise UsageError(f"{target} is an app of {found.kind.of}: run it by `{found.kind.store} work`")
    if given := [name for name, value in (place | options).items() if value]:
        raise UsageError(f"{target} is an app, which says that itself: leave out {', '.join(given)}")
    return found


@asynccontextmanager
async def _opened(call: OutOfRedis, queues: Callable[..., Queues]) -> AsyncIterator[Queues]:
    from queuekeeper.redis_async import connect

    async with connect(context.redis_address(call.redis_url)) as caller:
        yield queues(caller, prefix=call.key_prefix)


def _run(app: App, serve: Callable[[], Coroutine[Any, Any, None]], *, processes: int, reload: bool) -> None:
    """Serve an app, in this process or in several."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(process)d %(message)s")
    # What is wrong with it is told before anything starts.
    app.check()
    if is_worker() or (processes == 1 and not reload):
        asyncio.run(serve())
        return
    command = [sys.executable, "-m", "queuekeeper", *sys.argv[1:]]
    code = Processes(command, count=processes, watched=[Path.cwd()] if reload else []).run()
    if code:
        raise typer.Exit(code)


async def _serve(services: Sequence[Service]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(LoopPool())
    if is_worker():
        end_with_parent(lambda: loop.call_soon_threadsafe(stop_all, services))
    await run_together(services)

"""``fanout work``, ``events work`` and ``compacted work``: run handlers of your own, in processes and threads."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from queuekeeper import compacted, events, fanout
from queuekeeper.cli import context
from queuekeeper.cli.command import Call, OutOfPostgres
from queuekeeper.operation import is_coroutine_function
from queuekeeper.redis_async import connect
from queuekeeper.service.aio import AsyncService
from queuekeeper.service.blocking import BlockingService
from queuekeeper.service.handlers import Handler, handler_of
from queuekeeper.service.processes import Processes, end_with_parent, is_worker, load

Queues = TypeVar("Queues")
Target = Annotated[
    str, typer.Argument(metavar="MODULE:NAME", help="Function that handles a message, such as billing:bill.")
]
Workers = Annotated[int, typer.Option(min=1, max=1_000, help="Messages that one process handles at once.")]
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
    queue: Annotated[str, typer.Argument(metavar="QUEUE")],
    consumer: Annotated[str, typer.Argument(metavar="CONSUMER")],
    *,
    workers: Workers = 8,
    processes: ProcessCount = 1,
    reload: Reload = False,
) -> None:
    """Run a handler on a consumer's messages until SIGTERM or Ctrl-C.

    Handlers at work are finished first. A process that dies is replaced. A coroutine function runs in an event loop.

    Example: `queuekeeper fanout work billing:bill orders billing --processes 2`

    :param queue: Name of the queue.
    :param consumer: Name of the consumer; registered if it is new.
    """
    rules = fanout.WorkRules(workers=workers)

    def in_threads(handler: Any) -> None:
        queues = fanout.FanoutQueues(call.client, prefix=call.key_prefix)
        _serve(fanout.FanoutConsumer(queues, queue, handler, consumer=consumer, rules=rules))

    async def in_a_loop(handler: Any) -> None:
        async with _opened(call, fanout.AsyncFanoutQueues) as queues:
            await _serve_async(fanout.AsyncFanoutConsumer(queues, queue, handler, consumer=consumer, rules=rules))

    _run(target, fanout.Handler, in_threads, in_a_loop, processes=processes, reload=reload)


def events_work(
    call: OutOfPostgres,
    target: Target,
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    *,
    topics: Annotated[list[str] | None, typer.Option("--topic")] = None,
    retry: Annotated[list[float] | None, typer.Option(metavar="SECONDS")] = None,
    processes: ProcessCount = 1,
    reload: Reload = False,
) -> None:
    """Run a handler on a group's events until SIGTERM or Ctrl-C.

    Of several processes one reads, and another goes on where it stopped.

    Example: `queuekeeper events work billing:bill billing --topic order.paid --retry 1 --retry 10`

    :param group: Name of the consumer group.
    :param topics: Topic to handle; may be repeated. Without it, all topics.
    :param retry: Pause before a retry, one per retry; after the last failure events become dead letters. Without it,
        the order is kept and a delivery comes again until it is done. A handler made by events.handler has its own.
    """
    name, interest = target.partition(":")[2], events.Interest.topics(*topics) if topics else events.Interest()

    def in_threads(handler: Any) -> None:
        consumer = events.EventConsumer(context.postgres_address(call.postgres_url), group_id=group)
        consumer.handle(handler, name=name, interest=interest, retries_s=retry)
        _serve(consumer)

    async def in_a_loop(handler: Any) -> None:
        consumer = events.AsyncEventConsumer(context.postgres_address(call.postgres_url), group_id=group)
        await consumer.handle(handler, name=name, interest=interest, retries_s=retry)
        await _serve_async(consumer)

    _run(target, events.Handler, in_threads, in_a_loop, processes=processes, reload=reload)


def compacted_work(
    call: OutOfRedis,
    target: Target,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT_ID")],
    *,
    processes: ProcessCount = 1,
    reload: Reload = False,
) -> None:
    """Run a handler on the messages of a compacted queue, in order.

    It works until SIGTERM or Ctrl-C.

    A message that the handler fails on comes again, after a pause that grows. While another consumer holds the queue,
    it waits: of several processes one works, and another goes on where it stopped.

    Example: `queuekeeper compacted work display:show meter-7 --processes 2`

    :param client_id: Client whose queue it is.
    """

    async def in_a_loop(handler: Any) -> None:
        async with _opened(call, compacted.AsyncCompactedQueues) as queues:
            await _serve_async(compacted.CompactedWorker(queues, client_id, handler))

    _run(target, compacted.Handler, None, in_a_loop, processes=processes, reload=reload)


@asynccontextmanager
async def _opened(call: OutOfRedis, queues: Callable[..., Queues]) -> AsyncIterator[Queues]:
    async with connect(context.redis_address(call.redis_url)) as caller:
        yield queues(caller, prefix=call.key_prefix)


def _run(
    target: str,
    kind: type[Handler[Any]],
    in_threads: Callable[[Any], None] | None,
    in_a_loop: Callable[[Any], Coroutine[Any, Any, None]],
    *,
    processes: int,
    reload: bool,
) -> None:
    """Serve a handler, in this process or in several.

    :param kind: of handlers with rules; those of another store are refused, as their rules would not count.
    :param in_threads: serves one that is no coroutine function; without it, the loop serves any.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(process)d %(message)s")
    # A wrong name or handler is told before anything starts.
    handler = load(target)
    work = handler_of(kind, handler, name=target).work
    if is_worker() or (processes == 1 and not reload):
        if in_threads is None or is_coroutine_function(work):
            asyncio.run(in_a_loop(handler))
        else:
            in_threads(handler)
        return
    command = [sys.executable, "-m", "queuekeeper", *sys.argv[1:]]
    code = Processes(command, count=processes, watched=[Path.cwd()] if reload else []).run()
    if code:
        raise typer.Exit(code)


def _serve(service: BlockingService[Any]) -> None:
    if is_worker():
        end_with_parent(service.stop)
    service.run()


async def _serve_async(service: AsyncService[Any] | compacted.CompactedWorker) -> None:
    if is_worker():
        loop = asyncio.get_running_loop()
        end_with_parent(lambda: loop.call_soon_threadsafe(service.stop))
    await service.run()

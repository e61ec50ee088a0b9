"""Compare Redis clients under the same store, callers and server: what is left to choose is what carries script calls.

``python benchmarks/drivers.py --rounds 5 --seconds 1``

Each driver carries the calls of the asyncio store, a batch of them as one pipeline; the ways take turns within a round:

ours           queuekeeper.redis_async
redis.asyncio  redis-py's pipelines, over its pool
coredis        its pipelines
glide          valkey-glide's batches

``writer`` and ``overlap`` are those of ``benchmarks/online.py``. Ratios to ours are formed within a round. A driver
that is not installed is named and left out: ``pip install --target FOLDER coredis valkey-glide``, and put the folder
into ``PYTHONPATH`` for this alone, since nothing of the product needs them.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import bench
import online
import redis.asyncio
from online import Client, Meet, Part, Sample, Stand, Work, as_batches, through_a_writer
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from rich.console import Console

from queuekeeper import lua, redis_async
from queuekeeper.embedded import PostgresServer
from queuekeeper.errors import ServerUnavailable
from queuekeeper.lua.call import as_ours
from queuekeeper.redis_async import AsyncScriptCaller

Exchange = Callable[[list[tuple[Any, ...]]], Awaitable[Sequence[Any]]]
"""Sends commands as one pipeline and returns the replies; an error stands in its reply's place."""

PACKAGES = {"ours": "hiredis", "redis.asyncio": "redis", "coredis": "coredis", "glide": "glide"}
BATCHES_UNDER_WAY = 2


class Carrier:
    """As much of a caller as a store needs, on a driver: no order, no retries, no replicas."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._loaded: set[str] = set()

    async def execute(self, calls: Sequence[lua.Call]) -> lua.Replies:
        """Send the calls of a step."""
        new = {call.script.sha1: call.script for call in calls if call.script.sha1 not in self._loaded}
        if new:
            await self._exchange([("SCRIPT", "LOAD", script.source) for script in new.values()])
            self._loaded.update(new)
        replies = lua.Replies(len(calls))
        try:
            answers = await self._exchange([call.command for call in calls])
        except Exception as error:
            answers = [ServerUnavailable(f"{type(error).__name__}: {error}")] * len(calls)
        for at, (call, answer) in enumerate(zip(calls, answers, strict=True)):
            replies[at] = as_ours(answer, call.script, "the server") if isinstance(answer, Exception) else answer
        return replies


@asynccontextmanager
async def by_redis_py(url: str) -> AsyncIterator[Carrier]:
    """Carry calls by redis-py; without its retries, which store what was stored before once more."""
    async with redis.asyncio.Redis.from_url(url, retry=Retry(NoBackoff(), 0)) as client:

        async def exchange(commands: list[tuple[Any, ...]]) -> Sequence[Any]:
            async with client.pipeline(transaction=False) as pipeline:
                for words in commands:
                    pipeline.execute_command(*words)
                return cast(Sequence[Any], await pipeline.execute(raise_on_error=False))

        yield Carrier(exchange)


@asynccontextmanager
async def by_coredis(url: str) -> AsyncIterator[Carrier]:
    """Carry calls by coredis, without its retries."""
    coredis: Any = importlib.import_module("coredis")
    none = importlib.import_module("coredis.retry").NoRetryPolicy()
    async with coredis.Redis.from_url(url, decode_responses=False, retry_policy=none) as client:

        async def exchange(commands: list[tuple[Any, ...]]) -> Sequence[Any]:
            async with client.pipeline(transaction=False, raise_on_error=False) as pipeline:
                replies = [
                    pipeline.script_load(words[2])
                    if words[0] == "SCRIPT"
                    else pipeline.evalsha(words[1], keys=words[3 : 3 + words[2]], args=words[3 + words[2] :])
                    for words in commands
                ]
            return [await reply for reply in replies]

        yield Carrier(exchange)


@asynccontextmanager
async def by_glide(url: str) -> AsyncIterator[Carrier]:
    """Carry calls by valkey-glide."""
    glide: Any = importlib.import_module("glide")
    address = urlsplit(url)
    client = await glide.GlideClient.create(
        glide.GlideClientConfiguration(
            [glide.NodeAddress(address.hostname, address.port)],
            credentials=glide.ServerCredentials(password=address.password),
            protocol=glide.ProtocolVersion.RESP2,
            request_timeout=60_000,
        )
    )

    async def exchange(commands: list[tuple[Any, ...]]) -> Sequence[Any]:
        batch = glide.Batch(is_atomic=False)
        for words in commands:
            batch.custom_command([word if isinstance(word, bytes) else str(word) for word in words])
        return cast(Sequence[Any], await client.exec(batch, raise_on_error=False))

    try:
        yield Carrier(exchange)
    finally:
        await client.close()


CONNECTING: dict[str, Callable[[str], AbstractAsyncContextManager[Any]]] = {
    "ours": redis_async.connect,
    "redis.asyncio": by_redis_py,
    "coredis": by_coredis,
    "glide": by_glide,
}


def work_by(driver: str, kind: str, work: Work, meet: Meet) -> Part:
    """Do as ``writer`` or ``overlap`` of ``benchmarks/online.py`` does, by one driver."""
    connecting = cast(Callable[[str], AbstractAsyncContextManager[AsyncScriptCaller]], CONNECTING[driver])
    publishing = through_a_writer if kind == "writer" else as_batches
    done = asyncio.run(online.work_with_tasks(work, meet, publishing, connecting))
    return done if kind == "writer" else done._replace(messages=online.BATCH * done.messages)


class Case(NamedTuple):
    """What each driver does in a round."""

    kind: str
    publishers: int
    per_client: int


CASES = {
    "writer, 512 publishers": Case("writer", 512, 1),
    "overlap, 100 x 1": Case("overlap", BATCHES_UNDER_WAY, 1),
    "overlap, 10 x 10": Case("overlap", BATCHES_UNDER_WAY, 10),
}

# Client processes import this file, too.
for _driver in CONNECTING:
    for _kind in ("writer", "overlap"):
        online.WAYS_OF_WORKING[f"{_kind} by {_driver}"] = partial(work_by, _driver, _kind)


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure all drivers that are installed and return the result."""
    drivers = []
    for driver, package in PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            console.print(f"{driver} is left out: the package {package} is not installed")
        else:
            drivers.append(driver)
    with (
        bench.private_folder() as home,
        bench.private_redis(home, arguments.server, {"appendonly": "no"}) as server,
        ExitStack() as stack,
    ):
        with server.client() as client:
            about = bench.facts(None, client)
        stand = Stand(
            redis=server, postgres=PostgresServer(home / "postgres"), postgres_url="",
            clients=[stack.enter_context(Client())], sessions=2_000, seconds=arguments.seconds, messages=0, prepared={},
        )  # fmt: skip
        rounds = bench.in_turns(
            {
                f"{label}: {driver}": partial(
                    stand.measured, f"{case.kind} by {driver}", publishers=case.publishers,
                    payload_bytes=arguments.payload_bytes, per_client=case.per_client,
                )
                for label, case in CASES.items()
                for driver in drivers
            },
            rounds=arguments.rounds,
            console=console,
            told=lambda sample: f"{sample.messages_per_s:,.0f} messages/s",
        )  # fmt: skip
    return {"machine": about, "summary": summary(rounds), "rounds": bench.in_words(rounds)}


def client_us(sample: Sample) -> float:
    """Return the client's processor time per message."""
    assert sample.client_cpu_s is not None
    return 1e6 * sample.client_cpu_s / sample.messages


def summary(rounds: dict[str, list[Sample]]) -> dict[str, dict[str, float | None]]:
    """Return medians over the rounds, and of the ratios to ours within them."""
    found: dict[str, dict[str, float | None]] = {}
    for way, samples in rounds.items():
        ours = f"{way.partition(': ')[0]}: ours"
        found[way] = {
            "messages_per_s": round(statistics.median(map(online.speed, samples))),
            "client_us": round(statistics.median(map(client_us, samples)), 1),
            "server_us": round(statistics.median(map(online.server_us, samples)), 1),
            "speed_to_ours": online.ratio(rounds, way, ours, online.speed),
            "client_us_to_ours": online.ratio(rounds, way, ours, client_us),
        }
    return found


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the figures."""
    table = bench.table_of("Drivers", "way", "msgs/s", "client µs", "server µs", "speed to ours", "client µs to ours")
    for way, figures in result["summary"].items():
        table.add_row(way, *map(str, figures.values()))
    console.print(table)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and, where asked for, write the result."""
    parser = bench.options(__doc__, rounds=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each driver works each time")
    parser.add_argument("--payload-bytes", type=int, default=256)
    bench.add_server(parser)
    parser.add_argument("--json", type=Path, help="where to write the result; it is not written if absent")
    arguments = parser.parse_args(words)
    bench.refuse_less_than_one(parser, arguments.rounds, arguments.payload_bytes)
    if arguments.seconds <= 0:
        parser.error("--seconds must be more than 0")
    return bench.finish(partial(run, arguments), show, path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())

"""Replays out of both quarantines beside writers, while processes and Redis are killed: a message comes back once.

Each test counts: a mended message is in its session once, at its place or behind all that was there, and whatever else
was in the session is there as it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from queuekeeper import postgres
from queuekeeper.config import POSTGRES_VARIABLE, REDIS_VARIABLE
from queuekeeper.embedded import RedisServer
from queuekeeper.migration.ledger.ledger import QuarantinedRow
from queuekeeper.migration.ledger.parameters import Mode
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.reports import PendingMessage
from tests.chaos.session_load import Kind, Load, Session, in_order, is_packed, now_ms, read_all, redis_store
from tests.chaos.support import until
from tests.conformance.online_worlds import PLAN_ID, OnlineWorld
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.chaos

Victim: TypeAlias = Literal["command", "server"]
"""What is killed after a command that has put a message back and not noted it: the other command, or the server."""

CLIENTS = ("{brace} first", "смарт-😀", "device-1", "device-2")
COPIED = range(10, 200, 10)
AT_THEIR_PLACES = range(5, 190, 10)
GIVEN_TO_LATER_MESSAGES = range(191, 230, 5)
SET_ASIDE = range(1, 25)
FILLED = 40
"""Messages that are saved to each session before the replays, so that no mended message finds its place at the end."""


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    """A table of messages that wait for their way back, and the command that puts them back."""

    table: str
    command: tuple[str, ...]

    def open_rows(self, world: OnlineWorld) -> list[int]:
        """Return the numbers of rows that have not been noted as replayed."""
        rows = world.sql(f"SELECT quarantine_id FROM queuekeeper.{self.table} WHERE status = 'open' ORDER BY 1")
        return [number for (number,) in rows]

    @contextmanager
    def held(self, world: OnlineWorld, number: int) -> Iterator[Callable[[], list[int]]]:
        """Let nobody note a row as replayed; give a function that tells which backends wait for that."""
        with postgres.connect(world.postgres_url) as connection:
            row = f"SELECT FROM queuekeeper.{self.table} WHERE quarantine_id = %s FOR UPDATE"
            connection.execute(row.encode(), [number])
            waiting = "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
            yield lambda: [pid for (pid,) in world.sql(waiting, connection.info.backend_pid)]


AT_NIGHT = [
    pytest.param(kind, ["command", "server"] * 4, id=kind, marks=pytest.mark.nightly)
    for kind in ("packed-asyncio", "asyncio")
]
QUARANTINES = (
    Quarantine(table="quarantine", command=("migrate", "replay", PLAN_ID, "--assign-packet-ids", "--as-new")),
    Quarantine(table="session_quarantine", command=("sessions", "replay")),
)


class Replay:
    """A command that replays, in a process of its own."""

    def __init__(self, quarantine: Quarantine, world: OnlineWorld) -> None:
        self._process = subprocess.Popen(
            [str(Path(sys.executable).parent / "queuekeeper"), *quarantine.command, "--yes", "--json"],
            env=os.environ | {POSTGRES_VARIABLE: world.postgres_url, REDIS_VARIABLE: world.redis_url},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        if self._process.returncode is None:
            self._process.communicate()

    def runs(self) -> bool:
        """Check that the command has not ended; return true."""
        assert self._process.poll() is None, f"the replay ended too early: {self.end()}"
        return True

    def kill(self) -> None:
        """Kill the process, which has not ended."""
        assert self.runs()
        self._process.kill()
        self._process.communicate()

    def end(self) -> str:
        """Wait until the command ends, well or not, and return what it says."""
        said, complained = self._process.communicate(timeout=PATIENCE_S)
        return said or complained

    def report(self) -> dict[str, Any]:
        """Return the report of a command that ends well."""
        said = self.end()
        assert self._process.returncode == 0, said
        found: dict[str, Any] = json.loads(said)
        return found


class OwnLoad(Load):
    """A load that leaves messages alone that it has not saved."""

    async def _read(self, session: Session) -> list[PendingMessage]:
        everything = await self._repeated(lambda: read_all(self._store, session.client_id))
        found = [one for one in everything if one.topic == "t"]
        in_order(found)
        return found


def fill(world: OnlineWorld) -> None:
    """Import sessions as an offline plan does, and set messages of theirs aside that are mended already."""
    world.plan(count=1, mode=Mode.OFFLINE)
    packet_ids = {serial: packet_id for packet_id, serial in enumerate(COPIED, start=1)}
    rows = []
    for client_id in CLIENTS:
        world.import_session(client_id, packet_ids, counter=len(COPIED))
        fields: dict[str, Any] = {"topic": "mended", "time": now_ms(), "packet_type": "PUBLISH"}
        rows += [
            QuarantinedRow(
                cohort=0, kind="message", reason="packet_id_duplicate", detail="", client_id=client_id,
                serial_number=serial, packet_id=1, qos=1, payload=b"plan %d" % serial, **fields,
            )
            for serial in (*AT_THEIR_PLACES, *GIVEN_TO_LATER_MESSAGES)
        ]  # fmt: skip
        for serial in SET_ASIDE:
            world.sql(
                "INSERT INTO queuekeeper.session_quarantine (reason, client_id, serial_number, topic, time,"
                " packet_type, qos, payload) VALUES ('topic_empty', %s, %s, 'mended', %s, 'PUBLISH', 1, %s)",
                client_id, serial, now_ms(), b"store %d" % serial,
            )  # fmt: skip
    world.ledger.replace_quarantine(PLAN_ID, [0], rows)


def disturbed(world: OnlineWorld, server: RedisServer, victim: Victim, rows: list[int], dice: random.Random) -> None:
    """Start both commands, kill one that is held, then the other or the server, and wait until they have ended.

    :param rows: row at which each command is held until all have come so far.
    """
    with ExitStack() as commands:
        with ExitStack() as holds:
            waiting = [holds.enter_context(each.held(world, row)) for each, row in zip(QUARANTINES, rows, strict=True)]
            replays = [commands.enter_context(Replay(each, world)) for each in QUARANTINES]
            until(
                lambda: all(replay.runs() for replay in replays) and all(pids() for pids in waiting),
                what="commands that have put a message back",
            )
            held = dice.randrange(len(replays))
            replays.pop(held).kill()
            world.sql("SELECT pg_terminate_backend(%s, 60000)", *waiting[held]())
        time.sleep(dice.uniform(0, 0.02))
        if victim == "command":
            replays.pop().kill()
        else:
            server.kill()
            server.start()
        ends = [replay.end() for replay in replays]
    assert "unforeseen" not in "".join(ends)
    print(victim, ends, [len(each.open_rows(world)) for each in QUARANTINES])


def puts_the_rest_back(quarantine: Quarantine, world: OnlineWorld) -> bool:
    """Replay in peace and tell whether no message is left."""
    print(Replay(quarantine, world).report())
    return not quarantine.open_rows(world)


def put_all_back(world: OnlineWorld, server: RedisServer, victims: list[Victim], dice: random.Random) -> None:
    """Put all messages back by commands that are disturbed and repeated."""
    for left, victim in zip(range(len(victims), 0, -1), victims, strict=True):
        # None is held at its last messages: the later ones are to find some, too.
        some = [rows[: len(rows) // (left + 1)] for rows in (each.open_rows(world) for each in QUARANTINES)]
        disturbed(world, server, victim, [dice.choice(rows) for rows in some], dice)
    for each in QUARANTINES:
        assert each.open_rows(world), "all messages were back before the last kill"
        until(partial(puts_the_rest_back, each, world), what="all messages")


@pytest.mark.parametrize(("kind", "victims"), [("packed-asyncio", ["server"]), *AT_NIGHT])
def test_each_mended_message_is_in_its_session_once_and_nothing_else_has_changed(
    redis_server_factory: Callable[..., RedisServer],
    postgres_url: str,
    control_schema: None,
    own_home: Path,
    kind: Kind,
    victims: list[Victim],
    dice: random.Random,
) -> None:
    server = redis_server_factory(appendfsync="always")
    victims = [*victims]
    dice.shuffle(victims)

    async def run(world: OnlineWorld) -> None:
        async with redis_store(kind, server.url) as store:
            before = {each: [facts(one) for one in await read_all(store, each)] for each in CLIENTS}
            assert {len(found) for found in before.values()} == {len(COPIED)}
            load = OwnLoad(store, dice, clients=CLIENTS, repeats=True, pause_s=0.2)
            await load.fill(messages=FILLED)
            newest = {each: (await read_all(store, each))[-1].serial for each in CLIENTS}
            async with load.running():
                await asyncio.to_thread(put_all_back, world, server, victims, random.Random(dice.random()))
                await load.proceeds(messages=1)
            assert (await load.settle()).lost == []
            for client_id in CLIENTS:
                found = await read_all(store, client_id)
                assert len({one.packet_id for one in found}) == len(found)
                assert [facts(one) for one in found if one.topic not in {"t", "mended"}] == before[client_id]
                came_back([one for one in found if one.topic == "mended"], newest=newest[client_id])

    layout = Layout.PACKED if is_packed(kind) else Layout.TBMQ
    with closing(OnlineWorld(postgres_url, server.url, layout=layout)) as world:
        fill(world)
        asyncio.run(run(world))


def facts(one: PendingMessage) -> tuple[Any, ...]:
    """Return what may not change of a message."""
    return one.serial, one.packet_id, one.topic, one.payload, one.packet_type, one.expires_at_ms


def came_back(found: list[PendingMessage], *, newest: int) -> None:
    """Check that mended messages are there once, at their places or behind all that was there, and in order.

    :param found: mended messages of a session, in order.
    :param newest: last serial of the session before the first replay.
    """
    places = [one for one in found if one.serial <= newest]
    assert [one.payload for one in places] == [b"plan %d" % one.serial for one in places]
    behind: dict[bytes, list[int]] = {b"plan": [], b"store": []}
    for one in found[len(places) :]:
        quarantine, serial = one.payload.split()
        behind[quarantine].append(int(serial))
    assert behind[b"store"] == list(SET_ASIDE)
    assert behind[b"plan"] == sorted(behind[b"plan"])
    from_plan = sorted([*behind[b"plan"], *(one.serial for one in places)])
    assert from_plan == [*AT_THEIR_PLACES, *GIVEN_TO_LATER_MESSAGES]
    # Whoever saves meanwhile may keep a message from its place; it keeps few from it.
    assert len(places) > len(AT_THEIR_PLACES) // 2

"""A session to which two writers save and TBMQ adds, in processes that write down what they do, and are killed.

Packet ids run up to :data:`IDS` here and then begin again, in the scripts as in the stores, so that every run has many
rounds of them; and a call takes :data:`CALL` messages, so that a batch is several calls. All else is what is installed.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError
from tbmq_broker import Broker

from queuekeeper import lua, redis_client
from queuekeeper.errors import QueuekeeperError, ServerUnavailable
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.sessions import layouts, parts
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.redis_operations import packet_ids
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests.chaos.online_load import Child
from tests.chaos.session_load import now_ms
from tests.chaos.trace_recorder import Recorder, record_scripts
from tests.chaos.traced_processes import READY, TracedOnRedis, stop_by_signal

CLIENT = "meter-7"
WRITERS = ("a", "b")
TBMQ = "tbmq"
IDS, LIMIT, BATCH, CALL = 18, 10, 5, 2
_MOST_READ = 6
_LOST, _LATE = 0.08, 0.04
_LATE_S = 0.08
_PAUSE_S = 0.3
_NO_SERVER_S = 0.05
_HAVE_ROUNDS = ("save_messages", "mark_delivered", "read_session")
_ALL_IDS = "65535"

_UNLESS_IN_USE = f"""
local given_out = tonumber(redis.call('GET', KEYS[2])) or 0
if redis.call('EXISTS', KEYS[1] .. '_' .. (given_out % {IDS} + 1)) == 1 then
    return 0
end
"""
"""TBMQ overwrites a message that waits for a whole round: that is a known defect, which its model does without."""


class _Wire:
    def __init__(self, answer: Callable[[Sequence[lua.Call]], lua.Replies]) -> None:
        self._answer = answer

    def answer(self, step: Sequence[lua.Call]) -> lua.Replies:
        """Send the calls of a step, and return the replies."""
        return self._answer(step)


class _Heard(_Wire):
    """What is sent, and answered."""


class _Unheard(_Wire):
    """What is sent, and whose answer is lost on its way."""


class _LossyStore(RedisSessionStore):
    """A store that loses replies, and whose requests may arrive after it has given them up."""

    def __init__(self, client: Any, folder: Path, name: str, dice: random.Random) -> None:
        super().__init__(client, rules=StoreRules(limit=LIMIT))
        self._recorder = record_scripts(folder, name, _Heard)
        record_scripts(folder, f"unheard-{name}", _Unheard)
        self._heard, self._unheard = _Heard(super().answer), _Unheard(super().answer)
        self._dice = dice
        self._late: list[threading.Timer] = []
        self._give_up()

    def answer(self, step: Sequence[lua.Call]) -> lua.Replies:
        chance = self._dice.random()
        if chance >= _LOST + _LATE:
            return self._heard.answer(step)
        if chance < _LOST:
            self._send(step)
        else:
            late = threading.Timer(self._dice.random() * _LATE_S, self._send, (step,))
            self._late.append(late)
            late.start()
        self._give_up()
        raise ServerUnavailable("the reply is lost")

    def close(self) -> None:
        """Wait for what arrives late."""
        for late in self._late:
            late.join()

    def _send(self, step: Sequence[lua.Call]) -> None:
        with suppress(QueuekeeperError):
            self._unheard.answer(step)

    def _give_up(self) -> None:
        """Write down that whatever was under way is not gone on with."""
        self._recorder.told(self._recorder.asked("calls", calls=[{"script": "give_up"}]), [None])


def save(url: str, folder: Path, seed: int, writer: str) -> None:
    """Save batch after batch, each until its writer was told of it, until a signal ends the process."""
    _have_short_rounds()
    dice, stopped = random.Random(seed), stop_by_signal()
    progress = _Count(folder / f"progress-{writer}")
    with redis_client.connect(url) as client:
        store = _LossyStore(client, folder, writer, dice)
        print(READY, flush=True)
        for offset in takewhile(lambda _: not stopped.is_set(), count(progress.value)):
            numbers = range(offset * BATCH + 1, (offset + 1) * BATCH + 1)
            messages = (NewMessage(topic=f"{writer} {n}", payload=b"", qos=1, time_ms=now_ms()) for n in numbers)
            batch = SessionSave(client_id=CLIENT, messages=tuple(messages), source=writer, offset=offset)
            while (error := store.save_messages([batch])[0].error) and not stopped.is_set():
                stopped.wait(_NO_SERVER_S if isinstance(error, ServerUnavailable) else 0)
            if not error:
                progress.value = offset + 1
            stopped.wait(dice.random() * _PAUSE_S)
        store.close()


def read(url: str, folder: Path, seed: int) -> None:
    """Fetch page after page, and acknowledge its first messages, until a signal ends the process."""
    _have_short_rounds()
    dice, stopped = random.Random(seed), stop_by_signal()
    with redis_client.connect(url) as client:
        store = _LossyStore(client, folder, "reader", dice)
        print(READY, flush=True)
        while not stopped.wait(dice.random() * _PAUSE_S):
            with suppress(ServerUnavailable):
                page = store.fetch_pending(CLIENT, limit=_MOST_READ, mark_delivered=True)
                acks = [Ack(packet_id=one.packet_id, serial=one.serial) for one in page.messages]
                if acks:
                    store.ack(CLIENT, acks[: dice.randint(1, len(acks))])
        store.close()


def add(url: str, folder: Path, seed: int) -> None:
    """Add messages as TBMQ does, unless one that waits is in the way, until a signal ends the process."""
    dice, stopped = random.Random(seed), stop_by_signal()
    recorder = Recorder(folder, TBMQ)
    numbers = _Count(folder / f"progress-{TBMQ}")
    with redis_client.connect(url) as client:
        broker = _Broker(client, CLIENT)
        print(READY, flush=True)
        while not stopped.wait(dice.random() * _PAUSE_S):
            numbers.value = number = numbers.value + 1
            asked = recorder.asked("calls", calls=[{"script": "add", "number": number}])
            try:
                recorder.told(asked, [broker.add(f"{TBMQ} {number}", limit=LIMIT)])
            except (RedisError, QueuekeeperError):
                recorder.told(asked, ServerUnavailable("no answer"))
                stopped.wait(_NO_SERVER_S)


class _Count:
    """A number that the next process goes on with."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def value(self) -> int:
        return int(self._path.read_text("ascii")) if self._path.exists() else 0

    @value.setter
    def value(self, number: int) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(str(number), "ascii")
        new.replace(self._path)


class _Broker(Broker):
    def _run(self, script: str, *arguments: str | int) -> Any:
        return super()._run(_UNLESS_IN_USE + script.replace(_ALL_IDS, str(IDS)), *arguments)


def _have_short_rounds() -> None:
    """Let packet ids run up to a small number, and calls be small, in this process."""
    for module, name, number in (
        (packet_ids, "MAX_PACKET_ID", IDS),
        (layouts, "MESSAGES_PER_SAVE", CALL),
        (parts, "MESSAGES_PER_SAVE", CALL),
    ):
        assert hasattr(module, name)
        setattr(module, name, number)
    for name in _HAVE_ROUNDS:
        script = getattr(scripts, name).script
        source = script.source.replace(_ALL_IDS, str(IDS))
        object.__setattr__(script, "source", source)
        object.__setattr__(script, "sha1", hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


class TracedSaves(TracedOnRedis):
    """A session with two writers, a reader and TBMQ, each in a process of its own."""

    def run(self, strikes: Iterable[str]) -> None:
        """Load the session, and strike one after the other."""
        with ExitStack() as stack:
            begin: dict[str, Callable[[], Child]] = {
                "reader": lambda: self.begin(read, stack),
                TBMQ: lambda: self.begin(add, stack),
            }
            for name in WRITERS:
                begin[name] = lambda name=name: self.begin(save, stack, name)  # type: ignore[misc]
            processes = {name: start() for name, start in begin.items()}
            for strike in self.struck(strikes):
                self.kill(processes[strike])
                processes[strike] = begin[strike]()
            for process in processes.values():
                process.end()

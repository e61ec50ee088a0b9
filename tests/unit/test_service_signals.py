"""A service in a process of its own ends in good order by a signal, and at once by a second one.

One whose start is given up does not run on.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading

import pytest

from queuekeeper.operation import Operation, awaited, blocking
from queuekeeper.service.aio import AsyncService
from queuekeeper.service.blocking import BlockingService
from queuekeeper.service.steps import Begin, Stop, Wait
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.unit

BLOCKING = """
import signal, sys, threading
from queuekeeper.operation import blocking
from queuekeeper.service.blocking import BlockingService
from queuekeeper.service.steps import Stop, Wait
RUN = blocking
"""
ASYNC = """
import asyncio, signal, sys
from queuekeeper.operation import Operation, awaited, blocking
from queuekeeper.service.aio import AsyncService
from queuekeeper.service.steps import Stop, Wait
RUN = awaited
"""
WORK = """
class Work:
    late = False
    def run(self):
        print("runs", flush=True)
        told = ()
        while not any(isinstance(one, Stop) for one in told):
            told = (yield Wait(timeout_s=60.0)).told
        print("stops", flush=True)
        while {stubborn}:
            yield Wait(timeout_s=60.0)

class Service({kind}):
    _serve = RUN(Work.run)
    def __init__(self):
        super().__init__(noun="worker"{threads})
        self.operations = Work()
"""
RUN_BLOCKING = "Service().run(); print('ended', signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
RUN_ASYNC = """
async def main():
    await Service().run()
    print('ended', signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
asyncio.run(main())
"""


FORKS = """
        import multiprocessing, time
        for work in (signal.pause, lambda: signal.raise_signal(signal.SIGINT)):
            child = multiprocessing.get_context("fork").Process(target=work, daemon=True)
            child.start()
            if work is signal.pause:
                child.terminate()
            child.join({patience_s})
            print("child", child.exitcode, "told", (yield Wait(timeout_s=0.2)).told, flush=True)
"""


def program(*, asynchronous: bool, stubborn: bool = False, forking: bool = False) -> str:
    kind, threads = ("AsyncService", "") if asynchronous else ("BlockingService", ", threads=1")
    work = WORK.format(kind=kind, threads=threads, stubborn=stubborn)
    if forking:
        work = work.replace("        told = ()\n", FORKS.format(patience_s=PATIENCE_S / 10) + "        told = ()\n")
    return (ASYNC if asynchronous else BLOCKING) + work + (RUN_ASYNC if asynchronous else RUN_BLOCKING)


def started(code: str) -> subprocess.Popen[str]:
    # What is started in the background by a shell ignores SIGINT, and so would its children.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + code
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    return process


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_stops_a_service_in_good_order_and_handlers_are_given_back(
    number: signal.Signals, asynchronous: bool
) -> None:
    with started(program(asynchronous=asynchronous)) as process:
        process.send_signal(number)
        said, errors = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, said, errors) == (0, "stops\nended True\n", "")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asyncio"])
def test_second_signal_ends_a_process_that_takes_too_long_to_stop(asynchronous: bool) -> None:
    with started(program(asynchronous=asynchronous, stubborn=True)) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stops\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)

    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asyncio"])
def test_signal_to_a_process_that_work_has_forked_ends_that_one_and_not_the_service(asynchronous: bool) -> None:
    with started(program(asynchronous=asynchronous, forking=True)) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["child -15 told ()\n", "child 1 told ()\n"]
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, said) == (0, "stops\nended True\n")


def test_process_of_several_that_ends_by_itself_ends_with_its_own_code() -> None:
    code = """
import sys, time
from queuekeeper.service.processes import end_with_parent
end_with_parent(lambda: None)
time.sleep(0.2)
sys.exit(2)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        # What started it is there, so that the watch goes on to the end.
        errors = process.stderr.read()
        assert (process.wait(), errors) == (2, b"")


def test_process_of_several_is_stopped_when_what_started_it_is_gone() -> None:
    code = """
import threading
from queuekeeper.service.processes import end_with_parent
ended = threading.Event()
end_with_parent(ended.set)
ended.wait()
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", code], input=b"", capture_output=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == b"ended\n"


def test_program_that_handles_a_signal_itself_keeps_it() -> None:
    own = "signal.signal(signal.SIGTERM, lambda *_: (print('mine', flush=True), sys.exit(7)))\n"
    code = program(asynchronous=False).replace("Service().run();", own + "Service().run();")

    with started(code) as process:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, said) == (7, "mine\n")


class Start:
    """Never serves, and has begun some work."""

    def __init__(self) -> None:
        self.works = asyncio.Event()
        self.has_ended = False

    async def _work(self) -> None:
        self.works.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.has_ended = True

    def run(self) -> Operation[None]:
        yield Begin(work=self._work, token=None)
        while True:
            yield Wait(timeout_s=60.0)


class Starting(AsyncService[None]):
    _serve = awaited(Start.run)

    def __init__(self) -> None:
        super().__init__(noun="worker")
        self.operations = Start()


def test_service_whose_start_is_cancelled_does_not_run_on() -> None:
    async def main() -> None:
        service = Starting()
        entering = asyncio.ensure_future(service.__aenter__())
        await service.operations.works.wait()
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert service.operations.has_ended
        assert service._over
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


CTRL_C = """
service = Service()
try:
    with service:
        print("serves")
except KeyboardInterrupt:
    print("over", service._over, threading.active_count(), flush=True)
import os
os._exit(0)
"""


def test_service_whose_start_is_ended_by_ctrl_c_does_not_run_on() -> None:
    with started(program(asynchronous=False).replace(RUN_BLOCKING, CTRL_C)) as process:
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=PATIENCE_S)

    assert (said, errors) == ("stops\nover True 1\n", "")


class Waiting:
    """Serves until it is told to stop, and never says that it has begun."""

    late = False

    def run(self) -> Operation[None]:
        told: tuple[object, ...] = ()
        while not any(isinstance(one, Stop) for one in told):
            told = (yield Wait(timeout_s=60.0)).told


class Beginning(BlockingService[None]):
    _serve = blocking(Waiting.run)

    def __init__(self) -> None:
        super().__init__(noun="worker", threads=1)
        self.operations = Waiting()


@pytest.mark.parametrize("has_run", [True, False])
def test_service_that_is_interrupted_while_its_thread_starts_does_not_run_on(
    has_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if has_run:
            start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    service = Beginning()

    with pytest.raises(KeyboardInterrupt):
        service.__enter__()

    monkeypatch.undo()
    assert service._thread is not None
    if not has_run:
        service._thread.start()
        service._thread.join(PATIENCE_S)
    over = service._over
    service.stop()
    assert over
    assert not service._thread.is_alive()

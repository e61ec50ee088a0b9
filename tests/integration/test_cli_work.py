"""``fanout work``, ``events work`` and ``compacted work``: handlers in processes that die, of files that change."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from queuekeeper.compacted import Append, CompactedQueues
from queuekeeper.events import EventBroker, Interest, NewEvent, schema
from queuekeeper.fanout import FanoutQueues, NewMessage
from queuekeeper.postgres import connect as connect_postgres
from queuekeeper.redis_client import connect
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

BILLING = """
import asyncio
import os
import subprocess
import time
from pathlib import Path
from queuekeeper import compacted, events
from queuekeeper.errors import TimeLimitExceeded
from queuekeeper.fanout import App, Middleware, Start, WorkRules, handler

DONE = Path(__file__).with_name("done")

def note(text):
    with DONE.open("a") as file:
        file.write(f"{text} {os.getpid()} one\\n")

@handler(max_attempts=8)
def bill(message):
    note(message.body.decode())

async def bill_async(message):
    note(message.body.decode())

def bill_measured(message):
    from opentelemetry.sdk.metrics import MeterProvider
    MeterProvider().get_meter("billing").create_counter("bills").add(1)
    bill(message)

def bill_events(delivery):
    for event in delivery.events:
        note(event.payload)

def show(message):
    if message.value == b"3" and "failed" not in DONE.read_text():
        note("failed")
        raise ValueError("the display is away")
    note(message.value.decode())

async def show_async(message):
    show(message)

def for_ever():
    while True:
        time.sleep(0.001)

@events.handler(time_limit_ms=50, dead_on=(TimeLimitExceeded,))
def bill_in_time(delivery):
    for_ever()

@compacted.handler(time_limit_ms=200, first_delay_ms=10)
def show_in_time(message):
    try:
        show(message)
    except ValueError:
        for_ever()

class Notes(Middleware):
    def before(self, message):
        note("begins")

def bill_input(message):
    note(subprocess.run(["cat"], capture_output=True, check=True, text=True).stdout or "nothing")

app = App(middleware=[Notes()])

@app.handler("orders", consumer="billing", start=Start.RETAINED)
@handler(max_attempts=8)
def bill_orders(message):
    bill(message)

@app.handler("refunds", consumer="billing")
async def bill_refunds(message):
    bill(message)

def wait_for_the_word():
    note("begins")
    while not Path("word").exists():
        time.sleep(0.01)
    note("ends")

async def refund_async(message):
    await asyncio.to_thread(wait_for_the_word)

busy_apps = {}
for name, work in {"threads": lambda message: wait_for_the_word(), "loop": refund_async}.items():
    busy_apps[name] = App()
    busy_apps[name].handler("orders", consumer="billing")(bill)
    busy_apps[name].handler("refunds", consumer="billing")(work)
busy_threads, busy_loop = busy_apps.values()

events_app = events.App(group_id="billing")

@events_app.handler(name="paid", interest=events.Interest.topics("order.paid"))
def bill_paid(delivery):
    bill_events(delivery)

@events_app.handler(name="refunded", interest=events.Interest.topics("order.refunded"))
@events.handler(retries_s=(0.1,))
def bill_refunded(delivery):
    bill_events(delivery)

compacted_app = compacted.App()
compacted_app.handler("meter-7")(show_async)
compacted_app.handler("meter-8")(lambda message: note(message.value.decode()))

hasty_app = compacted.App(grace_s=0.1)

@hasty_app.handler("meter-7")
def hang(message):
    note("hangs")
    time.sleep(600)

hasty_loop_app = App(rules=WorkRules(grace_s=0.1))

@hasty_loop_app.handler("orders", consumer="billing")
async def hang_beside_the_loop(message):
    note(await asyncio.to_thread(message.body.decode))
    await asyncio.to_thread(time.sleep, 600)

mixed_app = events.App(group_id="billing")
mixed_app.handler(name="paid")(bill_paid)
mixed_app.handler(name="refunded")(bill_async)
empty_app = App()

NUMBER = 7
"""


WRONG = {
    "wrong": "from queuekeeper import events\napp = events.App()\n",
    "typed": "from queuekeeper import fanout\nfanout.handler(max_attemps=3)\n",
    "torn": "def bill(:\n",
    "lacking": "import lacked\n",
    "away": 'raise ConnectionError("no route")\n',
    "script": "import sys\nsys.exit()\n",
    "lazy": 'def __getattr__(name):\n    raise ConnectionError("no route")\n',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "billing.py").write_text(BILLING)
    for name, text in WRONG.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.fixture
def queues(valkey_url: str) -> Iterator[FanoutQueues]:
    with connect(valkey_url) as client:
        yield FanoutQueues(client)


@pytest.fixture
def started(folder: Path, valkey_url: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command in the user's folder; what a test leaves running is ended."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUEUEKEEPER_")}
    environment |= {"QUEUEKEEPER_REDIS_URL": valkey_url, "QUEUEKEEPER_HOME": str(folder)}
    running: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "queuekeeper", *words],
                cwd=folder, env=environment, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.05)


def done(folder: Path) -> list[list[str]]:
    path = folder / "done"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors


def publish(queues: FanoutQueues, numbers: range) -> None:
    queues.publish("orders", [NewMessage(body=str(number).encode()) for number in numbers])


@pytest.mark.parametrize("name", ["bill", "bill_async", "bill_measured"])
def test_handler_works_on_all_messages_and_ends_by_a_signal(
    started: Callable[..., subprocess.Popen[str]], queues: FanoutQueues, folder: Path, name: str
) -> None:
    queues.register("orders", consumer="billing")
    publish(queues, range(50))

    process = started("fanout", "work", f"billing:{name}", "orders", "billing")
    until(lambda: len(done(folder)) == 50)
    stop(process)

    assert sorted(int(line[0]) for line in done(folder)) == list(range(50))
    assert queues.size("orders", consumer="billing") == 0


def test_app_has_its_handlers_work_on_their_consumers_messages_with_its_middleware(
    started: Callable[..., subprocess.Popen[str]], queues: FanoutQueues, folder: Path
) -> None:
    queues.register("refunds", consumer="billing")
    queues.register("orders", consumer="others")
    publish(queues, range(10))
    queues.publish("refunds", [NewMessage(body=str(number).encode()) for number in range(10, 20)])

    process = started("fanout", "work", "billing:app", "--processes", "2")
    until(lambda: len(done(folder)) == 40)
    stop(process)

    words = [line[0] for line in done(folder)]
    assert sorted(int(word) for word in words if word != "begins") == list(range(20))
    assert words.count("begins") == 20
    assert [queues.size(queue, consumer="billing") for queue in ("orders", "refunds")] == [0, 0]


def test_consumer_of_an_app_that_cannot_go_on_ends_the_others_in_good_order(
    started: Callable[..., subprocess.Popen[str]], queues: FanoutQueues, folder: Path
) -> None:
    queues.register("refunds", consumer="billing")
    queues.publish("refunds", [NewMessage(body=b"1")])
    queues.register("orders", consumer="billing")
    process = started("fanout", "work", "billing:app")
    until(lambda: len(done(folder)) == 2)

    queues.unregister("orders", consumer="billing", force=True)
    _, errors = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 2
    assert "no consumer of this name is registered with the queue (queue 'orders'" in " ".join(errors.split())
    assert queues.size("refunds", consumer="billing") == 0


@pytest.mark.parametrize("app", ["busy_threads", "busy_loop"])
def test_handler_at_work_ends_before_the_app_of_a_consumer_that_cannot_go_on(
    started: Callable[..., subprocess.Popen[str]], queues: FanoutQueues, folder: Path, app: str
) -> None:
    queues.register("refunds", consumer="billing")
    queues.register("orders", consumer="billing")
    queues.publish("refunds", [NewMessage(body=b"1")])
    process = started("fanout", "work", f"billing:{app}")
    until(lambda: len(done(folder)) == 1)

    queues.unregister("orders", consumer="billing", force=True)
    # The error of the consumer is logged before it ends.
    assert process.stderr is not None
    assert "consumer 'billing' of 'orders' ends" in process.stderr.readline()
    time.sleep(0.2)
    (folder / "word").touch()
    process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 2
    assert [line[0] for line in done(folder)] == ["begins", "ends"]
    assert queues.size("refunds", consumer="billing") == 0


def test_app_of_events_and_app_of_compacted_queues_do_the_same(
    started: Callable[..., subprocess.Popen[str]], postgres_url: str, valkey_url: str, folder: Path
) -> None:
    with connect_postgres(postgres_url, autocommit=True) as connection:
        schema.install(connection)
        broker = EventBroker(connection)
        for topic in ("order.paid", "order.refunded", "order.lost"):
            broker.subscribe("billing", Interest.topics(topic))
        url = ["--postgres-url", postgres_url]
        worker = started("events", "work", "billing:events_app", *url)
        for number, topic in enumerate(("order.paid", "order.refunded", "order.lost", "order.paid")):
            broker.publish([NewEvent(topic=topic, payload=number)])
        broker.poll()
        until(lambda: len(done(folder)) >= 3)
        stop(worker)
    assert sorted(line[0] for line in done(folder)) == ["0", "1", "3"]

    with connect(valkey_url) as client:
        displays = CompactedQueues(client)
        process = started("compacted", "work", "billing:compacted_app")
        for client_id in ("meter-7", "meter-8"):
            displays.append(client_id, [Append(key=b"k", value=client_id.encode())])
        until(lambda: len(done(folder)) >= 5)
        stop(process)
        assert {line[0] for line in done(folder)} >= {"meter-7", "meter-8"}
        assert [displays.inspect(client_id).lag for client_id in ("meter-7", "meter-8")] == [0, 0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fanout", "work", "billing:app", "orders", "--workers", "2"), "says that itself: leave out QUEUE, --workers"),
        (("events", "work", "billing:app"), "billing:app is an app of fan-out queues: run it by `fanout work`"),
        (("fanout", "work", "billing:empty_app"), "the app has no handlers: put @app.handler(...) over a function"),
        (("events", "work", "billing:mixed_app"), "handlers are coroutine functions and others are not"),
        (("fanout", "work", "billing:bill", "orders"), "billing:bill is a function: say where it works, by CONSUMER"),
        (("compacted", "work", "billing:show"), "billing:show is a function: say where it works, by CLIENT_ID"),
    ],
)  # fmt: skip
def test_app_with_a_place_besides_and_function_without_one_are_refused(
    started: Callable[..., subprocess.Popen[str]], words: tuple[str, ...], said: str
) -> None:
    process = started(*words, "--processes", "2")
    _, errors = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 2
    assert said in " ".join(errors.split())


def test_process_that_dies_is_replaced_and_nothing_is_lost(
    started: Callable[..., subprocess.Popen[str]], queues: FanoutQueues, folder: Path
) -> None:
    queues.register("orders", consumer="billing")
    process = started("fanout", "work", "billing:bill", "orders", "billing", "--processes", "2")
    publish(queues, range(1))
    until(lambda: bool(done(folder)))

    os.kill(int(done(folder)[0][1]), signal.SIGKILL)
    publish(queues, range(1, 100))
    until(lambda: {int(line[0]) for line in done(folder)} == set(range(100)))
    # What the dead process had not acknowledged comes again when its lease is over.
    until(lambda: queues.size("orders", consumer="billing") == 0)
    stop(process)


def test_changed_file_is_loaded_anew(
    started: Callable[..., subprocess.Popen[str]], queues: FanoutQueues, folder: Path
) -> None:
    queues.register("orders", consumer="billing")
    process = started("fanout", "work", "billing:bill", "orders", "billing", "--reload")
    publish(queues, range(1))
    until(lambda: bool(done(folder)))

    (folder / "billing.py").write_text(BILLING.replace(" one", " changed"))
    until(lambda: process.poll() is None and _works_by_the_changed_file(queues, folder))

    # A file that is saved half written ends nothing.
    (folder / "billing.py").write_text(BILLING + "handler(max_attemps=3)\n")
    until(lambda: not psutil.Process(process.pid).children())
    (folder / "billing.py").write_text(BILLING.replace(" one", " changed"))
    until(lambda: process.poll() is None and _works_by_the_changed_file(queues, folder))
    stop(process)


def test_process_of_a_handler_reads_nothing_where_its_worker_is_told_to_stop(
    started: Callable[..., subprocess.Popen[str]], queues: FanoutQueues, folder: Path
) -> None:
    queues.register("orders", consumer="billing")
    publish(queues, range(1))
    process = started("fanout", "work", "billing:bill_input", "orders", "billing", "--processes", "2")
    until(lambda: done(folder) != [])
    stop(process)

    assert [line[0] for line in done(folder)] == ["nothing"]


def _works_by_the_changed_file(queues: FanoutQueues, folder: Path) -> bool:
    publish(queues, range(1, 2))
    time.sleep(0.2)
    return done(folder)[-1][2] == "changed"


@pytest.fixture
def broker(broker_url: str) -> Iterator[EventBroker]:
    """An event broker without subscriptions."""
    with connect_postgres(broker_url, autocommit=True) as connection:
        yield EventBroker(connection)


def test_events_are_handled_by_a_group(
    started: Callable[..., subprocess.Popen[str]], broker: EventBroker, broker_url: str, folder: Path
) -> None:
    broker.subscribe("billing", Interest.topics("order.paid"))
    url = ["--postgres-url", broker_url]
    dispatcher = started("events", "dispatch", *url)
    worker = started("events", "work", "billing:bill_events", "billing", "--topic", "order.paid", *url)
    broker.publish([NewEvent(topic="order.paid", payload=number) for number in range(20)])
    until(lambda: len(done(folder)) >= 20)
    stop(worker)
    stop(dispatcher)

    assert sorted(int(line[0]) for line in done(folder)) == list(range(20))


def test_rules_of_a_handler_of_events_count(
    started: Callable[..., subprocess.Popen[str]], broker: EventBroker, broker_url: str
) -> None:
    broker.subscribe("billing", Interest())
    broker.publish([NewEvent(topic="order.paid", payload=7)])
    broker.poll()
    url = ["--postgres-url", broker_url]
    refused = started("events", "work", "billing:bill_in_time", "billing", "--retry", "1", *url)
    _, errors = refused.communicate(timeout=PATIENCE_S)
    worker = started("events", "work", "billing:bill_in_time", "billing", *url)
    until(lambda: bool(broker.dead_letters()))
    stop(worker)
    (letter,) = broker.dead_letters()

    assert refused.returncode == 2
    assert "retries_s is (1.0,): the handler has rules of its own" in " ".join(errors.split())
    assert (letter.event.payload, letter.reason) == (7, "TimeLimitExceeded: the handler took longer than its 0.05 s")


@pytest.mark.parametrize("name", ["show", "show_async", "show_in_time"])
def test_compacted_queue_is_worked_on_in_order_by_one_process_and_gone_on_with_by_another(
    started: Callable[..., subprocess.Popen[str]], valkey_url: str, folder: Path, name: str
) -> None:
    with connect(valkey_url) as client:
        queues = CompactedQueues(client)

        def append(numbers: range) -> None:
            for number in numbers:
                queues.append("meter-7", [Append(key=f"k{number}".encode(), value=str(number).encode())])

        process = started("compacted", "work", f"billing:{name}", "meter-7", "--processes", "2")
        append(range(20))
        until(lambda: len(done(folder)) >= 20)
        first = done(folder)[0][1]
        assert {line[1] for line in done(folder)} == {first}
        # The other one waits until the dead one's lease would be over, or takes a queue that was given up.
        os.kill(int(first), signal.SIGTERM)
        append(range(20, 40))
        until(lambda: {line[0] for line in done(folder)} >= {str(number) for number in range(40)})
        stop(process)

        found = [int(line[0]) for line in done(folder) if line[0] != "failed"]
        assert [number for place, number in enumerate(found) if number not in found[:place]] == list(range(40))
        # The handler fails once, on 3, and nothing comes before it was done.
        assert [line[0] for line in done(folder)][3:5] == ["failed", "3"]
        assert queues.inspect("meter-7").lag == 0


@pytest.mark.parametrize(
    ("words", "name", "of", "rule"),
    [
        (("events", "work"), "bill", "fan-out queues, and its rules apply to `fanout work` only", "max_attempts=8"),
        (("compacted", "work"), "bill", "fan-out queues, and its rules apply to `fanout work`", "max_attempts=8"),
        (("fanout", "work", "orders"), "bill_in_time", "events, and its rules apply to `events work`", "time_limit"),
        (
            ("fanout", "work", "orders"),
            "show_in_time",
            "compacted queues, and its rules apply to `compacted work`",
            "",
        ),
    ],
    ids=["events", "compacted", "fanout", "fanout, of a compacted queue"],
)
def test_handler_of_another_store_is_refused_as_its_rules_would_not_count(
    started: Callable[..., subprocess.Popen[str]], words: tuple[str, ...], name: str, of: str, rule: str
) -> None:
    process = started(*words[:2], f"billing:{name}", *words[2:], "billing")
    _, errors = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 2
    said = " ".join(errors.split())
    assert f"billing:{name} is a handler of {of}" in said
    assert rule in said


@pytest.mark.parametrize("processes", ["1", "2"])
def test_thread_that_a_coroutine_waits_for_does_not_keep_its_process_from_ending(
    started: Callable[..., subprocess.Popen[str]], queues: FanoutQueues, folder: Path, processes: str
) -> None:
    queues.register("orders", consumer="billing")
    publish(queues, range(1))
    process = started("fanout", "work", "billing:hasty_loop_app", "--processes", processes)
    until(lambda: done(folder) != [])
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S / 5)

    assert process.returncode == 0, errors
    assert queues.size("orders", consumer="billing") == 1


@pytest.mark.parametrize("processes", ["1", "2"])
def test_handler_in_a_thread_that_never_ends_does_not_keep_its_process_from_ending(
    started: Callable[..., subprocess.Popen[str]], valkey_url: str, folder: Path, processes: str
) -> None:
    with connect(valkey_url) as client:
        CompactedQueues(client).append("meter-7", [Append(key=b"k", value=b"open")])
    process = started("compacted", "work", "billing:hasty_app", "--processes", processes)
    until(lambda: done(folder) != [])
    stop(process)


@pytest.mark.parametrize(
    ("code", "target", "words"),
    [
        (2, "billing", "'billing' is not MODULE:NAME, such as billing:bill"),
        (2, "biling:bill", "there is no module biling in "),
        (2, "billing:bil", "module billing has no 'bil'"),
        (2, "billing:NUMBER", "billing:NUMBER is an int: it must be a function"),
        (
            1,
            "wrong:bill",
            "wrong cannot be imported: TypeError: App.__init__() missing 1 required keyword-only argument",
        ),
        (1, "wrong:bill", "'group_id' (wrong.py, line 2)"),
        (
            2,
            "typed:bill",
            "typed cannot be imported: handler has no rule 'max_attemps': did you mean 'max_attempts'? (ty",
        ),
        (1, "torn:bill", "torn cannot be imported: SyntaxError: invalid syntax (torn.py, line 1)"),
        (1, "lacking:bill", "cannot be imported: ModuleNotFoundError: No module named 'lacked' (lacking.py, line 1)"),
        (1, "script:bill", "script cannot be imported: SystemExit (script.py, line 2)"),
        (1, "lazy:bill", "lazy cannot be imported: ConnectionError: no route (lazy.py, line 2)"),
        (2, "./billing:bill", "'./billing:bill' is not MODULE:NAME, such as billing:bill"),
        (1, "away:bill", "away cannot be imported: ConnectionError: no route (away.py, line 1)"),
    ],
)
def test_wrong_target_is_named_before_anything_starts(
    started: Callable[..., subprocess.Popen[str]], code: int, target: str, words: str
) -> None:
    process = started("fanout", "work", target, "orders", "billing", "--processes", "2")
    _, errors = process.communicate(timeout=PATIENCE_S)

    # A worker that ends with 2 is not replaced, and what is away may come back.
    assert process.returncode == code
    assert words in errors.replace("\n", " ")

"""A compacted queue is collected, and a fan-out queue gets back what a dead consumer held."""

from __future__ import annotations

from queuekeeper.compacted.model import Append, Retention, RetentionPolicy
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.demo.day import Day, Outcome, Waiting
from queuekeeper.demo.follow import follow
from queuekeeper.fanout.model import NewMessage
from queuekeeper.fanout.queue import FanoutQueues

COLLECTION_DAG_ID = "compacted_queue_gc"
COLLECTION_CONF = {"shares": 1, "max_jitter_s": 0}
METER = "meter-7"

REPAIR_DAG_ID = "fanout_repair"
REPAIR_CONF = {"shares": 1}
ORDERS, CONSUMERS = "orders", ("billing", "shipping")
MESSAGES, HELD = 20, 5


def collect_compacted(day: Day) -> Waiting[None]:
    """Let a queue keep the newest value of each key, and have what its consumer has acknowledged collected."""
    queues = CompactedQueues(day.redis)
    queues.configure(METER, retention=Retention(policy=RetentionPolicy.ACKED_ONLY, retention_ms=0))
    appends = [Append(key=b"sensor-%d" % number, value=b"%d" % turn) for turn in range(3) for number in range(4)]
    queues.append(METER, appends)
    kept = len(queues.peek(METER))
    fence = queues.subscribe(METER, session="demo").fence
    sequences = [message.sequence for message in queues.fetch(METER, fence=fence, limit=3, window=3).messages]
    queues.ack(METER, fence=fence, sequences=sequences)
    note = f"The demo's consumer has acknowledged {len(sequences)} of {kept} values of {METER}: these can be collected."
    run_id = day.trigger(COLLECTION_DAG_ID, conf=COLLECTION_CONF, note=note)
    state = yield from follow(day, COLLECTION_DAG_ID, run_id)
    day.client.pause(COLLECTION_DAG_ID)
    left = len(queues.peek(METER))
    outcome = Outcome(
        step="Compacted",
        line=f"of {len(appends)} values the queue kept the {kept} newest of their keys; the {kept - left} that its "
        f"consumer had acknowledged were collected, {left} waits",
        page=day.run_page(COLLECTION_DAG_ID, run_id),
        sound=state == "success" and (kept, left) == (4, 1),
    )
    day.show(outcome)


def repair_fanout(day: Day) -> Waiting[None]:
    """Let a consumer die with messages under its lease, and have them delivered to the one that comes after it."""
    queues = FanoutQueues(day.redis)
    for consumer in CONSUMERS:
        queues.register(ORDERS, consumer=consumer)
    queues.publish(ORDERS, [NewMessage(body=b"order %d" % number) for number in range(MESSAGES)])
    billing, shipping = CONSUMERS
    _process(queues, billing, MESSAGES)
    # Its lease runs out at once, and nobody is there to end it.
    held = {message.id for message in queues.claim(ORDERS, consumer=shipping, count=HELD, lease_ms=1).messages}
    note = f"The demo has let {shipping} die with {len(held)} messages of {ORDERS} under its lease."
    run_id = day.trigger(REPAIR_DAG_ID, conf=REPAIR_CONF, note=note)
    state = yield from follow(day, REPAIR_DAG_ID, run_id)
    day.client.pause(REPAIR_DAG_ID)
    again = held & _process(queues, shipping, HELD)
    outcome = Outcome(
        step="Fan-out",
        line=f"shipping died with {len(held)} of {MESSAGES} messages under lease; they were put back in line, and "
        f"{len(again)} were delivered again",
        page=day.run_page(REPAIR_DAG_ID, run_id),
        sound=state == "success" and len(again) == HELD,
    )
    day.show(outcome)


def _process(queues: FanoutQueues, consumer: str, count: int) -> set[int]:
    """Claim messages and acknowledge them; return their ids."""
    claimed = queues.claim(ORDERS, consumer=consumer, count=count)
    ids = [message.id for message in claimed.messages]
    queues.ack(ORDERS, consumer=consumer, token=claimed.token, ids=ids)
    return set(ids)

"""Defects of RedisQ, queues with consumers on Redis: what each leaves in keys, beside what ours do in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.fanout_lists import line_up
from tests.fanout_repair_world import DAY_MS, HOUR_MS, LEASE_MS, World
from tests.golden_defects.defect import Defect, found_in

FANOUT = "fanout"
A, B = "billing", "shipping"


@dataclass(kw_only=True)
class FanoutStage:
    """A store with fan-out queues that are repaired every half hour.

    :param is_ours: whether ours do the work, or steps that retell what RedisQ does.
    :ivar alive: consumers that go on, as queue and name.
    """

    world: World
    is_ours: bool
    alive: tuple[tuple[str, str], ...] = ()

    @property
    def client(self) -> Any:
        """The server, for what others do to keys."""
        return self.world.client

    def pop(self, queue: str, consumer: str) -> str:
        """Take an id off a consumer's list as BLPOP does, and return it."""
        line_up(self.client, queue, consumer, prefix=self.world.prefix)
        return str(self.client.lpop(self.world.consumer_keys(queue, consumer).ready[0]).decode())

    def registered(self, queue: str) -> None:
        """Make a queue with two consumers and a message."""
        self.world.register(queue, A, B)
        self.world.publish(queue)

    def pass_days(self, days: int) -> None:
        """Let time pass, in which those who live look after their messages, and the repair runs."""
        self.world.now_ms += days * DAY_MS
        for queue, consumer in self.alive:
            self.world.queues.touch(queue, consumer=consumer)
        wishes = {"unregister": True, "idle_expiry_s": 86_400} if self.is_ours else {}
        self.world.repaired(**wishes)


def message_popped_and_lost(stage: FanoutStage) -> None:
    # BLPOP takes the id; a consumer that dies before it has worked on the message takes it along.
    stage.registered("pops")
    if stage.is_ours:
        stage.world.kill("pops", A)
        stage.world.now_ms += LEASE_MS
    else:
        stage.pop("pops", A)


def id_without_message(stage: FanoutStage) -> None:
    # The message's hash has an expiry, the lists of ids have none, and the count that goes with it is another key.
    stage.registered("expires")
    if stage.is_ours:
        stage.world.publish("expires", ttl_ms=1)
        stage.world.now_ms += 1
    else:
        stage.client.hdel(stage.world.keys("expires").messages, "1")
        stage.client.zrem(stage.world.keys("expires").expiries, "1")


def message_in_no_list(stage: FanoutStage) -> None:
    # INCR, HSET, EXPIRE and an RPUSH per consumer are calls of their own: who dies between leaves the hash alone.
    stage.registered("publishes")
    if not stage.is_ours:
        keys = stage.world.keys("publishes")
        expires_ms = stage.world.now_ms + DAY_MS
        stage.client.hset(keys.messages, "77", f"{stage.world.now_ms}:{expires_ms}:0:orphan")
        stage.client.zadd(keys.expiries, {"77": expires_ms})


def count_drifts(stage: FanoutStage) -> None:
    # Counting down and removing are calls of their own: one that is repeated after a lost reply counts twice.
    stage.registered("counts")
    if stage.is_ours:
        claimed = stage.world.claim("counts", A)
        for _ in range(2):
            stage.world.queues.ack("counts", consumer=A, token=claimed.token, ids=[1])
    else:
        stage.client.hset(stage.world.keys("counts").references, "1", 1)


def lock_for_ever(stage: FanoutStage) -> None:
    # SETNX takes the lock of an ordered consumer, EXPIRE gives it an end: a crash between leaves it for ever.
    stage.registered("locks")
    stage.world.kill("locks", A)
    if stage.is_ours:
        stage.world.now_ms += LEASE_MS
    else:
        own = stage.world.consumer_keys("locks", A)
        stage.client.zadd(own.leases, {"1": stage.world.now_ms + 3_650 * DAY_MS})
        stage.client.hset(own.details, "1", "1 0 0 -")


def consumer_dies_and_grows(stage: FanoutStage) -> None:
    # Consumers are registered for ever; each message is put into the list of one that has long gone.
    stage.registered("grows")
    stage.alive = (*stage.alive, ("grows", B))
    stage.pass_days(2)
    stage.world.publish("grows")
    stage.world.now_ms += HOUR_MS


REDISQ = "`RedisOps.java`, RedisQ 2.0.0"
SAME = "test_same_events_leave_no_trace_in_our_fanout_queues"

DEFECTS: tuple[Defect[FanoutStage], ...] = (
    Defect(
        id="message-popped-and-lost",
        title="A consumer that dies takes along what it has popped",
        published=REDISQ,
        trace="an acknowledgement that is owed for a message that no consumer has",
        act=message_popped_and_lost,
        clients=("pops",),
        finds=found_in(FANOUT, "pops", "Q25"),
        ours=(SAME,),
    ),
    Defect(
        id="id-without-message",
        title="Messages expire and their ids in consumers' lists do not",
        published=REDISQ,
        trace="an id whose message is gone",
        act=id_without_message,
        clients=("expires",),
        finds=found_in(FANOUT, "expires", "Q25"),
        ours=(SAME,),
    ),
    Defect(
        id="message-in-no-list",
        title="A publisher that dies leaves a message that is in nobody's list",
        published=REDISQ,
        trace="a message that no acknowledgement is owed for",
        act=message_in_no_list,
        clients=("publishes",),
        finds=found_in(FANOUT, "publishes", "Q25"),
        ours=(SAME,),
    ),
    Defect(
        id="count-drifts",
        title="Counting down is repeated after a lost reply, and a message goes before its last consumer has it",
        published=REDISQ,
        trace="a count that is not the number of consumers that have the message",
        act=count_drifts,
        clients=("counts",),
        finds=found_in(FANOUT, "counts", "Q25"),
        ours=(SAME,),
    ),
    Defect(
        id="lock-for-ever",
        title="A crash between taking a lock and giving it an end leaves it for ever",
        published=REDISQ,
        trace="a lease that nobody can end",
        act=lock_for_ever,
        clients=("locks",),
        finds=found_in(FANOUT, "locks", "Q26"),
        ours=(SAME,),
    ),
    Defect(
        id="consumer-dies-and-grows",
        title="A consumer that has died is registered for ever, and its list grows",
        published=REDISQ,
        trace="a consumer that was not seen for long, with messages that wait for it",
        act=consumer_dies_and_grows,
        clients=("grows",),
        finds=found_in(FANOUT, "grows", "Q25"),
        ours=(
            "test_dead_consumers_are_shown_and_removed_when_their_options_or_the_run_say_after_what_time",
            SAME,
        ),
    ),
)

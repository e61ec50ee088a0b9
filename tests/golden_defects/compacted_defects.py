"""Defects of ECQ, EMQX's exclusive compacted queue: what each leaves in keys, beside what ours do in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.compacted_gc_world import DAY_MS, HOUR_MS, World
from tests.golden_defects.defect import Defect, found_in

COMPACTED = "compacted"


@dataclass(kw_only=True)
class CompactedStage:
    """A store with compacted queues and a collector.

    :param is_ours: whether ours do the work, or steps that retell what ECQ does.
    """

    world: World
    is_ours: bool

    @property
    def client(self) -> Any:
        """The server, for what others do to keys."""
        return self.world.client

    def values(self, client_id: str) -> list[tuple[bytes, bytes]]:
        """Return keys and values of a queue in order."""
        return [(message.key, message.value) for message in self.world.queues.peek(client_id)]

    def acknowledge(self, client_id: str, sequences: Sequence[int]) -> None:
        """Deliver what there is and acknowledge it, one by one in this order."""
        fence = self.world.queues.subscribe(client_id, session="consumer").fence
        self.world.queues.fetch(client_id, fence=fence, limit=50, window=50)
        for sequence in sequences:
            self.world.queues.ack(client_id, fence=fence, sequences=[sequence])

    def collect_every_hour(self, hours: int) -> None:
        """Let time pass, with a collection every hour."""
        for _ in range(hours):
            self.world.now_ms += HOUR_MS
            self.world.collected()


def old_payload_stays(stage: CompactedStage) -> None:
    stage.world.append("compacts", "state", "state")
    if not stage.is_ours:
        # A payload has its sequence number in its key: the append removes the old entry of the index, not the payload.
        stage.client.hset(stage.world.keys("compacts").values, b"state\x001", b"1 0 =old")


def index_without_payload(stage: CompactedStage) -> None:
    # The collector walks payloads ordered by key and stops at the first fresh one; what it removes it removes apart
    # from the index, so a crash between the two leaves entries without payload.
    stage.world.append("crashes", "a", "b")
    if not stage.is_ours:
        stage.client.hdel(stage.world.keys("crashes").values, b"a")


def value_of_another_append(stage: CompactedStage) -> None:
    # Index and payload are written apart: of two producers at once, one's entry stays with the other's payload.
    stage.world.append("races", "state", "state")
    if not stage.is_ours:
        stage.client.hset(stage.world.keys("races").values, b"state", b"1 0 =old")


def cursor_moves_back(stage: CompactedStage) -> None:
    stage.world.append("replays", "a", "b", "c")
    stage.acknowledge("replays", [2, 3, 1])
    if not stage.is_ours:
        # The cursor is the number that was acknowledged last, whatever its place.
        stage.client.hset(stage.world.keys("replays").state, mapping={"acked": 1})


def collector_runs_once(stage: CompactedStage) -> None:
    # After its first full pass the message that would start the next one is wrapped twice, and ignored.
    stage.world.collected()
    stage.world.append("grows", "a")
    if stage.is_ours:
        stage.world.now_ms += 7 * DAY_MS - HOUR_MS
        stage.collect_every_hour(5)
    else:
        stage.world.now_ms += 7 * DAY_MS + 4 * HOUR_MS


ECQ = "`emqx_ecq_store.erl`, ECQ 0.1.2"
COLLECTOR = "`emqx_ecq_gc.erl`, ECQ 0.1.2"
SAME = "test_same_events_leave_no_trace_in_our_compacted_queues"

DEFECTS: tuple[Defect[CompactedStage], ...] = (
    Defect(
        id="old-payload-stays",
        title="Compaction removes the old entry of a key and never its payload: the store grows with every append",
        published=ECQ,
        trace="payloads that no entry names",
        act=old_payload_stays,
        clients=("compacts",),
        finds=found_in(COMPACTED, "compacts", "Q23"),
        ours=(SAME,),
    ),
    Defect(
        id="index-without-payload",
        title="Payloads and their entries are collected apart, and a crash leaves entries without payload",
        published=COLLECTOR,
        trace="an entry without a value",
        act=index_without_payload,
        clients=("crashes",),
        finds=found_in(COMPACTED, "crashes", "Q23"),
        ours=("test_run_that_is_killed_goes_on_where_it_was", SAME),
    ),
    Defect(
        id="value-of-another-append",
        title="Of two producers at once, one's entry stays with the other's payload",
        published=ECQ,
        trace="a value with another number than its entry",
        act=value_of_another_append,
        clients=("races",),
        finds=found_in(COMPACTED, "races", "Q23"),
        ours=(SAME,),
    ),
    Defect(
        id="cursor-moves-back",
        title="An acknowledgement out of order moves the cursor back, and what was acknowledged comes again",
        published=ECQ,
        trace="a cursor that is behind what is in flight, or behind that of an earlier look",
        act=cursor_moves_back,
        clients=("replays",),
        finds=found_in(COMPACTED, "replays", "Q23"),
        ours=(SAME,),
    ),
    Defect(
        id="collector-runs-once",
        title="The collector runs once and never again, and nothing says so",
        published=COLLECTOR,
        trace="messages past their retention, and a collector that has not finished for long",
        act=collector_runs_once,
        clients=("grows",),
        finds=found_in(COMPACTED, "grows", "Q24"),
        ours=("test_heartbeat_says_when_every_part_was_last_finished", SAME),
    ),
)

"""Defects of TBMQ 2.x's queues in Redis, as sequences of what befalls a queue."""

from __future__ import annotations

from collections.abc import Iterator

from tests.golden_defects.defect import REDIS, Defect, found_in
from tests.golden_defects.stage import LIMIT, SHORT_LIFE_S, Stage, message, messages

STORE = "`DeviceMsgServiceImpl`, 2.0.0 to 2.3.0"
ACTOR = "`PersistedDeviceActorMessageProcessor`, 2.3.0"


def pubrec_drops_the_expiry(stage: Stage) -> None:
    queue = stage.queue("pubrec")
    queue.save(*messages(3, qos=2))
    queue.received(2)


def expiry_zero_stops_a_pack_half_way(stage: Stage) -> None:
    for client_id in ("expiry-0", "expiry-0-goes-on"):
        queue = stage.queue(client_id)
        queue.save(*messages(2))
        queue.save(*messages(2), message(life_s=0), message())
    stage.queue("expiry-0-goes-on").save(message())


def expiry_beyond_a_signed_number_stops_a_pack_half_way(stage: Stage) -> None:
    queue = stage.queue("expiry-2-to-the-31")
    queue.save(*messages(2))
    queue.save(message(), message(life_s=2**31), message())


def brace_in_front_empties_the_hash_tag(stage: Stage) -> None:
    for client_id in ("", "}front"):
        stage.queue(client_id).save(*messages(2))


def dead_references_crowd_a_queue(stage: Stage) -> Iterator[None]:
    for client_id in ("crowded", "crowded-out"):
        stage.queue(client_id).save(message(), *messages(LIMIT - 1, life_s=SHORT_LIFE_S))
    yield
    stage.queue("crowded-out").save(message())


def client_never_returns(stage: Stage) -> Iterator[None]:
    stage.queue("never-returns").save(*messages(LIMIT // 2, life_s=SHORT_LIFE_S))
    yield


def counter_stays_for_ever(stage: Stage) -> None:
    queue = stage.queue("all-confirmed")
    queue.save(*messages(3))
    queue.acknowledge(1, 2, 3)


def pack_is_stored_again(stage: Stage) -> None:
    queue = stage.queue("saved-twice")
    queue.save(message())
    queue.save_twice(*messages(3))


def hand_out_races_with_a_save(stage: Stage) -> None:
    for client_id in ("hand-out", "hand-out-goes-on"):
        queue = stage.queue(client_id)
        queue.save(message())
        queue.hand_out(1, meanwhile=lambda queue=queue: queue.save(*messages(2)))  # type: ignore[misc]
    stage.queue("hand-out-goes-on").save(message())


def counter_of_a_group_begins_anew(stage: Stage) -> None:
    for client_id in ("ss_meters_site", "ss_meters_site-goes-on"):
        queue = stage.queue(client_id)
        queue.save(*messages(3))
        queue.handed_over()
    stage.queue("ss_meters_site-goes-on").save(message())


def packet_ids_reach_one_that_waits(stage: Stage) -> None:
    queue = stage.queue("once-around")
    queue.save(message())
    queue.have_given_out(65_534)
    queue.save(message())


def scores_begin_anew_after_a_wrap(stage: Stage) -> None:
    queue = stage.queue("wrapped")
    queue.have_given_out(65_533)
    queue.save(*messages(4))
    queue.acknowledge(65_534, 65_535, 1, 2)
    queue.save(*messages(2))


DEFECTS: tuple[Defect[Stage], ...] = (
    Defect(
        id="pubrec-drops-the-expiry",
        title="PUBREC rewrites a message without its expiry: it stays until PUBCOMP, however long that takes",
        published=f"update script of {STORE}",
        trace="payload key without TTL",
        act=pubrec_drops_the_expiry,
        clients=("pubrec",),
        finds=found_in(REDIS, "pubrec", "Q13"),
        ours=(
            "test_expiry_stays",
            "test_pubrel_dies_at_the_instant_at_which_the_message_would_have",
        ),
    ),
    Defect(
        id="expiry-zero-stops-a-pack-half-way",
        title="An expiry of 0 stops the script between its writes; the next publish overwrites a waiting message",
        published=f"add script of {STORE}",
        trace="newest message ahead of the counter, later one of them moved behind newer ones",
        act=expiry_zero_stops_a_pack_half_way,
        clients=("expiry-0", "expiry-0-goes-on"),
        finds=found_in(REDIS, "expiry-0", "Q11") | found_in(REDIS, "expiry-0-goes-on", "Q3", "Q11"),
        ours=(
            "test_bad_expiry_is_refused_item_by_item",
            "test_bad_expiry_of_one_message_refuses_the_call",
        ),
    ),
    Defect(
        id="expiry-beyond-a-signed-number",
        title="So does an expiry of 2^31 seconds or more, which MQTT allows",
        published=f"add script of {STORE}; Netty reads the interval as a signed number",
        trace="newest message ahead of the counter",
        act=expiry_beyond_a_signed_number_stops_a_pack_half_way,
        clients=("expiry-2-to-the-31",),
        finds=found_in(REDIS, "expiry-2-to-the-31", "Q11"),
        ours=("test_bad_expiry_is_refused_item_by_item",),
    ),
    Defect(
        id="brace-in-front-empties-the-hash-tag",
        title="A client id that is empty or begins with } has keys in several slots: a cluster refuses them all",
        published="`ClientIdMessagesCacheKey`, 2.0.0 to 2.3.0; Redis cluster specification, hash tags",
        trace="keys with an empty hash tag",
        act=brace_in_front_empties_the_hash_tag,
        clients=("", "}front"),
        # A single server serves the other; that a profile of a cluster finds it is shown in test_profile_reader.
        finds=found_in(REDIS, "", "Q18"),
        ours=(
            "test_all_keys_of_a_client_are_in_the_slot_that_the_server_computes",
            "test_cluster_refuses_an_id_that_begins_with_a_brace_and_serves_its_neighbours",
        ),
    ),
    Defect(
        id="dead-references-crowd-a-queue",
        title="Trimming counts expired messages: a burst of short-lived ones pushes live ones out",
        published=f"add script of {STORE}",
        trace="references without payload fill nine tenths of the queue or more",
        act=dead_references_crowd_a_queue,
        clients=("crowded", "crowded-out"),
        finds=found_in(REDIS, "crowded", "Q9") | found_in(REDIS, "crowded-out", "Q9"),
        remains=found_in(REDIS, "crowded", "Q9") | found_in(REDIS, "crowded-out", "Q9"),
        ours=(
            "test_dead_references_make_room_before_live_messages_do",
            "test_expired_messages_make_room_before_live_ones",
        ),
    ),
    Defect(
        id="client-never-returns",
        title="References to expired messages and the set stay for ever when their client does not return",
        published=f"{STORE}: no expiry on set and counter, pruning on connect only",
        trace="references without payload in sets without TTL",
        act=client_never_returns,
        clients=("never-returns",),
        finds=found_in(REDIS, "never-returns", "Q9"),
        remains=found_in(REDIS, "never-returns", "Q9"),
        ours=(
            "test_keys_of_a_session_do_not_outlive_it",
            "test_keys_of_a_session_end_within_an_hour_after_its_last_message",
        ),
    ),
    Defect(
        id="counter-stays-for-ever",
        title="The counter of a session whose messages are all confirmed never expires",
        published=f"{STORE}: no expiry on the counter",
        trace="counter without TTL where nothing waits",
        act=counter_stays_for_ever,
        clients=("all-confirmed",),
        finds=found_in(REDIS, "all-confirmed", "Q22"),
        ours=("test_keys_of_a_session_do_not_outlive_it",),
    ),
    Defect(
        id="pack-is-stored-again",
        title="A pack whose reply was lost is stored again under new packet ids",
        published="`DeviceMsgAcknowledgeStrategyFactory` (RETRY_ALL), 1.4.0 to 2.3.0",
        trace="messages with the same topic, time and payload",
        act=pack_is_stored_again,
        clients=("saved-twice",),
        finds=found_in(REDIS, "saved-twice", "Q21"),
        ours=(
            "test_retried_batch_stores_nothing_twice",
            "test_batch_whose_answer_was_lost_is_stored_once",
        ),
    ),
    Defect(
        id="hand-out-races-with-a-save",
        title="Draining a shared subscription reads and writes a member's counter in two steps: a save between them is "
        "undone, and the next one overwrites its message",
        published=f"{ACTOR}, `processSharedSubscriptions`",
        trace="newest message ahead of the counter, later a packet id that is behind its place",
        act=hand_out_races_with_a_save,
        clients=("hand-out", "hand-out-goes-on"),
        finds=found_in(REDIS, "hand-out", "Q11") | found_in(REDIS, "hand-out-goes-on", "Q3"),
        ours=(
            "test_packet_ids_are_reserved_atomically",
            "test_reserved_packet_ids_are_not_given_out_again",
        ),
    ),
    Defect(
        id="counter-of-a-group-begins-anew",
        title="After a drain a group's counter is removed while its messages wait to be confirmed: the next one "
        "overwrites the first",
        published=f"{ACTOR}, `processSharedSubscriptions`",
        trace="messages without a counter, later packet ids that go back",
        act=counter_of_a_group_begins_anew,
        clients=("ss_meters_site", "ss_meters_site-goes-on"),
        finds=found_in(REDIS, "ss_meters_site", "Q11") | found_in(REDIS, "ss_meters_site-goes-on", "Q3", "Q11"),
        ours=(
            "test_packet_id_in_use_is_passed_over",
            "test_queues_of_our_store_have_none_of_them_after_the_same_events",
        ),
    ),
    Defect(
        id="packet-ids-reach-one-that-waits",
        title="A message that waits for a whole round of packet ids is overwritten by the one that gets its id",
        published=f"add script of {STORE}",
        trace="the packet id to be given out next is in use, half a round or more behind the others",
        act=packet_ids_reach_one_that_waits,
        clients=("once-around",),
        finds=found_in(REDIS, "once-around", "Q3", "Q11"),
        remains=found_in(REDIS, "once-around", "Q3"),
        ours=(
            "test_packet_id_in_use_is_passed_over",
            "test_packet_ids_in_use_are_a_conflict_that_names_them_and_leaves_no_trace",
        ),
    ),
    Defect(
        id="scores-begin-anew-after-a-wrap",
        title="No defect: scores start again from the counter when a set has been empty after a wrap",
        published=f"add script of {STORE}, where a remark questions it",
        trace="a score that is lower than earlier ones of the same client",
        act=scores_begin_anew_after_a_wrap,
        clients=("wrapped",),
        finds=frozenset(),
        ours=(
            "test_packet_ids_wrap_and_the_order_does_not",
            "test_serials_never_start_again",
        ),
    ),
)

"""The operations of compacted queues, as steps of script calls.

A step is a list of calls; its answer is the list of their replies, in order, with an exception in the place of a reply
that is an error. The calls of one queue are never in flight together.
"""

from __future__ import annotations

from queuekeeper.compacted.operations.common import BYTES_PER_CALL, ENTRIES_PER_CALL, NOTED_QUEUES
from queuekeeper.compacted.operations.consume import ConsumeOperations
from queuekeeper.compacted.operations.produce import ProduceOperations
from queuekeeper.compacted.operations.repair import RepairOperations
from queuekeeper.compacted.operations.retention import RetentionOperations
from queuekeeper.compacted.operations.upkeep import UpkeepOperations
from queuekeeper.errors import StaleEpoch, UnknownQueue
from queuekeeper.operation import errors_name

__all__ = ["BYTES_PER_CALL", "ENTRIES_PER_CALL", "NOTED_QUEUES", "CompactedOperations"]


@errors_name(UnknownQueue, StaleEpoch, client_id="queue of client")
class CompactedOperations(
    ProduceOperations, ConsumeOperations, UpkeepOperations, RepairOperations, RetentionOperations
):
    """What can be done to compacted queues, as operations; an instance may be shared by threads.

    A queue belongs to one client, and is made by the first append or subscription. Of what producers append at once,
    each append has its place in one order. Whoever consumes has a fence, and one that is old is refused
    (:class:`StaleEpoch`).

    :param prefix: put before every key.
    :param rules: bounds of each queue.
    :param clock: none for the server's time.
    :param noted_queues: queues that are remembered to be known to the collector; each takes about 200 bytes.
    :param is_cluster: whether keys lie where their hash slot is; then an id that it cannot serve is refused before the
        collector is told of it.
    :raises UsageError: for a prefix with a brace, or a number that is out of range.
    """

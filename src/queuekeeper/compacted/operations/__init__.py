"""The operations of compacted queues, as steps of script calls.

A step is a list of calls. The answer to a step is the list of the replies, in order; an error is an exception in the
list. An operation waits for the answer to each step before the next one.
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
    """All operations of compacted queues; threads may share an instance.

    :param prefix: put before every key.
    :param rules: limits of each queue; none for the defaults.
    :param clock: none for the server's clock.
    :param noted_queues: queues remembered as known to the collector; each takes about 200 bytes.
    :param is_cluster: whether the server is a cluster; a client id that a cluster cannot serve is then refused.
    :raises UsageError: for a prefix with a brace, or a number that is out of range.
    """

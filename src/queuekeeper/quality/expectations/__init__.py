"""Our own expectations on queues; importing this makes them known to Great Expectations, and takes as long as that.

Each looks at several columns of a profile at once, says in its name what a queue does, and holds on PostgreSQL and on
Spark alike. Suites name them by their class in small letters, such as ``expect_queue_serials_to_increase``.
"""

from __future__ import annotations

from queuekeeper.quality.expectations.agreement import ExpectStoresToAgree
from queuekeeper.quality.expectations.expiry import ExpectPayloadsToExpire, ExpectTtlToEndWithExpiry
from queuekeeper.quality.expectations.last_packet_id import ExpectLastPacketIdToCoverQueue
from queuekeeper.quality.expectations.order import ExpectQueueSerialsToIncrease
from queuekeeper.quality.expectations.packet_id_step import ExpectPacketIdsToStepWithSerials
from queuekeeper.quality.expectations.references import (
    ExpectDeadReferencesToLeaveRoom,
    ExpectPayloadsToBeReferenced,
    ExpectReferencesToHavePayloads,
)
from queuekeeper.quality.expectations.size_limit import ExpectQueueToKeepWithinLimit
from queuekeeper.quality.expectations.slot_tags import ExpectHashTagToHoldClientTogether, ExpectKeysToBeTheClientsOwn

__all__ = [
    "ExpectDeadReferencesToLeaveRoom",
    "ExpectHashTagToHoldClientTogether",
    "ExpectKeysToBeTheClientsOwn",
    "ExpectLastPacketIdToCoverQueue",
    "ExpectPacketIdsToStepWithSerials",
    "ExpectPayloadsToBeReferenced",
    "ExpectPayloadsToExpire",
    "ExpectQueueSerialsToIncrease",
    "ExpectQueueToKeepWithinLimit",
    "ExpectReferencesToHavePayloads",
    "ExpectStoresToAgree",
    "ExpectTtlToEndWithExpiry",
]

"""The operations of fan-out queues, as steps of script calls.

A step is a list of calls, whose answer is the list of their replies with an exception in the place of a reply that is
an error; or it is a :class:`Wake`, whose answer is whether it came.
"""

from __future__ import annotations

from queuekeeper.errors import ConsumerLeaving, HasLeases, UnknownConsumer, UnknownQueue
from queuekeeper.fanout.operations.common import BYTES_PER_CALL, Step, Wake
from queuekeeper.fanout.operations.deliver import DeliverOperations
from queuekeeper.fanout.operations.publish import MESSAGES_PER_CALL, PublishOperations
from queuekeeper.fanout.operations.register import RegisterOperations
from queuekeeper.fanout.operations.repair import RepairOperations
from queuekeeper.fanout.operations.upkeep import UpkeepOperations
from queuekeeper.operation import errors_name

__all__ = ["BYTES_PER_CALL", "MESSAGES_PER_CALL", "FanoutOperations", "Step", "Wake"]


@errors_name(UnknownQueue, UnknownConsumer, HasLeases, ConsumerLeaving, queue="queue", consumer="consumer")
class FanoutOperations(RegisterOperations, PublishOperations, DeliverOperations, UpkeepOperations, RepairOperations):
    """What fan-out queues can do, as operations; an instance may be shared by threads.

    Each raises ``InvalidName`` for a name that cannot be one, and ``UnknownQueue`` or ``UnknownConsumer`` where there
    is none of that name.

    :param prefix: put before every key.
    :param rules: bounds to keep.
    :param clock: says what time it is; the server does when there is none.
    :param new_token: makes up the tokens of leases, letters and digits.
    :param counts_only: who answers the calls writes nothing: pages step over what would be gone by then.
    :param size: says how much the next step of upkeep takes in, given how much is usual.
    :raises UsageError: for a prefix with a brace.
    """

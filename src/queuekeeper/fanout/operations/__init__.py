"""The operations of fan-out queues, as steps of script calls.

A step is a list of calls or a :class:`Wake`. The answer to calls is the list of their replies, with an exception in
place of a reply that is an error; the answer to a :class:`Wake` is whether the wake-up came.
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
    """The operations of fan-out queues; threads may share an instance.

    Each raises ``InvalidName`` for a name that is not valid, and ``UnknownQueue`` or ``UnknownConsumer`` for a name
    that does not exist.

    :param prefix: text before every key, empty by default.
    :param rules: limits for messages; defaults when absent.
    :param clock: returns the present time in ms; the server's clock by default.
    :param new_token: makes tokens of leases, of letters and digits.
    :param counts_only: write nothing: each call returns what it would do, and later calls do not see its changes.
    :param size: returns the size of the next call, given the usual size.
    :raises UsageError: for a prefix with a brace.
    """

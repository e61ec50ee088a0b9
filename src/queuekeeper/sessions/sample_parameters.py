"""What a sample of sessions is made by."""

from __future__ import annotations

from dataclasses import dataclass

from queuekeeper.clock import DAY_MS
from queuekeeper.errors import UsageError

MAX_QUEUE = 50_000
"""Most messages of a healthy session; with gaps, a longer queue could hold a packet id twice."""

MAX_MESSAGES = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class SampleParameters:
    """Parameters of a sample; the same parameters give the same rows.

    :param messages: number of healthy messages; ``hostile`` adds more rows.
    :param sessions: number of healthy sessions. A fifth of them have no messages.
    :param seed: seed of the random numbers.
    :param now_ms: instant at which rows count as expired or not.
    :param long_queues: number of sessions with a very long queue.
    :param long_queue_messages: number of messages in each very long queue; together at most half of all messages.
    :param hostile: add odd and broken rows as old databases hold them, and scatter all rows over the table.
    :param replace: empty the tables first. Without it, tables with rows are refused.
    :param create_schema: create the vendor's tables where they are missing.
    """

    messages: int = 200_000
    sessions: int = 20_000
    seed: int = 1
    now_ms: int
    long_queues: int = 3
    long_queue_messages: int = 12_000
    hostile: bool = False
    replace: bool = False
    create_schema: bool = False

    def __post_init__(self) -> None:
        """Refuse a parameter out of range.

        :raises UsageError: naming the parameter, its value and the rule.
        """
        rules = {
            "messages": (0, MAX_MESSAGES),
            "sessions": (1, 100_000_000),
            "seed": (0, 2**63 - 1),
            "now_ms": (30 * DAY_MS, 2**53),
            "long_queues": (0, 1_000),
            "long_queue_messages": (1, MAX_QUEUE),
        }
        for name, (lowest, highest) in rules.items():
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise UsageError(f"{name} is {value}: it must be {lowest} to {highest}")

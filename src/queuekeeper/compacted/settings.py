"""Settings of EMQX's exclusive compacted queue (ECQ), with the names and limits that they have there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from queuekeeper.checks import DAY_S, check_integer, check_integers, checked
from queuekeeper.compacted.model import MAX_SEQUENCE, Retention, RetentionPolicy
from queuekeeper.durations import duration_ms
from queuekeeper.errors import InvalidPolicy, UsageError

MAX_READER_BATCH_SIZE = 31
"""EMQX lets a client have 32 messages in flight; at least one is left for other subscriptions."""

MAX_WRITER_POOL_SIZE = 10_240

MAX_TIMEOUT_MS = int(1_000 * DAY_S)
"""A day, the longest time for which a producer repeats an append."""


@dataclass(frozen=True, kw_only=True)
class EcqSettings:
    """Settings of ECQ.

    :param writer_pool_size: most clients whose values are stored at once, up to 10,240; 0 for the default of 1,000.
    :param data_retention_ms: age at which messages are collected, acknowledged or not; 7 days by default.
    :param gc_interval_ms: time between two collections, an hour by default. Queues do not use it: set the schedule of
        the collector to it.
    :param reader_batch_size: most messages that a consumer has in flight, 1 to 31; 5 by default.
    :param write_timeout_ms: time within which a value must be stored, 5 s by default and at most a day.
    :param read_timeout_ms: time within which Redis must answer a read, 5 s by default and at most a day.
    :raises UsageError: naming setting, value and limits.
    """

    writer_pool_size: int = 0
    data_retention_ms: int = 604_800_000
    gc_interval_ms: int = 3_600_000
    reader_batch_size: int = 5
    write_timeout_ms: int = 5_000
    read_timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        check_integers(self, writer_pool_size=(0, MAX_WRITER_POOL_SIZE), reader_batch_size=(1, MAX_READER_BATCH_SIZE))
        check_integer("data_retention", self.data_retention_ms, 0, MAX_SEQUENCE, error=InvalidPolicy)
        check_integer("gc_interval", self.gc_interval_ms, 1, MAX_SEQUENCE)
        for name in ("write_timeout", "read_timeout"):
            check_integer(name, getattr(self, f"{name}_ms"), 1, MAX_TIMEOUT_MS, "milliseconds, a day at most")

    @classmethod
    @checked
    def parse(cls, settings: Mapping[str, Any]) -> EcqSettings:
        """Read settings under the names that ECQ gives them, such as ``data_retention: 7d``.

        :raises UsageError: for a name that ECQ does not have, or a value outside its limits.
        """
        names = {field.name.removesuffix("_ms"): field.name for field in fields(cls)}
        unknown = sorted(map(repr, settings.keys() - names.keys()))
        if unknown:
            raise UsageError(f"there is no setting {', '.join(unknown)}: there are {', '.join(names)}")
        return cls(
            **{
                names[name]: duration_ms(name, value) if names[name].endswith("_ms") else value
                for name, value in settings.items()
            }
        )

    @property
    def retention(self) -> Retention:
        """Retention by ECQ's only policy, which removes every message by its age, also the newest value of a key."""
        return Retention(policy=RetentionPolicy.DELETE, retention_ms=self.data_retention_ms)

"""The configuration of EMQX's exclusive compacted queue, by its names and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from queuekeeper.checks import DAY_S, check_integer, check_integers, checked
from queuekeeper.compacted.model import MAX_SEQUENCE, Retention, RetentionPolicy
from queuekeeper.durations import duration_ms
from queuekeeper.errors import InvalidPolicy, UsageError

MAX_READER_BATCH_SIZE = 31
"""Below 32, which is what EMQX lets a client have in flight: other subscriptions keep room."""

MAX_WRITER_POOL_SIZE = 10_240

MAX_TIMEOUT_MS = int(1_000 * DAY_S)
"""As long as a producer repeats an append."""


@dataclass(frozen=True, kw_only=True)
class EcqSettings:
    """What can be configured of the original.

    :param writer_pool_size: number of clients whose values are stored at once, up to 10,240; 0 for the default.
    :param data_retention_ms: age at which messages are collected, acknowledged or not.
    :param gc_interval_ms: time between two collections; it is read and checked, and no queue uses it:
        it is for the schedule of the collector.
    :param reader_batch_size: largest number of messages that a consumer has in flight, 1 to 31.
    :param write_timeout_ms: time within which a value must be stored, a day at most.
    :param read_timeout_ms: time within which the store must answer a read, a day at most.
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
        """Read settings under the names that the original gives them.

        :raises UsageError: for a name that it does not have, or a value out of its limits.
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
        """What the original's only policy does: age removes every message, also the last one of a key."""
        return Retention(policy=RetentionPolicy.DELETE, retention_ms=self.data_retention_ms)

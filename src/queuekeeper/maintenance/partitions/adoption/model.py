"""What an adoption is asked to do, what it counts, and what its plan has found."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from queuekeeper.errors import UsageError
from queuekeeper.jobs.common import Pacing, max_operations_per_s
from queuekeeper.jobs.counts import Counts
from queuekeeper.jobs.parameters import Section, parameter, seconds
from queuekeeper.maintenance.partitions.policy import PartitionPolicy, PartitionRules, ahead, step, table


class Act(StrEnum):
    """What is done with a table."""

    ADOPT = "adopt"
    BACK = "back"
    COMMIT = "commit"


class AdoptionParameters(PartitionRules, Pacing):
    """Parameters of an adoption: the table, its policy, and how much of the server the copy may take."""

    table: str = table(pattern=r"^[^.]+\..+$")
    act: Act = parameter(
        Act.ADOPT,
        title="Act",
        help="What to do: adopt the table; go back to the old one, also from an adoption that is not finished; or "
        "commit, which drops the old table.",
        choices={
            "adopt": "adopt: copy the table into partitions and exchange the two",
            "back": "back: return to the old table, with all changes made since",
            "commit": "commit: drop the old table, after which there is no way back",
        },
    )
    key: str = parameter(
        "",
        title="Partition key",
        help="Column of time, date or integers by whose ranges the table is partitioned. Needed to adopt.",
        longest=63,
        examples=["created_at"],
    )
    step: str = step()
    ahead: str = ahead()
    disk_mib: int | None = parameter(
        None,
        title="Disk for the copy (MiB)",
        help="Free disk in MiB that the copy may take. PostgreSQL does not tell how much is free. Needed to adopt: a "
        "larger table is refused, and a copy that grows beyond it stops.",
        least=1,
        most=1_000_000_000,
        unset="nothing is adopted",
        examples=[1_000, 100_000],
    )
    widen_keys: bool = parameter(
        False,
        title="Widen keys",
        help="Add the partition key to primary key and unique constraints that lack it. PostgreSQL then no longer "
        "refuses two rows that differ in the partition key alone.",
    )
    batch_rows: int = parameter(
        5_000,
        title="Batch (rows)",
        help="Rows that one statement copies or compares.",
        least=1,
        most=100_000,
        examples=[1_000, 5_000],
        section=Section.PACE,
    )
    max_operations_per_s: int | None = max_operations_per_s(
        None, counted="Rows copied or compared", examples=(None, 2_000, 20_000)
    )
    max_standby_lag_s: int = seconds(
        10,
        title="Lag of standbys",
        help="Seconds by which a standby may lag before the copy waits for it.",
        most=86_400,
        section=Section.PACE,
    )
    max_waiting: int = parameter(
        5,
        title="Waiting sessions",
        help="Sessions of the database that may wait for locks before the copy waits, too.",
        least=0,
        most=10_000,
        examples=[0, 5],
        section=Section.PACE,
    )
    exchange_ms: int = parameter(
        1_000,
        title="Exchange (milliseconds)",
        help="Longest time in milliseconds for which others wait for the exchange of the tables. It gives way and is "
        "tried again when it would take longer.",
        least=50,
        most=1_000,
        examples=[200, 1_000],
        section=Section.PACE,
    )

    def check_described(self) -> None:
        """Refuse to adopt a table of which not all is said.

        :raises UsageError: naming what is missing.
        """
        wanted = {"key": "created_at", "step": "'1 day'", "ahead": "'7 days'", "disk_mib": "10000"}
        for name, example in wanted.items():
            if not getattr(self, name):
                option = name.replace("_", "-")
                raise UsageError(f"{name} is missing: adopting a table needs it, such as --{option} {example}")

    def policy(self, *, storage: tuple[str, ...] = ()) -> PartitionPolicy:
        """Return the policy that the table gets.

        :param storage: storage parameters of partitions, where the person has named none.
        """
        given = {each.name: getattr(self, each.name) for each in fields(PartitionPolicy)}
        return PartitionPolicy(**{**given, "storage": self.storage or storage})


@dataclass(kw_only=True)
class AdoptionCounts(Counts):
    """Counts of an adoption.

    :ivar seen: rows that were looked at to be copied.
    :ivar copied: rows that were copied.
    :ivar repeated: changes by others that were repeated on the other table.
    :ivar compared: rows that were compared; a row is compared anew after each change.
    :ivar exchanged: 1 when the tables took each other's place.
    :ivar dropped: 1 when the table that stood aside was dropped.
    """

    looked_at = frozenset({"seen", "repeated", "compared"})

    seen: int = 0
    copied: int = 0
    repeated: int = 0
    compared: int = 0
    exchanged: int = 0
    dropped: int = 0

    @property
    def removed(self) -> int:
        """Number of tables that were dropped."""
        return self.dropped


@dataclass(frozen=True, kw_only=True)
class AdoptionFound:
    """What a plan of an adoption has found besides its counts.

    :param statements: exact SQL, each with the lock that it takes and who waits for it.
    :param partitions: how many partitions the copy begins with.
    :param bytes: size of the table with its indexes.
    :param widened: whether the partition key is added to the primary key.
    :param fingerprint: of the table's definition; the adoption stops when it changes.
    """

    statements: tuple[tuple[str, str], ...] = ()
    partitions: int = 0
    bytes: int = 0  # of the table and its indexes
    widened: bool = False
    fingerprint: str = ""

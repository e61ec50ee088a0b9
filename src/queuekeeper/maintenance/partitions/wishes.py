"""What a person asks of the maintenance of partitions, and of the job that archives them."""

from __future__ import annotations

from queuekeeper.jobs.common import FOLDER_OR_URL
from queuekeeper.jobs.parameters import Parameters, Section, needed, parameter


class PartitionWish(Parameters):
    """Parameters of the maintenance of partitions."""

    tables: tuple[str, ...] = parameter(
        (),
        title="Tables",
        help="Maintain only these tables, named as their policies name them.",
        unset="every table that has a policy",
        shortest=3,
        rule="each must be the name of a table with its schema, such as pgmb.events",
        noun="TABLE",
        examples=[["pgmb.events"]],
    )
    override_consumers: bool = parameter(
        False,
        title="Pass consumers",
        help="Also retire partitions that a consumer has not read yet. A person is asked first, table by table.",
    )
    archive_directory: str = parameter(
        "",
        title="Folder of archives",
        help="Where retired partitions are archived: a folder, or its URL in an object store. The files hold payloads.",
        unset="QUEUEKEEPER_ARCHIVES_DIR, or archives in the home folder",
        section=Section.RECORDS,
        pattern=FOLDER_OR_URL,
        longest=1_024,
        rule="it must be an absolute path or an object store's URL that all of Spark can write to, without braces",
        examples=[None, "/srv/queuekeeper/archives", "s3://bucket/archives"],
    )


class RegisterWish(Parameters):
    """Parameters of the registration of archives."""

    keep_snapshots_days: int = parameter(
        7,
        title="Keep snapshots",
        help="Days for which earlier states of the Iceberg table are kept. Archives are never removed with them.",
        section=Section.RECORDS,
        least=0,
        most=36_500,
    )


class ArchiveWish(Parameters):
    """Parameters of the Spark job that archives partitions."""

    directory: str = needed(
        title="Folder",
        help="Folder of archives that all of Spark can reach, or its URL in an object store.",
        rule="it must name a folder",
        examples=["s3://archives/readings"],
    )
    retired_ids: tuple[str, ...] = parameter(
        (),
        needed=True,
        title="Retired partitions",
        help="Numbers of retired partitions in quarantine.",
        pattern=r"^\d+$",
        rule="it must be the numbers of retired partitions, such as 7 8",
    )

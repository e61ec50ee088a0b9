"""Names what a task reads and writes for OpenLineage; only its provider for Airflow, if installed, calls this.

Names consist of hosts, ports, databases and tables, and hold no user and no password.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from queuekeeper import postgres
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook, QueuekeeperRedisHook

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.generated.base import InputDataset, InputDatasetFacet, OutputDataset

    Lineage: TypeAlias = OperatorLineage[Any, Any]


def lineage(*, inputs: Sequence[InputDataset], outputs: Sequence[OutputDataset]) -> Lineage:
    """Return inputs and outputs as the object that OpenLineage's provider expects from an operator."""
    from airflow.providers.openlineage.extractors import OperatorLineage  # noqa: PLC0415 - optional

    return OperatorLineage(inputs=list(inputs), outputs=list(outputs))


def postgres_table(conn_id: str, table: str, *, rows: int | None = None) -> InputDataset:
    """Return a table that is read.

    :param conn_id: connection of the database.
    :param table: table as ``schema.name``.
    :param rows: number of rows that were read, once it is known.
    """
    from openlineage.client.generated.base import InputDataset  # noqa: PLC0415
    from openlineage.client.generated.input_statistics_input_dataset import (  # noqa: PLC0415
        InputStatisticsInputDatasetFacet,
    )

    found = postgres.read_url(QueuekeeperPostgresHook(postgres_conn_id=conn_id).url)
    # Of several hosts, the first one names the database, whichever of them answers.
    host, port = (str(found.get(name) or "").partition(",")[0] for name in ("host", "port"))
    facets: dict[str, InputDatasetFacet] = {}
    if rows is not None:
        facets["inputStatistics"] = InputStatisticsInputDatasetFacet(rowCount=rows)
    return InputDataset(
        namespace=f"postgres://{_address(host or 'localhost', port or '5432')}",
        name=f"{found.get('dbname', '')}.{table}",
        inputFacets=facets,
    )


def redis_sessions(conn_id: str, *, key_prefix: str, rows: int | None = None) -> OutputDataset:
    """Return the sessions of a key prefix, which are written.

    :param conn_id: connection of the server or cluster.
    :param rows: number of messages that were written, once it is known.
    """
    parts = urlsplit(QueuekeeperRedisHook(conn_id).url)
    namespace = f"redis://{_address(unquote(parts.hostname or ''), str(parts.port))}"
    return _written(namespace, f"{parts.path[1:]}/{key_prefix}sessions", rows=rows)


def parquet_files(path: str, *, rows: int, size_bytes: int, files: int) -> OutputDataset:
    """Return a folder of files that were written, on a disk or in an object store."""
    store, _, key = path.partition("://")[2].partition("/")
    namespace, name = (path.removesuffix(f"/{key}"), key) if store else ("file", path)
    return _written(namespace, name, rows=rows, size_bytes=size_bytes, files=files)


def _written(
    namespace: str, name: str, *, rows: int | None, size_bytes: int | None = None, files: int | None = None
) -> OutputDataset:
    from openlineage.client.generated.base import OutputDataset  # noqa: PLC0415
    from openlineage.client.generated.output_statistics_output_dataset import (  # noqa: PLC0415
        OutputStatisticsOutputDatasetFacet,
    )

    facet = OutputStatisticsOutputDatasetFacet(rowCount=rows, size=size_bytes, fileCount=files)
    return OutputDataset(
        namespace=namespace, name=name, outputFacets={} if rows is None else {"outputStatistics": facet}
    )


def _address(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

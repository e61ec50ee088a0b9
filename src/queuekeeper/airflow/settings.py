"""Settings as processes of Airflow read them, in which object stores are opened by Airflow's connections."""

from __future__ import annotations

from typing import Any

from queuekeeper.config import Settings
from queuekeeper.errors import UsageError


class AirflowSettings(Settings):
    """:class:`queuekeeper.config.Settings`, for URLs that may name a connection of Airflow, too."""

    def open_store(self, url: str) -> Any:
        """Return what acts like a path, for a URL such as ``s3://CONNECTION@BUCKET/reports``."""
        # What needs no object store does not load it.
        from airflow.sdk import BaseHook, ObjectStoragePath  # noqa: PLC0415
        from airflow.sdk.exceptions import AirflowNotFoundException  # noqa: PLC0415

        path = ObjectStoragePath(url)
        if path.conn_id:
            try:
                # The provider would go on without, with whatever credentials it finds.
                BaseHook.get_connection(path.conn_id)
            except AirflowNotFoundException:
                raise UsageError(
                    f"{path} names connection {path.conn_id!r}, which Airflow does not know: make it, or name another"
                ) from None
            # What cannot be opened is said here; the path would go on without the connection.
            _ = path.fs
        return path

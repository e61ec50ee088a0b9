"""Settings as processes of Airflow read them, in which object stores are opened by Airflow's connections."""

from __future__ import annotations

from typing import Any

from queuekeeper.config import Settings


class AirflowSettings(Settings):
    """:class:`queuekeeper.config.Settings`, for URLs that may name a connection of Airflow, too."""

    def open_store(self, url: str) -> Any:
        """Return what acts like a path, for a URL such as ``s3://CONNECTION@BUCKET/reports``."""
        from airflow.sdk import ObjectStoragePath  # noqa: PLC0415 - what needs no object store does not load it

        return ObjectStoragePath(url)

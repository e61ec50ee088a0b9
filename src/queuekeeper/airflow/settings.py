"""Settings for processes of Airflow, which open object stores by Airflow's connections."""

from __future__ import annotations

from typing import Any

from airflow.sdk.configuration import conf

from queuekeeper.config import Settings
from queuekeeper.errors import UsageError


class AirflowSettings(Settings):
    """:class:`queuekeeper.config.Settings` whose URLs may also name a connection of Airflow."""

    def open_store(self, url: str) -> Any:
        """Return an object that acts like a path, for a URL such as ``s3://CONNECTION@BUCKET/reports``."""
        # Imported here, so that other uses of the settings do not load it.
        from airflow.sdk import BaseHook, ObjectStoragePath  # noqa: PLC0415
        from airflow.sdk.exceptions import AirflowNotFoundException  # noqa: PLC0415

        path = ObjectStoragePath(url)
        if path.conn_id:
            try:
                # The provider would continue with any credentials that it finds.
                BaseHook.get_connection(path.conn_id)
            except AirflowNotFoundException:
                raise UsageError(
                    f"{path} names connection {path.conn_id!r}, which Airflow does not have: add it, or name another"
                ) from None
            # Fail here if the store cannot be opened; the path would continue without the connection.
            _ = path.fs
        return path


_SHARED = ("reports_dir", "undo_dir", "hash_key")


def task_settings(*more: str) -> AirflowSettings:
    """Return the settings of a task, with which tasks on other workers and the API server go on.

    :param more: what has to be shared besides reports, undo files and the key of clients' names.
    :raises UsageError: when tasks run on workers of their own, and each would keep for itself what is to be shared.
    """
    settings = AirflowSettings()
    executor = conf.get("core", "executor", fallback="LocalExecutor")
    missing = [f"QUEUEKEEPER_{name.upper()}" for name in (*_SHARED, *more) if getattr(settings, name) is None]
    if missing and not all(name.strip().endswith("LocalExecutor") for name in executor.split(",")):
        raise UsageError(
            f"{', '.join(missing)}: not set, so each worker of {executor} would keep its own in {settings.home}; set "
            "the same for all workers and the API server (docs/deploying.md)"
        )
    return settings

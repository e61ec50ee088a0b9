"""Settings of a process, read once from ``QUEUEKEEPER_*`` environment variables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SecretStr, ValidationInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from queuekeeper.places import by_fsspec, folder, folder_or_url, opened, shared_place

DRIVER_JAVA_OPTIONS = "-XX:+UseParallelGC"
"""How Spark's driver is started. A bulk job cares for throughput, not for pauses: with the JVM's default collector the
copy takes a fifth more processor time (docs/performance.md)."""

DRIVER_SETTINGS = {
    "spark.driver.extraJavaOptions": DRIVER_JAVA_OPTIONS,
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of Spark's driver, for whoever starts its JVM: a command, or Airflow's operator by ``spark-submit``."""

POSTGRES_VARIABLE = "QUEUEKEEPER_POSTGRES_URL"
REDIS_VARIABLE = "QUEUEKEEPER_REDIS_URL"
SUPERVISOR_VARIABLE = "QUEUEKEEPER_SUPERVISOR_PID"
"""Names the process with which the driver of a Spark job ends."""


def _taken_by(take: Callable[..., object]) -> BeforeValidator:
    def taken(given: object, info: ValidationInfo) -> object:
        return take(given, name=f"QUEUEKEEPER_{info.field_name}".upper()) if isinstance(given, str) else given

    return BeforeValidator(taken)


_Folder = Annotated[Path, _taken_by(folder)]
_FolderOrUrl = Annotated[Path | str, _taken_by(folder_or_url)]
_Shared = Annotated[Path | str, _taken_by(shared_place)]


class Settings(BaseSettings):
    """What a process needs to know before it does anything.

    :param home: folder for the private servers' data, logs and state.
    :param postgres_url: source and control database; the private server's when absent.
    :param redis_url: single server or any node of a cluster; the private server's when absent.
    :param spark_master: where Spark runs when no ``spark-submit`` says so.
    :param key_prefix: put before every Redis key; may hold no braces.
    :param reports_dir: where reports are written, also in an object store; ``<home>/reports`` when absent.
    :param undo_dir: where jobs note what they change, also in an object store; ``<home>/undo`` when absent.
    :param archives_dir: where retired partitions are archived, also in an object store; ``<home>/archives`` when
        absent.
    :param hash_key: secret from which reports' names of clients are made; one is made and kept in ``home`` when absent.
    """

    model_config = SettingsConfigDict(env_prefix="QUEUEKEEPER_", frozen=True)

    home: _Folder = Field(default_factory=lambda: Path.home() / ".local" / "state" / "queuekeeper")
    postgres_url: SecretStr | None = None
    redis_url: SecretStr | None = None
    spark_master: str = "local[*]"
    key_prefix: str = ""
    reports_dir: _FolderOrUrl | None = None
    undo_dir: _FolderOrUrl | None = None
    archives_dir: _Shared | None = None
    hash_key: SecretStr | None = None

    @property
    def reports(self) -> Path:
        """Folder for reports, not yet created; in an object store what acts like one, without renames.

        :raises UsageError: when nothing that is installed opens that object store.
        """
        place = self.reports_dir or self.home / "reports"
        return opened(place, what="reports", name="QUEUEKEEPER_REPORTS_DIR", by=self.open_store)

    @property
    def undo(self) -> Path:
        """Folder for undo files, not yet created; in an object store what acts like one.

        :raises UsageError: when nothing that is installed opens that object store.
        """
        place = self.undo_dir or self.home / "undo"
        return opened(place, what="undo files", name="QUEUEKEEPER_UNDO_DIR", by=self.open_store)

    @property
    def archives(self) -> Path | str:
        """Folder for archived partitions, not yet created, or its URL in an object store; Spark reaches it, too."""
        return self.archives_dir or self.home / "archives"

    def open_store(self, url: str) -> Any:
        """Return what acts like a path, for a URL of an object store that names no connection of Airflow."""
        return by_fsspec(url)

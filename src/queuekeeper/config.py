"""Settings of a process, read once from ``QUEUEKEEPER_*`` environment variables; what a migration does is not one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from queuekeeper.errors import UsageError

DRIVER_JAVA_OPTIONS = "-XX:+UseParallelGC"
"""How Spark's driver is started. A bulk job cares for throughput, not for pauses: with the JVM's default collector the
copy takes a fifth more processor time (docs/performance.md)."""


def folder(text: str, *, name: str) -> Path:
    """Return the folder that a text names, as a path or a ``file://`` URL.

    Of an object store's URL a path would be made that is a new folder on whichever machine the process runs on.

    :param name: what somebody has set.
    :raises UsageError: when it names an object store.
    """
    scheme, mark, _ = text.partition("://")
    if not mark:
        return Path(text)
    if scheme == "file":
        return Path(unquote(urlsplit(text).path))
    raise UsageError(
        f"{name} names an object store ({scheme}://), and a folder is needed: reports and archives appear by one "
        "rename once they are complete, and each line of an undo file is on disk before its change is made; "
        "name a folder that all machines share"
    )


def _folder(given: object, info: ValidationInfo) -> object:
    return folder(given, name=f"QUEUEKEEPER_{info.field_name}".upper()) if isinstance(given, str) else given


_Folder = Annotated[Path, BeforeValidator(_folder)]


class Settings(BaseSettings):
    """What a process needs to know before it does anything.

    :param home: folder for the private servers' data, logs and state.
    :param postgres_url: source and control database; the private server's when absent.
    :param redis_url: single server or any node of a cluster; the private server's when absent.
    :param spark_master: where Spark runs when no ``spark-submit`` says so.
    :param key_prefix: put before every Redis key; may hold no braces.
    :param reports_dir: where reports are written; ``<home>/reports`` when absent.
    :param undo_dir: where cleanups and remedies note what they change; ``<home>/undo`` when absent.
    :param archives_dir: where retired partitions are archived; ``<home>/archives`` when absent.
    :param hash_key: secret from which reports' names of clients are made; one is made and kept in ``home`` when absent.
    """

    model_config = SettingsConfigDict(env_prefix="QUEUEKEEPER_", frozen=True)

    home: _Folder = Field(default_factory=lambda: Path.home() / ".local" / "state" / "queuekeeper")
    postgres_url: SecretStr | None = None
    redis_url: SecretStr | None = None
    spark_master: str = "local[*]"
    key_prefix: str = ""
    reports_dir: _Folder | None = None
    undo_dir: _Folder | None = None
    archives_dir: _Folder | None = None
    hash_key: SecretStr | None = None

    @property
    def reports(self) -> Path:
        """Folder for reports, not yet created."""
        return self.reports_dir or self.home / "reports"

    @property
    def undo(self) -> Path:
        """Folder for undo files, not yet created."""
        return self.undo_dir or self.home / "undo"

    @property
    def archives(self) -> Path:
        """Folder for archived partitions, not yet created; Spark has to reach it, too."""
        return self.archives_dir or self.home / "archives"

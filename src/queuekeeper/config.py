"""Settings of a process, read once from ``QUEUEKEEPER_*`` environment variables; what a migration does is not one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, cast
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
        f"{name} names an object store ({scheme}://), and a folder is needed: an archive appears by one rename once it "
        "was compared with its table, and each line of an undo file is on disk before its change is made; only reports "
        "may be in an object store; name a folder that all machines share"
    )


def report_folder(text: str, *, name: str) -> Path | str:
    """Return the folder of reports that a text names; one in an object store stays a URL.

    :param name: what somebody has set.
    :raises UsageError: when the URL holds a password.
    """
    if "://" not in text or text.startswith("file://"):
        return folder(text, name=name)
    url = urlsplit(text)
    if url.password is not None:
        raise UsageError(
            f"{name} names an object store ({url.scheme}://) with a password, which pages would show: name a "
            f"connection of Airflow instead, as {url.scheme}://CONNECTION@BUCKET/reports, or the bucket alone"
        )
    return text


def _by_fsspec(url: str) -> Any:
    try:
        from upath import UPath  # noqa: PLC0415 - comes with Airflow, and is needed for object stores alone
    except ModuleNotFoundError:
        raise UsageError(
            f"reports are in an object store ({urlsplit(url).scheme}://), which takes universal-pathlib and fsspec's "
            "driver for it: install both, or name a folder by QUEUEKEEPER_REPORTS_DIR"
        ) from None
    return UPath(url)


_opened: Callable[[str], Any] = _by_fsspec


def open_stores_by(opened: Callable[[str], Any]) -> None:
    """Say how object stores are opened.

    :param opened: returns for a URL what acts like a path; outside of Airflow ``upath.UPath``.
    """
    global _opened  # noqa: PLW0603 - a process is Airflow's or it is not
    _opened = opened


def _report_folder(given: object, info: ValidationInfo) -> object:
    name = f"QUEUEKEEPER_{info.field_name}".upper()
    return report_folder(given, name=name) if isinstance(given, str) else given


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
    :param reports_dir: where reports are written, also in an object store; ``<home>/reports`` when absent.
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
    reports_dir: Annotated[Path | str, BeforeValidator(_report_folder)] | None = None
    undo_dir: _Folder | None = None
    archives_dir: _Folder | None = None
    hash_key: SecretStr | None = None

    @property
    def reports(self) -> Path:
        """Folder for reports, not yet created; in an object store what acts like one, without renames.

        :raises UsageError: when nothing that is installed opens that object store.
        """
        if isinstance(self.reports_dir, str):
            return cast(Path, _opened(self.reports_dir))
        return self.reports_dir or self.home / "reports"

    @property
    def undo(self) -> Path:
        """Folder for undo files, not yet created."""
        return self.undo_dir or self.home / "undo"

    @property
    def archives(self) -> Path:
        """Folder for archived partitions, not yet created; Spark has to reach it, too."""
        return self.archives_dir or self.home / "archives"

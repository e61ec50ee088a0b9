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
        "was compared with its table; only reports and undo files may be in an object store; name a folder that all "
        "machines share"
    )


def folder_or_url(text: str, *, name: str) -> Path | str:
    """Return the folder that a text names; one in an object store stays a URL.

    :param name: what somebody has set.
    :raises UsageError: when the URL holds a password.
    """
    if "://" not in text or text.startswith("file://"):
        return folder(text, name=name)
    url = urlsplit(text)
    if url.password is not None:
        raise UsageError(
            f"{name} names an object store ({url.scheme}://) with a password, which pages would show: name a "
            f"connection of Airflow instead, as {url.scheme}://CONNECTION@BUCKET/FOLDER, or the bucket alone"
        )
    return text


def _by_fsspec(url: str) -> Any:
    # Both come with Airflow, and are needed for object stores alone.
    from fsspec import get_filesystem_class  # noqa: PLC0415
    from upath import UPath  # noqa: PLC0415

    path = UPath(url)
    # It knows what to install for a store that it cannot open.
    get_filesystem_class(path.protocol)
    return path


_opened: Callable[[str], Any] = _by_fsspec


def open_stores_by(opened: Callable[[str], Any]) -> None:
    """Say how object stores are opened.

    :param opened: returns for a URL what acts like a path; outside of Airflow ``upath.UPath``.
    """
    global _opened  # noqa: PLW0603 - a process is Airflow's or it is not
    _opened = opened


def opened(place: Path | str, *, what: str, name: str) -> Path:
    """Return a folder as a path; one in an object store as what acts like one, without renames.

    :param what: is kept there, in the plural.
    :param name: what somebody has set.
    :raises UsageError: when nothing that is installed opens that object store.
    """
    if isinstance(place, Path):
        return place
    try:
        return cast(Path, _opened(place))
    except (ImportError, ValueError) as error:
        raise UsageError(
            f"{what} are in an object store ({urlsplit(place).scheme}://), which takes universal-pathlib and fsspec's "
            f"driver for it ({error}): install both, or let {name} name a folder"
        ) from None


def _folder_or_url(given: object, info: ValidationInfo) -> object:
    name = f"QUEUEKEEPER_{info.field_name}".upper()
    return folder_or_url(given, name=name) if isinstance(given, str) else given


def _folder(given: object, info: ValidationInfo) -> object:
    return folder(given, name=f"QUEUEKEEPER_{info.field_name}".upper()) if isinstance(given, str) else given


_Folder = Annotated[Path, BeforeValidator(_folder)]
_FolderOrUrl = Annotated[Path | str, BeforeValidator(_folder_or_url)]


class Settings(BaseSettings):
    """What a process needs to know before it does anything.

    :param home: folder for the private servers' data, logs and state.
    :param postgres_url: source and control database; the private server's when absent.
    :param redis_url: single server or any node of a cluster; the private server's when absent.
    :param spark_master: where Spark runs when no ``spark-submit`` says so.
    :param key_prefix: put before every Redis key; may hold no braces.
    :param reports_dir: where reports are written, also in an object store; ``<home>/reports`` when absent.
    :param undo_dir: where jobs note what they change, also in an object store; ``<home>/undo`` when absent.
    :param archives_dir: where retired partitions are archived; ``<home>/archives`` when absent.
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
    archives_dir: _Folder | None = None
    hash_key: SecretStr | None = None

    @property
    def reports(self) -> Path:
        """Folder for reports, not yet created; in an object store what acts like one, without renames.

        :raises UsageError: when nothing that is installed opens that object store.
        """
        return opened(self.reports_dir or self.home / "reports", what="reports", name="QUEUEKEEPER_REPORTS_DIR")

    @property
    def undo(self) -> Path:
        """Folder for undo files, not yet created; in an object store what acts like one.

        :raises UsageError: when nothing that is installed opens that object store.
        """
        return opened(self.undo_dir or self.home / "undo", what="undo files", name="QUEUEKEEPER_UNDO_DIR")

    @property
    def archives(self) -> Path:
        """Folder for archived partitions, not yet created; Spark has to reach it, too."""
        return self.archives_dir or self.home / "archives"

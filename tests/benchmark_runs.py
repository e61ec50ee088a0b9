"""Runs of the benchmarks, with counts too small for their figures to mean anything."""

from __future__ import annotations

import importlib
import io
import json
import re
import socket
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
_BENCHMARKS = ROOT / "benchmarks"


def run(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark by the name of its file."""
    command = [sys.executable, str(_BENCHMARKS / f"{name}.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def measured(name: str, folder: Path, *words: str, servers: set[str]) -> tuple[dict[str, Any], str]:
    """Return a benchmark's result as it was written, and what was printed.

    :param servers: programs whose versions the result names.
    """
    path = folder / "result.json"
    done = run(name, *words, "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    text = path.read_text("utf-8")
    result: dict[str, Any] = json.loads(text)
    # The result is published: it says what kind of machine it was, not which one.
    assert {"processor", "cores", "memory_gib", *servers} <= set(result["machine"])
    # As a word: a machine may be called `vm`, which stands in `jvm`.
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    for secret in (str(folder), str(ROOT), "redis://", "postgresql://"):
        assert secret not in text
    return result, done.stdout


def is_refused(name: str, *words: str) -> bool:
    """Tell whether a benchmark refuses what it is asked for, with words: in this process, as it does nothing then."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(said):
        patch.syspath_prepend(str(_BENCHMARKS))
        patch.setattr(sys, "argv", [f"{name}.py", *words])
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(name).main()
    return ended.value.code == 2 and "error:" in said.getvalue()

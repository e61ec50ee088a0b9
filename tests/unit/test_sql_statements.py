"""Statements by name: what is in a file of ``sql/``, and what of it is sent."""

from __future__ import annotations

import re

import pytest

from queuekeeper import assets
from queuekeeper.sql_statements import statement, statements

pytestmark = pytest.mark.unit

SQL = assets.directory("sql")


def test_statement_comes_without_its_header() -> None:
    text = statement("queuekeeper/queries/plan_of_run")

    assert text.startswith("SELECT plan_id")
    assert text.endswith("%(run_id)s")
    assert "-- rows:" in statements("queuekeeper/queries")["plan_of_run"]


def test_lines_that_statements_share_stand_in_one_file() -> None:
    peek, quarantined = (statement(f"sessions/{name}") for name in ("peek", "quarantined_messages"))
    lines = (SQL / "includes/message_properties.sql").read_text("utf-8").splitlines()
    shared = "\n".join(f"    {line}" for line in lines if not line.startswith("--"))

    assert shared in peek
    assert shared in quarantined
    # As deep as the line that stands for them, also where several statements are in a file.
    assert "\n    AND driver = %(driver)s\nRETURNING" in statement("queuekeeper/queries/set_online_state")


def test_no_line_of_a_statement_is_left_that_stands_for_others() -> None:
    folders = {str(path.parent.relative_to(SQL)) for path in SQL.rglob("*.sql")}
    texts = {name: text for folder in folders for name, text in statements(folder).items()}
    used = {name for path in SQL.rglob("*.sql") for name in re.findall(r"-- include: (\w+)", path.read_text("utf-8"))}

    assert [name for name, text in texts.items() if "-- include: " in text] == []
    assert used == {path.stem for path in (SQL / "includes").glob("*.sql")}


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "queuekeeper//x", "queuekeeper/queries/Throttle", "a.b", ""]
)
def test_name_of_a_statement_is_no_path(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="is not the name of a statement"):
        statement(name)


def test_unknown_statement_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"no_such_statement\.sql"):
        statement("queuekeeper/queries/no_such_statement")

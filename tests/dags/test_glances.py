"""Figures of the overview, with what they were."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from queuekeeper.airflow.plugin.glance import over_runs
from queuekeeper.report.figures import size

pytestmark = pytest.mark.dags


@pytest.mark.parametrize(
    ("used", "about", "heights"),
    [
        ([18_664_448.0, 18_665_472.0], "in use; the same over 2 runs", 1),
        ([18_664_448.0, 28_664_448.0], "in use; up from 17.8 MiB over 2 runs", 2),
    ],
)
def test_line_of_a_figure_rises_only_where_its_words_do(used: list[float], about: str, heights: int) -> None:
    found = over_runs("Memory", list(enumerate(used)), size, "in use")

    assert found is not None
    assert found.about == about
    line = ElementTree.fromstring(str(found.line)).find("polyline")
    assert line is not None
    assert len({point.split(",")[1] for point in line.attrib["points"].split()}) == heights

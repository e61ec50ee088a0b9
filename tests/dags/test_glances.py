"""Figures of the overview, with what they were."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from queuekeeper.airflow.plugin.glance import glances
from queuekeeper.quality.report.gather import compose_report
from queuekeeper.quality.report.model import MemoryPoint
from tests import quality_samples

pytestmark = pytest.mark.dags


@pytest.mark.parametrize(
    ("used", "about", "heights"),
    [
        ([18_664_448, 18_665_472], "in use, without a limit; the same over 2 runs", 1),
        ([18_664_448, 28_664_448], "in use, without a limit; up from 17.8 MiB over 2 runs", 2),
    ],
)
def test_line_of_a_figure_rises_only_where_its_words_do(used: list[int], about: str, heights: int) -> None:
    report = compose_report(quality_samples.empty(), now_ms=quality_samples.NOW_MS)
    measured = tuple(MemoryPoint(at_ms=at_ms, used_bytes=each) for at_ms, each in enumerate(used))
    [found] = glances(replace(report, memory=replace(report.memory, measured=measured)), runs=())

    assert (found.title, found.about) == ("Memory", about)
    line = ElementTree.fromstring(str(found.line)).find("polyline")
    assert line is not None
    assert len({point.split(",")[1] for point in line.attrib["points"].split()}) == heights

"""Data Docs are pages that load nothing from elsewhere and run no script, whatever the values are."""

from __future__ import annotations

import json
import os
from html.parser import HTMLParser
from pathlib import Path

from queuekeeper.quality.judge import suites, validation

SUITE = suites.parse(
    json.dumps(
        {
            "name": "own",
            "expectations": [
                {
                    "type": "expect_column_values_to_be_in_set",
                    "kwargs": {"column": "policy", "value_set": ["noeviction"]},
                    "description": "Nothing is evicted.",
                    "severity": "critical",
                },
                {
                    "type": "expect_queue_to_keep_rule",
                    "kwargs": {"rule": "messages < 2", "column_list": ["messages", "live"]},
                    "description": "Queues are short.",
                    "severity": "info",
                },
                {
                    "type": "expect_column_values_to_be_in_set",
                    "kwargs": {"column": "nowhere", "value_set": [0]},
                    "description": "A column that is missing.",
                    "severity": "info",
                },
            ],
            "meta": {"queuekeeper": {"identity": ["client_hash"]}},
            "notes": "d",
        }
    ),
    name="own",
)
ROWS = (
    "SELECT * FROM (VALUES ('ab', '<script src=\"https://foreign.example/x.js\"></script>', 1, 1),"
    " ('cd', 'noeviction', 7, 7)) AS rows (client_hash, policy, messages, live)"
)


class Found(HTMLParser):
    """Tags of a page and the addresses in them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses |= {value or "" for name, value in attrs if name in {"src", "href", "action", "data"}}


def test_data_docs_load_nothing_from_other_hosts_and_lead_from_suite_to_suite(
    postgres_url: str, tmp_path: Path
) -> None:
    report = validation.validate(SUITE, postgres_url=postgres_url, query=ROWS, data_docs=tmp_path / "docs")

    pages = {path.name: path.read_text("utf-8") for path in (tmp_path / "docs").iterdir()}
    assert set(pages) == {"index.html", "own.html", "own.suite.html"}
    for name, page in pages.items():
        found = Found()
        found.feed(page)
        assert "script" not in found.tags, name
        assert {each.partition("#")[0] for each in found.addresses} <= {"", *pages}, name
        assert "url(" not in page, name
        # Nothing of Great Expectations' own names another host; the rows do.
        assert "://" not in page.replace("https://foreign.example", ""), name
    assert "default-src 'none'" in pages["own.html"]
    for words in ("Nothing is evicted.", "Queues are short.", "unexpected"):
        assert words in pages["own.html"]
    # The pages are an account of the same judgement.
    assert [result.passed for result in report.results] == [False, False, False]
    assert os.environ["GX_ANALYTICS_ENABLED"] == "false"

"""Pages of reports as their readers get them."""

from __future__ import annotations

import re
from html import unescape


def text_of(html: str) -> str:
    """Return the words of a page, without its drawings."""
    body = re.sub(r"<(style|svg)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def check_harmless(html: str, *, text: str) -> None:
    """Check that a hostile text is shown as text: the page has neither scripts nor images, which it never needs."""
    assert text in text_of(html)
    assert "<script" not in html
    assert "<img" not in html

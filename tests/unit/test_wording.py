from __future__ import annotations

import pytest

from queuekeeper.wording import article, number_of, sentence


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [
        (0, "message", "0 messages"),
        (1, "message", "1 message"),
        (2_000, "message", "2,000 messages"),
        (1, "entry", "1 entry"),
        (2, "entry", "2 entries"),
        (3, "key", "3 keys"),
        (2, "batch", "2 batches"),
        (2, "dead letter", "2 dead letters"),
    ],
)
def test_what_is_counted_stands_in_the_number_of_its_count(count: int, noun: str, words: str) -> None:
    assert number_of(count, noun) == words


@pytest.mark.parametrize("words", ["a cleanup", "an upkeep of the event broker"])
def test_article_goes_with_the_sound_behind_it(words: str) -> None:
    assert article(words.partition(" ")[2]) == words


def test_a_sentence_takes_counts_texts_and_figures() -> None:
    template = "{found:wrong key} of {client!r} in {seconds:.1f} s, {left:,} left"
    assert sentence(template, found=1, client="meter", seconds=2, left=1_000) == (
        "1 wrong key of 'meter' in 2.0 s, 1,000 left"
    )
    assert sentence(template, found=7, client="a", seconds=0.25, left=0).startswith("7 wrong keys of 'a' in 0.2 s")

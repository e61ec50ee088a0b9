from __future__ import annotations

import pytest

from queuekeeper.hosts import without_secret


@pytest.mark.parametrize(
    ("text", "secret", "shown"),
    [
        ("redis://user:b@host is not available", "b", "redis://user:***@host is not available"),
        ("password=s3cret, again 's3cret'", "s3cret", "password=***, again '***'"),
        ("postgresql://u:(a+b)@host", "(a+b)", "postgresql://u:***@host"),
        ("nothing to hide", "", "nothing to hide"),
    ],
)
def test_secret_is_hidden_and_words_that_contain_it_are_not(text: str, secret: str, shown: str) -> None:
    assert without_secret(text, secret) == shown

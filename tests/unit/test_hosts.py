from __future__ import annotations

import pytest

from queuekeeper.hosts import without_password, without_secret


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


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://u:s3cret@h/d?sslpassword=s3cret", "postgresql://u@h/d?sslpassword=***"),
        ("host=h password=s3cret user=u", "host=h password=*** user=u"),
        (r"host=h password = 's3c\' ret' user=u", "host=h password = *** user=u"),
        (r"password=s3c\ ret user=u", "password=*** user=u"),
        ("sslpassword=s3cret host=h", "sslpassword=*** host=h"),
        ("redis://:s3cret@[::1", "redis://***"),
    ],
)
def test_address_that_is_shown_holds_no_password_however_it_is_written(address: str, shown: str) -> None:
    assert without_password(address) == shown

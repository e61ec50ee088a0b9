"""Topics of compacted queues: what producers and clients write, and what strangers may write instead."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuekeeper.compacted.topics import QueueTopic, TopicKind, Topics
from queuekeeper.errors import InvalidTopic, UsageError

pytestmark = pytest.mark.unit

TOPICS = Topics()
LEVELS = st.text(st.characters(exclude_characters="/+#\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
KEYS = st.text(st.characters(exclude_characters="+#\0", exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize(
    ("topic", "kind", "client_id", "key"),
    [
        ("$ECQ/w/c1/k", TopicKind.WRITE, "c1", b"k"),
        ("$ECQ/w/c1/key/1", TopicKind.WRITE, "c1", b"key/1"),
        ("$ECQ/w/c1//", TopicKind.WRITE, "c1", b"/"),
        ("$ECQ/w/c1/", TopicKind.WRITE, "c1", b""),
        ("$ECQ/w/ü {}/$ECQ/w", TopicKind.WRITE, "ü {}", b"$ECQ/w"),
        ("$ECQ/c1/k", TopicKind.DELIVERY, "c1", b"k"),
        ("$ECQ/c1/", TopicKind.DELIVERY, "c1", b""),
        ("$ECQ/W/k", TopicKind.DELIVERY, "W", b"k"),
        ("$ECQ/c1/#", TopicKind.SUBSCRIPTION, "c1", None),
    ],
)
def test_topic_is_taken_apart_at_the_first_slash_behind_the_client_id(
    topic: str, kind: TopicKind, client_id: str, key: bytes | None
) -> None:
    assert TOPICS.parse(topic) == QueueTopic(kind=kind, client_id=client_id, key=key)


@pytest.mark.parametrize("topic", ["", "$ECQx/w/c/k", "$ecq/w/c/k", "ECQ/c/k", "a/$ECQ/w/c/k", "$SYS/broker", "#"])
def test_topic_of_others_is_nobodys(topic: str) -> None:
    assert TOPICS.parse(topic) is None
    assert not TOPICS.covers(topic)


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("$ECQ", "no slash behind the client id"),
        ("$ECQ/", "no slash behind the client id"),
        ("$ECQ/c1", "no slash behind the client id"),
        ("$ECQ/#", "no slash behind the client id"),
        ("$ECQ/w", "no slash behind the client id"),
        ("$ECQ/w/c1", "no slash behind the client id: write a slash and a key"),
        ("$ECQ//k", "client id is empty"),
        ("$ECQ/w//k", "client id is empty"),
        ("$ECQ/w/#", "no slash behind the client id"),
        ("$ECQ/w/c1/#", "subscribes to what producers publish"),
        ("$ECQ/w/w/k", "client id 'w' is reserved: producers publish"),
        ("$ECQ/+/#", "client id '\\+' holds the wildcard \\+"),
        ("$ECQ/c1/+", "key '\\+' holds the wildcard \\+"),
        ("$ECQ/c1/a/#", "key 'a/#' holds the wildcard #"),
        ("$ECQ/c1/a\0", "key .* holds a zero character"),
        ("$ECQ/c1/\ud800", "half a surrogate pair"),
        ("$ECQ/\udfff/k", "half a surrogate pair"),
        ("$ECQ/w/c1/" + "k" * 65_536, "has 65546 bytes: at most 65535"),
    ],
)
def test_topic_that_means_nothing_is_refused_in_words(topic: str, words: str) -> None:
    with pytest.raises(InvalidTopic, match=words) as refusal:
        TOPICS.parse(topic)
    assert len(str(refusal.value)) < 250


@pytest.mark.parametrize(
    ("client_id", "key", "words"),
    [
        ("", b"k", "client id is empty"),
        ("a/b", b"k", "client id 'a/b' holds a slash"),
        ("a+", b"k", "client id 'a\\+' holds the wildcard \\+"),
        ("#", b"k", "client id '#' holds the wildcard #"),
        ("w", b"k", "client id 'w' is reserved: producers publish"),
        (None, b"k", "client id is None"),
        ("c", "k", "key is a str"),
        ("c", b"\xff", "the key is not UTF-8"),
        ("c", b"\xed\xa0\x80", "the key is not UTF-8"),
        ("c", b"a\0", "zero character"),
        ("c", b"k" * 65_535, "at most 65535"),
    ],
)
def test_what_no_topic_can_hold_is_refused_in_words(client_id: str, key: bytes, words: str) -> None:
    for build in (TOPICS.write, TOPICS.delivery):
        with pytest.raises(UsageError, match=words):
            build(client_id, key)


@given(prefix=st.lists(LEVELS, min_size=1, max_size=3).map("/".join), client_id=LEVELS, key=KEYS)
def test_what_was_put_together_is_taken_apart_again(prefix: str, client_id: str, key: str) -> None:
    if prefix.split("/", maxsplit=1)[0] in ("$SYS", "$share", "$CONTROL", "$queue") or client_id == "w":
        return
    topics = Topics(prefix=prefix)
    assert topics.parse(topics.write(client_id, key.encode())) == QueueTopic(
        kind=TopicKind.WRITE, client_id=client_id, key=key.encode()
    )
    assert topics.parse(topics.delivery(client_id, key.encode())) == QueueTopic(
        kind=TopicKind.DELIVERY, client_id=client_id, key=key.encode()
    )
    assert topics.parse(topics.subscription(client_id)) == QueueTopic(
        kind=TopicKind.SUBSCRIPTION, client_id=client_id, key=None
    )
    assert topics.parse(topics.refusal(topics.write(client_id, key.encode()))) is None


@given(st.text(max_size=30))
def test_any_text_is_taken_apart_or_refused_in_words(text: str) -> None:
    for topic in (text, f"$ECQ/{text}", f"$ECQ/w/{text}"):
        with suppress(InvalidTopic):
            found = TOPICS.parse(topic)
            if found is not None and found.key is not None:
                build = TOPICS.write if found.kind is TopicKind.WRITE else TOPICS.delivery
                assert build(found.client_id, found.key) == topic


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        ("", "has an empty level"),
        ("/a", "has an empty level"),
        ("a/", "has an empty level"),
        ("a//b", "has an empty level"),
        ("a/+", "holds the wildcard"),
        ("#", "holds the wildcard"),
        ("a\0", "zero character"),
        ("$SYS", "is reserved for the broker"),
        ("$share/g", "is reserved for the broker"),
    ],
)
def test_prefix_that_no_topic_can_begin_with_is_refused(prefix: str, words: str) -> None:
    with pytest.raises(InvalidTopic, match=words):
        Topics(prefix=prefix)


def test_refusals_have_a_place_beside_the_queues() -> None:
    assert TOPICS.refusal("$ECQ/w/c1/a/b") == "$ECQ-refused/c1/a/b"
    assert TOPICS.refusal("$ECQ/w/c1") == "$ECQ-refused/c1"
    assert not TOPICS.covers(TOPICS.refusal("$ECQ/w/c1/a/b"))

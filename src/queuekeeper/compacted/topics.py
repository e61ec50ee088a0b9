"""MQTT topics of compacted queues: build and parse them.

=========================  ===========================================================
``$ECQ/w/{client}/{key}``  producers publish a value for a key of a client's queue
``$ECQ/{client}/#``        the client subscribes to its queue
``$ECQ/{client}/{key}``    the client receives the value of a key
``$ECQ-refused/..``        the door publishes refusals of what was published to ``$ECQ/w/..``
=========================  ===========================================================

The client id ends at the first slash, so a key may hold slashes, and may be empty. ``$ECQ`` can be another prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from queuekeeper.checks import check_fields, checked
from queuekeeper.compacted.model import MAX_TEXT_BYTES, check_key
from queuekeeper.errors import InvalidTopic
from queuekeeper.keyspace import check_client_id

PREFIX = "$ECQ"
WRITE_LEVEL = "w"
_TAKEN = frozenset({"$SYS", "$share", "$CONTROL", "$queue"})


class TopicKind(StrEnum):
    """What a topic is for."""

    WRITE = "write"  # a producer publishes to it
    DELIVERY = "delivery"  # the client receives from it
    SUBSCRIPTION = "subscription"  # the client subscribes to it


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueTopic:
    """A parsed topic.

    :param key: key of the message; none for a subscription, which matches all keys.
    """

    kind: TopicKind
    client_id: str
    key: bytes | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Topics:
    """The topics under a prefix.

    :param prefix: first level or levels of the topics, ``$ECQ`` by default. If it begins with ``$``, subscriptions to
        ``#`` do not match the topics (MQTT 5 section 4.7.2).
    :raises InvalidTopic: for a prefix that is empty, has a wildcard, or is reserved for the broker.
    """

    prefix: str = PREFIX

    def __post_init__(self) -> None:
        check_fields(self, "prefix")
        _check_characters(self.prefix, what="topic prefix")
        if not self.prefix or "" in self.prefix.split("/"):
            raise InvalidTopic(f"topic prefix {self.prefix!r} has an empty level: write it without slashes at its ends")
        if self.prefix.split("/")[0] in _TAKEN:
            raise InvalidTopic(
                f"topic prefix {self.prefix!r} is reserved for the broker: choose another, such as {PREFIX}"
            )

    @property
    def write_filter(self) -> str:
        """Topic filter that matches all topics to which producers publish."""
        return f"{self.prefix}/{WRITE_LEVEL}/#"

    @checked
    def covers(self, topic: str) -> bool:
        """Return whether a topic or filter is under the prefix, even if it does not parse."""
        return topic == self.prefix or topic.startswith(f"{self.prefix}/")

    def write(self, client_id: str, key: bytes) -> str:
        """Return the topic to which producers publish the value of a key.

        :raises InvalidTopic: when a topic cannot contain the client id or the key.
        """
        return _short(f"{self.prefix}/{WRITE_LEVEL}/{_level(client_id)}/{_text(key)}")

    def delivery(self, client_id: str, key: bytes) -> str:
        """Return the topic on which the client receives the value of a key.

        :raises InvalidTopic: when a topic cannot contain the client id or the key.
        """
        return _short(f"{self.prefix}/{_level(client_id)}/{_text(key)}")

    def subscription(self, client_id: str) -> str:
        """Return the topic filter to which the client subscribes.

        :raises InvalidTopic: when a topic cannot contain the client id.
        """
        return _short(f"{self.prefix}/{_level(client_id)}/#")

    @checked
    def refusal(self, topic: str) -> str:
        """Return the topic to which the door publishes a refusal; ``$ECQ-refused`` if the topic would be too long.

        :param topic: topic of the refused publish, which need not parse.
        """
        above = f"{self.prefix}-refused"
        refusal = f"{above}{topic.removeprefix(f'{self.prefix}/{WRITE_LEVEL}')}"
        return refusal if len(refusal.encode(errors="replace")) <= MAX_TEXT_BYTES else above

    @checked
    def parse(self, topic: str) -> QueueTopic | None:
        """Parse a topic or a topic filter.

        :returns: none when it is not under the prefix.
        :raises InvalidTopic: when it is under the prefix and is none of the topics of a queue, with the reason.
        """
        if not self.covers(topic):
            return None
        head, slash, rest = topic.removeprefix(self.prefix).removeprefix("/").partition("/")
        if head == WRITE_LEVEL:
            client_id, slash, rest = rest.partition("/")
            kind = TopicKind.WRITE
        else:
            client_id = head
            kind = TopicKind.SUBSCRIPTION if rest == "#" else TopicKind.DELIVERY
        if not slash:
            raise InvalidTopic(
                f"topic {_shown(topic)} has no slash behind the client id: write a slash and a key, or /#"
            )
        if kind is TopicKind.WRITE and rest == "#":
            raise InvalidTopic(
                f"topic {_shown(topic)} subscribes to what producers publish: subscribe to {self.prefix}/CLIENTID/#"
            )
        _short(topic)
        _level(client_id)
        if kind is TopicKind.SUBSCRIPTION:
            return QueueTopic(kind=kind, client_id=client_id, key=None)
        _check_characters(rest, what="key")
        return QueueTopic(kind=kind, client_id=client_id, key=rest.encode())


def _level(client_id: Any) -> str:
    """Check that a client id can be a level of a topic, and return it."""
    if client_id == "":
        raise InvalidTopic("client id is empty: a queue belongs to a client")
    if isinstance(client_id, str):
        _check_characters(client_id, what="client id")
    check_client_id(client_id)
    assert isinstance(client_id, str)
    if "/" in client_id:
        raise InvalidTopic(f"client id {_shown(client_id)} holds a slash: in a topic, a client id ends at a slash")
    if client_id == WRITE_LEVEL:
        raise InvalidTopic(f"client id {WRITE_LEVEL!r} is reserved: producers publish to topics with this level")
    return client_id


def _text(key: bytes) -> str:
    check_key(key)
    try:
        text = key.decode()
    except UnicodeDecodeError:
        raise InvalidTopic("the key is not UTF-8: no topic can hold it") from None
    _check_characters(text, what="key")
    return text


def _check_characters(text: str, *, what: str) -> None:
    """Check that a text has no characters that a topic name must not have (MQTT 5 sections 1.5.4 and 4.7.1)."""
    for character, name in (("+", "the wildcard +"), ("#", "the wildcard #"), ("\0", "a zero character")):
        if character in text:
            raise InvalidTopic(f"{what} {_shown(text)} holds {name}, which no topic can have there")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidTopic(f"{what} {_shown(text)} holds half a surrogate pair, which UTF-8 cannot encode") from None


def _short(topic: str) -> str:
    size = len(topic.encode(errors="replace"))
    if size > MAX_TEXT_BYTES:
        raise InvalidTopic(f"topic {_shown(topic)} has {size} bytes: at most {MAX_TEXT_BYTES}")
    return topic


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}…")

"""Clients as an old database may hold them, made by Hypothesis, the same in every run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.property.migration_rules import Message, Rules, Session

T = TypeVar("T")

RULES = Rules(limit=3, default_ttl_s=3_600, as_of_ms=1_800_000_000_000, clustered=True)
_LAST_MS = 253_402_300_799_999  # year 9999


@dataclass(frozen=True, kw_only=True)
class Client:
    """One client's rows."""

    client_id: str
    messages: tuple[Message, ...]
    session: Session | None


def examples(strategy: st.SearchStrategy[T], count: int) -> list[T]:
    """Return generated values instead of testing them one by one, for checks that are dear per call."""
    found: list[T] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: T) -> None:
        found.append(value)

    collect()
    return found


def _mostly(healthy: st.SearchStrategy[Any], odd: st.SearchStrategy[Any], *, odds: int = 12) -> st.SearchStrategy[Any]:
    return st.integers(1, odds).flatmap(lambda number: odd if number == odds else healthy)


# PostgreSQL's text holds every character but U+0000.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
escaped = st.sampled_from(["plain", "clé", '\\"', "\\\\", "\\u0000", "\\ud83d\\ude00", "☕\u2028", "\\/", "<&>", ""])
broken_text = st.sampled_from(["\\ud800", "\\q", "\n", "\t"])
strings = _mostly(st.one_of(escaped, texts.map(lambda text: json.dumps(text)[1:-1])), broken_text, odds=30).map(
    lambda text: f'"{text}"'
)
values = _mostly(
    strings,
    st.sampled_from(["1", "1.50", "-0", "1e400", "true", "null", "{}", "[1]", "NaN", "01", "", "1" * 60]),
    odds=20,
)
_pairs = st.builds(
    "".join,
    st.tuples(
        _mostly(
            st.just('{"k":'), st.sampled_from(['{"v":"x","k":', '{"k":"a","k":', '{"K":', '{"x":1,"k":', "{", "["])
        ),
        values,
        _mostly(st.sampled_from([',"v":', ' , "v" : ']), st.sampled_from([',"w":', ",", ',"v":"a","v":'])),
        values,
        _mostly(st.just("}"), st.sampled_from([',"x":1}', ",}", "", "]"])),
    ),
)
_wrapped = st.builds(
    lambda head, pairs, tail: head + ",".join(pairs) + tail,
    _mostly(
        st.sampled_from(['{"props":[', ' \n{ "props" : [']),
        st.sampled_from(['{"Props":[', '{"props":[],"props":[', '{"a":1,"props":[', "[", '{"props":{', "\ufeff{"]),
    ),
    st.lists(_mostly(_pairs, st.sampled_from(["null", "1", "{}", "[]", '"k"'])), max_size=3),
    _mostly(st.just("]}"), st.sampled_from(["] } ", "]}x", "]}{}", '],"z":1}', '],"z":1e99999}', "]", ",]}"])),
)
user_properties = st.one_of(
    st.none(),
    _wrapped,
    _mostly(
        st.none(),
        st.one_of(
            st.sampled_from(
                ["null", " null ", "\nnull", "\tnull\r", "nullx", "null,", "", " ", "1", '"a"', "not json"]
            ),
            st.sampled_from(['{"a":' + "[" * 1_500 + "]" * 1_500 + "}", "[" * 100_000]),
            texts,
        ),
        odds=4,
    ),
)

_life_ms = RULES.default_ttl_s * 1_000
_times = _mostly(
    st.one_of(
        st.integers(RULES.as_of_ms - _life_ms - 3, RULES.as_of_ms - _life_ms + 3),
        st.integers(RULES.as_of_ms - 4_000_000, RULES.as_of_ms),
    ),
    st.sampled_from([-(2**63), -1, 0, _LAST_MS, _LAST_MS + 1, 2**63 - 1]),
)
_intervals = _mostly(
    st.one_of(st.none(), st.sampled_from([3_599, 3_600, 3_601, 86_400])),
    st.sampled_from([0, 1, -1, -2, -(2**31), 2**31 - 1]),
    odds=4,
)
_carried = ["ä" * 32_767 + "x", "x" * 65_535]  # 65,535 bytes: as much as MQTT carries
_too_long = ["ä" * 32_768, "x" * 65_536, "😀" * 16_384]  # 65,536 bytes
_properties = _mostly(
    user_properties,
    st.builds(
        lambda name, value: json.dumps({"props": [{"k": name, "v": value}]}),
        st.sampled_from(["a", "x" * 65_535, "x" * 65_536]),
        st.sampled_from(["", "a\0b", "\ud800", "😀", *_carried, *_too_long]),
    ),
    odds=15,
)
_formats = _mostly(st.sampled_from([None, 0, 1]), st.sampled_from([-1, 2, 255, 256, -(2**31), 2**31 - 1]), odds=20)
_names = _mostly(st.one_of(st.none(), texts), st.sampled_from(["", *_carried, *_too_long]), odds=20)
_correlations = _mostly(
    st.one_of(st.none(), st.binary(max_size=9)), st.sampled_from([b"", bytes(65_535), bytes(65_536)]), odds=20
)
_topics = _mostly(texts.filter(bool), st.sampled_from(["", *_carried, *_too_long]), odds=20)
_serials = _mostly(st.integers(0, 40), st.sampled_from([-(2**63), -1, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1]), odds=20)
_packet_ids = _mostly(st.integers(1, 12), st.sampled_from([None, 0, -1, -(2**31), 65_535, 65_536, 2**31 - 1]), odds=15)


@st.composite
def _messages(draw: st.DrawFn) -> Message:
    return Message(
        client_id="?",
        serial_number=draw(_serials),
        topic=draw(_topics),
        time=draw(_times),
        packet_id=draw(_packet_ids),
        packet_type=draw(
            _mostly(st.sampled_from(["PUBLISH", "PUBREL"]), st.sampled_from([None, "", "publish"]), odds=25)
        ),
        qos=draw(_mostly(st.sampled_from([1, 2]), st.sampled_from([0, 3, -1]), odds=25)),
        payload=draw(st.binary(max_size=70)),
        user_properties=draw(_properties),
        retain=draw(st.sampled_from([None, True, False])),
        msg_expiry_interval=draw(_intervals),
        payload_format_indicator=draw(_formats),
        content_type=draw(_names),
        response_topic=draw(_names),
        correlation_data=draw(_correlations),
    )


_sessions = st.builds(
    Session,
    st.just("?"),
    st.one_of(st.none(), st.integers(-1, 45), st.sampled_from([2**53, 2**63 - 1])),
    st.sampled_from([None, -1, 0, 1, 7, 65_535, 65_536, 2**31 - 1]),
)
_clients = st.tuples(
    texts,
    st.lists(_messages(), max_size=9, unique_by=lambda message: message.serial_number),
    st.one_of(st.none(), _sessions),
)


def clients(count: int) -> list[Client]:
    """Return clients whose ids differ; the last one's is empty, and that of the one before begins with a brace."""
    found = [
        _named(f"{text}#{number}", tuple(messages), session)
        for number, (text, messages, session) in enumerate(examples(_clients, count))
        if messages or session
    ]
    last = next(client for client in reversed(found) if client.messages and client.session)
    return [*found, _named("}x", last.messages, last.session), _named("", last.messages, last.session)]


_GOOD = Message(
    client_id="?", serial_number=1, topic="t", time=RULES.as_of_ms - 1, packet_id=1, packet_type="PUBLISH", qos=1,
    payload=b"p", user_properties=None, retain=None, msg_expiry_interval=86_400, payload_format_indicator=None,
    content_type=None, response_topic=None, correlation_data=None,
)  # fmt: skip
_NUMBERS = {
    # Least and most, by MQTT 5, the vendor's table and docs/migration.md.
    "serial_number": (0, 2**53 - 1),
    "packet_id": (1, 65_535),
    "qos": (1, 2),
    "time": (0, _LAST_MS),
    "payload_format_indicator": (0, 1),
}
_SIZES = (0, 1, 65_534, 65_535, 65_536)
_KINDS_OF_TEXT = (
    "plain", " ", "tab\t", "line\nbreak", "\x01\x1f\x7f\x80\x9f", "e\u0301", "\u202eabc", "\ufeff", "\ufffe",
    "\U0010ffff", "\u2028", "ключ", "日本語", "😀", "<&>'\"`;--\\/", "%s{}", "null", "{}",
)  # fmt: skip
_ESCAPES = ("\\u0000", "\\ud800", "\\udc00", "\\ude00\\ud83d", "\\ud83d\\ude00", "\\/", "\\u00e9", "\\x", "\\")


def at_each_bound() -> list[Client]:
    """Return a client for each column and value: one under, at and over each bound, absent, and each kind of text."""
    cases: list[dict[str, Any]] = [
        {name: value}
        for name, bounds in _NUMBERS.items()
        for bound in bounds
        for value in (bound - 1, bound, bound + 1)
    ]
    # Characters of one byte of UTF-8, of two and of four: bytes count.
    for text in (_of_bytes(size, letter) for size in _SIZES for letter in ("x", "ä", "😀")):
        cases += [{name: text} for name in ("topic", "content_type", "response_topic")]
        cases += [{"user_properties": _pair(text, "v")}, {"user_properties": _pair("k", text)}]
    cases += [{"correlation_data": bytes(size)} for size in _SIZES]
    for text in _KINDS_OF_TEXT:
        cases += [{name: text} for name in ("topic", "packet_type", "content_type", "response_topic")]
        cases += [{"user_properties": text}, {"user_properties": _pair(text, text)}]
    cases += [{"user_properties": f'{{"props":[{{"k":"k","v":"{text}"}}]}}'} for text in _ESCAPES]
    cases += [{"packet_type": text} for text in ("PUBLISH", "PUBREL", "publish", "PUBREL ", None)]
    cases += [{"msg_expiry_interval": value} for value in (-(2**31), -1, 0, 1, 2**31 - 1, None)]
    cases += [{"retain": value} for value in (True, False, None)] + [{"packet_id": None}]
    return [_named(f"bound-{n}", (_GOOD._replace(**fields),), None) for n, fields in enumerate(cases)]


def _of_bytes(size: int, letter: str) -> str:
    count, rest = divmod(size, len(letter.encode()))
    return letter * count + "x" * rest


def _pair(name: str, value: str) -> str:
    return json.dumps({"props": [{"k": name, "v": value}]}, ensure_ascii=False)


def _named(client_id: str, messages: tuple[Message, ...], session: Session | None) -> Client:
    return Client(
        client_id=client_id,
        messages=tuple(message._replace(client_id=client_id) for message in messages),
        session=None if session is None else session._replace(client_id=client_id),
    )

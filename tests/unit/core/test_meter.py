"""Counting text and metering output."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.core.meter import TEXT_MAX, EchoMeter, EventMeter, Meter, count, load, marks_of, may_have_audio, offers_tools, sends_each_token, size
from sluicegate.dialects import anthropic_messages
from sluicegate.dialects.form import Delta
from sluicegate.dialects.openai_chat import read_request

VOCABULARY = "o200k_base"
PROSE = "The quick brown fox doesn't jump over 12345 lazy dogs.\n\n  def f(x):\n\treturn  x / 2  # ünïcode 字符 🙂 \r\n" * 10


def metered(pieces: list[str], tokenizer: str = VOCABULARY) -> Meter:
    """A meter that has seen these deltas of one choice."""
    meter = Meter(tokenizer, 1000)
    for piece in pieces:
        meter.add(Delta(0, piece))
    return meter


def test_bytes_without_a_vocabulary() -> None:
    """Without a vocabulary a text counts its bytes: no token is shorter than one."""
    assert count("abc", "") == 3
    assert count("é字🙂", "") == 9
    assert size("\ud800") == 3


def test_tokens_with_a_vocabulary() -> None:
    """With one it counts tokens, a lone surrogate included."""
    load(VOCABULARY)
    assert count("hello world", VOCABULARY) == 2
    assert count("", VOCABULARY) == 0
    assert count("a\ud800b", VOCABULARY) >= 2


def test_long_text_counts_its_bytes() -> None:
    """Above 256 KiB a text is not tokenized: that would block the worker."""
    text = "word " * (TEXT_MAX // 5 + 1)
    assert count(text, VOCABULARY) == len(text)


@pytest.mark.parametrize("tokenizer", ["o200k_base", "cl100k_base"])
@given(st.lists(st.integers(1, 12), min_size=1, max_size=30))
def test_pieces_count_like_the_whole(tokenizer: str, lengths: list[int]) -> None:
    """Text of several tokens per delta, however it is cut, counts within a token in fifty of the text as a whole."""
    pieces, at = [], 0
    while at < len(PROSE):
        pieces.append(PROSE[at : at + lengths[len(pieces) % len(lengths)]])
        at += len(pieces[-1])
    whole = count(PROSE, tokenizer)
    assert max(whole, len(pieces)) <= metered(pieces, tokenizer).seen <= max(whole, len(pieces)) + whole // 50


def test_never_less_than_one_per_delta() -> None:
    """A delta is at least a token, also where the vocabulary would merge it with the one before."""
    assert count("hello", VOCABULARY) == 1
    assert metered(list("hello")).seen == 5


def test_empty_deltas_count_nothing() -> None:
    """A delta without text and calls is nothing."""
    assert metered(["", ""]).seen == 0


@pytest.mark.parametrize("tokenizer", ["", VOCABULARY])
def test_tool_calls(tokenizer: str) -> None:
    """A tool call adds eight tokens of framing that nobody sees."""
    meter = Meter(tokenizer, 1000)
    meter.add(Delta(0, "", 2))
    assert meter.seen == 16
    meter.add(Delta(0, "x", 1))
    assert meter.seen == 25


@pytest.mark.parametrize("tokenizer", ["", VOCABULARY])
def test_choices_are_counted_apart(tokenizer: str) -> None:
    """Text of one choice does not merge with that of another."""
    meter = Meter(tokenizer, 1000)
    for choice in (0, 1, 0, 1):
        meter.add(Delta(choice, "a"))
    assert meter.seen == 4


def test_factor_rounds_up() -> None:
    """What a deployment bills beyond what it shows is added, rounded up once over all; `counted` is without it."""
    meter = Meter("", 1300)
    meter.add(Delta(0, "abc"))
    assert (meter.seen, meter.counted, meter.largest) == (4, 3, 4)
    meter.add(Delta(1, "abc"))
    assert (meter.seen, meter.counted, meter.largest) == (8, 6, 4)


def test_largest_growth() -> None:
    """The largest single delta so far is known: it is what may come at once."""
    meter = metered(["a", "b" * 300, "c"], "")
    assert meter.largest == 300


def test_dense_text_is_not_undercounted() -> None:
    """Four characters of four tokens each count as such, though they come without spaces (case 107)."""
    pieces = ["鬱魘黌驫", "麤龘齾爨", "籲灪麣鸞"] * 20
    assert metered(pieces).seen >= count("".join(pieces), VOCABULARY)


def test_the_least_is_tokens() -> None:
    """What was produced at least: the count where the vocabulary is known; where it is not, one per delta with output, and per 16 bytes of it."""
    known, unknown, events = Meter(VOCABULARY, 2000), Meter("", 2000), EventMeter("", 2000, 10)
    for text in ("Hello there", "", "!"):
        for meter in (known, unknown, events):
            meter.add(Delta(0, text))
    assert (known.least, unknown.least) == (3, 2)
    assert 2 <= events.least <= 3
    unknown.add(Delta(0, "x" * 95))
    assert unknown.least == 2 + 5


def test_what_is_certain() -> None:
    """Case 108: at an upstream that cannot have kept to its cap it is all that may have come, but one token only per event that could not be read."""
    meter = Meter("", 1500)
    meter.add(Delta(0, "x" * 160))
    assert (meter.certain(100), meter.certain(0)) == (10, 10)
    meter.add_unreadable("?" * 1000)
    assert (meter.least, meter.certain(0)) == (11, 11)
    meter.add(Delta(0, "x" * 96))
    assert (meter.certain(1), meter.certain(0)) == (17, (160 + 96) * 3 // 2 + 1)


@given(st.lists(st.text(max_size=40), max_size=30), st.integers(1000, 3000))
def test_seen_never_falls(pieces: list[str], factor_milli: int) -> None:
    """Whatever comes, the meter only grows, and by at least one for each delta with text."""
    meter = Meter(VOCABULARY, factor_milli)
    for piece in pieces:
        before = meter.counted
        meter.add(Delta(0, piece))
        assert meter.counted >= before
    assert meter.seen == -(-meter.counted * factor_milli // 1000)
    assert meter.counted >= sum(bool(piece) for piece in pieces)


@pytest.mark.parametrize("piece", ["a", " ", "字", "\n", "a ", "\ud800"])
def test_time_is_linear(piece: str) -> None:
    """Hostile streams (no spaces, only spaces) cost the same per delta at their end as at their start."""

    def seconds(n: int) -> float:
        began = time.process_time()
        metered([piece] * n)
        return time.process_time() - began

    small = min(seconds(2_000) for _ in range(3))
    assert min(seconds(8_000) for _ in range(3)) < 10 * small


# -- upstreams that send each token in an event of its own ---------------------------------------------------------------------------------


def metered_events(pieces: list[str], tokenizer: str = "", factor_milli: int = 1000, cap: int = 10**6) -> EventMeter:
    meter = EventMeter(tokenizer, factor_milli, cap)
    for piece in pieces:
        meter.add(Delta(0, piece))
    return meter


@pytest.mark.parametrize("tokenizer", ["", VOCABULARY])
def test_an_ascii_event_is_one_token(tokenizer: str) -> None:
    """However long its text is, and whatever another vocabulary would make of it."""
    assert metered_events([" antidisestablishmentarianism", "\n\n\n", " 12345678901234567890"], tokenizer).seen == 3


def test_an_event_of_other_text_is_what_it_may_be_at_most() -> None:
    """Tokens may meet inside every character: each of its bytes but the first may begin another one."""
    assert metered_events(["é"]).seen == 2
    assert metered_events([" 河流"]).seen == 5
    assert metered_events(["a🦔"]).seen == 4
    assert metered_events(["\ud800"]).seen == 3


def test_a_vocabulary_decides_between_the_bounds() -> None:
    """Where one is named, it says how many tokens an event with other text had: at least one, at most what it may be."""
    assert metered_events([" river", "é", "河流"], VOCABULARY).seen == 1 + 1 + count("河流", VOCABULARY)
    assert metered_events([" éa bb cc dd ee"], VOCABULARY).seen == 2


def test_events_never_count_beyond_the_cap() -> None:
    """An upstream that keeps to its cap has not produced what text alone may be; one that sends more events than that has."""
    meter = metered_events(["河"] * 10, cap=12)
    assert (meter.seen, meter.counted, meter.largest) == (12, 12, 3)
    assert metered_events(["a"] * 20, cap=12).seen == 20
    assert metered_events(["a"] * 10, factor_milli=1500, cap=12).seen == 12


@pytest.mark.parametrize("tokenizer", ["", VOCABULARY])
def test_gathered_events_count_their_text(tokenizer: str) -> None:
    """Where an event may have several tokens, its text says how many, at least one, and the cap how many at most."""
    meter = EventMeter(tokenizer, 1000, 20, each=False)
    for text in (" one two three", "x"):
        meter.add(Delta(0, text))
    assert (meter.seen, meter.by_event) == (1 + (3 if tokenizer else 14), False)
    meter.add(Delta(0, " many words" * 9))
    assert meter.seen == 20


def test_events_with_a_factor() -> None:
    """What a deployment bills beyond its events is added; `counted` is without it; a call adds its framing."""
    meter = metered_events(["a"] * 5, factor_milli=1300)
    assert (meter.seen, meter.counted) == (7, 5)
    meter.add(Delta(0, "", 1))
    assert meter.counted == 5 + 1 + 8


@given(st.text(min_size=1, max_size=60), st.lists(st.integers(1, 7), min_size=1, max_size=20), st.sampled_from([1000, 1200]))
def test_events_are_never_undercounted(text: str, lengths: list[int], factor_milli: int) -> None:
    """Whatever bytes the tokens of a vocabulary have, held back until their text is whole: all of them are counted."""
    data = text.encode("utf-8", "replace")
    tokens, pieces, held = 0, [], b""
    while data:
        length = lengths[tokens % len(lengths)]
        tokens, held, data = tokens + 1, held + data[:length], data[length:]
        try:
            pieces.append(held.decode())
        except UnicodeDecodeError:
            continue
        held = b""
    assert metered_events(pieces, factor_milli=factor_milli, cap=tokens).seen == tokens
    assert metered_events(pieces, factor_milli=factor_milli).seen >= tokens


@pytest.mark.parametrize(
    ("fields", "each"),
    [
        ({}, True),
        ({"stop": None, "tools": None}, True),
        ({"stop": "END"}, False),
        ({"stop": ["END"]}, False),
        ({"stop_sequences": ["END"]}, False),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, False),
    ],
)
def test_where_a_server_may_gather_tokens(fields: dict[str, object], each: bool) -> None:
    """Not before what may become a stop sequence or a call: there events say nothing."""
    request = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, **fields}
    assert sends_each_token(read_request(json.dumps(request).encode())) is each


@pytest.mark.parametrize(
    ("fields", "offered"),
    [
        ({}, False),
        ({"tools": None, "functions": None}, False),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, True),
        ({"functions": []}, True),
    ],
)
def test_where_a_tool_may_be_called(fields: dict[str, object], offered: bool) -> None:
    """Where any is offered, under its old name too."""
    request = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    assert offers_tools(read_request(json.dumps(request).encode())) is offered


HEARD = [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]


@pytest.mark.parametrize(
    ("fields", "audio"),
    [
        ({}, False),
        ({"messages": [{"role": "user", "content": HEARD}]}, True),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, True),
        ({"modalities": ["text", "audio"], "audio": {"voice": "v", "format": "wav"}}, True),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}]}, False),
    ],
)
def test_whether_a_request_may_have_audio(fields: dict[str, object], audio: bool) -> None:
    """In it, in what came before, or asked for; text and images have none."""
    request = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    assert may_have_audio(read_request(json.dumps(request).encode())) is audio


# -- echoes -------------------------------------------------------------------------------------------------------------------------------


def echoing(deltas: list[Delta], *echoed: str) -> int:
    """Bytes that count of these deltas, where prompts are given back."""
    meter = EchoMeter("", 1000, list(echoed))
    for delta in deltas:
        meter.add(delta)
    return meter.seen


@given(st.text(st.sampled_from("ab é"), max_size=8), st.text(st.sampled_from("ab é"), max_size=8), st.lists(st.integers(1, 4), min_size=1))
def test_an_echo_is_no_output(prompt: str, output: str, lengths: list[int]) -> None:
    """However it is cut, and wherever the output begins in a delta."""
    text, deltas, at = prompt + output, [], 0
    while at < len(text):
        length = lengths[len(deltas) % len(lengths)]
        deltas.append(Delta(0, text[at : at + length]))
        at += length
    assert echoing(deltas, prompt) == size(output)


def test_each_choice_has_its_own_echo() -> None:
    """By its index; a choice that nobody asked for has none, and calls of tools count in any case."""
    deltas = [Delta(1, "one"), Delta(0, "zero"), Delta(1, "xx"), Delta(0, "x"), Delta(7, "zero"), Delta(-1, "one"), Delta(0, "", 1)]
    assert echoing(deltas, "zero", "one") == 2 + 1 + 4 + 3 + 8


@pytest.mark.parametrize(("deltas", "seen"), [(["something else"], 14), (["On", "ce more"], 9), (["Once upon", "!"], 10), (["Once upon a", "!"], 1)])
def test_what_turns_out_to_be_no_echo_counts(deltas: list[str], seen: int) -> None:
    """All of it, with what was taken for the beginning of one."""
    assert echoing([Delta(0, text) for text in deltas], "Once upon a") == seen


CACHE = {"type": "ephemeral"}


def marked(*, system: str = "s", **fields: object) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 5, "system": system, "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


@pytest.mark.parametrize(
    ("body", "marks"),
    [
        (marked(), ""),
        (marked(cache_control=CACHE), "5m"),
        (marked(cache_control={**CACHE, "ttl": "1h"}), "1h"),
        (marked(messages=[{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": CACHE}]}]), "5m"),
        (marked(messages=[{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {**CACHE, "ttl": "1h"}}]}]), "1h"),
        (marked(tools=[{"name": "t", "input_schema": {}, "cache_control": {**CACHE, "ttl": "5m"}}]), "5m"),
        (marked(system='say "1h"'), ""),
        (marked(system="na\u00efve \u5b57"), ""),  # letters that need an escape hide no name
        (marked(tools=[{"name": "t", "input_schema": {}, "cache_control": CACHE}]).replace(b"cache_control", b"cache\\u005fcontrol"), "1h"),
        (marked(cache_control={**CACHE, "ttl": "1h"}).replace(b'"1h"', b'"\\u0031h"'), "1h"),
    ],
)  # fmt: skip
def test_what_a_request_marks_for_the_cache(body: bytes, marks: str) -> None:
    """Anywhere in it, and for how long; a name that hides behind escapes counts as the longest."""
    assert marks_of(anthropic_messages.read_request(body)) == marks

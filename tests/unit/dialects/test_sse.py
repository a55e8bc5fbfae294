"""The incremental reader of server-sent events: framing, cuts, sizes."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.dialects.sse import EVENT_MAX, RawEvent, Reader

STREAM = (
    b'data: {"a":1}\n\n'
    b": OPENROUTER PROCESSING\n\n"
    b"event: ping\nid: 7\nretry: 100\ndata: x\n\n"
    b"data: one\ndata: two\n\n"
    b"data:tight\r\n\r\n"
    b"data: cr\r\r"
    b"data: mixed\r\n\n"
    b":\n\n"
    b"data: [DONE]\n\n"
)
WANT = [("", b'{"a":1}'), ("ping", b"x"), ("", b"one\ntwo"), ("", b"tight"), ("", b"cr"), ("", b"mixed"), ("", b"[DONE]")]


def read(*pieces: bytes) -> list[RawEvent]:
    """All events of a stream that arrives in these pieces."""
    reader = Reader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.end()


def said(events: list[RawEvent]) -> list[tuple[str, bytes]]:
    """Name and data of the events that have any field."""
    return [(event.event, event.data) for event in events if event.kind == "event"]


def bytewise(data: bytes) -> list[bytes]:
    """A stream in pieces of one byte."""
    return [data[i : i + 1] for i in range(len(data))]


def test_whole_stream() -> None:
    """Line ends of all kinds, comments, names, ids and several data lines are read as the standard says."""
    assert said(read(STREAM)) == WANT


def test_byte_by_byte() -> None:
    """Cutting the stream after every byte changes neither what is said nor the bytes that pass."""
    events = read(*bytewise(STREAM))
    assert said(events) == WANT
    assert events == read(STREAM)
    assert b"".join(event.raw for event in events) == STREAM


def test_named_events() -> None:
    """A name, whatever is in it, before one data line or several, alone, or with other fields; cut anywhere, the same."""
    stream = b"event: a\ndata: 1\n\nevent: \xff\ndata: 2\n\nevent: b\ndata: 3\ndata: 4\n\nevent: c\n\nevent: d\nid: 1\ndata: 5\n\nevent: e\ndata: 6\n"
    events = read(stream)
    assert said(events) == [("a", b"1"), ("\ufffd", b"2"), ("b", b"3\n4"), ("c", b""), ("d", b"5"), ("e", b"6")]
    assert b"".join(event.raw for event in events) == stream
    assert all(read(stream[:at], stream[at:]) == events for at in range(len(stream)))


@pytest.mark.parametrize("at", range(len(STREAM)))
def test_any_cut(at: int) -> None:
    """One cut anywhere changes nothing."""
    assert read(STREAM[:at], STREAM[at:]) == read(STREAM)


def test_trailing_bytes_are_left_for_the_end() -> None:
    """What has no blank line yet is no event before the end."""
    reader = Reader()
    assert said(reader.feed(b"data: a\n\ndata: b\n")) == [("", b"a")]
    assert said(reader.end()) == [("", b"b")]
    assert reader.end() == []


@pytest.mark.parametrize("blank", [b"\n\n", b"\r\n\r\n", b"\r\n\n"])
def test_event_is_handed_out_with_its_last_byte(blank: bytes) -> None:
    """An event does not wait for the one after it."""
    reader = Reader()
    assert reader.feed(b"data: a" + blank[:-1]) == []
    assert said(reader.feed(blank[-1:])) == [("", b"a")]


def test_carriage_return_at_the_end_of_a_read() -> None:
    """A CR that may be half of a CRLF waits for the byte after it, so that no line end is torn apart."""
    reader = Reader()
    assert reader.feed(b"data: a\r\n\r") == []
    assert [event.raw for event in reader.feed(b"\ndata: b\r\r")] == [b"data: a\r\n\r\n"]
    assert [event.raw for event in reader.feed(b"d")] == [b"data: b\r\r"]


def test_split_code_point() -> None:
    """Halves of a code point in two reads come out whole (case 78)."""
    text = 'data: {"c":"é字🙂"}\n\n'.encode()
    assert said(read(*bytewise(text))) == [("", '{"c":"é字🙂"}'.encode())]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\v", "\f", "\x1c"])
def test_only_cr_and_lf_end_lines(separator: str) -> None:
    """What str.splitlines takes for a line end is content (case 79)."""
    data = f'{{"content":"a{separator}b","usage":1}}'.encode()
    assert said(read(b"data: " + data + b"\n\n")) == [("", data)]


def test_byte_order_mark() -> None:
    """A BOM is skipped at the very start and nowhere else."""
    bom = b"\xef\xbb\xbf"
    assert said(read(bom + b"data: a\n\n" + bom + b"data: b\n\ndata: c\n\n")) == [("", b"a"), ("", b""), ("", b"c")]
    assert said(read(*bytewise(bom + b"data: a\n\n"))) == [("", b"a")]


def test_comments_have_a_kind_of_their_own() -> None:
    """A comment is no event, one before an event belongs to it (case 82)."""
    events = read(b": ping\n\n:\n\n: hello\ndata: x\n\n")
    assert [event.kind for event in events] == ["comment", "comment", "event"]
    assert events[2].raw == b": hello\ndata: x\n\n"


def test_fields_without_data() -> None:
    """An event with a name or an id and no data is an event with empty data; a field without a colon has an empty value."""
    assert said(read(b"event: done\n\nid: 4\n\ndata\n\ndata:\ndata:\n\n")) == [("done", b""), ("", b""), ("", b""), ("", b"\n")]


def test_only_one_space_is_removed() -> None:
    """One space after the colon is framing, the rest is content."""
    assert said(read(b"data:  x \n\n")) == [("", b" x ")]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_two_megabytes_in_one_line(end: bytes) -> None:
    """A line of 2 MB passes (case 81)."""
    line = b"x" * 2_000_000
    pieces = [b"data: " + line[:9], *(line[i : i + 4096] for i in range(9, len(line), 4096)), end]
    assert said(read(*pieces)) == [("", line)]


def test_time_is_linear() -> None:
    """Four times the bytes, fed in small pieces, take about four times as long, not sixteen."""

    def seconds(size: int) -> float:
        reader = Reader()
        began = time.process_time()
        for _ in range(size // 16):
            reader.feed(b"x" * 16)
        return time.process_time() - began

    small = min(seconds(200_000) for _ in range(3))
    assert min(seconds(800_000) for _ in range(3)) < 10 * small


def test_hard_cap() -> None:
    """An event above 16 MB is an error, not the end of the stream; nothing can be read after it (case 81)."""
    reader = Reader()
    block = b"x" * (1 << 20)
    events = reader.feed(b"data: ok\n\ndata: ")
    for _ in range(17):
        events += reader.feed(block)
    assert [(event.kind, event.data) for event in events] == [("event", b"ok"), ("bad", b"")]
    assert reader.feed(b"\n\ndata: more\n\n") == []
    assert reader.end() == []


def test_hard_cap_in_one_read() -> None:
    """The cap holds for an event that arrives whole, too."""
    reader = Reader()
    events = reader.feed(b"data: ok\n\ndata: " + b"x" * EVENT_MAX + b"\n\ndata: more\n\n")
    assert [event.kind for event in events] == ["event", "bad"]


LINES = st.sampled_from([b"data: x", b"data", b": c", b"event: e", b"id: 1", b"\xef\xbb\xbf", b"", b"data: \xff\x00"])
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n", b""])


@given(st.lists(st.tuples(LINES, ENDS)), st.lists(st.integers(1, 9), min_size=1))
def test_cuts_never_matter(lines: list[tuple[bytes, bytes]], sizes: list[int]) -> None:
    """Whatever is sent, however it is cut: the events are the same, and every byte passes."""
    data = b"".join(line + end for line, end in lines)
    pieces, at = [], 0
    while at < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[at : at + size])
        at += size
    events = read(*pieces)
    assert events == read(data)
    assert b"".join(event.raw for event in events) == data


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes(first: bytes, second: bytes) -> None:
    """No bytes raise, none are lost."""
    assert b"".join(event.raw for event in read(first, second)) == first + second

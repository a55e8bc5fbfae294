"""The incremental reader of newline-delimited JSON: framing, cuts, sizes."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.dialects.ndjson import LINE_MAX, RawLine, Reader

STREAM = b'{"a":1}\n{"b":"\xc3\xa9\\n"} \r\n\n  \r\n{"c":[1,\r2]}\nrest'
WANT = [b'{"a":1}', b'{"b":"\xc3\xa9\\n"}', b'{"c":[1,\r2]}', b"rest"]


def read(*pieces: bytes) -> list[RawLine]:
    """All lines of a stream that arrives in these pieces."""
    reader = Reader()
    lines = [line for piece in pieces for line in reader.feed(piece)]
    return lines + reader.end()


def said(lines: list[RawLine]) -> list[bytes]:
    """What is on the lines that are not blank."""
    return [line.data for line in lines if line.kind == "line"]


@pytest.mark.parametrize("at", range(len(STREAM)))
def test_any_cut(at: int) -> None:
    """One cut anywhere changes neither what is said nor the bytes that pass."""
    lines = read(STREAM[:at], STREAM[at:])
    assert said(lines) == WANT and lines == read(STREAM)
    assert b"".join(line.raw for line in lines) == STREAM


def test_byte_by_byte() -> None:
    """Nor does a cut after every byte."""
    assert read(*[STREAM[i : i + 1] for i in range(len(STREAM))]) == read(STREAM)


def test_a_line_is_handed_out_with_its_last_byte() -> None:
    """It does not wait for the one after it; what has no end yet is for the end of the answer, once."""
    reader = Reader()
    assert reader.feed(b'{"a":1}') == []
    assert reader.feed(b'\n{"b"') == [RawLine(b'{"a":1}\n', b'{"a":1}')]
    assert reader.feed(b":2}") == []
    assert said(reader.end()) == [b'{"b":2}']
    assert reader.end() == []


def test_byte_order_mark() -> None:
    """A BOM is skipped at the very start and nowhere else."""
    bom = b"\xef\xbb\xbf"
    assert said(read(bom + b"1\n", bom + b"2\n")) == [b"1", bom + b"2"]
    assert said(read(*[bytes([byte]) for byte in bom + b"1\n"])) == [b"1"]


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\v", "\r"])
def test_only_lf_ends_lines(separator: str) -> None:
    """What str.splitlines takes for a line end is content."""
    data = f'{{"content":"a{separator}b"}}'.encode()
    assert said(read(data + b"\n")) == [data]


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


@pytest.mark.parametrize("piece", [1 << 20, LINE_MAX + 2])
def test_hard_cap(piece: int) -> None:
    """A line above 16 MB is an error, not the end of the stream; nothing can be read after it, however it came."""
    reader = Reader()
    data = b"ok\n" + b"x" * (LINE_MAX + 1) + b"\nmore\n"
    lines = [line for at in range(0, len(data), piece) for line in reader.feed(data[at : at + piece])]
    assert [(line.kind, line.data) for line in lines] == [("line", b"ok"), ("bad", b"")]
    assert reader.feed(b"more\n") == [] and reader.end() == []


LINES = st.sampled_from([b'{"a":1}', b"x", b"", b" \t", b"\xff\x00", b"\xef\xbb\xbf", b"\r"])
ENDS = st.sampled_from([b"\n", b"\r\n", b"\n\n", b""])


@given(st.lists(st.tuples(LINES, ENDS)), st.lists(st.integers(1, 9), min_size=1))
def test_cuts_never_matter(lines: list[tuple[bytes, bytes]], sizes: list[int]) -> None:
    """Whatever is sent, however it is cut: the lines are the same, and every byte passes."""
    data = b"".join(line + end for line, end in lines)
    pieces, at = [], 0
    while at < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[at : at + size])
        at += size
    read_in_pieces = read(*pieces)
    assert read_in_pieces == read(data)
    assert b"".join(line.raw for line in read_in_pieces) == data

"""Compressed bodies: whole and byte by byte, flushed in the middle, huge, corrupt, cut short, with bytes behind them."""

import gzip
import random
import zlib
from collections.abc import Callable

import pytest

from sluicegate.http.decoding import STEP_BYTES, CodingError, Decoder, decoder_of

TEXT = b"".join(b'data: {"n": %d, "x": "%d"}\n\n' % (n, n * n % 7919) for n in range(400))


def compressed(data: bytes, wbits: int, level: int = 6) -> bytes:
    compressor = zlib.compressobj(level, wbits=wbits)
    return compressor.compress(data) + compressor.flush()


def gzipped_with_all_fields(data: bytes) -> bytes:
    """A gzip header with everything that it may have: extra field, name, comment, checksum of the header."""
    header = b"\x1f\x8b\x08\x1e" + bytes(6) + b"\x04\x00abcd" + b"name\0" + b"comment\0"
    header += (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little")
    return header + compressed(data, -15) + zlib.crc32(data).to_bytes(4, "little") + len(data).to_bytes(4, "little")


# name: content-encoding, compressor of a body
KINDS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "gzip": (b"gzip", gzip.compress),
    "x-gzip, capitals": (b"X-GZip", gzip.compress),
    "gzip, all fields": (b"gzip", gzipped_with_all_fields),
    "gzip, stored": (b"gzip", lambda data: compressed(data, 31, 0)),
    "gzip, two members": (b"gzip", lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:])),
    "gzip, empty members": (b"gzip", lambda data: gzip.compress(b"") * 5 + gzip.compress(data) + gzip.compress(b"")),
    "deflate, zlib": (b"deflate", lambda data: compressed(data, 15)),
    "deflate, zlib, small window": (b"deflate", lambda data: compressed(data, 9)),
    "deflate, raw": (b"deflate", lambda data: compressed(data, -15)),
    "deflate, raw, stored": (b"deflate", lambda data: compressed(data, -15, 0)),
}
ALL = pytest.mark.parametrize(("coding", "compress"), KINDS.values(), ids=KINDS)


def new(coding: bytes) -> Decoder:
    decoder = decoder_of(coding)
    assert decoder is not None
    return decoder


def steps(decoder: Decoder, *pieces: bytes) -> bytes:
    """Everything that the pieces give."""
    decoder.feed(pieces)
    data = b""
    while decoder.pending:
        step = decoder.step()
        assert len(step) <= STEP_BYTES
        data += step
    return data


@ALL
@pytest.mark.parametrize("text", [TEXT, b"x", b"\n"], ids=["text", "x", "line feed"])
def test_whole_and_byte_by_byte(coding: bytes, compress: Callable[[bytes], bytes], text: bytes) -> None:
    """At once, in single bytes and in two pieces cut at every place: the same text, finished at the last byte and not before."""
    body = compress(text)
    decoder = new(coding)
    assert (steps(decoder, body), decoder.finished) == (text, True)

    decoder, data = new(coding), b""
    for i in range(len(body)):
        assert not decoder.finished or not i or gzip.decompress(body[:i]) == data  # between two members
        data += steps(decoder, body[i : i + 1])
    assert (data, decoder.finished) == (text, True)

    for cut in range(1, len(body), max(1, len(body) // 50)):
        decoder = new(coding)
        assert (steps(decoder, body[:cut]) + steps(decoder, body[cut:]), decoder.finished) == (text, True)
        decoder = new(coding)
        assert (steps(decoder, body[:cut], body[cut:]), decoder.finished) == (text, True)


@pytest.mark.parametrize("wbits", [31, 15, -15])
def test_what_is_flushed_arrives(wbits: int) -> None:
    """Each event of a stream whose server flushes after it comes out with its bytes, whatever pieces they come in."""
    for size in (1, 7, 10_000):
        compressor = zlib.compressobj(wbits=wbits)
        decoder = new(b"gzip" if wbits == 31 else b"deflate")
        for event in TEXT.split(b"\n\n"):
            body = compressor.compress(event + b"\n\n") + compressor.flush(zlib.Z_SYNC_FLUSH)
            assert b"".join(steps(decoder, body[i : i + size]) for i in range(0, len(body), size)) == event + b"\n\n"
            assert not decoder.finished
        assert (steps(decoder, compressor.flush()), decoder.finished) == (b"", True)


@ALL
def test_no_step_makes_more_than_its_bound(coding: bytes, compress: Callable[[bytes], bytes]) -> None:
    """A body a thousand times its size comes in bounded steps, whole."""
    text = bytes(5 * STEP_BYTES + 12_345)
    decoder = new(coding)
    body = compress(text)
    assert steps(decoder, body) == text
    assert decoder.finished
    decoder = new(coding)
    decoder.feed([body])
    assert len(decoder.step()) == STEP_BYTES
    assert decoder.pending and not decoder.finished


def test_a_step_that_ends_where_the_bytes_do() -> None:
    """What zlib keeps for want of room comes without new bytes."""
    for extra in (0, 1, 100, 258, 300):
        text = bytes(STEP_BYTES + extra)
        compressor = zlib.compressobj(wbits=31)
        decoder = new(b"gzip")
        assert steps(decoder, compressor.compress(text) + compressor.flush(zlib.Z_SYNC_FLUSH)) == text
        assert steps(decoder, compressor.flush()) == b""
        assert decoder.finished


@ALL
def test_cut_short(coding: bytes, compress: Callable[[bytes], bytes]) -> None:
    """Cut anywhere but at its end or between members, a body is not finished; what there was has come."""
    body = compress(TEXT[:3000])
    for end in range(1, len(body)):
        decoder = new(coding)
        data = steps(decoder, body[:end])
        assert TEXT.startswith(data)
        if decoder.finished:
            assert gzip.decompress(body[:end]) == data


def test_nothing_at_all() -> None:
    """An empty body of a compressed answer is whole."""
    for coding in (b"gzip", b"deflate"):
        assert new(coding).finished
        assert (new(coding).step(), new(coding).pending) == (b"", False)


@ALL
def test_bytes_behind_the_end(coding: bytes, compress: Callable[[bytes], bytes]) -> None:
    """They are an error, once it is clear that they begin no member; all of the text came before it."""
    for behind in (b"xx", b"\r\n", b"\0\0", b"\x1f\x8c"):
        for apart in (True, False):
            decoder = new(coding)
            body = compress(TEXT)
            if apart:
                assert steps(decoder, body) == TEXT
            decoder.feed([behind] if apart else [body + behind])
            with pytest.raises(CodingError) as caught:
                decoder.step()
            assert caught.value.before == (b"" if apart else TEXT)


@ALL
def test_corrupt_at_any_place(coding: bytes, compress: Callable[[bytes], bytes]) -> None:
    """No byte before the place is lost, none behind it comes: as if the bytes had come one by one."""
    generator = random.Random(1)
    body = compress(TEXT[:3000])
    for _ in range(100):
        wrong = bytearray(body)
        wrong[generator.randrange(len(body))] ^= 1 << generator.randrange(8)
        assert outcome(new(coding), [bytes(wrong)]) == outcome(new(coding), [bytes([byte]) for byte in wrong])


def outcome(decoder: Decoder, pieces: list[bytes]) -> tuple[bytes, bool]:
    """What the pieces give, and whether that is all right."""
    data = b""
    for piece in pieces:
        try:
            data += steps_of(decoder, piece)
        except CodingError as error:
            return data + error.before, False
    return data, decoder.finished


def steps_of(decoder: Decoder, piece: bytes) -> bytes:
    decoder.feed([piece])
    return decoder.step()


def test_no_compressed_data_at_all() -> None:
    """Plain text under either name is an error at once."""
    for coding in (b"gzip", b"deflate"):
        decoder = new(coding)
        decoder.feed([b"hello, this is no compressed data"])
        with pytest.raises(CodingError, match="corrupt"):
            decoder.step()


@pytest.mark.parametrize("coding", [b"", b"identity", b"Identity"])
def test_plain(coding: bytes) -> None:
    """Nothing is decoded."""
    assert decoder_of(coding) is None


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"compress", b"gzip, gzip", b"gzip,identity", b"x" * 1000, b"\xff"])
def test_other_encodings_are_named(coding: bytes) -> None:
    """The message says which, in bounds."""
    with pytest.raises(CodingError) as caught:
        decoder_of(coding)
    assert coding[:40].decode("latin-1") in str(caught.value)
    assert len(str(caught.value)) < 200

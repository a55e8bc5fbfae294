"""Compressed answers, decoded as they come. The upstream was asked for none (`accept-encoding: identity`); some compress all the same.

    decoder = decoder_of(b"gzip")        # None: not compressed
    decoder.feed([b"..."])
    while data := decoder.step(): ...    # at most STEP_BYTES of it
    decoder.finished                     # the data has ended where its format says

Pure: no socket, no clock. Invariants: all that the bytes fed so far can give is given before more is needed, so what a server flushes arrives;
no step makes more than STEP_BYTES, so a small body that unpacks to a huge one meets the bounds of whoever reads it. Fails with CodingError, which
carries what could be decoded before the place where the data is wrong.
"""

import zlib
from collections import deque
from collections.abc import Iterable

STEP_BYTES = 1 << 20

_ANY_HEADER, _GZIP_HEADER, _NO_HEADER = 47, 31, -15  # zlib's windowBits: a gzip or zlib header; gzip's alone; raw deflate
_ZLIB_METHOD = 8  # in the low half of a zlib header's first byte; no raw deflate data that a compressor writes begins so


class CodingError(Exception):
    """The data is not what its encoding says. before: what the step had decoded until there."""

    def __init__(self, message: str, before: bytes = b"") -> None:
        super().__init__(message)
        self.before = before


class Decoder:
    """One body in gzip (RFC 1952; several members in a row are one) or deflate (RFC 1950, or RFC 1951 where a server leaves out the zlib header)."""

    __slots__ = ("_begun", "_full", "_gzip", "_inflate", "_queue", "_tail")

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._inflate = zlib.decompressobj(_ANY_HEADER)
        self._begun = False
        self._queue: deque[bytes] = deque()
        self._tail = b""  # of the piece at work
        self._full = False  # the last step ended at its bound: there may be more without new bytes

    def feed(self, pieces: Iterable[bytes]) -> None:
        """Takes bytes of the body."""
        self._queue.extend(pieces)

    @property
    def pending(self) -> bool:
        """A step may give more without new bytes."""
        return self._full or bool(self._tail or self._queue)

    @property
    def finished(self) -> bool:
        """The data is whole, or there was none at all."""
        return not self.pending and (self._inflate.eof or not self._begun)

    def step(self) -> bytes:
        """What comes next, at most STEP_BYTES; b"" when more has to be fed first. Raises CodingError."""
        parts: list[bytes] = []
        room = STEP_BYTES
        while room and self.pending:
            if not self._tail and self._queue:
                self._tail = self._queue.popleft()
            try:
                data = self._some(room)
            except CodingError as error:
                raise CodingError(str(error), b"".join([*parts, error.before])) from None
            self._full = len(data) == room
            room -= len(data)
            parts.append(data)
        return b"".join(parts)

    def _some(self, most_bytes: int) -> bytes:
        """What the piece at work gives."""
        if self._tail and (self._inflate.eof or not self._begun):
            self._begin()
        before = self._inflate.copy()
        try:
            data = self._inflate.decompress(self._tail, most_bytes)
        except zlib.error as error:
            raise CodingError(f"the compressed answer is corrupt: {error}", _until_wrong(before, self._tail)) from None
        self._tail = self._inflate.unused_data or self._inflate.unconsumed_tail
        return data

    def _begin(self) -> None:
        """The first member, or one behind another."""
        if not self._begun:
            if not self._gzip and self._tail[0] & 0x0F != _ZLIB_METHOD:
                self._inflate = zlib.decompressobj(_NO_HEADER)
        elif not self._gzip:
            raise CodingError("bytes behind the end of the compressed answer")
        else:
            self._inflate = zlib.decompressobj(_GZIP_HEADER)
        self._begun = True


def _until_wrong(inflate: "zlib._Decompress", data: bytes) -> bytes:
    """What data that cannot be decoded gives up to its first wrong byte, which is found by halving."""
    parts: list[bytes] = []
    size = 1 << len(data).bit_length()
    while size:
        trial = inflate.copy()
        try:
            parts.append(trial.decompress(data[:size]))
        except zlib.error:
            pass
        else:
            inflate, data = trial, data[size:]
        size //= 2
    return b"".join(parts)


def decoder_of(coding: bytes) -> Decoder | None:
    """The decoder for the value of a content-encoding header; None where nothing is encoded. Raises CodingError for what is not decoded here."""
    match coding.lower():
        case b"" | b"identity":
            return None
        case b"gzip" | b"x-gzip":
            return Decoder(gzip=True)
        case b"deflate":
            return Decoder(gzip=False)
    raise CodingError(f"the answer is compressed ({coding[:40].decode('latin-1')!r}) although `accept-encoding: identity` was sent")

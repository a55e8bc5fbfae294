"""How a text is read where phrases are looked for in it: without what makes equal words look unequal to a machine, and equal to a reader.

Each character is folded by itself, so a text may come in any pieces: compatibility decomposition (a fullwidth letter, a ligature, a letter in a
circle is the letter; a letter with an accent is the letter and the accent, whichever way it came), case folding (`ß` is `ss`), any white space is a
space, and what cannot be seen is nothing: zero-width characters, soft hyphens, variation selectors, bidirectional marks, control characters. Letters
of other alphabets that look alike stay what they are.
"""

from unicodedata import category, normalize

EDGE = "\ufdd0"  # what stands before the beginning and behind the end of a text: no text has it, folded, and no pattern matches it

_BRAILLE_BLANK = "\u2800"  # no white space to Unicode, and looks like it
_UNKNOWN = "\ufffd"
_KEPT_MAX = 50_000  # folded characters
_IGNORABLE = frozenset((0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x3164, 0xFFA0, 0x1D159))
_IGNORABLE_RANGES = ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xFFF0, 0xFFF8), (0xE0000, 0xE0FFF))


class _Table(dict[int, str]):
    """Fills itself with what is asked for."""

    def __missing__(self, code: int) -> str:
        if len(self) >= _KEPT_MAX:
            self.clear()
        folded = self[code] = _folded(chr(code))
        return folded


def _folded(character: str) -> str:
    if category(character) == "Cs":
        return _UNKNOWN
    decomposed = normalize("NFKD", normalize("NFKD", character.casefold()).casefold())
    return "".join([" " if one.isspace() or one == _BRAILLE_BLANK else one for one in decomposed if not _ignored(one)]).replace(EDGE, _UNKNOWN)


def _ignored(character: str) -> bool:
    code, kind = ord(character), category(character)
    if kind == "Cc":
        return not character.isspace()
    return kind == "Cf" or code in _IGNORABLE or any(first <= code <= last for first, last in _IGNORABLE_RANGES)


def fold(text: str) -> str:
    """A text as phrases are looked for in it. Half of a surrogate pair is an unknown character."""
    if not text.isascii():
        return text.translate(_TABLE)
    folded = text.encode().translate(_ASCII).decode()  # a tenth of the time
    return folded.replace(_GONE, "") if _GONE in folded else folded


_TABLE = _Table({code: _folded(chr(code)) for code in range(128)})
_GONE = "\x7f"  # folds to nothing, as what is mapped to it
_ASCII = bytes([ord(_TABLE[code] or _GONE) for code in range(128)]) + bytes(range(128, 256))

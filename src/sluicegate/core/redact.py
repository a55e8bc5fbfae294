"""The prompt of a request as a log may have it: a hash of it, the prompt with masks, or all of it.

    masks = rules_of([("EMPLOYEE", r"\\bE-[0-9]{6}\\b")])      # with what is always masked; raises BadPattern
    for piece in prompt_json(texts, "redacted", masks): ...   # steps of bounded work; the pieces are one JSON object
    logged_prompt(texts, "redacted", masks)                   # at once, as a value

Masks: [EMAIL], [API_KEY], [AWS_KEY], [CARD], [IBAN], [PHONE], [IP], [PRIVATE_KEY], [JWT], and those of the configuration. What is masked already is
left alone, so masking twice is masking once.

Invariants: texts are joined by line feeds, which no rule but that of PEM looks beyond; with `hash` and `full` no rule is tried at all.
"""

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from re import _parser as parser  # type: ignore[attr-defined]  # knows how long a match may be; nothing public does
from typing import Any, Literal

import msgspec

from sluicegate.core.masks import STRICT
from sluicegate.core.matching import REACH, SHORT, Masks, Rule, slices
from sluicegate.core.personal import PERSONAL

How = Literal["hash", "redacted", "full"]

BUILT_IN = Masks((*STRICT, *PERSONAL))
NAME = r"[A-Z][A-Z_]{1,20}"  # of a mask
_KEPT = (("[", rf"(?={NAME}\])"),)  # the clue of masks
DIGITS = 16  # of a hash: a prompt can be told from others by them
PIECE = 65_536  # characters at once, of what is only hashed or copied

_encode = msgspec.json.Encoder().encode


class BadPattern(ValueError):
    """A pattern that cannot be used; the text says why."""


class _Found:
    """A match of a slice, at its place in the text."""

    __slots__ = ("_span",)

    def __init__(self, start: int, end: int) -> None:
        self._span = start, end

    def span(self) -> tuple[int, int]:
        return self._span


class _Linear:
    """A pattern of the configuration: found in a time that is linear in the text, whatever it is."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def finditer(self, text: str, start: int, end: int) -> Iterator[_Found]:
        """Looks at the slice alone, and at one character before it: that is how far this kind of pattern looks around."""
        base = max(start - 1, 0)
        for found in self._compiled.finditer(text[base : end + 1], start - base, end - base):
            yield _Found(base + found.start(), base + found.end())


def pattern_of(written: str) -> _Linear:
    """Compiles a pattern in the syntax that RE2 and Python share. Raises BadPattern."""
    import re2  # noqa: PLC0415  (only where there are such patterns)

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(written, options)
        least, most = parser.parse(written).getwidth()
    except (re2.error, re.error, OverflowError, RecursionError) as error:
        said = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise BadPattern(f"is no regular expression that can be used here: {said}") from None
    if not least:
        raise BadPattern("must not match an empty text")
    if most >= REACH:
        raise BadPattern(f"may match {REACH} characters or more: give each repetition a bound, such as {{1,40}} in place of +")
    return _Linear(compiled)


def rules_of(custom: Sequence[tuple[str, str]] = ()) -> Masks:
    """What is masked: that of BUILT_IN, and these names and patterns. Raises BadPattern."""
    if not custom:
        return BUILT_IN
    own = [Rule(name, pattern_of(written)) for name, written in custom]
    names = {rule.name for rule in (*BUILT_IN, *own)}
    kept = [Rule(name, re.compile(re.escape(f"[{name}]")), (f"[{name}]",), clues=_KEPT) for name in sorted(names)]  # a pattern may fit a mask
    return Masks((*kept, *BUILT_IN, *own))


def prompt_at_once(texts: Sequence[str], how: How, masks: Masks) -> bytes | None:
    """The prompt as one JSON object, where it is short and nothing in it is masked. None: it takes steps."""
    text = "\n".join(texts)
    if len(text) > SHORT or (how == "redacted" and not masks.harmless(text)):
        return None
    if how == "hash":
        return _hashed(sha256(text.encode()).hexdigest(), text)
    return b'{"text":%b,"characters":%d}' % (_encode(text), len(text))


def prompt_json(texts: Sequence[str], how: How, masks: Masks) -> Iterator[bytes]:
    """The prompt as one JSON object, in pieces."""
    text = "\n".join(texts)
    if how == "hash":
        digest = sha256()
        for start in range(0, len(text), PIECE):
            digest.update(text[start : start + PIECE].encode())
            yield b""
        yield _hashed(digest.hexdigest(), text)
        return
    yield b'{"text":"'
    for piece in slices(text, masks) if how == "redacted" else _pieces(text):
        yield _encode(piece)[1:-1]
    yield b'","characters":%d}' % len(text)


def _hashed(digest: str, text: str) -> bytes:
    return b'{"sha256":"%b","characters":%d}' % (digest[:DIGITS].encode(), len(text))


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


def logged_prompt(texts: Sequence[str], how: How, masks: Masks = BUILT_IN) -> dict[str, Any]:
    """The prompt as a log would have it: `text` or `sha256`, and `characters`, as many as it has without masks."""
    found: dict[str, Any] = msgspec.json.decode(b"".join(prompt_json(texts, how, masks)))
    return found

r"""The language of patterns in content rules, and what of a pattern RE2 is given.

A pattern is a literal text, or after `regex:` an expression of this language: characters, `.`, `[...]`, `(...)`, `|`, `?`, `{m}`, `{m,n}`, `\d`,
`\w`, `\s` and their opposites, `\b` at either end. It is read over folded text (folding.py), so it knows no case. Every pattern has a longest match:
`*`, `+` and `{m,}` are refused, and so is what may be longer than LONGEST characters. Beside itself, a pattern is compiled to what its matches may
begin with, by which a stream knows how much of a text that goes on has to wait (phrases.py). And it says what every match has in it, so that a text
without that needs no search.

RE2 does the searching, since its time is linear in the text whatever the pattern; Python's own expressions take exponential time on some. Parsing
fails with BadPattern, which says what is wrong.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from sluicegate.core.folding import EDGE, fold

LONGEST = 512  # characters of folded text
REGEX = "regex:"
_SPACES = 4  # as many of which one space in a literal stands for
_CLASS_MAX = 30_000  # characters

_EDGE = f"\\x{{{ord(EDGE):X}}}"
LETTERS = r"\pL\pN\pM"  # of words
_SETS = {"d": r"\p{Nd}", "w": f"{LETTERS}_", "s": " "}
_HEX = {"x": 2, "u": 4}
_REPEAT = re.compile(r"\{([0-9]{1,4})(?:(,)([0-9]{0,4}))?\}")


class BadPattern(ValueError):
    """What is wrong with a pattern."""


class Pattern(NamedTuple):
    """In RE2's syntax: the whole of it, and what its matches may begin with (nothing and a whole match included); the sizes of matches."""

    whole: str
    begun: str
    shortest: int
    longest: int
    words: tuple[bool, bool] = (False, False)  # a word may not go on before it, behind it
    literal: str = ""  # all that it matches, if that is one text
    signs: tuple[str, ...] = ()  # texts of which every match has one; (): that is not known


_EMPTY = Pattern("", "", 0, 0)


def parse(written: str, words: bool = False) -> Pattern:
    """Raises BadPattern."""
    pattern = _Parser(written.removeprefix(REGEX)).pattern() if written.startswith(REGEX) else _literal(written)
    if not pattern.shortest:
        raise BadPattern("matches a text without any character")
    if pattern.longest > LONGEST:
        raise BadPattern(f"may match {pattern.longest} characters; {LONGEST} are the most")
    return pattern._replace(words=(True, True)) if words else pattern


def _literal(text: str) -> Pattern:
    parts = [_repeated(_one(" "), 1, _SPACES) if part == " " else _one(part) for part in re.sub(" +", " ", fold(text).strip())]
    return _sequence(parts)


def _one(character: str) -> Pattern:
    written = f"\\x{{{ord(character):X}}}"
    return Pattern(written, f"(?:{written})?", 1, 1, literal=character, signs=(character,))


def _any_of(inside: str) -> Pattern:
    return Pattern(f"[{inside}]", f"[{inside}]?", 1, 1)


def _sequence(parts: Sequence[Pattern]) -> Pattern:
    run, signs = "", list[tuple[str, ...]]()
    for part in parts:
        run = run + part.literal if part.literal else ""
        signs.append((run,) if run else part.signs)
    literal = run if all([part.literal for part in parts]) else ""
    return _halved(parts)._replace(literal=literal, signs=max(signs, key=_tells, default=()))


def _halved(parts: Sequence[Pattern]) -> Pattern:
    """So what it may begin with is nested a few levels deep only."""
    if not parts:
        return _EMPTY
    if len(parts) == 1:
        return parts[0]
    first, then = _halved(parts[: len(parts) // 2]), _halved(parts[len(parts) // 2 :])
    begun = f"(?:{first.begun}|{first.whole}{then.begun})"
    return Pattern(first.whole + then.whole, begun, first.shortest + then.shortest, first.longest + then.longest)


def _either(parts: Sequence[Pattern]) -> Pattern:
    if len(parts) == 1:
        return parts[0]
    whole, begun = ("(?:" + "|".join(written) + ")" for written in ([part.whole for part in parts], [part.begun for part in parts]))
    signs = tuple(sign for part in parts for sign in part.signs) if all(part.signs for part in parts) else ()
    return Pattern(whole, begun, min(part.shortest for part in parts), max(part.longest for part in parts), signs=signs)


def _repeated(part: Pattern, least: int, most: int) -> Pattern:
    if not most:
        return _EMPTY
    begun = f"(?:{part.whole}){{0,{most - 1}}}{part.begun}"
    return Pattern(f"(?:{part.whole}){{{least},{most}}}", begun, part.shortest * least, part.longest * most, signs=part.signs if least else ())


def _tells(signs: tuple[str, ...]) -> tuple[int, int]:
    """How much it tells that a text has none of these."""
    return min([len(sign) for sign in signs], default=0), -len(signs)


class _Parser:
    """Reads an expression from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def pattern(self) -> Pattern:
        before, behind = self.text.startswith("\\b"), _ends_a_word(self.text)
        self.at = 2 if before else 0
        if behind:
            self.text = self.text[:-2]
        parsed = self.alternatives()
        if self.at < len(self.text):
            raise BadPattern(f"has a {self.text[self.at]!r} without its beginning")
        return parsed._replace(words=(before, behind))

    def alternatives(self) -> Pattern:
        found = [self.sequence()]
        while self.at < len(self.text) and self.text[self.at] == "|":
            self.at += 1
            found.append(self.sequence())
        return _either(found)

    def sequence(self) -> Pattern:
        parts: list[Pattern] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            parts.append(self.quantified(self.atom()))
        return _sequence(parts)

    def quantified(self, part: Pattern) -> Pattern:
        if self.at == len(self.text):
            return part
        sign = self.text[self.at]
        if sign in "*+":
            raise BadPattern(f"has no longest match: write {{{'0' if sign == '*' else '1'},40}} instead of {sign}")
        if sign == "?":
            self.at += 1
            least, most = 0, 1
        elif sign == "{":
            least, most = self.times()
        else:
            return part
        if self.at < len(self.text) and self.text[self.at] in "?*+{":
            raise BadPattern(f"has {self.text[self.at]!r} behind a repetition; the longest match is always the one that counts")
        if part.longest * most > LONGEST:
            raise BadPattern(f"may match {part.longest * most} characters; {LONGEST} are the most")
        return _repeated(part, least, most)

    def times(self) -> tuple[int, int]:
        match = _REPEAT.match(self.text, self.at)
        if match is None:
            raise BadPattern("has a '{' that is no repetition such as {2} or {1,40}; the character itself is \\{")
        self.at = match.end()
        if match[2] and not match[3]:
            raise BadPattern(f"has no longest match: give {match[0]} an end, such as {{{match[1]},40}}")
        least = int(match[1])
        most = int(match[3]) if match[3] else least
        if least > most:
            raise BadPattern(f"has a repetition that cannot be: {match[0]}")
        return least, most

    def atom(self) -> Pattern:
        character = self.text[self.at]
        self.at += 1
        if character == "(":
            return self.group()
        if character == "[":
            return self.characters()
        if character == ".":
            return Pattern(f"[^{_EDGE}]", f"[^{_EDGE}]?", 1, 1)
        if character in "?*+{":
            raise BadPattern(f"has a {character!r} with nothing to repeat")
        if character in "^$":
            raise BadPattern(f"has a {character!r}: no rule can ask where a text begins or ends; the character itself is \\{character}")
        if character != "\\":
            return _sequence([_one(each) for each in fold(character)])
        kind, value = self.escape()
        if kind:
            return _any_of(f"^{value}{_EDGE}" if kind == "not" else value)
        return _sequence([_one(each) for each in fold(value)])

    def group(self) -> Pattern:
        if self.text.startswith("?:", self.at):
            self.at += 2
        elif self.text.startswith("?", self.at):
            raise BadPattern("has a group of a kind that is not supported: (?:...) and (...) are")
        self.depth += 1
        if self.depth > 20:
            raise BadPattern("has groups nested too deeply")
        inside = self.alternatives()
        self.depth -= 1
        if self.at == len(self.text):
            raise BadPattern("has a '(' without its end")
        self.at += 1
        return inside

    def escape(self) -> tuple[str, str]:
        """What stands behind a backslash: ("", a character), ("set", of characters) or ("not", of characters)."""
        if self.at == len(self.text):
            raise BadPattern("ends with a backslash")
        sign = self.text[self.at]
        self.at += 1
        if sign.lower() in _SETS:
            return ("set" if sign.islower() else "not"), _SETS[sign.lower()]
        if sign in _HEX:
            digits = self.text[self.at : self.at + _HEX[sign]]
            if not re.fullmatch(f"[0-9a-fA-F]{{{_HEX[sign]}}}", digits):
                raise BadPattern(f"has \\{sign} without its {_HEX[sign]} hexadecimal digits")
            self.at += len(digits)
            return "", chr(int(digits, 16))
        if sign in "tnr":
            return "", " "
        if sign == "b":
            raise BadPattern("has \\b inside; it may stand at the beginning and at the end")
        if sign.isalnum():
            raise BadPattern(f"has an escape that is not known: \\{sign}")
        return "", sign

    def characters(self) -> Pattern:
        """A `[...]`."""
        negated = self.text.startswith("^", self.at)
        self.at += negated
        sets: list[str] = []
        found: set[str] = set()
        first = True
        while first or not self.text.startswith("]", self.at):
            first = False
            kind, value = self.member()
            if kind == "not":
                raise BadPattern("has the opposite of a set inside [...]")
            if kind:
                sets.append(value)
                continue
            last = value
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                kind, last = self.member()
                if kind or last < value:
                    raise BadPattern("has a range in [...] that cannot be")
            if ord(last) - ord(value) > _CLASS_MAX:
                raise BadPattern(f"has a range of more than {_CLASS_MAX} characters")
            found.update(fold(chr(code)) for code in range(ord(value), ord(last) + 1))
        self.at += 1
        inside = "".join(sets) + _ranges(sorted(ord(each) for each in found if len(each) == 1))
        if negated:
            return _any_of(f"^{inside}{_EDGE}")
        longer = [_sequence([_one(each) for each in text]) for text in sorted(found) if len(text) > 1]
        return _either(([_any_of(inside)] if inside else []) + longer) if inside or longer else _EMPTY

    def member(self) -> tuple[str, str]:
        if self.at == len(self.text):
            raise BadPattern("has a '[' without its end")
        character = self.text[self.at]
        self.at += 1
        return self.escape() if character == "\\" else ("", character)


def _ranges(codes: list[int]) -> str:
    """Characters as the inside of a class."""
    out: list[str] = []
    begin = 0
    for i, code in enumerate(codes):
        if i + 1 == len(codes) or codes[i + 1] != code + 1:
            out.append(f"\\x{{{codes[begin]:X}}}-\\x{{{code:X}}}")
            begin = i + 1
    return "".join(out)


def _ends_a_word(text: str) -> bool:
    r"""Whether it ends with `\b`, whose backslash is not itself behind one."""
    stem = text[:-1]
    return len(text) > 2 and text.endswith("\\b") and (len(stem) - len(stem.rstrip("\\"))) % 2 == 1

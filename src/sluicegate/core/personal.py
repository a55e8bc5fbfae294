"""What in a prompt may say who somebody is: addresses of mail and of machines, numbers of cards, accounts and telephones. As rules (matching.py).

Conservative: a number is masked where its shape leaves little doubt and its check digits agree. A version (1.2.3), a time, a date, an amount, an
identifier of another kind stay as they are.
"""

import re

from sluicegate.core.masks import DIGIT, ENDS, SLASH
from sluicegate.core.matching import Rule

# Letters of the scripts of Europe: those of others are often written without a space between an address and what precedes it.
_LETTERS = r"A-Za-z0-9\u00c0-\u02af\u0370-\u0523"
_LOCAL_MAX = 64  # RFC 5321, 4.5.3.1.1
_LOCAL_MOST = 12  # characters: most have fewer
_MARKS = r"_.!#$'*+~-"  # and what else is allowed in an address, stands in front of it more often: = / ? & %
_local = re.compile(rf"[{_LETTERS}{_MARKS}]{{0,{_LOCAL_MAX - 1}}}[{_LETTERS}_]").match  # from its end to its beginning
_BEGINS_LOCAL = frozenset(filter(re.compile(f"[{_LETTERS}_]").match, map(chr, range(0x524))))
_IN_LOCAL = _BEGINS_LOCAL | frozenset(_MARKS)
_LABEL = rf"[{_LETTERS}_-]{{1,63}}"
_LABELS = 6  # before the last one; where there are more, the rest is looked for by itself
_DOMAIN_MAX = 253  # characters of that rest; RFC 1035, 2.3.4
_labels = re.compile(rf"{_LABEL}(?:\.{_LABEL})*").match
_TOP_LETTERS = r"[A-Za-z\u00c0-\u02af\u0370-\u0523]{2,24}"
_TOP = rf"(?:xn--[A-Za-z0-9-]{{2,59}}|{_TOP_LETTERS})(?![A-Za-z0-9])"
_MOST = rf"{_LABEL}\.{_TOP_LETTERS}(?!\.?[{_LETTERS}_-])"  # of two labels: found sooner than by what finds any number
_DOMAIN = rf"(?:{_MOST}|(?:{_LABEL}\.){{{_LABELS}}}(?={_LABEL}\.)|(?:{_LABEL}\.){{1,{_LABELS}}}{_TOP})"


def _address(found: "re.Match[str]", at: int, end: int) -> tuple[int, int] | None:
    """What precedes the sign belongs to it as far as it can."""
    text = found.string
    if at > 1 and text[at - 2] not in _IN_LOCAL and text[at - 1] in _BEGINS_LOCAL:
        start = at - 1  # of one character: a text may have very many of these
    else:
        most = text[at - 1 : at - _LOCAL_MOST - 1 if at > _LOCAL_MOST else None : -1]
        before = _local(most)
        length = before.end() if before is not None else len(most)
        if length == len(most) or most[length] in _IN_LOCAL:
            before = _local(text[at - 1 : at - _LOCAL_MAX - 1 if at > _LOCAL_MAX else None : -1])
            if before is None:
                return None
            length = before.end()
        start = at - length
    if text[end - 1] == ".":
        more = _labels(text, end, end + _DOMAIN_MAX)
        end = end if more is None else more.end()
    return start, end


# -- cards: ISO/IEC 7812 ----------------------------------------------------------------------------------------------------------------------

_GAP = r"[ \-\u00a0\u2009\u202f]"
_CARD_GAP = r"[ .\-\u00a0\u2009\u2011\u2013\u202f]"
_FOUR = "[0-9][0-9][0-9][0-9]"
_CARD = re.compile(
    rf"([2-6](?<![A-Za-z0-9_.][2-6])[0-9][0-9][0-9])(?=({_CARD_GAP})(?:({_FOUR})\2({_FOUR})\2({_FOUR})(?:\2([0-9]{{1,3}}+){ENDS}|{ENDS})|([0-9]{{6}}\2[0-9]{{4,5}}){ENDS})"
    rf"|([0-9]{{9,15}}){ENDS})"
)
_THREE_FOURS = 15  # characters, with their gaps
_IN_FOURS, _AND_MORE, _IN_THREE = 5, 6, 7  # groups: the last that matches tells how it is written
_GAPS = str.maketrans(dict.fromkeys(" .-\u00a0\u2009\u2011\u2013\u202f"))


def _digits_add_up() -> dict[str, int]:
    """What four digits add to the sum of a number whose last digit is one of theirs, or four, eight, ... places behind."""
    twice = [sum(divmod(2 * digit, 10)) for digit in range(10)]
    return {f"{n:04}": twice[n // 1000] + n // 100 % 10 + twice[n // 10 % 10] + n % 10 for n in range(10_000)}


_SUMS = _digits_add_up()


def _sums_up(digits: str) -> bool:
    padded = digits.zfill(20)
    return (_SUMS[padded[:4]] + _SUMS[padded[4:8]] + _SUMS[padded[8:12]] + _SUMS[padded[12:16]] + _SUMS[padded[16:]]) % 10 == 0


def _card(found: "re.Match[str]", start: int, end: int) -> tuple[int, int] | None:
    written = found.lastindex or 0
    if written != _IN_FOURS:
        last = found.end(written)
        digits = found.string[start:last]
        if _sums_up(digits if written > _IN_THREE else digits.translate(_GAPS)):
            return None if _behind_mask(found.string, start) else (start, last)
        if written != _AND_MORE:
            return None
    # What is behind four times four is something else.
    if (_SUMS[found[1]] + _SUMS[found[3]] + _SUMS[found[4]] + _SUMS[found[5]]) % 10 or _behind_mask(found.string, start):
        return None
    return start, end + _THREE_FOURS


def _behind_mask(text: str, start: int) -> bool:
    """A mask is a word, so that masking what is masked changes nothing."""
    return text[max(start - 1, 0) : start] == "]" and "A" <= text[max(start - 2, 0) : start - 1] <= "Z"


# -- accounts: ISO 13616, lengths by the registry at https://www.swift.com/standards/data-standards/iban-international-bank-account-number ------

_LENGTHS = {
    15: "NO", 16: "BE", 18: "DK FI FK FO GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU MN XK", 21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL",
    24: "AD CZ ES MD PK RO SA SE SK TN VG", 25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM",
    28: "AL AZ BY CY DO GT HN HU LB NI PL SV", 29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC", 33: "RU",
}  # fmt: skip
# By country: characters, and its letters as the digits that the check takes them for.
_COUNTRIES = {one: (length, "".join(str(ord(letter) - 55) for letter in one)) for length, all_ in _LENGTHS.items() for one in all_.split()}
_VALUES = {written: str(ord(letter) - 55) for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" for written in (letter, letter.lower())}
_ASCII_DIGITS = frozenset("0123456789")
_WORD = frozenset((*_VALUES, *_ASCII_DIGITS, "_"))
_WORD_OR_POINT = _WORD | {"."}
# A country, two check digits, and beginnings of account numbers as there are: none looks like the beginning of another, so that few are tried; nor
# what has two such beginnings inside, one after the other, which only a hostile text has.
_BEGINNING = rf"[A-Z]{{2}}[0-9]{{2}}{_GAP}"
_CHAIN = rf"[A-Z0-9]{{4}}{_GAP}{_BEGINNING}[A-Z0-9]{{4}}{_GAP}{_BEGINNING}"
_IBAN = re.compile(
    r"([A-Z](?<![A-Za-z0-9_][A-Z])(?<![A-Z]\][A-Z])[A-Z])([0-9]{2})"
    rf"(?=({_GAP})(?!{_CHAIN})(?:[0-9]{{3}}[A-Z0-9]|[A-Z]{{4}}|[A-Z][0-9]{{3}}|[A-Z]{{2}}[0-9]{{2}}{_GAP}[0-9])[A-Z0-9]*{_GAP}[A-Z0-9]{{4}}|[A-Z0-9]{{11}})"
)
_ends = re.compile(ENDS).match


# In small letters: from its second letter on, since what ends with two digits is soon told from a word, and a digit from a letter.
_SMALL_BEFORE = 1
_SMALL_IBAN = re.compile(
    r"[a-z][0-9][0-9](?<=[a-z][a-z][0-9][0-9])(?<![A-Za-z0-9_][a-z][a-z][0-9][0-9])(?<![A-Z]\][a-z][a-z][0-9][0-9])"
    rf"(?=({_GAP})(?:[0-9]{{4}}|[a-z]{{4}}){_GAP}[a-z0-9]{{4}}|[a-z0-9]{{11}})"
)


def _small_account(found: "re.Match[str]", start: int, end: int) -> tuple[int, int] | None:
    text = found.string
    return _account_at(text, start - 1, text[start - 1 : start + 1].upper(), text[start + 1 : end], found[1])


def _account(found: "re.Match[str]", start: int, _end: int) -> tuple[int, int] | None:
    return _account_at(found.string, start, *found.groups())


def _account_at(text: str, start: int, country: str, check: str, gap: str | None) -> tuple[int, int] | None:
    known = _COUNTRIES.get(country)
    if known is None:
        return None
    length, digits = known
    if gap is None:
        end = start + length
        account = text[start + 4 : end]
    else:
        end = start + length + (length - 1) // 4
        account = text[start + 5 : end].replace(gap, "")
    behind = text[end : end + 1]
    if behind in _WORD or (behind == "[" and not _ends(text, end)):  # ENDS, which takes longer
        return None
    if len(account) != length - 4 or not account.isascii() or not account.isalnum():
        return None
    if not account.isdigit():
        for letter in set(account) - _ASCII_DIGITS:
            account = account.replace(letter, _VALUES[letter])
    return (start, end) if int(account + digits + check) % 97 == 1 else None


# -- machines ---------------------------------------------------------------------------------------------------------------------------------

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_V4_ENDS = rf"{ENDS}(?!\.[0-9])"
_V4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_HEX = "[0-9A-Fa-f]{1,4}"
_V6_ENDS = rf"{ENDS}(?!:)(?!\.[0-9])"
# Both from what stands behind the first number on, since there is less of it than of digits; then back to their beginning.
_FIRST_OCTETS = ("[0-9]", "[1-9][0-9]", "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9])")  # the group that matches tells how long it is
_FIRST_OCTET = "|".join(
    rf"(?<={octet}\.)(?<![A-Za-z0-9_.][0-9]{{{length}}}\.)(?<![A-Z]\][0-9]{{{length}}}\.)()" for length, octet in enumerate(_FIRST_OCTETS, 1)
)
_IPV4 = re.compile(rf"\.(?:{_FIRST_OCTET})(?:{_OCTET}\.){{2}}{_OCTET}{_V4_ENDS}")
_IPV6 = re.compile(rf":(?<=[0-9A-Fa-f]:){f'{_HEX}:' * 5}(?:{_HEX}:{_HEX}|{_V4}){_V6_ENDS}")
_first_group = re.compile(r"([0-9A-Fa-f]{1,4})(?![A-Za-z0-9_:.])(?!\][A-Z])").match  # backwards
_V_BEFORE = 4  # characters of the first number
_SHORTEST = 4  # hexadecimal digits of an address with a gap: with fewer, `1::2` may be of any programming language
_SHORT_IPV6 = re.compile(
    r"[0-9A-Fa-f:](?<![A-Za-z0-9_:.][0-9A-Fa-f:])(?<![A-Z]\][0-9A-Fa-f:])"
    rf"(?:(?<=[0-9A-Fa-f])(?=(?::{{0,2}}[0-9A-Fa-f]){{{_SHORTEST - 1}}})[0-9A-Fa-f]{{0,3}}(?::{_HEX}){{0,6}}::"
    rf"|(?<=:):(?=(?::?[0-9A-Fa-f]){{{_SHORTEST}}}))"
    rf"(?:(?:{_HEX}:){{0,5}}{_V4}|{_HEX}(?::{_HEX}){{0,6}}|){_V6_ENDS}"
)


# What has numbers with points, from its end to its beginning, which may be behind an escape.
_counted = re.compile(r"[ :]{1,2}(?i:s?noisrev|esaeler|noitces|retpahc|v|§)(?:(?![A-Za-z])|(?=[nrtbf]\\))").match
_COUNTED_MAX = 12  # characters, with two before them
_COUNTED_LAST = frozenset("nNsSeErRvV§ :")  # the last character of them, or one of two behind it


def _v4(found: "re.Match[str]", point: int, end: int) -> tuple[int, int] | None:
    start, text = point - (found.lastindex or 0), found.string
    if start > 1 and text[start - 1] in " :" and text[start - 2] in _COUNTED_LAST and _counted(text[max(start - _COUNTED_MAX, 0) : start][::-1]):
        return None
    return start, end


def _v6(found: "re.Match[str]", at: int, end: int) -> tuple[int, int] | None:
    before = _first_group(found.string[max(at - _V_BEFORE - 2, 0) : at][::-1])
    return (at - before.end(1), end) if before is not None else None


def _short(found: "re.Match[str]", start: int, end: int) -> tuple[int, int] | None:
    """An address with a gap: not two words that a language puts colons between."""
    written = found.string[start:end]
    colons = written.count(":")
    if colons > 6 and colons + ("." in written) - (written[:2] == "::" or written[-2:] == "::") > 7:
        return None
    return None if written.replace(":", "").isalpha() else (start, end)


# -- telephones: ITU-T E.164, with a plus; and those of North America ---------------------------------------------------------------------------

_BETWEEN = r" .\-()\u00a0\u2009\u2011\u2013\u202f"
_PHONE = re.compile(rf"\+(?<![A-Za-z0-9_+]\+)(?<![A-Z]\]\+)[1-9](?:(?:[{_BETWEEN}]|{SLASH}){{0,2}}[0-9]){{7,14}}(?![0-9]){ENDS}")
_AREA = r"[2-9][0-9][0-9]"
# From what stands behind the area code on: there are fewer of these than of digits.
_LOCAL = rf"{_AREA}[-.][0-9]{{4}}"  # is looked for first, since it is not often there
_AMERICAN = re.compile(rf"[-.)] ?{_LOCAL}(?:(?<={_AREA}[-.]{_LOCAL})|(?<=\({_AREA}\){_LOCAL})|(?<=\({_AREA}\) {_LOCAL})){ENDS}(?![-.][0-9])")
_AMERICAN_BEFORE = 6  # characters: `1-`, and the area code


def _american(found: "re.Match[str]", at: int, end: int) -> tuple[int, int] | None:
    text = found.string
    start = at - (4 if text[at] == ")" else 3)
    before = text[max(start - 2, 0) : start]
    if before[:1] == "1" and before[1:] in ("-", ".", " ") and (before[1:] != " " or text[max(start - 3, 0) : start - 2] not in _WORD_OR_POINT):
        start -= 2
        before = text[max(start - 2, 0) : start]
    if before[-1:] in _WORD_OR_POINT or (before[-1:] == "-" and before[:1] in _ASCII_DIGITS) or (before[-1:] == "]" and before[:1].isupper()):
        return None
    return start, end


_DIGITS = tuple("0123456789")

# What is seen of them at one character; of numbers, without a look back where a look ahead tells enough: that is sooner done.
_AT_CLUE = rf"(?<=[{_LETTERS}{_MARKS}]@)(?={_LABEL}\.)"
_CARD_CLUE = rf"[0-9][0-9][0-9](?:[0-9]{{9}}(?<=[2-6][0-9]{{12}})|{_CARD_GAP}[0-9]{{4,6}}{_CARD_GAP}[0-9]{{4}})"
_IBAN_CLUE = rf"[0-9](?<=[A-Za-z][A-Za-z][0-9][0-9])(?<![A-Za-z0-9_][A-Za-z][A-Za-z][0-9][0-9])(?:{_GAP}[A-Za-z0-9]{{4}}|[A-Za-z0-9]{{11}})"
_AMERICAN_CLUE = r"[0-9][0-9][-.][0-9]{4}(?<=[-.) ][2-9][0-9][0-9][-.][0-9]{4})"
_IPV4_CLUE = r"(?<=\.[0-9])[0-9]{0,2}\.[0-9]{1,3}\.[0-9]"

PERSONAL = (
    Rule("EMAIL", re.compile(rf"@(?<=[{_LETTERS}{_MARKS}]@){_DOMAIN}"), ("@",), _address, before=_LOCAL_MAX + 1, clues=(("@", _AT_CLUE),)),
    Rule(
        "EMAIL",
        re.compile(rf"%40(?<=[{_LETTERS}_.+-]%40){_DOMAIN}"),
        ("%40",),
        _address,
        before=_LOCAL_MAX + 1,
        clues=((DIGIT, "0(?<=%40)"),),
    ),
    Rule("IBAN", _IBAN, _DIGITS, _account, clues=((DIGIT, _IBAN_CLUE),)),
    Rule("IBAN", _SMALL_IBAN, _DIGITS, _small_account, before=_SMALL_BEFORE, clues=((DIGIT, _IBAN_CLUE),)),
    Rule("CARD", _CARD, _DIGITS, _card, clues=((DIGIT, _CARD_CLUE),)),
    Rule("IP", _IPV4, (".",), _v4, before=_V_BEFORE, clues=((DIGIT, _IPV4_CLUE),)),
    Rule("IP", _IPV6, (":",), _v6, before=_V_BEFORE, clues=((":", rf"(?<=[0-9A-Fa-f]:)(?={_HEX}:{_HEX}:)"),)),
    Rule("IP", _SHORT_IPV6, ("::",), _short, clues=((":", "(?=:)(?:(?<=[0-9A-Fa-f]:)|(?=:[0-9A-Fa-f]))"),)),
    Rule("PHONE", _PHONE, ("+",), clues=(("+", rf"(?=[1-9][0-9{_BETWEEN}/\\]{{7}})"),)),
    Rule("PHONE", _AMERICAN, _DIGITS, _american, before=_AMERICAN_BEFORE, clues=((DIGIT, _AMERICAN_CLUE),)),
)

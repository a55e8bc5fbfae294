"""The shapes of credentials, in one place, and texts without them.

    mask(text, credentials)      an error text or a line of the log: nothing in it looks like a credential, nor is one of these headers' in any
                                 encoding that a provider might echo: percent-encoded (once or more), with JSON's or HTML's escapes, in base64 or hex,
                                 or shortened to its beginning or end

For prompts, which must stay readable, redact.py takes the same shapes strictly: as long as such keys are (STRICT). In texts of providers and logs,
which must not leak, they are taken loosely: also shorter, with escapes and stars in them, behind `Bearer`, and as values that are called a secret.

Masks have stable names. What has one already stays as it is.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import lru_cache

from sluicegate.core.escapes import LETTERS
from sluicegate.core.matching import Masks, Rest, Rule, masked, run_of, whole

Headers = Iterable[tuple[bytes, bytes]]

_SECRET_HEADERS = ("auth", "key", "token", "secret")
_SECRET_MIN = 6  # characters; anything shorter is no secret and might be any word
_SCHEMES = ("Bearer ", "Basic ")
_SHORTENED_TO = 8  # characters of a secret's beginning by which a shortened one is known; of its end: half as many
_KEPT_MAX = 256  # credentials whose patterns are kept
_LEFT_OUT = r"(?:…|[*.•xX]{3})[A-Za-z0-9_\-+/=]{0,24}?"  # what stands for the beginning of a shortened one, and what may follow before its end

_EMPHASIS = [rf"(?<![A-Za-z0-9_\]]){underscores}" for underscores in ("_", "__")]  # of Markdown, which is part of no name


def begins(literal: str, before: str = "A-Za-z0-9_") -> str:
    """A literal text where a word begins: behind none of `before`, behind what Markdown emphasizes with, or behind a percent-encoded character. The
    literal comes first, since a search for one is fast."""
    return f"{re.escape(literal)}{_begun(re.escape(literal), before)}"


def _begun(escaped: str, before: str = "A-Za-z0-9_") -> str:
    """Whether a word begins before this, behind which it stands."""
    borders = [rf"(?<![{before}]{escaped})(?<![A-Z]\]{escaped})", rf"(?<=%[0-9A-Fa-f][0-9A-Fa-f]{escaped})"]
    return f"(?:{'|'.join(borders + [rf'(?<={one}{escaped})' for one in _EMPHASIS])})"


ENDS = r"(?![A-Za-z0-9_]|\[[A-Z][A-Z_]{1,20}\])"  # a word ends; a mask is a word, so that masking what is masked changes nothing

SLASH = r"\\{0,8}/"  # as JSON may have it, too
_KEY = r"A-Za-z0-9_\-"
_ECHOED = rf"{_KEY}.%+/=~*…•"  # as error texts write them
_VENDORS = ("gsk_", "xai-", "hf_", "r8_", "pplx-", "nvapi-", "fw_", "tgp_", "csk-", "sk_live_", "rk_live_", "pk_live_", "sk_test_", "whsec_")
# As they read behind a backslash, of which their first letter makes an escape.
_SEEM_ESCAPED = [LETTERS[vendor[0]] + vendor[1:] for vendor in _VENDORS if vendor[0] in LETTERS]


Clues = tuple[tuple[str, str], ...]


def _rule(name: str, pattern: str, signs: Sequence[str], rest: Rest | None = None, clues: Clues = ()) -> Rule:
    return Rule(name, re.compile(pattern), tuple(signs), whole if rest is not None else None, rest, clues=clues)


DIGIT = "[0-9](?<![0-9][0-9])"  # an anchor: the first of a number


def _keys(least: int, characters: str, google: int, before: str = "A-Za-z0-9_") -> list[Rule]:
    """What is called a key: ours, OpenAI's and Anthropic's (`sk-`), Google's, GitHub's, and those of other providers."""
    rest, more = run_of(characters), rf"(?=[{characters}]{{{least}}})"
    dashed = ("-", "(?<=sk-|ai-|lx-|pi-)" + more)
    vendors = dashed, ("_", "(?<=sk_|hf_|[r\r]8_|[f\f]w_|gp_|ve_|st_|ec_)" + more)  # by the last three characters of each
    return [
        _rule("API_KEY", begins("sk-", before) + rf"[{characters}]{{{least}}}", ["sk-"], rest, (dashed,)),
        _rule("API_KEY", begins("AIza", before) + rf"[{characters}]{{{google}}}", ["AIza"], rest, (("I", "(?<=AI)(?=za)"),)),
        _rule("API_KEY", begins("ya29.", before) + rf"[{characters}]{{{google}}}", ["ya29."], rest, ((DIGIT, r"9\.(?<=ya29\.)"),)),
        _rule(
            "API_KEY",
            rf"gh{_begun('gh')}[opsur]_[A-Za-z0-9]{{{least},255}}",
            ["ghp_", "gho_", "ghs_", "ghu_", "ghr_"],
            clues=(("_", "(?<=gh[opsur]_)" + more),),
        ),
        _rule("API_KEY", begins("github_pat_") + rf"[A-Za-z0-9_]{{{least},255}}", ["github_pat_"], clues=(("_", "(?<=at_)" + more),)),
        _rule(
            "API_KEY",
            rf"(?:{'|'.join([*map(begins, _VENDORS), *_SEEM_ESCAPED])})(?:[A-Za-z0-9]{{1,8}}[-_]){{0,2}}[A-Za-z0-9]{{16}}",
            (*_VENDORS, *_SEEM_ESCAPED),
            rest,
            vendors,
        ),
    ]


# A secret of AWS has no shape but its length: it is known by the name before it, or by the id of its key.
_AWS_ID = r"A[KS]IA[A-Z0-9]{16}"
_SET = r"[\"'\\\s:=>]{1,12}"
_AWS_SECRET = rf"(?:[A-Za-z0-9/+]{{40}}|(?:[A-Za-z0-9+]|{SLASH}){{40}}(?!{SLASH}))(?![A-Za-z0-9/+=])"
_AWS_NAMES = (r"ecret[_ -]?(?:[aA]ccess)?[_ -]?[kK]ey", r"ECRET[_ -]?(?:ACCESS)?[_ -]?KEY")


def _group(found: "re.Match[str]", _start: int, _end: int) -> tuple[int, int]:
    return found.span(1)


_AWS_CLUES = (("I", r"(?<=A[KS]I)(?=A[A-Z0-9]{16})"),)
_AWS = [
    Rule("AWS_KEY", re.compile(rf"A(?<![A-Za-z0-9_]A)(?<![A-Z]\]A)[KS]IA[A-Z0-9]{{16}}{ENDS}"), ("AKIA", "ASIA"), clues=_AWS_CLUES),
    Rule(
        "AWS_KEY",
        re.compile(rf"A(?<![A-Za-z0-9_]A)[KS]IA[A-Z0-9]{{16}}[^A-Za-z0-9/+]{{1,12}}({_AWS_SECRET})"),
        ("AKIA", "ASIA"),
        _group,
        clues=_AWS_CLUES,
    ),
    *(
        Rule("AWS_KEY", re.compile(rf"{name}{_SET}({_AWS_SECRET})"), (name[:5],), _group, clues=((last, rf"(?<={key})(?={_SET}{_AWS_SECRET})"),))
        for name, key, last in zip(_AWS_NAMES, ("[kK]ey", "KEY"), "yY", strict=True)
    ),
]

# Blocks of PEM (RFC 7468, RFC 1421, and OpenPGP's armor), in which line ends may be escaped, up to their end or to what cannot be in one.
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{0,24}PRIVATE KEY(?: BLOCK)?-----|[^A-Za-z0-9+/=\s\\:,.@<>()-]")
_PEM_END_MAX = 64


def _pem(text: str, start: int, end: int) -> tuple[int, bool]:
    found = _PEM_END.search(text, start, end)
    if found is not None:
        return (found.start() if len(found[0]) == 1 else found.end()), True
    return (end, True) if end == len(text) else (max(start, end - _PEM_END_MAX), False)


_JWT = run_of(rf"{_KEY}.")

STRICT = (
    _rule("PRIVATE_KEY", r"-----BEGIN [A-Z0-9 ]{0,24}PRIVATE KEY(?: BLOCK)?-----", ["-----BEGIN "], _pem, (("B", "(?<=-----B)(?=EGIN )"),)),
    _rule("JWT", begins("eyJ", rf"{_KEY}") + rf"[{_KEY}]{{5,400}}+\.[{_KEY}]{{2}}", ["eyJ"], _JWT, (("J", rf"(?<=eyJ)(?=[{_KEY}]{{5}})"),)),
    *_AWS,
    *_keys(16, _KEY, 30),
)

_CALLED = r"(?i:(?:api[-_]?key|key|token|secret|password)(?:=|%3d))"
_LOOSE_RULES = (
    STRICT[0],
    _rule("JWT", begins("eyJ", "A-Za-z") + rf"[{_ECHOED}]{{6}}", ["eyJ"], run_of(_ECHOED)),
    _rule("AWS_KEY", rf"A(?<![A-Za-z]A)[KS]IA[{_ECHOED}]{{6}}", ["AKIA", "ASIA"], run_of(_ECHOED)),
    *_AWS[1:],
    *_keys(6, _ECHOED, 6, "A-Za-z"),
    _rule("API_KEY", rf"sk{_begun('sk', 'A-Za-z')}%2[dD][{_ECHOED}]{{6}}", ["sk%2D", "sk%2d"], run_of(_ECHOED)),
    Rule("API_KEY", re.compile(rf"(?i:bearer|basic)(?:\s|%20|\+){{1,4}}([{_ECHOED}]{{6,400}}+)"), ("earer", "EARER", "asic", "ASIC"), _group),
    Rule("API_KEY", re.compile(_CALLED + r"([^\s&\"'\\<>,;)\[][^\s&\"'\\<>,;)]{0,400})"), ("=", "%3d", "%3D"), _group),
)
_LOOSE = Masks(rule._replace(clues=()) for rule in _LOOSE_RULES)  # whoever writes an error text knows the signs: most have none
_SIGNS = tuple({sign for rule in _LOOSE[:-1] for sign in rule.signs})
_called = re.compile(_CALLED).search


def mask(text: str, credentials: Headers = ()) -> str:
    """A text without the secrets of these headers, and without anything of the shape of a credential."""
    for name, value in credentials:
        if any(part in name.decode("latin-1").lower() for part in _SECRET_HEADERS):
            secret = value.decode("latin-1").strip()
            for scheme in _SCHEMES:
                secret = secret.removeprefix(scheme).strip()
            if len(secret) >= _SECRET_MIN:
                text = _own(secret).sub("[API_KEY]", text)
    if any([sign in text for sign in _SIGNS]) or "\\" in text or (("=" in text or "%3" in text) and _called(text)):
        return masked(text, _LOOSE)
    return text


@lru_cache(_KEPT_MAX)
def _own(secret: str) -> "re.Pattern[str]":
    """One secret, however it is written."""
    forms = ["".join(map(_written, secret)), *map(re.escape, _in_base64(secret)), f"(?i:{secret.encode().hex()})"]
    if len(secret) >= 2 * _SHORTENED_TO:
        forms.append("".join(map(_written, secret[:_SHORTENED_TO])) + f"[{_ECHOED}]{{0,400}}")
        forms.append(_LEFT_OUT + "".join(map(_written, secret[-_SHORTENED_TO // 2 :])))
    return re.compile("|".join(forms))


def _written(character: str) -> str:
    """A character as it is, percent-encoded, or escaped as in JSON, in source code or in HTML."""
    code, digits = ord(character), f"{ord(character):02x}"
    return rf"(?:\\{{0,4}}{re.escape(character)}|(?i:%(?:25){{0,4}}{digits}|\\{{1,4}}(?:u00|x){digits}|&#(?:x0{{0,4}}{digits}|0{{0,4}}{code});))"


def _in_base64(secret: str) -> Iterable[str]:
    """What is always the same where a secret is somewhere in a text in base64: it may begin at each of three places of a group of bytes, and the
    characters at its borders depend on what is beside it."""
    for before, shared in ((0, 0), (1, 2), (2, 3)):
        data = bytes(before) + secret.encode()
        encoded = b64encode(data).decode().rstrip("=")
        core = encoded[shared : len(encoded) - (len(data) % 3 != 0)]
        yield core
        yield core.translate(str.maketrans("+/", "-_"))

"""What is masked in a prompt, and what is not."""

from collections.abc import Iterator
from re import _parser as parser  # type: ignore[attr-defined]
from re._constants import ANY, ATOMIC_GROUP, IN, LITERAL, POSSESSIVE_REPEAT  # type: ignore[import-not-found]
from typing import Any

import pytest

from sluicegate.core.masks import _LOOSE
from sluicegate.core.matching import masked
from sluicegate.core.redact import BUILT_IN
from support_hostile import HARMLESS, JWT, PEM, SECRETS


@pytest.mark.parametrize(("name", "secret"), SECRETS)
@pytest.mark.parametrize(("before", "behind"), [("", ""), ("It is ", ", see there."), ('{"x": "', '"}'), ("<", ">"), ("=", "\n"), ("邮箱是", "。")])
def test_what_is_masked(name: str, secret: str, before: str, behind: str) -> None:
    """Each has its mask, whatever it stands between, and nothing of it stays."""
    assert masked(before + secret + behind, BUILT_IN) == f"{before}[{name}]{behind}"


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_not(text: str) -> None:
    """Versions, times, words, sums, and numbers whose check digits are wrong stay as they are."""
    assert masked(text, BUILT_IN) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY;", "AWS_SECRET_ACCESS_KEY=[AWS_KEY];"),
        ('"SecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"', '"SecretAccessKey": "[AWS_KEY]"'),
        ("AKIAIOSFODNN7EXAMPLE,wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "[AWS_KEY],[AWS_KEY]"),
        ("sha1 2fd4e1c67a2d28fced849ee1bb76e7391b93eb12", "sha1 2fd4e1c67a2d28fced849ee1bb76e7391b93eb12"),
    ],
)
def test_secrets_of_aws_are_known_by_what_is_beside_them(text: str, expected: str) -> None:
    """Forty characters are a secret where they are called one, or stand behind the id of a key."""
    assert masked(text, BUILT_IN) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4111 1111 1111 1111 12/27 123", "[CARD] 12/27 123"),
        ("1234 4111 1111 1111 1111 123", "1234 [CARD] 123"),
        ("4111 1111 1111 1111 5555 5555 5555 4444", "[CARD] [CARD]"),
        ("DE89 3704 0044 0532 0130 00 COBADEFF", "[IBAN] COBADEFF"),
        ("http://10.0.0.1:8080/x?ip=10.0.0.2.", "http://[IP]:8080/x?ip=[IP]."),
        ("[2001:db8::1]:443", "[[IP]]:443"),
        ("a@b.co@c.de", "[EMAIL]"),
        ("4111 1111 1111 1111 212-555-1234 1 212-555-1234", "[CARD] [PHONE] [PHONE]"),
        (r"+49 30\/1234567 +49 30\\\/1234567", "[PHONE] [PHONE]"),
        ("<a.very-long-name+of-somebody@b.co> a-bcdefghijkl@b.co .+a@b.co +.@b.co", "<[EMAIL]> [EMAIL] .+[EMAIL] +.@b.co"),
        ("12345678901-2345678901-@b.co", "[EMAIL]"),
        ("https://u:sk-abcdefghijklmnopqrst@example.com/", "https://u:[API_KEY]/"),
        ("\\nsk-abcdefghijklmnopqrst", "\\n[API_KEY]"),
        ("%20sk-abcdefghijklmnopqrst", "%20[API_KEY]"),
        ("tel:+4915123456789;x", "tel:[PHONE];x"),
        (f"token {JWT}x{'y' * 3_000} end", "token [JWT] end"),
    ],
)
def test_neighbours(text: str, expected: str) -> None:
    """What stands beside it neither hides it nor is taken with it."""
    assert masked(text, BUILT_IN) == expected


@pytest.mark.parametrize(
    "text",
    ["1:2:3:4:5::6:7:8:9", "1:2:3:4:5:6:7::8", "9212-555-1234", "12-212-555-1234", "x1-212-555-1234", "212-555-1234-5", "[CARD]212-555-1234"],
)
def test_parts_of_something_longer(text: str) -> None:
    """More groups than an address of a machine has; digits, words and masks that a telephone would begin in: none of it is masked in part."""
    assert masked(text, BUILT_IN) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'{"m":"joe\u0040example.com"}', '{"m":"[EMAIL]"}'),
        (r'{"m":"joe\u0040example\u002Ecom\u0022}', r'{"m":"[EMAIL]\u0022}'),
        (r'{"k":"sk\u002dproj-abcdefghij0123456789"}', '{"k":"[API_KEY]"}'),
        (r'"\u0022sk-abcdefghij0123456789\u0022"', r'"\u0022[API_KEY]\u0022"'),
        (r'{"arguments":"{\"m\":\"joe\\u0040example.com\"}"}', r'{"arguments":"{\"m\":\"[EMAIL]\"}"}'),
        (r'"SecretAccessKey":"wJalrXUtnFEMI\/K7MDENG\/bPxRfiCYEXAMPLEKEY"', '"SecretAccessKey":"[AWS_KEY]"'),
        (r"\u002b49 151 23456789 or 4111\u00201111\u00201111\u00201111", "[PHONE] or [CARD]"),
        (r"\u00fc\u0040m\u00fcnchen.de", "[EMAIL]"),
        (r"CORP\u123@example.com \u0041\ud83d a\/b", r"CORP\[EMAIL] \u0041\ud83d a\/b"),
        (r"\u65e5\u672cghp_0123456789abcdefghij \ud83d\ude004111111111111111", r"\u65e5\u672c[API_KEY] \ud83d\ude00[CARD]"),
        ("-----BEGIN PRIVATE KEY-----" + r"\nMIIE\/abc\u002b" * 900 + r"\n-----END PRIVATE KEY----- \u0041", r"[PRIVATE_KEY] \u0041"),
    ],
)
def test_escapes_of_json_hide_nothing(text: str, expected: str) -> None:
    """Arguments of tools are JSON, and JSON may write any character by its number: what is not masked stays as it is written."""
    assert masked(text, BUILT_IN) == expected == masked(expected, BUILT_IN)


@pytest.mark.parametrize("block", ["RSA PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "PGP PRIVATE KEY BLOCK"])
def test_blocks_of_any_length(block: str) -> None:
    """A private key is masked from its beginning to its end, however long it is; without an end, up to what cannot be part of one."""
    body = "Proc-Type: 4,ENCRYPTED\n\n" + "MIIEowIBAAKCAQEA1c7+9z5Pad7OejecsQ0bu3aumHUQ/kzQ\r\n" * 400
    assert masked(f"a\n-----BEGIN {block}-----\n{body}-----END {block}-----\nb", BUILT_IN) == "a\n[PRIVATE_KEY]\nb"
    assert masked(f"a\n-----BEGIN {block}-----\n{body}; b", BUILT_IN) == "a\n[PRIVATE_KEY]; b"
    assert masked(f"a\n-----BEGIN {block}-----\n{body}", BUILT_IN) == "a\n[PRIVATE_KEY]"


def _groups_that_keep(parsed: Any) -> Iterator[object]:
    for operator, value in parsed:
        if operator is ATOMIC_GROUP or (operator is POSSESSIVE_REPEAT and (len(value[2]) != 1 or value[2][0][0] not in (IN, LITERAL, ANY))):
            yield operator, value
        for inner in value if isinstance(value, list | tuple) else (value,):
            for one in inner if isinstance(inner, list) else (inner,):
                if isinstance(one, parser.SubPattern):
                    yield from _groups_that_keep(one)


def test_no_group_is_possessive() -> None:
    """Early versions of Python 3.11 do not match what such a group matches; single characters may be."""
    assert list(_groups_that_keep(parser.parse("(?:ab|c(?:d(?=(?:ef){0,3}+))?)"))) and not list(_groups_that_keep(parser.parse("[ab]{1,4}+")))
    patterns = [rule.pattern.pattern for rule in (*BUILT_IN, *_LOOSE)]
    assert [found for pattern in patterns for found in _groups_that_keep(parser.parse(pattern))] == []


def test_two_blocks() -> None:
    """What stands between two private keys stays."""
    assert masked(f"{PEM}\nand\n{PEM}", BUILT_IN) == "[PRIVATE_KEY]\nand\n[PRIVATE_KEY]"

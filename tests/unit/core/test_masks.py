"""Texts of providers and logs: nothing that looks like a credential, and nothing of the gateway's own however it is written (case 102)."""

import base64
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.core.masks import mask
from support_hostile import HOSTILE, KEY

OWN = "pRovider+key/42=nx9Q"  # of no known shape
HEADERS = ((b"x-api-key", OWN.encode()), (b"content-type", b"application/json"), (b"authorization", b"Bearer " + KEY.encode()))


def percent(text: str) -> str:
    return "".join(f"%{ord(c):02x}" for c in text)


FORMS = {
    "plain": OWN,
    "percent": "".join(c if c.isalnum() else f"%{ord(c):02X}" for c in OWN),
    "percent, all of it": percent(OWN),
    "percent, twice": percent(OWN).replace("%", "%25"),
    "json": OWN.replace("/", "\\/"),
    "json, all of it": "".join(f"\\u{ord(c):04x}" for c in OWN),
    "json, in json": "".join(f"\\\\u{ord(c):04X}" for c in OWN),
    "source": "".join(f"\\x{ord(c):02x}" for c in OWN),
    "html": "".join(f"&#{ord(c)};" for c in OWN),
    "html, hexadecimal": "".join(f"&#x{ord(c):x};" for c in OWN),
    "hexadecimal": OWN.encode().hex(),
    "its beginning": OWN[:9] + "...",
    "its beginning and end": f"{OWN[:8]}****{OWN[-4:]}",
    "its end": "..." + OWN[-4:],
    "more of its end": "…" + OWN[-7:],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_own_credentials_in_every_form(form: str) -> None:
    """A provider that echoes our key tells nothing, however it writes it."""
    assert mask(f"call of https://h/?k={form}&alt=json failed", HEADERS) == "call of https://h/?k=[API_KEY]&alt=json failed"


@settings(max_examples=60, deadline=None)
@given(st.text("abcXYZ019+/-_=", min_size=8, max_size=60), st.binary(max_size=5), st.binary(max_size=5), st.booleans())
def test_own_credentials_in_base64(secret: str, before: bytes, behind: bytes, for_urls: bool) -> None:
    """Wherever it is in what was encoded: no more than a byte or so of it can be read of what is left."""
    encode = base64.urlsafe_b64encode if for_urls else base64.b64encode
    text = encode(before + secret.encode() + behind).decode()
    left = mask(f"<{text}>", ((b"api-key", secret.encode()),))
    assert "[API_KEY]" in left
    assert len(left) - len("<[API_KEY]>") <= len(encode(before + behind)) + 8


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (b"authorization", b"Bearer none"),
        (b"authorization", b"Basic abc"),
        (b"content-type", b"application/json"),
        (b"api-key", b""),
        (b"x-key", b" "),
    ],
)
def test_what_is_no_secret_masks_nothing(header: bytes, value: bytes) -> None:
    """Headers of other kinds, and secrets that might be any word, as local servers take them."""
    text = "none of this is application/json, abc"
    assert mask(text, ((header, value),)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Incorrect API key provided: sk-proj-{'*' * 30}wxyz. See the docs", "Incorrect API key provided: [API_KEY] See the docs"),
        ("Incorrect key sk-ab...wxyz", "Incorrect key [API_KEY]"),
        ("key%3Dabc%2Bdef&x", "key%3D[API_KEY]&x"),
        ("?key=AIzaSyA%2B1234567&alt=sse", "?key=[API_KEY]&alt=sse"),
        ("Authorization: BASIC dXNlcjpwYXNz", "Authorization: BASIC [API_KEY]"),
        ("token eyJhbGciOi...", "token [JWT]"),
        ("xai-abcdefghijklmnop1234", "[API_KEY]"),
        ("password=[API_KEY]", "password=[API_KEY]"),
        ("?k=sk%2Dproj%2Dabc123&x", "?k=[API_KEY]&x"),
        ("task%2Dforce", "task%2Dforce"),
        ("?q=%0Aghp_abcdefgh1234", "?q=%0A[API_KEY]"),
    ],
)
def test_shapes_are_taken_loosely(text: str, expected: str) -> None:
    """In texts that must not leak, short and shortened ones are masked too."""
    assert mask(text) == expected


@pytest.mark.parametrize("unit", HOSTILE)
def test_time_is_linear_on_hostile_text(unit: str) -> None:
    """A text four times as long takes about four times as long, with a credential of our own too."""

    def seconds(length: int) -> float:
        text, found = (unit * (length // len(unit) + 1))[:length], []
        for _ in range(2):
            began = time.process_time()
            mask(text, HEADERS[:1])
            found.append(time.process_time() - began)
        return min(found)

    assert seconds(16_000) < 10 * seconds(4_000) + 0.005


def test_escapes_of_json_hide_no_shape() -> None:
    """In an error text either."""
    assert mask(r'{"k": "sk\u002dproj-abcdefghij"}') == '{"k": "[API_KEY]"}'
    for begin in (r"x\n", r"x\\n", r"\r\n\t", r"\\\"", r"\u000a"):
        for secret, name in (("ghp_" + "a1" * 9, "API_KEY"), ("gsk_" + "a1" * 9, "API_KEY"), ("AKIAIOSFODNN7EXAMPLE", "AWS_KEY"), (KEY, "API_KEY")):
            assert mask(f'{{"message":"{begin}{secret}"}}') == f'{{"message":"{begin}[{name}]"}}'

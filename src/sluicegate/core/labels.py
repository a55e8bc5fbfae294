"""What clients call their own requests for reports: the end user that the body names, tags that a header gives.

Labels decide nothing: neither who pays nor what is allowed. What is no plain text of bounded length is left out or cut, so that a label can be
stored, printed and put into a CSV anywhere.
"""

from collections.abc import Mapping

import msgspec

USER_MAX = 128  # characters
TAGS_MAX = 16
TAG_MAX = 64  # characters of a name, and of a value


class _Metadata(msgspec.Struct, gc=False):
    user_id: str | None = None


_read_text = msgspec.json.Decoder(str).decode
_read_metadata = msgspec.json.Decoder(_Metadata).decode


def user(fields: Mapping[str, msgspec.Raw]) -> str:
    """The end user that a request names: OpenAI's `user`, Anthropic's `metadata.user_id`; "" if none."""
    raw = fields.get("user")
    try:
        if raw is not None:
            return plain(_read_text(raw), USER_MAX)
        raw = fields.get("metadata")
        return plain(_read_metadata(raw).user_id or "", USER_MAX) if raw is not None else ""
    except msgspec.DecodeError:  # null, or whatever else goes to a provider under that name
        return ""


def tags(header: bytes) -> str:
    """`name=value` pairs between commas, sorted; what is no such pair is left out, as are those after the first 16."""
    found: dict[str, str] = {}
    for pair in header.decode("utf-8", "replace").split(","):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if equals and name and len(found) < TAGS_MAX:
            found.setdefault(plain(name, TAG_MAX), plain(value, TAG_MAX))
    return ",".join(f"{name}={found[name]}" for name in sorted(found))


def read_tags(text: str) -> dict[str, str]:
    """The pairs of what `tags` has written."""
    return dict(pair.split("=", 1) for pair in text.split(",")) if text else {}


def plain(text: str, length: int) -> str:
    """The text as one can store and print it: no control characters, no halves of characters, no more than that many."""
    if len(text) > length:
        text = text[:length]
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)

"""How long a client says that its request may take: the header `timeout`, in seconds (`30`, `2.5`) or with a unit (`1500ms`, `30s`, `2m`).

It can only shorten what the operator allows. What is not a time, and nothing at all (`0`: some clients mean "no limit" by it), says nothing.
What the official packages send by themselves (`x-stainless-timeout`, `x-stainless-read-timeout`) is not read: it is the longest silence that they
bear, not how long an answer may take, and they leave when it has passed.

Pure. Never raises.
"""

import re
from math import inf

_TIME = re.compile(rb"(\d{1,9}(?:\.\d{1,9})?) ?(ms|s|m)?", re.ASCII)
_UNITS_S = {b"ms": 0.001, b"s": 1.0, None: 1.0, b"m": 60.0}


def asked_s(value: bytes) -> float:
    """Seconds; inf where the header says nothing."""
    found = _TIME.fullmatch(value.strip().lower())
    return float(found[1]) * _UNITS_S[found[2]] or inf if found is not None else inf

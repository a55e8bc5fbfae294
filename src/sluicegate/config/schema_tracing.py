"""`tracing:`, where traces of requests are sent to. What it leaves open the environment says, in the variables that OpenTelemetry has for it."""

import re
from decimal import Decimal
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field, PlainValidator

from sluicegate.config.fields import EnvSecret, FromEnv
from sluicegate.config.section import Section

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def _share(value: object) -> float:
    if isinstance(value, FromEnv) and re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?", value):
        value = Decimal(value)
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not 0 <= value <= 1:
        raise ValueError("must be a share from 0 (none) to 1 (all), such as 0.1")
    return float(value)


def _receiver(url: str) -> str:
    """The URL that spans are sent to. One without a path has that of OTLP."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:
        fits = False
    if not fits or parts.username is not None or parts.query or parts.fragment:
        raise ValueError("must be a URL such as http://127.0.0.1:4318, without user, password or query (a credential goes into headers_env)")
    return url if parts.path.strip("/") else url.rstrip("/") + "/v1/traces"


class Tracing(Section):
    """`tracing:`"""

    endpoint: Annotated[str, AfterValidator(_receiver)] | None = None
    headers_of_env: EnvSecret = Field(default=None, alias="headers_env")
    sample: Annotated[float, PlainValidator(_share)] | None = None
    service_name: str | None = Field(default=None, min_length=1, max_length=200)
    prompts: Literal["off", "redacted"] = "off"

    @property
    def headers(self) -> dict[str, str]:
        """`name=value` between commas, as in OTEL_EXPORTER_OTLP_HEADERS. Raises ValueError, which quotes none of it."""
        found: dict[str, str] = {}
        text = self.headers_of_env.get_secret_value() if self.headers_of_env is not None else ""
        for pair in filter(None, map(str.strip, text.split(","))):
            name, equals, value = pair.partition("=")
            value = unquote(value.strip())
            if not equals or not _HEADER.fullmatch(name.strip()) or not value.isascii() or not value.isprintable():
                raise ValueError("must name a variable that has NAME=value, or several with commas between them")
            found[name.strip().lower()] = value
        return found

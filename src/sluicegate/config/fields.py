"""The kinds of values that a configuration file has, each read into its final value: durations, sizes, prices, limits, secrets, URLs; and what is
wrong with one (`Problem`). Secrets never appear in a repr or an error.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, SecretStr, ValidationInfo

from sluicegate.config.proxies import read_proxy
from sluicegate.core.limits import Limit, marks, parse
from sluicegate.core.tenants import Proxy
from sluicegate.ledger.address import Place

Path = tuple[str | int, ...]


class Problem(Exception):
    """One thing that is wrong: the path of the field, what is wrong with it and what would be right."""

    def __init__(self, path: Path, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.message = message
        self.line = line  # in the file, from 1; 0: not known

    def __str__(self) -> str:
        return f"{show_path(self.path)}: {self.message}" if self.path else self.message


class ConfigError(Exception):
    """The configuration cannot be used. All problems that were found, in the order of the file."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.file = file
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        super().__init__("\n".join(f"{file}:{problem.line or 1}: {problem}" for problem in self.problems))


def show_path(path: Path) -> str:
    """`tenants.acme.keys[0].name`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


# -- scalars ------------------------------------------------------------------------------------------------------------------------------


class FromEnv(str):
    """A text in which `${NAME}` has been replaced: it may stand where the file would have a number or a boolean."""


_DURATIONS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def _duration_ms(value: object) -> int:
    match = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d)", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a duration such as 200ms, 30s, 1m or 2h")
    return int(match[1]) * _DURATIONS_MS[match[2]]


def _size_bytes(value: object) -> int:
    match = re.fullmatch(r"([0-9]{1,12}) ?([A-Za-z]{0,3})", str(value)) if isinstance(value, str | int) else None
    if isinstance(value, bool) or match is None or match[2] not in _SIZES:
        raise ValueError("must be a size such as 32MB or 64MiB")
    return int(match[1]) * _SIZES[match[2]]


def _whole(value: object) -> object:
    return int(value) if isinstance(value, FromEnv) and re.fullmatch(r"-?[0-9]{1,18}", value) else value


def _on_off(value: object) -> object:
    """`on` and `off` are texts in YAML 1.2."""
    return {"on": True, "off": False, "true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _pico_usd(value: object) -> int:
    """USD per 1M tokens, exactly, as pico-USD per token."""
    return _usd(value, 1_000_000, "USD per 1M tokens", "six")


def _nano_usd(value: object) -> int:
    """USD, exactly, as nano-USD."""
    return _usd(value, 1_000, "USD per call", "nine")


_PLACES = {"six": 10**6, "nine": 10**9}


def _per_thousand(value: object) -> int:
    """USD per 1,000 calls, exactly, as nano-USD per call."""
    return _usd(value, 1_000_000, "USD per 1,000 calls", "six")


def _usd(value: object, most: int, unit: str, places: str) -> int:
    """From 0 to `most`, as a whole number of the smallest parts that have a place."""
    if isinstance(value, FromEnv) and re.fullmatch(r"[0-9.]+", value):
        value = Decimal(value) if value.count(".") < 2 and value != "." else value
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError(f"must be a number: {unit}")
    exact = Decimal(value) * _PLACES[places]
    if not exact.is_finite() or not 0 <= Decimal(value) <= most:
        raise ValueError(f"must be from 0 to {most} {unit}")
    if exact != int(exact):
        raise ValueError(f"must have at most {places} decimal places ({unit})")
    return int(exact)


def _day(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        with suppress(ValueError):
            return date.fromisoformat(value).isoformat()
    raise ValueError("must be a day such as 2026-11-01")


def _above(value: object) -> int:
    """A share that is exceeded, in millionths."""
    match = re.fullmatch(r"> ?([0-9]{1,2}(?:\.[0-9]{1,4})?)%", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('must be a share of what there is, such as ">80%"')
    return int(Decimal(match[1]) * 10_000)


def _sticky(value: object) -> str:
    """The header that a request is known by, in small letters; "" for the key."""
    if value == "key":
        return ""
    name = value.get("header") if isinstance(value, Mapping) and len(value) == 1 else None
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", name):
        raise ValueError("must be key, or {header: NAME} with the name of a header that clients send")
    return name.lower()


def _limit(value: object) -> Limit | None:
    """None where no limit is meant: `null`, or an amount that is null."""
    if value is None or (isinstance(value, Mapping) and "amount" in value and value["amount"] is None):
        return None
    return parse(value)


def _secret_from_environ(value: object, info: ValidationInfo) -> SecretStr | None:
    if value is None:
        return None
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError("must be the name of an environment variable, not the secret itself")
    secret = (info.context or {}).get("environ", {}).get(value)
    if not secret:
        raise ValueError(f"the environment variable {value} is not set")
    return SecretStr(secret)


def sendable(value: SecretStr) -> SecretStr:
    secret = value.get_secret_value()
    if not secret or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise ValueError("must be visible ASCII without spaces, as clients send it in a header")
    return value


def _readable(url: str) -> str:
    """The URL of a PostgreSQL database, read as libpq reads it; the rest is not looked at."""
    if not url.startswith("sqlite:"):
        from psycopg import ProgrammingError, conninfo  # noqa: PLC0415  (takes a while, and few configurations need it)

        try:
            conninfo.conninfo_to_dict(url)
        except ProgrammingError:  # its text may quote the password
            raise ValueError("is no URL of PostgreSQL; inside a password, spaces, %, :, / and @ are written %20, %25, %3A, %2F, %40") from None
    return url


def _enterable(url: str) -> str:
    """The URL of one Redis or several; the rest is not looked at."""
    if not url.startswith(("memory:", "sqlite:")):
        Place.parse(url)
    return url


def at_least(least: int, shown: str) -> AfterValidator:
    """The bound of a duration or a size. (`Field(ge=...)` does nothing behind a PlainValidator.)"""

    def check(value: int) -> int:
        if value < least:
            raise ValueError(f"must be at least {shown}")
        return value

    return AfterValidator(check)


Duration = Annotated[int, PlainValidator(_duration_ms)]
Size = Annotated[int, PlainValidator(_size_bytes)]
Above = Annotated[int, PlainValidator(_above)]
Sticky = Annotated[str, PlainValidator(_sticky)]
Whole = Annotated[int, BeforeValidator(_whole)]
OnOff = Annotated[bool, BeforeValidator(_on_off)]
PicoUsd = Annotated[int, PlainValidator(_pico_usd)]
NanoUsd = Annotated[int, PlainValidator(_nano_usd)]
PerThousand = Annotated[int, PlainValidator(_per_thousand)]
ToolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]{0,63}$")]
Day = Annotated[str, PlainValidator(_day)]
Limits = Annotated[list[Annotated[Limit | None, PlainValidator(_limit)]], BeforeValidator(lambda value: [] if value is None else value)]
LedgerUrl = Annotated[str, Field(pattern=r"^(memory://|sqlite:///.+|(rediss?(\+cluster|\+sentinel)?|unix)://.+)$"), AfterValidator(_enterable)]
RecordsUrl = Annotated[str, Field(pattern=r"^(sqlite:///.+|postgres(ql)?://.+)$"), AfterValidator(_readable)]
Marks = Annotated[tuple[int, ...], PlainValidator(lambda value: marks(value, ""))]
Listen = Annotated[str, Field(pattern=r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")]
EnvSecret = Annotated[SecretStr | None, PlainValidator(_secret_from_environ)]
Tokenizer = Literal["o200k_base", "cl100k_base"]
ProxySetting = Annotated[Proxy | Literal["off"] | None, PlainValidator(read_proxy)]

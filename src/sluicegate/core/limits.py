"""Limits: unit + amount + window + model filter. RPM, TPM, a day's tokens, a month's dollars, concurrency: all are limits.

Amounts are integers in the unit of the limit; dollars are nano-USD. Limits are below 2^52 so that Lua's doubles stay exact (ledger.md 2).
An amount of 0 allows nothing; no limit is said by leaving it out. A limit in mode shadow counts and reports, and never refuses. A reserve keeps a
share of a limit from claimants of a lower priority. `parse` reads both written forms and raises `LimitError`, which names the field and says what
would be accepted; nothing is guessed and nothing unknown is passed over. Shares are integers, millionths of the amount.
"""

import re
from collections.abc import Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from math import gcd
from typing import Literal, get_args
from zoneinfo import available_timezones

import msgspec

from sluicegate.core.windows import Bucket, Calendar, Every, Fixed, Lifetime, Open, Sliding, Window, anchor

AMOUNT_MAX = 2**52 - 1
BUCKET_PRODUCT_MAX = 2**48 - 1  # capacity x the milliseconds of its rate in lowest terms (ledger.md 2, Numbers)
NANO = 1_000_000_000
WHOLE = 1_000_000  # shares are millionths
MARKS_MAX = 8  # of one limit: a ledger keeps a bit for each

FORMS = (
    "'20k tokens/minute', '1M input tokens/day', '50k output tokens/30s', '120 requests/minute', '$100/month', '$2000/lifetime', '4 concurrent', "
    "or {amount: 20000, unit: tokens, per: minute, window: bucket, burst: 40000}"
)


class Unit(StrEnum):
    """What a limit counts."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    TOKENS = "tokens"  # input and output
    USD = "usd"  # integer nano-USD
    CONCURRENT = "concurrent"


Priority = Literal["high", "normal", "low"]


class Reserve(msgspec.Struct, frozen=True):
    """What a limit keeps from claimants of a priority, in millionths: of its amount, or of what a bucket holds when it is full."""

    normal: int = 0
    low: int = 0

    def of(self, priority: str | None) -> int:
        """Nothing is kept from the highest priority, nor where there is none."""
        return self.low if priority == "low" else self.normal if priority == "normal" else 0


NO_RESERVE = Reserve()


class Limit(msgspec.Struct, frozen=True):
    """One limit as written. `burst` 0: a bucket's capacity is its amount."""

    unit: Unit
    amount: int
    window: Window
    burst: int = 0
    models: frozenset[str] | None = None
    text: str = ""  # as the operator wrote it
    shadow: bool = False  # counts and reports, never refuses
    reserve: Reserve = NO_RESERVE
    warn_at: tuple[int, ...] | None = None  # millionths of the amount, ascending; None: what `budget.warn_at` says

    @property
    def size(self) -> int:
        """The most that it ever lets through at once: a bucket's capacity, else the amount."""
        return self.burst or self.amount

    @property
    def refills(self) -> bool:
        """Whether room comes back with time."""
        return isinstance(self.window, Bucket | Sliding)

    @property
    def spends(self) -> bool:
        """Whether it is used up, for a time or for ever: only then is there something to warn of."""
        return not self.refills and not isinstance(self.window, Open)

    def room(self, priority: str | None) -> int:
        """What of its size a claimant of this priority may use."""
        return self.size - self.size * self.reserve.of(priority) // WHOLE


class LimitError(ValueError):
    """What is wrong with a limit as written. path: the field, below the path that was given."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


def parse(written: object, path: str = "") -> Limit:
    """Reads a limit in its string form or its long form (FORMS). Raises LimitError."""
    if isinstance(written, str):
        return _parse_text(written, path)
    if isinstance(written, Mapping):
        return _parse_fields(written, path)
    raise LimitError(path, f"a limit is a text or a mapping: {FORMS}")


# -- string form --------------------------------------------------------------------------------------------------------------------------

_TEXT = re.compile(
    r"(?P<amount>\$?\s?[-+]?[0-9.]+[kKMB]?)\s*(?P<unit>[a-z_]+(?:[ _]tokens?)?)?\s*(?:(?:/\s*|per\s+)(?P<per>[0-9]*[a-z]+)|(?P<ever>lifetime))?"
)
_UNITS = {
    "request": Unit.REQUESTS,
    "requests": Unit.REQUESTS,
    "token": Unit.TOKENS,
    "tokens": Unit.TOKENS,
    "input tokens": Unit.INPUT_TOKENS,
    "input_tokens": Unit.INPUT_TOKENS,
    "output tokens": Unit.OUTPUT_TOKENS,
    "output_tokens": Unit.OUTPUT_TOKENS,
    "usd": Unit.USD,
    "concurrent": Unit.CONCURRENT,
}


def _parse_text(text: str, path: str) -> Limit:
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise LimitError(path, f"{text!r} is no limit; write {FORMS}")
    word, per = match["unit"], match["per"] or match["ever"]
    if word in ("lifetime", "per") and per is None:  # "$5 lifetime": the pattern's unit has taken the word
        word, per = None, word
    if match["amount"].startswith("$") == (word is not None):
        raise LimitError(path, f"{text!r} needs one unit ({', '.join(Unit)}) or a dollar sign; write {FORMS}")
    unit = Unit.USD if word is None else _unit(word, path)
    if unit is not Unit.CONCURRENT and per is None:
        raise LimitError(path, f"{text!r} does not say per which time; write {FORMS}")
    fields: dict[str, object] = {"amount": match["amount"], "unit": unit}
    try:
        return msgspec.structs.replace(_parse_fields(fields | ({"per": per} if per else {})), text=text.strip())
    except LimitError as error:
        raise LimitError(path, f"{text!r}: {error.path} {error.message}") from None


# -- long form ----------------------------------------------------------------------------------------------------------------------------

_FIELDS = ("amount", "unit", "per", "window", "burst", "tz", "at", "models", "mode", "reserve", "warn_at")
_SHORT_PERS = {"s": "second", "min": "minute", "h": "hour", "d": "day"}
_PERIODS_MS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
_SUFFIX_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([1-9][0-9]{0,8})(s|m|h|d)")
_PERS = "second, minute, hour, day, week, month, lifetime, or a length such as 30s, 5m, 12h, 7d"


def _parse_fields(fields: Mapping[object, object] | Mapping[str, object], path: str = "") -> Limit:
    for field in fields:
        if field not in _FIELDS:
            near = get_close_matches(str(field), _FIELDS, 1)
            raise LimitError(
                _at(path, str(field)), f"unknown field{f'; did you mean {near[0]!r}?' if near else ''} (a limit has {', '.join(_FIELDS)})"
            )
    given = {str(field): value for field, value in fields.items() if value is not None}
    for field in ("amount", "unit"):
        if field not in given:
            raise LimitError(_at(path, field), f"is required in a limit; write {FORMS}")
    unit = _unit(given["unit"], _at(path, "unit"))
    amount = _amount(given["amount"], unit, _at(path, "amount"))
    window = _window(given, unit, path)
    burst = _burst(given, unit, amount, window, path)
    _check_bucket(amount, burst, window, path)
    text = f"{show_amount(unit, amount)}{'' if unit is Unit.USD else ' ' + unit.replace('_', ' ')}"
    text += "" if unit is Unit.CONCURRENT else f"/{given.get('per', 'lifetime')}"
    return Limit(unit, amount, window, burst, _models(given, path), text, _shadow(given, path), _reserve(given, path), _warn_at(given, window, path))


def _at(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def _unit(written: object, path: str) -> Unit:
    unit = _UNITS.get(written) if isinstance(written, str) else None
    if unit is None:
        near = get_close_matches(str(written), _UNITS, 1)
        raise LimitError(path, f"{written!r} is no unit{f'; did you mean {near[0]!r}?' if near else ''} (units: {', '.join(Unit)})")
    return unit


_EXACT = Context(prec=100, traps=[InvalidOperation, Overflow, Inexact])


def _amount(written: object, unit: Unit, path: str) -> int:
    """Exact, through Decimal: a float is read as it prints, dollars become nano-USD."""
    shown = repr(written) if isinstance(written, str) else str(written)
    number, factor = str(written).strip(), 1
    if isinstance(written, str):
        if number.startswith("$") and unit is Unit.USD:
            number = number[1:].strip()
        factor = {"k": 1_000, "K": 1_000, "M": 1_000_000, "B": 1_000_000_000}.get(number[-1:], 1)
        number = number[:-1] if factor > 1 else number
    try:
        if isinstance(written, bool) or not isinstance(written, int | float | str | Decimal):
            raise InvalidOperation
        exact = _EXACT.multiply(Decimal(number), Decimal(factor * (NANO if unit is Unit.USD else 1)))
    except ArithmeticError:
        raise LimitError(path, f"{shown} is no amount; write a number such as 20000, 20k or 1.5M{', $0.50' if unit is Unit.USD else ''}") from None
    if not exact.is_finite():
        raise LimitError(path, f"{shown} is not a finite number; leave the limit out where there is none")
    if exact < 0:
        raise LimitError(path, f"{shown} is negative; 0 allows nothing, and a limit that is left out allows all")
    if exact > AMOUNT_MAX:
        most = f"${AMOUNT_MAX // NANO:,}" if unit is Unit.USD else f"{AMOUNT_MAX:,}"
        raise LimitError(path, f"{shown} is over the largest amount, {most}")
    if exact != exact.to_integral_value():
        raise LimitError(path, f"{shown} is finer than {'a nano-dollar ($0.000000001)' if unit is Unit.USD else 'one'}")
    return int(exact)


def _window(given: Mapping[str, object], unit: Unit, path: str) -> Window:
    kind, per = given.get("window"), given.get("per")
    per = _SHORT_PERS.get(per, per) if isinstance(per, str) else per
    if unit is Unit.CONCURRENT:
        _refuse(given, ("per", "window", "burst", "tz", "at"), "concurrent", path)
        return Open()
    if kind not in (None, "bucket", "sliding", "calendar", "fixed", "lifetime"):
        raise LimitError(_at(path, "window"), f"{kind!r} is no window; write bucket, sliding, calendar, fixed or lifetime")
    if per is None and kind != "lifetime":
        raise LimitError(_at(path, "per"), f"is required: {_PERS}")
    if kind is None:
        kind = _default_kind(per)
    if kind != "calendar":
        _refuse(given, ("tz", "at"), str(kind), path)
    if kind != "bucket":
        _refuse(given, ("burst",), str(kind), path)
    if kind == "lifetime":
        if per not in (None, "lifetime"):
            raise LimitError(_at(path, "per"), f"{per!r} does not go with a lifetime window")
        return Lifetime()
    if kind == "calendar":
        return _calendar(per, given, path)
    period_ms = _period_ms(per, path)
    return Bucket(period_ms) if kind == "bucket" else Sliding(period_ms) if kind == "sliding" else Fixed(period_ms)


def _default_kind(per: object) -> str:
    if per == "lifetime":
        return "lifetime"
    if per in ("second", "minute"):
        return "bucket"
    return "calendar" if per in get_args(Every) else "fixed"


def _refuse(given: Mapping[str, object], fields: tuple[str, ...], kind: str, path: str) -> None:
    for field in fields:
        if field in given:
            raise LimitError(_at(path, field), f"does not go with a {kind} limit")


def _period_ms(per: object, path: str) -> int:
    if isinstance(per, str):
        if per in _PERIODS_MS:
            return _PERIODS_MS[per]
        match = _DURATION.fullmatch(per)
        if match:
            return int(match[1]) * _SUFFIX_MS[match[2]]
        if per in ("month", "lifetime"):
            raise LimitError(_at(path, "per"), f"a {per} has no fixed length; use window: {'calendar' if per == 'month' else 'lifetime'}")
    raise LimitError(_at(path, "per"), f"{per!r} is no time; write {_PERS}")


@lru_cache(maxsize=1)
def _zones() -> set[str]:
    return available_timezones()


def _calendar(every: object, given: Mapping[str, object], path: str) -> Calendar:
    tz, at = given.get("tz", "UTC"), given.get("at", "")
    if every not in get_args(Every):
        raise LimitError(_at(path, "per"), f"{every!r} is no calendar window; write {', '.join(get_args(Every))}")
    if not isinstance(tz, str) or tz not in _zones():
        near = get_close_matches(str(tz), _zones(), 1)
        raise LimitError(
            _at(path, "tz"), f"{tz!r} is no IANA time zone; {f'did you mean {near[0]!r}?' if near else 'write one such as Europe/Berlin or UTC'}"
        )
    try:
        return Calendar(every, tz, anchor(every, str(at)))  # type: ignore[arg-type]
    except ValueError as error:
        raise LimitError(_at(path, "at"), str(error)) from None


def _burst(given: Mapping[str, object], unit: Unit, amount: int, window: Window, path: str) -> int:
    if "burst" not in given:
        return 0
    burst = _amount(given["burst"], unit, _at(path, "burst"))
    if not burst or not amount:
        raise LimitError(_at(path, "burst"), "a bucket that holds something needs an amount that refills it; leave burst out")
    return burst


def _check_bucket(amount: int, burst: int, window: Window, path: str) -> None:
    if isinstance(window, Bucket) and amount and (burst or amount) * (window.period_ms // gcd(amount, window.period_ms)) > BUCKET_PRODUCT_MAX:
        raise LimitError(
            _at(path, "burst" if burst else "amount"),
            "is too large for a bucket that refills at such an odd rate; round the amount, or use window: fixed or calendar",
        )


def _models(given: Mapping[str, object], path: str) -> frozenset[str] | None:
    models = given.get("models")
    if models is None:
        return None
    if not isinstance(models, list | tuple) or not models or not all(isinstance(name, str) and name for name in models):
        raise LimitError(_at(path, "models"), "is a list of model names, such as [chat]; leave it out for every model")
    return frozenset(models)


def _shadow(given: Mapping[str, object], path: str) -> bool:
    mode = given.get("mode", "enforce")
    if mode not in ("enforce", "shadow"):
        raise LimitError(_at(path, "mode"), f"{mode!r} is no mode; write enforce, or shadow for a limit that only counts and reports")
    return mode == "shadow"


_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,4})?)\s?%")


def _reserve(given: Mapping[str, object], path: str) -> Reserve:
    written, where = given.get("reserve"), _at(path, "reserve")
    if written is None:
        return NO_RESERVE
    if not isinstance(written, Mapping) or not written:
        raise LimitError(where, "is a mapping such as {normal: 10%, low: 30%}: what is kept from each priority for the higher ones")
    for priority in written:
        if priority not in ("normal", "low"):
            why = "nothing is above it that could be kept for" if priority == "high" else "is no priority that something is kept from"
            raise LimitError(_at(where, str(priority)), f"{why}; write normal, low or both")
    shares = {str(priority): _share(share, _at(where, str(priority))) for priority, share in written.items()}
    normal = shares.get("normal", 0)
    if shares.get("low", normal) < normal:
        raise LimitError(_at(where, "low"), "must be at least what is kept from normal")
    return Reserve(normal, shares.get("low", normal))


def _share(written: object, path: str) -> int:
    match = _PERCENT.fullmatch(written.strip()) if isinstance(written, str) else None
    if match is None or Decimal(match[1]) > 100:
        raise LimitError(path, f"{written!r} is no share; write a percentage from 0% to 100%, such as 30%")
    return int(Decimal(match[1]) * (WHOLE // 100))


def _warn_at(given: Mapping[str, object], window: Window, path: str) -> tuple[int, ...] | None:
    if "warn_at" not in given:
        return None
    where = _at(path, "warn_at")
    if isinstance(window, Bucket | Sliding | Open):
        kind = "concurrent" if isinstance(window, Open) else type(window).__name__.lower()
        raise LimitError(where, f"does not go with a {kind} limit: only what does not refill can be warned of")
    return marks(given["warn_at"], where)


def marks(written: object, path: str = "warn_at") -> tuple[int, ...]:
    """Warning marks, written as parts of an amount ([0.8, 0.95, 1.0]; [] for none), as millionths, ascending. Raises LimitError."""
    if not isinstance(written, list | tuple) or len(written) > MARKS_MAX:
        raise LimitError(path, f"is a list of at most {MARKS_MAX} parts of the amount, such as [0.8, 0.95, 1.0]; [] for none")
    found: set[int] = set()
    for part in written:
        number = Decimal(str(part)) if isinstance(part, int | float | Decimal) and not isinstance(part, bool) else Decimal(0)
        if not number.is_finite() or not 0 < number <= 10 or number * WHOLE != int(number * WHOLE):
            raise LimitError(path, f"{part!r} is no mark; write a part of the amount, such as 0.8, above 0 and up to 10")
        found.add(int(number * WHOLE))
    return tuple(sorted(found))


# -- in words -----------------------------------------------------------------------------------------------------------------------------


def show_share(share: int) -> str:
    """A share in percent: `30%`, `12.5%`."""
    return f"{share * 100 / WHOLE:g}%"


def show_amount(unit: Unit, amount: int) -> str:
    """An amount as people write it: `$0.0001`, `20000`. Negative ones too (an overdrawn remainder)."""
    if unit is not Unit.USD:
        return str(amount)
    dollars, nano = divmod(abs(amount), NANO)
    cents = f"{nano:09}".rstrip("0")
    return f"{'-' if amount < 0 else ''}${dollars}" + (f".{cents.ljust(2, '0')}" if cents else "")


def show_window(window: Window) -> str:
    """A window in one word or two: `minute`, `day`, `30s`, `day (Europe/Berlin, 09:00)`, `lifetime`, `in flight`."""
    match window:
        case Calendar(every=every, tz=tz, at=at):
            detail = ", ".join(part for part in (tz if tz != "UTC" else "", at) if part)
            return f"{every} ({detail})" if detail else every
        case Bucket(period_ms=period_ms) | Sliding(period_ms=period_ms):
            names = {length: name for name, length in _PERIODS_MS.items()}
            return names.get(period_ms) or show_period(period_ms)
        case Fixed(period_ms=period_ms):
            return show_period(period_ms)
        case Lifetime():
            return "lifetime"
        case Open():
            return "in flight"


def show_period(period_ms: int) -> str:
    """A length as config writes it: `30s`, `5m`, `12h`, `7d`."""
    for suffix in ("d", "h", "m", "s"):
        if period_ms % _SUFFIX_MS[suffix] == 0:
            return f"{period_ms // _SUFFIX_MS[suffix]}{suffix}"
    return f"{period_ms}ms"

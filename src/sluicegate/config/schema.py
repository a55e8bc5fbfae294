"""The schema of the configuration file, exactly as far as it has an effect. Unknown fields are errors; types are strict.

Attributes carry their unit (`drain_ms`) where the file has a duration or size (`drain: 60s`). Limits, durations, sizes, prices and secrets are read
into their final values here; what fields say of each other is checked in compile.py. Secrets never appear in a repr or an error.
"""

import hashlib
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, PrivateAttr, SecretStr, ValidationInfo

from sluicegate.config.proxies import read_proxy
from sluicegate.core.limits import Limit, Priority, marks, parse
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
    if isinstance(value, FromEnv) and re.fullmatch(r"[0-9.]+", value):
        value = Decimal(value) if value.count(".") < 2 and value != "." else value
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError("must be a number: USD per 1M tokens")
    exact = Decimal(value) * 1_000_000
    if not exact.is_finite() or not 0 <= exact <= 10**12:
        raise ValueError("must be from 0 to 1000000 USD per 1M tokens")
    if exact != int(exact):
        raise ValueError("must have at most six decimal places (USD per 1M tokens)")
    return int(exact)


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


def _sendable(value: SecretStr) -> SecretStr:
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


Duration = Annotated[int, PlainValidator(_duration_ms)]
Size = Annotated[int, PlainValidator(_size_bytes)]
Whole = Annotated[int, BeforeValidator(_whole)]
OnOff = Annotated[bool, BeforeValidator(_on_off)]
PicoUsd = Annotated[int, PlainValidator(_pico_usd)]
Limits = Annotated[list[Annotated[Limit | None, PlainValidator(_limit)]], BeforeValidator(lambda value: [] if value is None else value)]
LedgerUrl = Annotated[str, Field(pattern=r"^(memory://|sqlite:///.+|(rediss?(\+cluster|\+sentinel)?|unix)://.+)$"), AfterValidator(_enterable)]
RecordsUrl = Annotated[str, Field(pattern=r"^(sqlite:///.+|postgres(ql)?://.+)$"), AfterValidator(_readable)]
Marks = Annotated[tuple[int, ...], PlainValidator(lambda value: marks(value, ""))]
EnvSecret = Annotated[SecretStr | None, PlainValidator(_secret_from_environ)]
Tokenizer = Literal["o200k_base", "cl100k_base"]
ProxySetting = Annotated[Proxy | Literal["off"] | None, PlainValidator(read_proxy)]


class Section(BaseModel):
    """A mapping of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=False)


# -- server and storage -------------------------------------------------------------------------------------------------------------------


class Server(Section):
    """`server:`"""

    listen: str = Field(default="127.0.0.1:8080", pattern=r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")
    workers: Whole = Field(default=1, ge=1, le=256)
    drain_ms: Duration = Field(default=60_000, alias="drain")
    max_body: Size = 32 * 2**20

    @property
    def host(self) -> str:
        """Without the brackets of an IPv6 address."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def on_loopback(self) -> bool:
        """Only this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class Admin(Section):
    """`admin:`. The credential that /metrics asks for when the server is not on loopback."""

    metrics_key: EnvSecret = Field(default=None, alias="metrics_key_env")


class Timeouts(Section):
    """`resilience.timeouts:`"""

    connect_ms: Duration = Field(default=2_000, alias="connect")
    first_byte_ms: Duration = Field(default=120_000, alias="first_byte")
    idle_ms: Duration = Field(default=60_000, alias="idle")
    write_ms: Duration = Field(default=30_000, alias="write")
    total_ms: Duration = Field(default=600_000, alias="total")


class Breaker(Section):
    """`resilience.breaker:`"""

    failures: Whole = Field(default=5, ge=1, le=10_000)
    pause_ms: Duration = Field(default=20_000, alias="pause")


class Resilience(Section):
    """`resilience:`"""

    retries: Whole = Field(default=1, ge=0, le=10)
    max_wait_ms: Duration = Field(default=2_000, alias="max_wait")
    backoff_ms: Duration = Field(default=200, alias="backoff")
    cooldown_ms: Duration = Field(default=10_000, alias="cooldown")
    breaker: Breaker = Breaker()
    timeouts: Timeouts = Timeouts()


class Queue(Section):
    """`budget.queue:`"""

    max_wait_ms: Duration = Field(default=0, alias="max_wait")
    max_depth: Whole = Field(default=1000, ge=1, le=100_000)


class Budget(Section):
    """`budget:`"""

    estimator: Literal["max_tokens", "fixed", "p95"] = "p95"
    fixed_output: Whole = Field(default=512, ge=1, le=10**7)
    min_output: Whole = Field(default=16, ge=1, le=10**6)
    on_exhausted: Literal["truncate", "allow"] = "truncate"
    hold_ttl_ms: Duration = Field(default=30_000, alias="hold_ttl")
    expired_hold: Literal["charge_held", "charge_seen"] = "charge_held"
    unknown_outcome: Literal["charge", "input_only", "free"] = "charge"
    stop_lag_ms: Duration = Field(default=100, alias="stop_lag")
    figures: OnOff = True
    warn_at: Marks = (800_000, 950_000, 1_000_000)
    queue: Queue = Queue()


class Prices(Section):
    """`prices:`"""

    unpriced: Literal["refuse", "free"] = "refuse"


class Log(Section):
    """`log:`"""

    access: Literal["text", "json", "off"] = "text"


# -- providers and models -----------------------------------------------------------------------------------------------------------------


class Provider(Section):
    """One of `providers:`. `provider` names a row of providers.py; without it the dialect's own row is taken."""

    provider: str | None = None
    dialect: Literal["openai", "anthropic", "ollama"] | None = None
    speaks: list[str] | None = Field(default=None, min_length=1)
    base_url: str | None = None
    api_version: str = Field(default="", pattern=r"^[A-Za-z0-9.-]{0,40}$")
    api_key: SecretStr | None = None
    api_key_of_env: EnvSecret = Field(default=None, alias="api_key_env")
    headers: dict[str, str] = {}
    forward_headers: list[str] = []
    cap_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    stream_usage: OnOff | None = None
    extend: OnOff | None = None
    stops_on_close: OnOff | None = None
    ca_file: str = ""
    proxy: ProxySetting = None
    tokenizer: Tokenizer | None = None


class Price(Section):
    """USD per 1M tokens in the file, pico-USD per token here."""

    input: PicoUsd
    output: PicoUsd
    cached_input: PicoUsd | None = None
    cache_write: PicoUsd | None = None
    cache_write_1h: PicoUsd | None = None
    reasoning: PicoUsd | None = None


class Deployment(Section):
    """One of a model's `deployments:`."""

    provider: str
    model: str
    price: Price | None = None
    limits: Limits = []
    tokenizer: Tokenizer | None = None
    extend: OnOff | None = None
    context: Whole = Field(default=0, ge=0, le=10**9)
    image_tokens: Whole = Field(default=0, ge=0, le=10**7)


class Model(Section):
    """One of `models:`: the name that clients ask for, and its route."""

    deployments: list[Deployment] = Field(min_length=1)
    max_output: Whole = Field(default=4096, ge=1, le=10**7)


# -- tenants ------------------------------------------------------------------------------------------------------------------------------


class Key(Section):
    """One of a tenant's `keys:`. A plain secret is hashed at once and forgotten."""

    name: str
    key: Annotated[SecretStr, AfterValidator(_sendable)] | None = None
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-fA-F]{64}$")
    limits: Limits = []
    models: list[str] | None = None
    priority: Priority | None = None
    _plain: bool = PrivateAttr(default=False)
    _digest: bytes = PrivateAttr(default=b"")

    def model_post_init(self, _context: object) -> None:
        if self.key is not None:
            self._plain = True
            self._digest = hashlib.sha256(self.key.get_secret_value().encode()).digest()
            object.__setattr__(self, "key", None)
        elif self.sha256 is not None:
            self._digest = bytes.fromhex(self.sha256)

    @property
    def is_plain(self) -> bool:
        """The file had the secret itself."""
        return self._plain

    @property
    def digest(self) -> bytes:
        """SHA-256 of the secret; empty if the file gives neither the secret nor its hash."""
        return self._digest


class Tenant(Section):
    """A node of the tree: organization, team, project, user, by depth."""

    limits: Limits = []
    models: list[str] | None = None
    priority: Priority | None = None
    keys: list[Key] = []
    children: dict[str, "Tenant"] = {}


class Tenants(Section):
    """`tenants:`: organizations by name, and `limits` on all of them together."""

    model_config = ConfigDict(extra="allow")

    limits: Limits = []
    __pydantic_extra__: dict[str, Tenant]

    @property
    def organizations(self) -> dict[str, Tenant]:
        return self.__pydantic_extra__


class Config(Section):
    """The whole file."""

    server: Server = Server()
    ledger: LedgerUrl = Field(default="sqlite:///data/ledger.db", repr=False, exclude=True)
    ledger_timeout_ms: Duration = Field(default=1_000, alias="ledger_timeout")
    ledger_durability: Literal["normal", "full"] = "normal"
    on_ledger_failure: Literal["refuse", "allow"] = "refuse"
    records: RecordsUrl = Field(default="sqlite:///data/records.db", repr=False, exclude=True)
    journal: str = Field(default="data/journal/", min_length=1)
    admin: Admin = Admin()
    providers: dict[str, Provider]
    models: dict[str, Model]
    tenants: Tenants
    budget: Budget = Budget()
    resilience: Resilience = Resilience()
    prices: Prices = Prices()
    log: Log = Log()

"""The schema of the configuration file, exactly as far as it has an effect. Unknown fields are errors; types are strict.

Attributes carry their unit (`drain_ms`) where the file has a duration or size (`drain: 60s`). Values are read in fields.py; what fields say of each
other is checked in compile.py.
"""

import hashlib
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field, PrivateAttr, SecretStr

from sluicegate.config.fields import (
    Above,
    Day,
    Duration,
    EnvSecret,
    LedgerUrl,
    Limits,
    Listen,
    Marks,
    NanoUsd,
    OnOff,
    PerThousand,
    PicoUsd,
    ProxySetting,
    RecordsUrl,
    Size,
    Sticky,
    Tokenizer,
    ToolName,
    Whole,
    at_least,
    sendable,
)
from sluicegate.config.schema_cache import Cache, ModelCache
from sluicegate.config.schema_log import Log
from sluicegate.config.schema_rules import Rules
from sluicegate.config.schema_tracing import Tracing
from sluicegate.config.section import Section
from sluicegate.core.limits import Priority

# -- server and storage -------------------------------------------------------------------------------------------------------------------


class Address(NamedTuple):
    """Where something listens."""

    host: str  # without the brackets of an IPv6 address
    port: int

    @classmethod
    def read(cls, listen: str) -> "Address":
        host, _, port = listen.rpartition(":")
        return cls(host.strip("[]"), int(port))

    @property
    def on_loopback(self) -> bool:
        """Only this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class Server(Section):
    """`server:`"""

    listen: Listen = "127.0.0.1:8080"
    workers: Whole = Field(default=1, ge=1, le=256)
    drain_ms: Duration = Field(default=60_000, alias="drain")
    drain_delay_ms: Duration = Field(default=0, alias="drain_delay")
    max_body: Size = 32 * 2**20

    @property
    def address(self) -> Address:
        return Address.read(self.listen)


class Retention(Section):
    """`retention:`, of what is in the records."""

    requests_ms: Duration = Field(default=30 * 86_400_000, alias="requests")
    # A month's window may begin with any of them.
    quarters_ms: Annotated[Duration, at_least(32 * 86_400_000, "32d")] = Field(default=93 * 86_400_000, alias="quarters")


class AdminKey(Section):
    """One of `admin.keys:`. A plain secret is hashed at once and forgotten."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@ -]{0,63}$")
    role: Literal["viewer", "operator", "admin"]
    key_of_env: EnvSecret = Field(default=None, alias="key_env")
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-fA-F]{64}$")

    @property
    def digest(self) -> bytes:
        """SHA-256 of the secret; empty if it is not given."""
        if self.key_of_env is not None:
            return hashlib.sha256(self.key_of_env.get_secret_value().encode()).digest()
        return bytes.fromhex(self.sha256 or "")


class Admin(Section):
    """`admin:`. A key switches the admin API on; with `listen`, it and /metrics have an address of their own. `metrics_key`: what /metrics asks for
    where others than this machine can connect."""

    key: Annotated[SecretStr, AfterValidator(sendable)] | None = None
    key_of_env: EnvSecret = Field(default=None, alias="key_env")
    listen: Listen | None = None
    chaos: OnOff = False
    metrics_key: EnvSecret = Field(default=None, alias="metrics_key_env")
    keys: list[AdminKey] = []

    @property
    def secret(self) -> SecretStr | None:
        """The admin key. None: there is no admin API."""
        return self.key or self.key_of_env

    @property
    def credentials(self) -> tuple[tuple[str, str, bytes], ...]:
        """Name, role and digest of everybody who may use the admin API."""
        own = hashlib.sha256(self.secret.get_secret_value().encode()).digest() if self.secret is not None else b""
        return (*((("admin key", "admin", own),) if own else ()), *((one.name, one.role, one.digest) for one in self.keys))

    @property
    def address(self) -> Address | None:
        return Address.read(self.listen) if self.listen is not None else None


class Timeouts(Section):
    """`resilience.timeouts:`, and the fields of it that one of `models:` says otherwise."""

    connect_ms: Duration = Field(default=2_000, alias="connect")
    first_byte_ms: Duration = Field(default=120_000, alias="first_byte")
    first_token_ms: Duration = Field(default=120_000, alias="first_token")
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
    resend_elsewhere: OnOff = True
    keep_alive_ms: Duration = Field(default=0, alias="keep_alive")


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


# -- providers and models -----------------------------------------------------------------------------------------------------------------


class Health(Section):
    """`health:` of a provider or a deployment."""

    interval_ms: Duration = Field(default=30_000, alias="interval")
    timeout_ms: Duration = Field(default=5_000, alias="timeout")
    request: Literal["get", "completion"] = "get"
    path: str | None = Field(default=None, pattern=r"^/[!\"$-~]{0,500}$")
    slow_ms: Duration = Field(default=2_000, alias="slow")
    failures: Whole = Field(default=3, ge=1, le=100)


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
    catalogue: str | None = None
    health: Health | None = None


class Rates(Section):
    """USD per 1M tokens in the file, pico-USD per token here."""

    input: PicoUsd
    output: PicoUsd
    cached_input: PicoUsd | None = None
    cache_write: PicoUsd | None = None
    cache_write_1h: PicoUsd | None = None
    reasoning: PicoUsd | None = None
    audio_input: PicoUsd | None = None
    audio_output: PicoUsd | None = None


class Tier(Rates):
    """One of a price's `tiers:`: what all tokens of a call cost whose input is above a number of tokens."""

    above: Whole = Field(ge=1, le=10**9)


class Variant(Rates):
    """One of a price's `variants:`: what a call costs with which a client asks for something dearer."""

    when: dict[str, str] = Field(min_length=1)
    request_fee: NanoUsd = 0
    tiers: list[Tier] = []


class Price(Rates):
    """A price, and where it is from."""

    request_fee: NanoUsd = 0
    tiers: list[Tier] = []
    variants: list[Variant] = []
    tools: dict[ToolName, PerThousand] = {}
    date: Day = ""
    source: str = ""


class Override(Price):
    """One of `prices.overrides:`."""

    date: Day
    source: str = Field(min_length=1)


class Prices(Section):
    """`prices:`"""

    overrides: dict[str, Override] = {}
    catalogue: OnOff = True
    catalogue_file: str = Field(default="data/prices.json", min_length=1)
    unpriced: Literal["refuse", "free"] | Price = "refuse"
    cost_source: Literal["prefer_provider", "calculated_only", "provider_only"] = "prefer_provider"


class When(Section):
    """`when:` of a deployment: it goes before all others while this is so."""

    budget_used: Above


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
    tool_calls: Whole = Field(default=0, ge=0, le=1000)
    health: Health | None = None
    tier: str | None = None
    weight: Whole = Field(default=1, ge=0, le=1_000_000)
    when: When | None = None


class Model(Section):
    """One of `models:`: the name that clients ask for, and its route."""

    deployments: list[Deployment] = Field(min_length=1)
    max_output: Whole = Field(default=4096, ge=1, le=10**7)
    timeouts: Timeouts = Timeouts()
    balance: Literal["weighted", "least_busy", "sticky"] = "weighted"
    sticky: Sticky = ""
    fallback_on: list[Literal["rate_limit", "server_error", "timeout", "connection", "malformed", "account"]] | None = None
    context_fallback: str | None = None
    cache: ModelCache = ModelCache()


# -- tenants ------------------------------------------------------------------------------------------------------------------------------


class Key(Section):
    """One of a tenant's `keys:`. A plain secret is hashed at once and forgotten."""

    name: str
    key: Annotated[SecretStr, AfterValidator(sendable)] | None = None
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-fA-F]{64}$")
    limits: Limits = []
    models: list[str] | None = None
    priority: Priority | None = None
    may_create_sub_keys: OnOff = False
    rules: Rules = Rules()
    cache: OnOff = True
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
    """A node of the tree: organization, team, project, user, by depth; or a service account."""

    kind: Literal["service_account"] | None = None
    limits: Limits = []
    models: list[str] | None = None
    priority: Priority | None = None
    rules: Rules = Rules()
    cache: OnOff = True
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


class Webhook(Section):
    """One of `webhooks:`."""

    url: SecretStr  # its path may be a secret
    format: Literal["json", "slack"] = "json"
    types: list[str] = Field(default=["budget.*"], min_length=1)
    secret: EnvSecret = Field(default=None, alias="secret_env")
    headers: dict[str, str] = Field(default={}, repr=False)


class Config(Section):
    """The whole file."""

    server: Server = Server()
    ledger: LedgerUrl = Field(default="sqlite:///data/ledger.db", repr=False, exclude=True)
    ledger_timeout_ms: Duration = Field(default=1_000, alias="ledger_timeout")
    ledger_durability: Literal["normal", "full"] = "normal"
    on_ledger_failure: Literal["refuse", "allow"] = "refuse"
    records: RecordsUrl = Field(default="sqlite:///data/records.db", repr=False, exclude=True)
    retention: Retention = Retention()
    journal: str = Field(default="data/journal/", min_length=1)
    admin: Admin = Admin()
    providers: dict[str, Provider]
    models: dict[str, Model]
    tenants: Tenants
    budget: Budget = Budget()
    resilience: Resilience = Resilience()
    prices: Prices = Prices()
    log: Log = Log()
    cache: Cache = Cache()
    tracing: Tracing | None = None
    rules: Rules = Rules()
    webhooks: list[Webhook] = []

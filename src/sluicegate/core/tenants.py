"""Who may call, what binds them, and where calls go: immutable values compiled from configuration (config/compile.py).

A reload builds a new Policy and swaps it; requests in flight keep the one they started with.
"""

from typing import Literal

import msgspec

from sluicegate.core.content_rules import ContentRules
from sluicegate.core.limits import Limit, Priority, Unit
from sluicegate.core.prices import Origin, Price
from sluicegate.core.usage import CostSource
from sluicegate.core.windows import Window

ScopeKind = Literal["global", "organization", "team", "project", "user", "service_account", "key", "deployment"]


class Scope(msgspec.Struct, frozen=True):
    """A node that limits hang on. id: `*` (global), `acme`, `acme/team-a`, `acme/team-a/@laptop` (a key), `openai/gpt-4o-mini` (a deployment)."""

    id: str
    kind: ScopeKind
    name: str


NO_CEILING = 2**52  # above every amount


class Counter(msgspec.Struct, frozen=True):
    """What limits of equal identity (scope, unit, window, model filter) count in. `ceiling` is the tightest of them."""

    scope: Scope
    unit: Unit
    window: Window
    models: frozenset[str] | None  # None: every model
    ceiling: int  # the tightest enforced size (of a bucket its capacity, else the amount); NO_CEILING where only shadow limits count here
    amount: int  # the smallest amount of those that bind (of the shadow limits, where only they count here); for a bucket what it refills per period
    limits: tuple[Limit, ...]  # in the order of the file
    key_prefix: str  # storage key up to the window label: `sg1:{acme}:c:acme/team-a:tokens:day` (whole where a window has no label)

    @property
    def enforced(self) -> bool:
        """Whether it ever refuses anything."""
        return self.ceiling < NO_CEILING


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy in front of a provider."""

    secure: bool  # spoken to in TLS
    host: str
    port: int
    authorization: bytes = b""  # for the proxy alone; never logged

    @property
    def name(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Proxy({self.name})"


class Provider(msgspec.Struct, frozen=True):
    """A base URL, a credential, a dialect, quirks: a row (providers.py) with what the operator overrides."""

    name: str
    dialect: str  # name of a module in dialects/, e.g. openai_chat: what requests of any other are translated to
    base_url: str
    headers: tuple[tuple[bytes, bytes], ...]  # credential included; never logged
    forwards: frozenset[bytes] = frozenset()  # headers of the client that go to it
    stream_usage: bool = True  # accepts stream_options.include_usage
    rejects: tuple[str, ...] = ()  # fields that it answers with an error
    renames: tuple[tuple[str, str], ...] = ()  # fields that it knows by another name
    thoughts: str = ""  # the field of an assistant's message in which it takes back what its model thought
    extend: bool = False  # every billed token is visible and generation stops on close
    stops_on_close: bool = False
    token_per_event: bool = False  # a stream has an event for each token
    streams_calls: bool = False  # a call of a tool is seen as it is generated, not only once all of it is there
    cap_overrun: int = 0  # tokens per choice that it may produce beyond the cap that it was sent
    marked_cache: bool = False  # nothing is written into its cache but what a request marks
    own_prompt: int = 0  # tokens, at most, of a text that it puts before the model itself where a request has tools or a shape for the answer
    ca_file: str = ""
    proxy: Proxy | None = None


class Timeouts(msgspec.Struct, frozen=True):
    """Milliseconds. first_byte: from the request written to the status line; first_token: to the first output of a stream; idle: between reads
    afterwards; write: the client takes no byte; total: the whole request, with all that is tried and waited for."""

    connect_ms: int = 2_000
    first_byte_ms: int = 120_000
    first_token_ms: int = 120_000
    idle_ms: int = 60_000
    write_ms: int = 30_000
    total_ms: int = 600_000


class Probe(msgspec.Struct, frozen=True):
    """How a deployment is asked how it is. path: what to get, below the base URL; empty: a chat of one output token."""

    path: bytes
    interval_ms: int
    timeout_ms: int
    slow_ms: int  # on the average: then it is degraded
    failures: int  # in a row: then it is down


class Deployment(msgspec.Struct, frozen=True):
    """A provider and the model name that it knows. id: `<provider>/<model>`."""

    id: str
    provider: Provider
    model: str
    price: Price | None  # None: unpriced
    extend: bool
    cap_field: str = "max_tokens"  # the one cap field that is sent upstream
    tokenizer: str = ""  # "o200k_base", "cl100k_base", "" = unknown
    context: int = 0  # tokens, 0 = unknown
    image_tokens: int = 0  # flat maximum per image, 0 = unknown (then a default applies)
    tool_calls: int = 0  # calls of tools that the provider runs itself, in one request at most; 0: as many as the request says
    counters: tuple[Counter, ...] = ()  # its own limits: a hold of their own
    paths: tuple[tuple[str, bytes], ...] = ()  # where it is called, below the base URL, by the dialects that it speaks
    price_origin: Origin | None = None  # where `price` is from
    probe: Probe | None = None  # None: it is not asked how it is
    visible: bool = False  # worked out: every token that is billed can be seen in a stream

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "visible", self.extend or self.provider.token_per_event)

    def path(self, dialect: str) -> bytes | None:
        """Where it is called in that dialect; None if it does not speak it."""
        for name, path in self.paths:
            if name == dialect:
                return path
        return None


class Tier(msgspec.Struct, frozen=True):
    """Deployments of a route that are as good as one another. weights: in the same order; 0 is a last resort."""

    deployments: tuple[Deployment, ...]
    weights: tuple[int, ...]


class Caching(msgspec.Struct, frozen=True):
    """How answers of a model are kept and given again (core/cache_key.py)."""

    mode: Literal["deterministic", "seeded", "all"]
    scope: Literal["key", "team", "organization", "global"]  # whose requests share answers
    ttl_ms: int


class Model(msgspec.Struct, frozen=True):
    """The name a client asks for, and its route."""

    name: str
    deployments: tuple[Deployment, ...]
    max_output: int = 4096
    timeouts: Timeouts = Timeouts()
    tiers: tuple[Tier, ...] = ()  # (): the deployments are always tried as listed
    balance: Literal["weighted", "least_busy", "sticky"] = "weighted"  # inside a tier
    sticky_header: bytes = b""  # of the request, in small letters; without it, or where it is not sent, the key counts
    preferred: tuple[tuple[int, Deployment], ...] = ()  # while more than that share of a budget is used, in millionths; the highest share first
    leaves_for: frozenset[str] | None = None  # the kinds of failure after which the next deployment is tried; None: all of them
    context_fallback: str = ""  # the model that takes what is too long for this one
    cache: Caching | None = None  # None: off


class Key(msgspec.Struct, frozen=True):
    """A credential. `counters` are those of every scope from the top of the tree down to the key, in that order."""

    id: str  # `acme/team-a/@laptop`; outlives its secrets
    name: str
    tree: str  # hash tag of everything one atomic step touches
    path: tuple[Scope, ...]
    models: frozenset[str] | None  # None: every model
    counters: tuple[Counter, ...]
    priority: Priority | None = None  # None: nothing is reserved from it, and it waits like normal
    may_create_sub_keys: bool = False  # whoever has it may make keys below it
    rules: ContentRules | None = None  # on the content of requests and answers; None: there are none
    cached: bool = True  # its requests may meet a cache


class Budget(msgspec.Struct, frozen=True):
    """The `budget:` section."""

    estimator: Literal["max_tokens", "fixed", "p95"] = "p95"
    fixed_output: int = 512  # for estimator: fixed
    min_output: int = 16
    on_exhausted: Literal["truncate", "allow"] = "truncate"
    hold_ttl_ms: int = 30_000
    expired_hold: Literal["charge_held", "charge_seen"] = "charge_held"
    unknown_outcome: Literal["charge", "input_only", "free"] = "charge"
    stop_lag_ms: int = 100
    show_figures: bool = True  # figures in refusals
    queue_max_wait_ms: int = 0  # 0: refusals are told at once
    queue_max_depth: int = 1000


class Resilience(msgspec.Struct, frozen=True):
    """The `resilience:` section but for its timeouts."""

    retries: int = 1  # of one deployment, before the next is tried
    max_wait_ms: int = 2_000  # a longer one is not slept: the deployment cools down
    backoff_ms: int = 200  # before the first retry, where the upstream does not say; doubles
    cooldown_ms: int = 10_000  # where the upstream does not say
    breaker_failures: int = 5
    breaker_pause_ms: int = 20_000
    resend_elsewhere: bool = True  # what may have been done already is asked of another deployment
    keep_alive_ms: int = 0  # between two signs of life while a stream's first output is waited for; 0: none


class Webhook(msgspec.Struct, frozen=True):
    """Somebody who is told of events by HTTP. Path, query and secret are never logged."""

    id: str
    origin: str  # https://hooks.example.com
    target: bytes  # path and query
    format: Literal["json", "slack"]
    types: tuple[str, ...]  # as core/happening.py has them
    secret: bytes = b""  # empty: nothing is signed
    headers: tuple[tuple[bytes, bytes], ...] = ()
    proxy: Proxy | None = None

    def __repr__(self) -> str:
        return f"Webhook({self.origin})"


class Policy(msgspec.Struct, frozen=True):
    """Everything a request is decided by."""

    keys: dict[bytes, Key]  # by SHA-256 digest of the secret
    models: dict[str, Model]
    budget: Budget
    unpriced: Literal["refuse", "free"] = "refuse"
    cost_source: CostSource = "prefer_provider"
    on_ledger_failure: Literal["refuse", "allow"] = "refuse"
    resilience: Resilience = Resilience()
    webhooks: tuple[Webhook, ...] = ()

"""Providers, and the routes of models, from the configuration. Checks here what their fields say of each other."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from sluicegate.config import schema
from sluicegate.config.compile_health import probe
from sluicegate.config.compile_order import Order, Written
from sluicegate.config.compile_prices import Pricing
from sluicegate.config.compiling import MODEL, NAME, Compiling, did_you_mean
from sluicegate.config.fields import Path, Problem
from sluicegate.config.proxies import ProxyError, proxy_from
from sluicegate.config.schema import Config
from sluicegate.core.counters import deployment_tree, group
from sluicegate.core.limits import Limit
from sluicegate.core.tenants import Caching, Counter, Deployment, Model, Probe, Provider, Proxy, Scope, Timeouts
from sluicegate.providers import FORWARDED, OPENAI_ELSEWHERE, ROWS, SPOKEN, Row, cap_field, image_tokens, paths, spoken, tokenizer

_DEPLOYED_MODEL = re.compile(r"[A-Za-z0-9._:/@+=~-]{1,200}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e\x80-\xff]([\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?")
_OWN_HEADERS = {"host", "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding", "expect", "te", "trailer", "upgrade"}
_OWN_HEADERS |= {"proxy-authorization", "proxy-connection"}
_OF_CLIENTS = {"authorization", "x-api-key", "api-key", "cookie", "forwarded", "x-real-ip"}  # who a client is: stays here, as does x-forwarded-*


class Routes(Compiling):
    """Reads `providers:` and `models:`."""

    def __init__(self, config: Config, environ: Mapping[str, str], problems: list[Problem]) -> None:
        super().__init__(config, environ, problems)
        self.rows: dict[str, Row] = {}  # by the provider's name
        self.pricing = Pricing(config, environ, problems)

    def routes(self) -> dict[str, Model]:
        """All models, as far as what is written of them can be used."""
        providers = {name: self.provider(name, one) for name, one in self.config.providers.items()}
        models = self.models(providers)
        for name in self.config.models:
            self.check_name(name, MODEL, ("models", name))
        return models

    def provider(self, name: str, written: schema.Provider) -> Provider | None:
        path: Path = ("providers", name)
        self.check_name(name, NAME, path)
        row = self.row(written, path)
        if row is None:
            return None
        self.rows[name] = row
        base_url = (written.base_url or row.base_url).rstrip("/")
        self.check_base_url(base_url, (*path, "base_url"))
        self.check_paths(row, base_url, written.api_version, path)
        stops_on_close = row.stops_on_close if written.stops_on_close is None else written.stops_on_close
        if written.extend and written.stops_on_close is None:
            stops_on_close = True  # that is part of what `extend: on` states
        extend = row.extend and stops_on_close if written.extend is None else written.extend
        if extend and not stops_on_close:
            self.problem((*path, "extend"), "states that generation stops when the connection closes, which stops_on_close denies")
        return Provider(
            name=name,
            dialect=row.dialect,
            base_url=base_url,
            headers=self.headers(row, written, path),
            forwards=self.forwards(row, written, path),
            stream_usage=row.stream_usage if written.stream_usage is None else written.stream_usage,
            rejects=row.rejects,
            renames=row.renames,
            thoughts=row.thoughts,
            extend=extend,
            stops_on_close=stops_on_close,
            token_per_event=row.token_per_event,
            streams_calls=row.streams_calls,
            cap_overrun=row.cap_overrun,
            marked_cache=row.marked_cache and (base_url == row.base_url or written.catalogue == row.catalogue),
            own_prompt=row.own_prompt,
            ca_file=written.ca_file,
            proxy=self.proxy(written, base_url, path),
        )

    def proxy(self, written: schema.Provider, base_url: str, path: Path) -> Proxy | None:
        if written.proxy is not None:
            return None if written.proxy == "off" else written.proxy
        try:
            return proxy_from(self.environ, base_url)
        except ProxyError as error:
            self.problem((*path, "proxy"), str(error))
            return None

    def row(self, written: schema.Provider, path: Path) -> Row | None:
        name = written.provider or written.dialect
        if name is None:
            self.problem(path, f"needs dialect: openai, anthropic or ollama, or provider: one of {', '.join(ROWS)}")
            return None
        row = ROWS.get(name)
        if row is None:
            self.problem((*path, "provider"), f"{name!r} is not known; {did_you_mean(name, ROWS)}")
            return None
        if written.dialect is not None and row.dialect != ROWS[written.dialect].dialect:
            self.problem((*path, "dialect"), f"is not what {name} speaks")
        if written.provider is None and row is ROWS["openai"] and (written.base_url or row.base_url).rstrip("/") != row.base_url:
            row = OPENAI_ELSEWHERE
        for i, dialect in enumerate(written.speaks or ()):
            if dialect not in SPOKEN:
                self.problem((*path, "speaks", i), f"{dialect!r} is not known; {did_you_mean(dialect, SPOKEN)}")
                return None
        return row if written.speaks is None else spoken(row, list(dict.fromkeys(written.speaks)))

    def check_paths(self, row: Row, base_url: str, api_version: str, path: Path) -> None:
        """Whether calls of this row can be addressed below the base URL."""
        if "{api_version}" in row.path and not api_version:
            self.problem((*path, "api_version"), "is required: the date of the provider's API that is called, such as 2024-10-21")
        elif api_version and "{api_version}" not in row.path:
            self.problem((*path, "api_version"), "is not part of this provider's paths")
        first = row.path.split("/")[1] if row.path.startswith("/") else ""
        if first and first in urlsplit(base_url).path.split("/"):
            self.problem((*path, "base_url"), f"must end before /{first}, which the gateway adds")
        elif row.paths and base_url.endswith("/v1"):
            self.problem((*path, "base_url"), "must end before /v1: not all that this provider has is below it")
        elif row.base_url_ends and not base_url.endswith(row.base_url_ends):
            self.problem((*path, "base_url"), f"must end with {row.base_url_ends}")

    def check_base_url(self, url: str, path: Path) -> None:
        try:
            parts = urlsplit(url)
            port_is_fine = parts.port != 0
        except ValueError:
            parts, port_is_fine = urlsplit(""), False
        if not url:
            self.problem(path, "is required, such as https://api.example.com/v1")
        elif parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine or not url.isprintable() or " " in url:
            self.problem(path, "must be a URL such as https://api.example.com/v1")
        elif parts.query or parts.fragment or parts.username is not None:
            self.problem(path, "must have no credentials, query or fragment; use api_key_env and headers")

    def headers(self, row: Row, written: schema.Provider, path: Path) -> tuple[tuple[bytes, bytes], ...]:
        headers = {b"content-type": b"application/json", **{name.encode(): value.encode() for name, value in row.headers}}
        for name, value in written.headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                self.problem((*path, "headers", name), "is not a valid HTTP header")
            elif name.lower() in _OWN_HEADERS:
                self.problem((*path, "headers", name), "is set by the gateway itself")
            else:
                headers[name.lower().encode()] = value.encode("latin-1")
        if written.api_key is not None and written.api_key_of_env is not None:
            self.problem((*path, "api_key"), "and api_key_env are two credentials; give one")
        secret = written.api_key if written.api_key is not None else written.api_key_of_env
        if secret is not None:
            text = secret.get_secret_value()
            if not text.isascii() or not _HEADER_VALUE.fullmatch(text):
                self.problem(
                    (*path, "api_key" if written.api_key is not None else "api_key_env"),
                    "is not usable as a credential: it must be visible ASCII without line breaks",
                )
            elif row.auth_header.encode() in headers:
                self.problem((*path, "headers", row.auth_header), "is set from the credential; give one of the two")
            else:
                headers[row.auth_header.encode()] = (row.auth_scheme + text).encode()
        return tuple(headers.items())

    def forwards(self, row: Row, written: schema.Provider, path: Path) -> frozenset[bytes]:
        """The headers of clients that go to a provider: never those that say who the client is, nor those that frame its request."""
        for i, name in enumerate(written.forward_headers):
            lower = name.lower()
            if not _HEADER_NAME.fullmatch(name):
                self.problem((*path, "forward_headers", i), "is not the name of an HTTP header")
            elif lower in _OWN_HEADERS or lower in _OF_CLIENTS or lower == row.auth_header or lower.startswith(("x-forwarded-", "x-sluicegate-")):
                self.problem((*path, "forward_headers", i), "never leaves the gateway")
        return frozenset(name.lower().encode() for name in (*FORWARDED, *row.forwards, *written.forward_headers))

    def models(self, providers: dict[str, Provider | None]) -> dict[str, Model]:
        own_limits: dict[str, list[Limit]] = {}  # a deployment in several routes is one deployment, bound by all limits written at it
        for one in self.config.models.values():
            for written in one.deployments:
                own_limits.setdefault(f"{written.provider}/{written.model}", []).extend(self.limits(written.limits))
        counters = {name: _deployment_counters(name, limits) for name, limits in own_limits.items()}
        models, order = {}, Order(self.config, self.environ, self.problems)
        for name, one in self.config.models.items():
            route: list[Written] = []
            for i, written in enumerate(one.deployments):
                path: Path = ("models", name, "deployments", i)
                deployment = self.deployment(written, providers, counters, path)
                if deployment is not None and any(deployment.id == other.id for _, other in route):
                    self.problem(path, f"{deployment.id} is in this route twice")
                elif deployment is not None:
                    route.append((written, deployment))
            cache = self.caching(one, ("models", name, "cache"))
            models[name] = Model(name, max_output=one.max_output, timeouts=self.timeouts(one), cache=cache, **order.of(name, one, route))
        return models

    def caching(self, written: schema.Model, path: Path) -> Caching | None:
        """What holds everywhere, but for what this model says otherwise."""
        everywhere, here = self.config.cache, written.cache
        mode = here.mode or everywhere.mode
        if mode == "off":
            for name in ("scope", "ttl"):
                if name.replace("ttl", "ttl_ms") in here.model_fields_set:
                    self.problem((*path, name), "has no effect, as the cache is off; say mode here or at cache")
            return None
        ttl_ms = everywhere.ttl_ms if here.ttl_ms is None else here.ttl_ms
        return Caching(mode, here.scope or everywhere.scope, ttl_ms)

    def timeouts(self, written: schema.Model) -> Timeouts:
        """What binds everywhere, but for what this model says otherwise."""
        everywhere, here = self.config.resilience.timeouts, written.timeouts
        return Timeouts(**{**everywhere.model_dump(), **here.model_dump(exclude_unset=True)})

    def deployment(
        self, written: schema.Deployment, providers: dict[str, Provider | None], counters: dict[str, tuple[Counter, ...]], path: Path
    ) -> Deployment | None:
        for i, limit in enumerate(written.limits):
            if limit is not None and limit.models is not None:
                self.problem((*path, "limits", i), "a deployment is one model; leave models out")
        if not _DEPLOYED_MODEL.fullmatch(written.model):
            self.problem((*path, "model"), "must be the name that the provider knows: letters, digits and ._:/@+=~-")
        if written.provider not in providers:
            self.problem((*path, "provider"), f"there is no provider {written.provider!r}; {did_you_mean(written.provider, providers)}")
            return None
        provider = providers[written.provider]
        if provider is None:
            return None
        extend = provider.extend if written.extend is None else written.extend
        if extend and not provider.stops_on_close:
            self.problem(
                (*path, "extend"), f"needs a provider that stops when the connection closes; say stops_on_close: on at providers.{provider.name}"
            )
        settings = self.config.providers[provider.name]
        row = self.rows[provider.name]
        price, origin = self.pricing.price(written, settings, row, provider.base_url, path)
        found = paths(row, written.model, provider.base_url, settings.api_version)
        return Deployment(
            id=f"{provider.name}/{written.model}",
            provider=provider,
            model=written.model,
            price=price,
            price_origin=origin,
            extend=extend,
            paths=found,
            cap_field=settings.cap_field or cap_field(row, written.model),
            tokenizer=written.tokenizer or settings.tokenizer or tokenizer(row, written.model),
            context=written.context,
            image_tokens=written.image_tokens or image_tokens(row, written.model),
            tool_calls=written.tool_calls,
            counters=counters[f"{written.provider}/{written.model}"],
            probe=self.probe(written, settings, row, found, path),
        )

    def probe(
        self, written: schema.Deployment, settings: schema.Provider, row: Row, found: tuple[tuple[str, bytes], ...], path: Path
    ) -> Probe | None:
        health, at = (settings.health, ("providers", written.provider)) if written.health is None else (written.health, path)
        return probe(health, row.dialect, dict(found).get(row.dialect), lambda field, wrong: self.problem((*at, "health", field), wrong))


def _deployment_counters(deployment_id: str, limits: list[Limit]) -> tuple[Counter, ...]:
    return group(deployment_tree(deployment_id), Scope(deployment_id, "deployment", deployment_id), limits)

"""The HTTP surface of a worker: which path does what, and the small answers that no upstream has a part in.

Paths that are not served answer a JSON 404 that names what is: nothing passes through unmetered.
"""

from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any

import msgspec

from sluicegate import openapi, reject
from sluicegate.consumption import Consumption, Unknown
from sluicegate.core.plan import Template
from sluicegate.counted import counted
from sluicegate.dialects import anthropic_messages, openai_chat, openai_completions, openai_embeddings, openai_responses
from sluicegate.gateway import Gateway
from sluicegate.http import asgi
from sluicegate.http.exchange import BodyTooLarge, ClientGone, Exchange, Handler
from sluicegate.ledger.contract import Ledger, LedgerUnavailable
from sluicegate.reject import Reject
from sluicegate.trip import Dialect

# Answered by an upstream, in the dialect that the client speaks.
_DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": openai_chat,
    "/v1/completions": openai_completions,
    "/v1/responses": openai_responses,
    "/v1/embeddings": openai_embeddings,
    "/v1/messages": anthropic_messages,
}
_MESSAGES = "/v1/messages"  # here, and below it, errors are Anthropic's too
_JSON = (b"content-type", b"application/json")


_Routes = dict[str, tuple[str, Handler | None]]  # by path: the method that it takes, and what answers


class Surface:
    """Dispatches exchanges by method and path.

    What is for operators (the admin API, /metrics) is served beside the data plane, or apart from it on a listener of its own (`handle_operator`).
    """

    ADMIN = "/admin/"
    ADMIN_BODY_BYTES_MAX = 1 << 20

    def __init__(
        self,
        gateway: Gateway,
        ledger: Ledger,
        used: Callable[[str], Awaitable[Consumption]],
        readiness: Callable[[], tuple[str, dict[str, int]]],
        metrics: Callable[[], Awaitable[bytes]],
        may_scrape: Callable[[Exchange], bool],
        admin: asgi.Application | None = None,
        apart: bool = False,
    ) -> None:
        self._gateway = gateway
        self._ledger = ledger
        self._used = used  # by a key, from the records
        self._readiness_now = readiness  # "" or why it is not ready; figures that are told with it
        self._metrics = metrics
        self._may_scrape = may_scrape
        self._admin = admin
        self._apart = apart
        everywhere: _Routes = {"/healthz": ("GET", self._health), "/readyz": ("GET", self._readiness)}
        of_operators: _Routes = {"/metrics": ("GET", self._scrape)}
        self._operators = everywhere | of_operators
        self._routes: _Routes = {
            **{path: ("POST", None) for path in _DIALECTS},  # handled above
            "/v1/messages/count_tokens": ("POST", self._count_tokens),
            "/v1/models": ("GET", self._models),
            "/v1/usage": ("GET", self._usage),
            **everywhere,
            **({} if apart else of_operators),
            "/openapi.json": ("GET", self._openapi),
            "/docs": ("GET", self._docs),
        }

    def handle(self, exchange: Exchange) -> Awaitable[None]:
        """Serves one exchange. No layer of its own around the gateway: each costs every request at every wake-up."""
        dialect = _DIALECTS.get(exchange.path)
        if dialect is not None and exchange.method == "POST":
            return self._gateway.serve(exchange, dialect)
        return self._other(exchange, self._routes, not self._apart)

    def handle_operator(self, exchange: Exchange) -> Awaitable[None]:
        """Serves one exchange of the listener that is the operators' own."""
        return self._other(exchange, self._operators, True)

    async def _other(self, exchange: Exchange, routes: _Routes, admin: bool) -> None:
        try:
            if admin and exchange.path.startswith(self.ADMIN):
                await self._administer(exchange)
                return
            method, handler = _route(exchange.path, routes)
            if exchange.method != method and (exchange.method, method) != ("HEAD", "GET"):
                wrong = f"{exchange.path} takes {method}, not {exchange.method}."
                raise Reject(405, "invalid_request_error", "method_not_allowed", wrong, headers=((b"allow", method.encode()),))
            assert handler is not None
            await handler(exchange)
        except Reject as rejected:
            _answer_reject(anthropic_messages if exchange.path.startswith(_MESSAGES) else openai_chat, exchange, rejected)
        except ClientGone:
            exchange.abort()

    async def _administer(self, exchange: Exchange) -> None:
        if self._admin is None:
            how = "The admin API is switched off. Set `admin: {key_env: NAME}` in the configuration, and the variable NAME to a key."
            raise Reject(404, "invalid_request_error", "admin_off", how)
        try:
            await asgi.serve(self._admin, exchange, self.ADMIN_BODY_BYTES_MAX)
        except BodyTooLarge:
            raise reject.body_too_large(self.ADMIN_BODY_BYTES_MAX) from None

    async def _models(self, exchange: Exchange) -> None:
        key = await self._gateway.who(exchange)
        names = [model for model in self._gateway.policy.models if key.models is None or model in key.models]
        answer(exchange, 200, {"object": "list", "data": [{"id": n, "object": "model", "created": 0, "owned_by": "sluicegate"} for n in names]})

    async def _count_tokens(self, exchange: Exchange) -> None:
        """The gateway's own count: no upstream is asked, nothing is held."""
        answer(exchange, 200, {"input_tokens": await self._gateway.count(exchange, anthropic_messages.read_count)})

    async def _usage(self, exchange: Exchange) -> None:
        key = await self._gateway.who(exchange)
        try:
            limits = await counted(self._ledger, Template(key.tree, key.counters, None, key.priority))
        except LedgerUnavailable:
            raise reject.ledger_unavailable() from None
        usage, why_not = None, None
        try:
            usage = await self._used(key.id)
        except Unknown as error:
            why_not = str(error)
        answer(exchange, 200, {"object": "usage", "key": key.id, "limits": limits, "usage": usage, "usage_unavailable": why_not})

    async def _health(self, exchange: Exchange) -> None:
        answer(exchange, 200, {"status": "alive"})

    async def _readiness(self, exchange: Exchange) -> None:
        why_not, figures = self._readiness_now()
        answer(exchange, 503 if why_not else 200, {"status": why_not or "ready", **figures})

    async def _scrape(self, exchange: Exchange) -> None:
        if not self._may_scrape(exchange):
            raise Reject(401, "invalid_request_error", "invalid_api_key", "/metrics needs its own credential where it is not on loopback.")
        body = await self._metrics()
        exchange.start(200, [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")], len(body))
        exchange.finish(body)

    async def _openapi(self, exchange: Exchange) -> None:
        data, _ = self._documents
        exchange.start(200, [_JSON], len(data))
        exchange.finish(data)

    async def _docs(self, exchange: Exchange) -> None:
        _, page = self._documents
        # Nothing is fetched and nothing runs, whatever the document says.
        policy = (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'")
        exchange.start(200, [(b"content-type", b"text/html; charset=utf-8"), policy], len(page))
        exchange.finish(page)

    @cached_property
    def _documents(self) -> tuple[bytes, bytes]:
        """As JSON and as a page. Made when somebody asks for one: that takes 20 ms."""
        document = openapi.document(self._routes, _DIALECTS)
        return msgspec.json.encode(document), openapi.page(document)


def _route(path: str, routes: _Routes) -> tuple[str, Handler | None]:
    if path in routes:
        return routes[path]
    shown = path if len(path) <= 200 else path[:200] + "..."
    served = ", ".join(f"{method} {route}" for route, (method, _) in routes.items())
    raise Reject(404, "invalid_request_error", "path_not_found", f"{shown!r} is not served here. Served: {served}.")


def answer(exchange: Exchange, status: int, body: Any, headers: reject.Headers = ()) -> None:
    """A JSON answer."""
    data = msgspec.json.encode(body)
    exchange.start(status, [_JSON, *headers], len(data))
    exchange.finish(data)


def _answer_reject(dialect: Dialect, exchange: Exchange, rejected: Reject) -> None:
    """A JSON error in a dialect's shape."""
    data = dialect.write_error(rejected.status, rejected.message, rejected.type, rejected.param, rejected.code, None)
    exchange.start(rejected.status, [_JSON, *rejected.headers], len(data))
    exchange.finish(data)

"""Who calls the admin API, and what they may: each route has `require(role)`, or `require_key()` if it is about whoever calls.

Roles in order: key (an ordinary API key: itself alone), viewer (sees what there is), operator (works the gateway: blocks keys, ends holds, reloads;
sees no secret and changes no limit), admin (everything).

Invariants: a credential is compared by its digest, in constant time. An address that has failed FAILURES_MAX times within a minute is answered 429
without a look at what it presents, right or wrong, until that minute is over; an attempt counts as failed while it is looked at. What is kept of
addresses is bounded: the oldest makes room.

How it fails: RecordsUnavailable where a key has to be looked up and the records do not answer.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from math import ceil
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from sluicegate.core.tenants import Key
from sluicegate.reject import Reject

Role = Literal["key", "viewer", "operator", "admin"]
_RANK: dict[str, int] = {"key": 0, "viewer": 1, "operator": 2, "admin": 3}
Credential = tuple[str, str, bytes]  # name, role, SHA-256 digest

FAILURES_MAX = 10
FAILURES_S = 60.0
ADDRESSES_MAX = 10_000

_bearer = HTTPBearer(auto_error=False, scheme_name="bearer", description="A key of the configuration's `admin:`; below /me, an API key.")
Presented = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class Caller(msgspec.Struct, frozen=True):
    """Who is calling."""

    name: str  # as the audit log has it
    role: Role
    address: str


class Access:
    """The credentials of the admin API, and who has failed to give one."""

    def __init__(
        self,
        credentials: Callable[[], Sequence[Credential]],
        find_key: Callable[[], Callable[[str, str], Awaitable[Key]]],
        clock: Callable[[], float],
    ) -> None:
        """credentials: those in force now. find_key: how an ordinary key is found now, by its secret and from where it comes; raises Reject."""
        self._credentials = credentials
        self._find_key = find_key
        self._clock = clock
        self._failures: dict[str, tuple[int, float]] = {}  # by address: how many, and when they are forgotten; the oldest first

    async def identify(self, secret: str, address: str) -> Caller:
        """Who presents this secret from this address. Raises Reject 401, 403 to an ordinary key, 429 after too many failures."""
        place, now = self._let_try(address)
        found = self._administrator(secret, address)
        if found is not None:
            return found
        if secret:  # one who presents nothing has not guessed
            self._failed(place, now)
            try:
                key = await self._find_key()(secret, address)
            except Reject:
                raise _unknown("invalid_admin_key", "The admin key is not known.") from None
            self._forgive(place)
            raise Reject(403, "permission_error", "not_allowed", f"{key.id} is an ordinary key, which may use /admin/v1/me alone.")
        raise _unknown("invalid_admin_key", "The admin key is missing: send it as `authorization: Bearer KEY`.")

    async def identify_key(self, secret: str, address: str) -> Key:
        """The ordinary key that has this secret. Raises Reject as the data plane does, and 429 after too many failures."""
        place, now = self._let_try(address)
        if not secret:
            raise _unknown("invalid_api_key", "The API key is missing: send it as `authorization: Bearer KEY`.")
        if self._administrator(secret, address) is not None:
            raise Reject(403, "permission_error", "not_allowed", "This is for API keys: an admin key has no limits of its own.")
        self._failed(place, now)
        try:
            key = await self._find_key()(secret, address)
        except Reject as rejected:
            if rejected.code != "invalid_api_key":  # it was a right one
                self._forgive(place)
            raise
        self._forgive(place)
        return key

    def _administrator(self, secret: str, address: str) -> Caller | None:
        presented, found = _digest(secret), None
        for name, role, digest in self._credentials():  # all of them, whichever it is
            if hmac.compare_digest(presented, digest):
                found = Caller(name, role, address)  # type: ignore[arg-type]
        return found

    def _let_try(self, address: str) -> tuple[str, float]:
        place, now = _place(address), self._clock()
        failed, until = self._failures.get(place, (0, 0.0))
        if failed >= FAILURES_MAX and now < until:
            wait_s = ceil(until - now)
            message = f"Too many failed attempts from this address. Try again in {wait_s} s."
            raise Reject(429, "rate_limit_error", "too_many_failures", message, headers=((b"retry-after", str(wait_s).encode()),))
        return place, now

    def _forgive(self, place: str) -> None:
        failed, until = self._failures.get(place, (0, 0.0))
        if failed > 1:
            self._failures[place] = failed - 1, until
        else:
            self._failures.pop(place, None)

    def _failed(self, place: str, now: float) -> None:
        failed, until = self._failures.pop(place, (0, 0.0))
        if now >= until:
            failed, until = 0, now + FAILURES_S
        if len(self._failures) >= ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[place] = failed + 1, until


def require(role: Role) -> Any:
    """A dependency: whoever calls has this role or a higher one. It gives the Caller."""

    async def caller(request: Request, presented: Presented) -> Caller:
        access: Access = request.app.state.services.access
        found = await access.identify(_secret(presented), _address(request))
        if _RANK[found.role] < _RANK[role]:
            raise Reject(403, "permission_error", "not_allowed", f"This needs the role {role}; {found.name} has {found.role}.")
        return found

    return Depends(caller)


def require_key() -> Any:
    """A dependency: an ordinary key calls. It gives that Key, and its Caller."""

    async def caller(request: Request, presented: Presented) -> tuple[Key, Caller]:
        access: Access = request.app.state.services.access
        key = await access.identify_key(_secret(presented), _address(request))
        return key, Caller(f"key {key.id}", "key", _address(request))

    return Depends(caller)


Viewer = Annotated[Caller, require("viewer")]
Operator = Annotated[Caller, require("operator")]
Admin = Annotated[Caller, require("admin")]
Itself = Annotated[tuple[Key, Caller], require_key()]


def _secret(presented: HTTPAuthorizationCredentials | None) -> str:
    return presented.credentials if presented is not None else ""


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _unknown(code: str, message: str) -> Reject:
    return Reject(401, "invalid_request_error", code, message, headers=((b"www-authenticate", b"Bearer"),))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _place(address: str) -> str:
    """What counts as one address: of IPv6 its network, since whoever has one address there has all of it."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address

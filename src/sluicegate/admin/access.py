"""Who calls the admin API, and what they may: `require(role)` is the dependency that every router has.

Roles in order: viewer (sees what there is), operator (works the gateway, but sees no secret and changes no limit), admin (everything).

Invariants: a credential is compared by its digest, in constant time. An address that has failed FAILURES_MAX times within a minute is answered 429
without a look at what it presents, right or wrong, until that minute is over. What is kept of addresses is bounded: the oldest makes room.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Callable
from math import ceil
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import SecretStr

from sluicegate.reject import Reject

Role = Literal["viewer", "operator", "admin"]
_RANK: dict[Role, int] = {"viewer": 0, "operator": 1, "admin": 2}

FAILURES_MAX = 10
FAILURES_S = 60.0
ADDRESSES_MAX = 10_000

_bearer = HTTPBearer(auto_error=False, scheme_name="bearer", description="The admin key: `admin.key_env` of the configuration.")
Presented = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class Caller(msgspec.Struct, frozen=True):
    """Who is calling."""

    name: str  # as the audit log has it
    role: Role
    address: str


class Access:
    """The credentials of the admin API, and who has failed to give one."""

    def __init__(self, admin_key: Callable[[], SecretStr | None], clock: Callable[[], float]) -> None:
        """admin_key: the one that is in force now; None: nobody gets in."""
        self._admin_key = admin_key
        self._clock = clock
        self._failures: dict[str, tuple[int, float]] = {}  # by address: how many, and when they are forgotten; the oldest first

    def identify(self, secret: str, address: str) -> Caller:
        """Who presents this secret from this address. Raises Reject 401, or 429 after too many failures."""
        place, now = _place(address), self._clock()
        failed, until = self._failures.get(place, (0, 0.0))
        if failed >= FAILURES_MAX and now < until:
            wait_s = ceil(until - now)
            message = f"Too many failed attempts from this address. Try again in {wait_s} s."
            raise Reject(429, "rate_limit_error", "too_many_failures", message, headers=((b"retry-after", str(wait_s).encode()),))
        key = self._admin_key()
        if key is None or not hmac.compare_digest(_digest(secret), _digest(key.get_secret_value())):
            if secret:  # one who presents nothing has not guessed
                self._failed(place, now)
            what = "is not known" if secret else "is missing: send it as `authorization: Bearer KEY`"
            raise Reject(401, "invalid_request_error", "invalid_admin_key", f"The admin key {what}.", headers=((b"www-authenticate", b"Bearer"),))
        return Caller("admin key", "admin", address)

    def _failed(self, place: str, now: float) -> None:
        failed, until = self._failures.pop(place, (0, 0.0))
        if now >= until:
            failed, until = 0, now + FAILURES_S
        if len(self._failures) >= ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[place] = failed + 1, until


def require(role: Role) -> Any:
    """A dependency: whoever calls has this role or a higher one. It gives the Caller."""

    # Not sync: those are run in threads, and this must not interleave.
    async def caller(request: Request, presented: Presented) -> Caller:
        access: Access = request.app.state.services.access
        secret = presented.credentials if presented is not None else ""
        found = access.identify(secret, request.client.host if request.client is not None else "")
        if _RANK[found.role] < _RANK[role]:
            raise Reject(403, "permission_error", "not_allowed", f"This needs the role {role}; {found.name} has {found.role}.")
        return found

    return Depends(caller)


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

"""`Idempotency-Key`: a request that is sent again gets the answer of the first, whichever worker it meets, and no upstream is asked twice.

    begin    takes the key for this request, or answers from what is kept; 409 while another runs, 422 where the key came with another request
    end      keeps the answer, before its last bytes go out: who has seen them and asks again finds it

What is kept for 24 hours is final: a whole answer, a stream that the gateway has cut included, and what an upstream said of a request that it will
say again. Refusals by limits and failures are not kept, so that asking again helps. An answer beyond a mebibyte is remembered as done.

Such a request is made to its end also when its client leaves: coming back for the answer is what the key is for. So the rest of the gateway sees a
client that never leaves (lasting.py), and the whole answer is charged.

How it fails: a store that is away when a request begins refuses it (503), as it could be sent twice; when it is away at the end, that is logged, the
client has its answer, and the key is free again when its lease is over. A worker that dies lets go of its keys in the same way, within a minute.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

import structlog

from sluicegate import reject
from sluicegate.core.once import Kept, Store, StoreUnavailable
from sluicegate.http.exchange import Exchange
from sluicegate.lasting import Client, Taken
from sluicegate.trip import Trip

HEADER = b"idempotency-key"
LEASE_MS = 60_000
KEPT_MS = 86_400_000
FINAL = frozenset((400, 404, 413, 422))  # of an upstream: it would say the same again

_VALID = re.compile(rb"[\x21-\x7e]{1,255}")

log = structlog.get_logger("idempotency")


class Idempotency:
    """Of one worker."""

    def __init__(self, store: Store, lease_ms: int = LEASE_MS, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._sleep = sleep

    async def begin(self, trip: Trip, body: bytes) -> bool:
        """Whether the request is to be made; if not, `trip.replay` is its answer. Raises Reject."""
        presented = trip.exchange.headers[HEADER]
        if not _VALID.fullmatch(presented):
            raise reject.idempotency_key_invalid()
        assert trip.key is not None
        name = hashlib.sha256(b"%b\0%b" % (trip.key.id.encode(), presented)).hexdigest()
        print = hashlib.sha256(b"%b\0%b" % (trip.dialect.NAME.encode(), body)).hexdigest()
        try:
            found = await self._store.take(name, print, trip.request_id, self._lease_ms)
        except StoreUnavailable as error:
            log.warning("idempotency keys cannot be had", request_id=trip.request_id, reason=str(error))
            raise reject.idempotency_unavailable() from None
        if found.state == "other":
            raise reject.idempotency_key_reused()
        if found.state == "running":
            raise reject.idempotency_in_progress()
        if found.answer is not None:
            if found.answer.body is None:
                raise reject.idempotency_answer_too_large()
            trip.replay = found.answer
            return False
        client = Client(trip.exchange)
        trip.exchange.on_gone = partial(setattr, trip, "client_gone", True)
        taken = trip.taken = Taken(name, print, client)
        trip.exchange = cast(Exchange, client)
        taken.renewing = asyncio.get_running_loop().create_task(self._renew(taken, trip.request_id))
        return True

    async def end(self, trip: Trip, taken: Taken) -> None:
        """Keeps the answer or lets go of the key, and then lets the last bytes go. Never raises but when it is cancelled."""
        client = taken.client
        if taken.renewing is not None:
            taken.renewing.cancel()
        try:
            if _is_final(trip):
                body = b"".join(client.copied) if client.copied is not None else None
                answer = Kept(client.status, client.content_type, trip.request_id, body)
                await self._store.keep(taken.name, taken.print, trip.request_id, answer, KEPT_MS)
            else:
                await self._store.give_up(taken.name, trip.request_id)
        except StoreUnavailable as error:
            log.warning("an answer was not kept", request_id=trip.request_id, reason=str(error))
        finally:
            client.release()

    async def _renew(self, taken: Taken, owner: str) -> None:
        """While the request runs. What fails is tried again: two of three may."""
        while True:
            await self._sleep(self._lease_ms / 3000)
            try:
                await self._store.renew(taken.name, taken.print, owner, self._lease_ms)
            except StoreUnavailable as error:
                log.warning("the lease of an idempotency key was not renewed", request_id=owner, reason=str(error))

    async def close(self) -> None:
        await self._store.close()


def _is_final(trip: Trip) -> bool:
    """Whether asking again would bring nothing else."""
    answered, rejected = trip.answered, trip.rejected
    if rejected is not None:
        return bool(trip.attempts) and rejected.status in FINAL and not (rejected.reason or rejected.unasked)
    if trip.lookup is not None and trip.lookup.entry is not None:
        return True
    return answered is not None and (answered.relay is None or answered.relay.ended in ("complete", "truncated"))

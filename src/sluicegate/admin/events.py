"""`/admin/v1/events`: what has happened, as it happens (a web socket) or in pages. docs/events.md has the types.

    WS  /admin/v1/events?types=budget.*&after=ID      `authorization: Bearer KEY`; or as the first message, {"authorization": "Bearer KEY"}
    GET /admin/v1/events?types=budget.*&after=ID

Each client reads the bus from where it is, and reads on when it has taken what it was sent: nothing is kept for it, so it cannot fall behind further
than the bus remembers, and one that takes nothing for SLOW_S is let go. `id` is the place of an event in the bus: a client that comes back with
`after` goes on behind it. There are no cookies, so no page of another origin can act for somebody. One whose key is taken away is let go, too.

How it fails: while the bus is away, nothing comes; then it goes on where it was. A client whose place the bus does not remember goes on with the
oldest that is there.
"""

import asyncio
import contextlib
import re
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response, WebSocket, WebSocketDisconnect
from pydantic import Field

from sluicegate.admin.access import require
from sluicegate.admin.bodies import Answer
from sluicegate.admin.errors import Error, answer_to, invalid
from sluicegate.admin.paging import Listing, Page, listing
from sluicegate.admin.services import Services
from sluicegate.bus import Bus, BusAway, Message
from sluicegate.core.happening import PATTERNS, wanted
from sluicegate.events import KIND, Event
from sluicegate.reject import Reject

router = APIRouter(prefix="/admin/v1/events", tags=["events"])

LOOK_S = 0.2  # for what is new
AWAY_S = 1.0
AT_ONCE = 256
SLOW_S = 10.0
FIRST_S = 5.0  # for the message that says who it is
CLIENTS_MAX = 64  # of one worker
TYPES_MAX = 500  # characters
REASON_MAX = 120  # likewise

POLICY, LATER = 1008, 1013  # why a socket is closed: https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1


class EventAnswer(Answer):
    """An event. id: its place, for `after`. event_id: its own, wherever it is told. What a type does not have is null or empty."""

    id: str
    event_id: str
    type: str
    time: str
    subject: str
    actor: str
    tenant: list[str]
    key_id: str
    limit: str
    unit: str
    window: str
    threshold_percent: int | None
    amount: float | None
    used: float | None
    held: float | None
    requested: float | None
    resets_at: str | None
    reason: str
    count: int | None
    before: str
    after: str
    until: str | None
    worker: str


_ONE = "|".join(map(re.escape, PATTERNS))
_TYPES = rf"^(({_ONE})(,({_ONE}))*)?$"


class EventPage(Page):
    """Which events."""

    after: str = Field(default="", pattern=r"^([0-9]{1,16}(-[0-9]{1,9})?)?$", description="Those behind this one: the `next` of the page before.")
    types: str = Field(
        default="", max_length=TYPES_MAX, pattern=_TYPES, description="Types and groups between commas, such as `budget.*,key.created`; all if empty."
    )


@router.get(
    "",
    summary="What has happened lately",
    dependencies=[require("viewer")],
    responses={503: {"model": Error, "description": "bus_unavailable."}},
)
async def recent(request: Request, page: Annotated[EventPage, Query()]) -> Listing[EventAnswer]:
    """The oldest first; of the last 10,000 messages of the bus. `after` may be the `id` of any event that was seen."""
    services: Services = request.app.state.services
    types, after = _types(page.types), page.after
    found: list[tuple[str, Event]] = []
    while len(found) <= page.limit:
        try:
            messages = await services.bus.history(after, (KIND,), AT_ONCE)
        except ValueError:
            raise invalid("That is the id of no event.", "after") from None
        except BusAway:
            headers = ((b"retry-after", b"1"),)
            raise Reject(503, "server_error", "bus_unavailable", "The bus does not answer; try again.", headers=headers) from None
        found += [(message.id, event) for message in messages if (event := _read(message)) is not None and wanted(event.type, types)]
        if len(messages) < AT_ONCE:
            break
        after = messages[-1].id
    shown = [EventAnswer(id=id_, **{**msgspec.structs.asdict(event), "tenant": list(event.tenant)}) for id_, event in found[: page.limit]]
    return listing(shown, shown[-1].id if len(found) > page.limit else None)


async def _client(socket: WebSocket) -> "Client":
    return Client(socket)


@router.websocket("")
async def live(client: Annotated["Client", Depends(_client)]) -> None:
    """Events as they happen, one a message."""
    await client.serve()


class Client:
    """One that listens."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._services: Services = socket.app.state.services
        self._clients: set[Client] = socket.app.state.live_clients
        self._authorization = socket.headers.get("authorization", "")

    async def serve(self) -> None:
        """Until it leaves, or is let go."""
        if len(self._clients) >= CLIENTS_MAX:
            await self._refuse(Reject(503, "server_error", "too_many_clients", f"There are {CLIENTS_MAX} live clients already."))
            return
        self._clients.add(self)
        try:
            with contextlib.suppress(WebSocketDisconnect):
                await self._serve()
        finally:
            self._clients.discard(self)

    async def _serve(self) -> None:
        socket, bus = self._socket, self._services.bus
        try:
            for name in socket.query_params.keys() - {"types", "after"}:
                raise invalid(f"Unknown field {name[:100]!r}; there are 'types' and 'after'.", name[:100], "unknown_field")
            types, after = _types(socket.query_params.get("types", "")), socket.query_params.get("after", "")
            if after:
                with contextlib.suppress(BusAway):
                    await bus.history(after, (), 1)
            if self._authorization:
                await self._identify(self._authorization)
        except Reject as rejected:
            await self._refuse(rejected)
            return
        except ValueError:
            await self._refuse(invalid("That is the id of no event.", "after"))
            return
        await socket.accept()
        if not self._authorization and not await self._first_message():
            return
        leaves = asyncio.create_task(self._until_left())
        sends = asyncio.create_task(self._send_all(bus, after or bus.position, types))
        try:
            await asyncio.wait((leaves, sends), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (leaves, sends):
                task.cancel()
            await asyncio.gather(leaves, sends, return_exceptions=True)
        if sends.done() and not sends.cancelled():
            sends.result()

    async def _first_message(self) -> bool:
        """Whether it says who it is, in time and truly."""
        try:
            async with asyncio.timeout(FIRST_S):
                told = msgspec.json.decode(await self._socket.receive_text(), type=dict[str, str])
            self._authorization = told.get("authorization", "")
            await self._identify(self._authorization)
        except Reject as rejected:
            await self._close(rejected)
        except (TimeoutError, ValueError, KeyError):
            await self._socket.close(POLICY, 'the first message must be {"authorization": "Bearer KEY"}')
        else:
            return True
        return False

    async def _identify(self, authorization: str) -> None:
        """Raises Reject. Whoever may use the admin API may listen."""
        scheme, _, secret = authorization.partition(" ")
        address = self._socket.client.host if self._socket.client is not None else ""
        await self._services.access.identify(secret.strip() if scheme.lower() == "bearer" else "", address)

    async def _send_all(self, bus: Bus, after: str, types: tuple[str, ...]) -> None:
        """What comes behind a place, as fast as the client takes it."""
        while True:
            try:
                messages = await bus.history(after, (), AT_ONCE)
            except BusAway:
                await asyncio.sleep(AWAY_S)
                continue
            for message in messages:
                event = _read(message) if message.kind == KIND else None
                if event is not None and wanted(event.type, types):
                    try:
                        async with asyncio.timeout(SLOW_S):
                            await self._socket.send_text(msgspec.json.encode({"id": message.id, **msgspec.to_builtins(event)}).decode())
                    except TimeoutError:
                        await self._socket.close(LATER, f"nothing was taken for {SLOW_S:g} s; come back with after={after}")
                        return
                after = message.id
            if len(messages) < AT_ONCE:
                await asyncio.sleep(LOOK_S)
                try:
                    await self._identify(self._authorization)
                except Reject as rejected:
                    if rejected.status in (401, 403):  # else others at its address have guessed too often
                        await self._close(rejected)
                        return

    async def _until_left(self) -> None:
        """What it says meanwhile is not listened to."""
        while (await self._socket.receive())["type"] != "websocket.disconnect":
            pass

    async def _close(self, rejected: Reject) -> None:
        await self._socket.close(POLICY, f"{rejected.code}: {rejected.message}"[:REASON_MAX])

    async def _refuse(self, rejected: Reject) -> None:
        """Instead of a socket, what any other request would be answered."""
        answer: Response = answer_to(rejected)
        await self._socket.send_denial_response(answer)


def _types(text: str) -> tuple[str, ...]:
    """Raises Reject."""
    types = tuple(part for part in (part.strip() for part in text.split(",")) if part)
    for one in types:
        if one not in PATTERNS or len(text) > TYPES_MAX:
            raise invalid("There is no such type of events; docs/events.md has them.", "types")
    return types


def _read(message: Message) -> Event | None:
    """None: whoever wrote to the bus is none of ours."""
    try:
        return msgspec.convert(message.data, Event)
    except msgspec.ValidationError:
        return None

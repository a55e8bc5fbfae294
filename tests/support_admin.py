"""Short ways to ask the admin API of a gateway in this loop (support_inloop.py).

async with running(tmp_path, more=more()) as bench:
    api = Api(bench)
    made = await api.key(limits=["5 requests/day"])
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from support_inloop import Bench, Reply
from support_time import undisturbed

KEY, OPERATOR, VIEWER = "sk-admin-of-the-tests", "an-operator-on-call", "a-viewer-of-figures"
PEOPLE = (("on-call", "operator", OPERATOR), ("figures", "viewer", VIEWER))


def more() -> str:
    keys = [f"{{name: {name}, role: {role}, sha256: {hashlib.sha256(secret.encode()).hexdigest()}}}" for name, role, secret in PEOPLE]
    return f"admin: {{key: {KEY}, keys: [{', '.join(keys)}]}}"


class Api:
    """Short ways to ask."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def __call__(self, verb: str, path: str, body: Any = None, key: str = KEY) -> Reply:
        data = json.dumps(body).encode() if body is not None else b""
        head = f"{verb} /admin/v1/{path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
        return await self.bench.raw(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)

    async def key(self, name: str = "k", owner: str = "acme", **fields: Any) -> Any:
        """A key that was made."""
        made = await self("POST", "keys", {"owner": owner, "name": name, **fields})
        assert made.status == 201, made.body
        return made.json

    async def told(self, secret: str, **fields: Any) -> str:
        return (await self.bench.chat(secret, max_tokens=5, **fields)).code

    async def code(self, verb: str, path: str, body: Any = None, key: str = KEY) -> str:
        """Status, code and field of what is refused."""
        reply = await self(verb, path, body, key)
        if reply.status < 300:
            return str(reply.status)
        error = reply.error
        return f"{reply.status} {error['code']} {error['param'] or ''}".strip()

    async def until(self, secret: str, wanted: str) -> float:
        """How long it took until this key was told so."""
        return await until(lambda: self.told(secret), wanted)


async def until(ask: Callable[[], Awaitable[Any]], wanted: Any) -> float:
    """How long it took to be so."""
    began = undisturbed()
    while (found := await ask()) != wanted:
        assert undisturbed() - began < 30, found
        await asyncio.sleep(0.02)
    return undisturbed() - began

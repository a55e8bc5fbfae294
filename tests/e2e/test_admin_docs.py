"""The curl lines of the pages on administration, one after another, against a gateway with the tenants of the built-in example."""

import re
import shlex
from pathlib import Path

import pytest

from support_inloop import Reply, running

DOCS = Path(__file__).parents[2] / "docs"
TENANTS = """
  normal:
    limits: [$100/month]
    keys:
      - {name: normal, key: sk-sluicegate-normal, limits: [120 requests/minute, 200k tokens/minute, 8 concurrent]}"""
SMALL = "  small: {deployments: [{provider: mock, model: mock-small, price: {input: 0.15, output: 0.60}}]}"


def lines(page: str) -> list[str]:
    """Whole commands. What has an ellipsis is to be filled in."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    commands = "".join(text for language, text in blocks if not language).replace("\\\n", " ").splitlines()
    return [command for command in commands if command.startswith("curl ") and "..." not in command]


def as_bytes(command: str) -> bytes:
    """The request that curl would send."""
    verb, url, headers, body = "", "", ["host: x"], ""
    words = iter(shlex.split(command)[1:])
    for word in words:
        if word == "-X":
            verb = next(words)
        elif word == "-H":
            headers.append(next(words))
        elif word == "-d":
            body = next(words)
        else:
            url = word
    path = url.partition("://")[2].partition("/")[2]
    head = "\r\n".join([f"{verb or ('POST' if body else 'GET')} /{path} HTTP/1.1", *headers, f"content-length: {len(body.encode())}"])
    return f"{head}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("page", "count"), [("admin.md", 25), ("prices.md", 4), ("plan.md", 1), ("how-to/give-a-team-a-budget.md", 5), ("how-to/repair-a-counter.md", 8)]
)
async def test_every_line_works(tmp_path: Path, page: str, count: int) -> None:
    """As it stands, in the order of the page."""
    more = "admin: {key: sk-sluicegate-admin, chaos: on}"
    async with running(tmp_path, tenants=TENANTS, models=SMALL, more=more) as bench:
        bench.whole = False
        commands = lines(page)
        assert len(commands) >= count
        for command in commands:
            reply: Reply = await bench.raw(as_bytes(command))
            assert reply.status in (200, 201), (command, reply.body)

"""`health:` of a provider or a deployment: what its probes ask, and how often."""

from collections.abc import Callable

from sluicegate.config import schema
from sluicegate.core.tenants import Probe
from sluicegate.providers import TRANSLATED_TO

# What is cheap to ask where chats are, by the end of their path.
_LISTS = ((b"/chat/completions", b"/models"), (b"/messages", b"/models"), (b"/api/chat", b"/api/tags"))
INTERVAL_MS_MIN = 1_000


def probe(written: schema.Health | None, dialect: str, chat: bytes | None, problem: Callable[[str, str], None]) -> Probe | None:
    """chat: where chats go, below the base URL. problem: told of a field and what is wrong with it."""
    if written is None:
        return None
    if written.interval_ms < INTERVAL_MS_MIN:
        problem("interval", "must be at least 1s")
    if written.timeout_ms == 0:
        problem("timeout", "must be longer than nothing")
    path = b"" if written.request == "completion" else (written.path or "").encode() or _list_beside(chat or b"")
    if written.request == "completion" and written.path is not None:
        problem("path", "is of a probe that gets a page; leave it or request: completion out")
    elif written.request == "completion" and dialect not in TRANSLATED_TO:
        problem("request", "completion needs a provider that takes chats")
    elif written.request == "get" and not path:
        problem("path", "is required: what to get below base_url, such as /health")
    return Probe(path, written.interval_ms, written.timeout_ms, written.slow_ms, written.failures)


def _list_beside(chat: bytes) -> bytes:
    return next((chat.removesuffix(end) + beside for end, beside in _LISTS if chat.endswith(end)), b"")

"""What `sluicegate check FILE` tells of content rules, and of what is kept of requests: the cache, logs, traces. Rows of text that check.py draws."""

from collections.abc import Iterator
from itertools import chain

from sluicegate.config.compile import in_redis
from sluicegate.config.compile_tenants import GLOBAL, TenantTree
from sluicegate.config.schema import Config
from sluicegate.config.schema_log import Log
from sluicegate.core.content_rules import ContentRules
from sluicegate.core.phrases import Phrase

BEGINNING = 60  # characters of a text that are shown

Row = tuple[str, str]


def rules(config: Config) -> list[Row]:
    """Who is under content rules, and under which, with those that come from above: each tenant, and each key that has some of its own. Those under
    the same are one row."""
    tree = TenantTree(config, {}, [])
    keys = tree.keys().values()
    found: dict[tuple[str, ...], list[str]] = {}
    tenants = ((scope, above.rules, above.allowed) for scope, above in tree.at.items())
    own = ((key.id, key.rules, key.models) for key in keys if key.rules is not None and key.rules.chain[-1].scope == key.id)
    for scope, bound, models in chain(tenants, own):
        if bound is not None:
            may = [f"models: {', '.join(sorted(models)) or 'none'}"] if models is not None else []
            found.setdefault((*_lines(bound, scope), *may), []).append(scope)
    return [("\n".join(scopes), "\n".join(lines)) for lines, scopes in found.items()]


def _lines(bound: ContentRules, scope: str) -> Iterator[str]:
    for one in bound.chain:
        whose = "" if one.scope == scope else f" ({'everybody' if one.scope == GLOBAL else one.scope})"
        for what, text in (("system prompt", one.system_prompt), ("disclaimer", one.disclaimer)):
            if text:
                yield f"{what}: {_beginning(text)}{whose}"
        yield from (f"{phrase.name}: {_said(phrase)}{whose}" for phrase in one.banned)
    for most, unit in ((bound.max_input_tokens, "tokens"), (bound.max_input_bytes, "bytes")):
        if most:
            yield f"input: at most {most:,} {unit}"
    for name, value in bound.force.items():
        yield f"{name}: {_value(min(bound.ceilings.get(name, value), value))}, whatever is asked for"
    yield from (f"{name}: at most {_value(most)}" for name, most in bound.ceilings.items() if name not in bound.force)


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    return f'"{line}"' if len(line) <= BEGINNING else f'"{line[:BEGINNING]}…" ({len(text):,} characters)'


def _said(phrase: Phrase) -> str:
    where = " and ".join(side for side, on in (("requests", phrase.input), ("answers", phrase.output)) if on)
    done = {"refuse": "refused", "report": "reported"}.get(phrase.action) or f"masked as {phrase.mask!r}"
    return f"{done} in {where}{', whole words' if phrase.words else ''}"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(repr, value)) if isinstance(value, tuple) else f"{value:,}" if isinstance(value, int) else str(value)


def kept(config: Config) -> list[Row]:
    """The cache, logs and traces."""
    return [("cache", _cache(config)), *_logs(config.log), ("traces", _traces(config))]


def _cache(config: Config) -> str:
    """Where it is. Of which models, and how, is told beside them."""
    cache, used = config.cache, config.cache.mode != "off" or any(model.cache.mode not in (None, "off") for model in config.models.values())
    if not used:
        return "off"
    shared = cache.backend == "redis" or (cache.backend is None and in_redis(config.ledger))
    where = "in the ledger's Redis" if shared else f"in the memory of each worker, {cache.max_bytes:,} bytes at most"
    return f"{where}; answers of up to {cache.max_entry:,} bytes"


def _logs(log: Log) -> Iterator[Row]:
    yield "access lines", "off" if log.access == "off" else f"to standard error, as {log.access}"
    if log.requests is None:
        yield "request log", "off"
        return
    rotate, to = log.requests.rotate, log.requests.to
    file = f"to {to}, a new file at {rotate.size_bytes:,} bytes, {rotate.keep:,} old ones kept{', compressed' if rotate.gzip else ''}"
    yield "request log", "to standard output" if to == "stdout" else file
    how = {"hash": "by their hash and length", "full": "in full"}.get(log.prompts, "with personal data and credentials masked")
    own = f"; own masks: {', '.join(mask.name for mask in log.masks)}" if log.masks and log.prompts == "redacted" else ""
    yield "prompts in it", how + own


def _traces(config: Config) -> str:
    tracing = config.tracing
    if tracing is None or tracing.endpoint is None:
        return "off, unless the environment says where they go" if tracing is not None else "off"
    prompts = "with the beginnings of prompts, masked" if tracing.prompts == "redacted" else "without prompts"
    return f"to {tracing.endpoint}, {prompts}"

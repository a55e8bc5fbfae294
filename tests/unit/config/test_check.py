"""What `sluicegate check` shows, and what it warns about."""

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from sluicegate.config import EXAMPLE, Loaded, load, load_text
from sluicegate.config.check import report, warnings

NOW_MS = round(datetime(2026, 11, 30, 14, 59, 50, tzinfo=UTC).timestamp() * 1000)
HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def loaded(limits: str, tenants: str, price: str = "{input: 1, output: 2}", more: str = "") -> Loaded:
    """A deployment up/small with limits of its own, under models `chat` and `other`; tenants as YAML in flow style."""
    deployment = f"{{provider: up, model: small, price: {price}, limits: {limits}}}"
    models = f"{{chat: {{deployments: [{deployment}]}}, other: {{deployments: [{{provider: up, model: small, price: {price}}}]}}}}"
    return load_text(f"providers: {{up: {{provider: mock}}}}\nmodels: {models}\ntenants: {tenants}\n{more}", {})


def key(name: str, limits: str = "[]", models: str = "null") -> str:
    """A hashed key; its hash is made from its name."""
    return f"{{name: {name}, sha256: '{name.encode().hex():0<64}', limits: {limits}, models: {models}}}"


def shown(one: Loaded) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as captured:
        for renderable in report(one, NOW_MS):
            console.print(renderable)
    return captured.get()


# -- tables -------------------------------------------------------------------------------------------------------------------------------


def test_the_example_shown() -> None:
    """Tenants, limits with window and next reset, models and deployments of the built-in example."""
    text = shown(load(EXAMPLE, {}))
    for row in [
        ("tight", "key tight tokens/minute"),
        ("key tight", "300 tokens/minute", "refills over 1m", "continuously"),
        ("organization batch", "$10/month", "calendar month", "2026-12-01 00:00:00 UTC"),
        ("key batch", "32 concurrent", "in flight", "when a request ends"),
        ("chat-live", "mock/mock-live", "1024 tokens"),
        ("mock/mock-small", "0.15 in, 0.6 out", "capped by max_tokens"),
        ("mock/mock-live", "extended while it streams"),
    ]:
        assert any(all(cell in line for cell in row) for line in text.splitlines()), row


def test_a_route_is_shown_as_it_is_tried() -> None:
    """Tiers with their weights, what goes before the others when, and where a request goes from there."""
    listed = (
        "[{provider: up, model: a, tier: t, weight: 3}, {provider: up, model: b, tier: t}, {provider: up, model: c, when: {budget_used: '>80%'}}]"
    )
    more = "balance: sticky, sticky: {header: X-Session}, fallback_on: [timeout, rate_limit], context_fallback: big"
    models = f"{{chat: {{deployments: {listed}, {more}}}, big: {{deployments: [{{provider: up, model: d}}]}}}}"
    text = shown(load_text(f"providers: {{up: {{provider: mock}}}}\nmodels: {models}\ntenants: {{acme: {{keys: [{key('k')}]}}}}", {}))
    rows = [
        "sticky by x-session:",
        "- up/a (weight 3)",
        "- up/b",
        "up/c (first above 80% of a budget)",
        "the next one only after: rate_limit, timeout",
        "too long for it: big",
    ]
    assert [row for row in rows if row not in text] == []


def test_next_reset_is_told_in_the_zone_of_the_window() -> None:
    """A day in Tokyo ends at midnight there."""
    limit = "{amount: 5, unit: usd, per: day, tz: Asia/Tokyo, models: [chat]}"
    text = shown(loaded("[]", f"{{acme: {{keys: [{key('a', f'[{limit}, $9/lifetime, 5 tokens/30s]')}]}}}}"))
    assert "2026-12-01 00:00:00 JST" in text
    assert "calendar day (Asia/Tokyo)" in text
    assert "[chat]" in text
    assert "never" in text
    assert "2026-11-30 15:00:00 UTC" in text


RULED = """
rules: {banned: [{name: cards, pattern: 'regex:[0-9]{16}', action: mask, mask: '[CARD]', words: on}]}
"""
TREE = """{acme: {rules: {system_prompt: 'You work for ACME.', disclaimer: No advice., max_input: 64KB, max_input_tokens: 8000,
  force: {temperature: 0.5}, ceilings: {max_output: 2048, n: 2}}, models: [chat], children: {
    support: {rules: {banned: [{name: rivals, pattern: globex, action: report, on: output}],
      ceilings: {n: 1, temperature: 0.2, reasoning_effort: low}},
      keys: [{name: bot, sha256: '%s', rules: {force: {stop: [END], store: off}}}, {name: man, sha256: '%s'}]}, sales: {}}}, other: {}, third: {}}"""


def test_content_rules_are_shown_as_they_bind() -> None:
    """Of each tenant, with or without keys, and of keys that have some of their own: what comes from above, too, and from whom; alike ones once."""
    table = shown(loaded("[]", TREE % ("a" * 64, "b" * 64), more=RULED)).partition("Content rules")[2].partition("Models")[0]
    rows = [" ".join(line.replace("│", " ").split()) for line in table.splitlines()]
    cards = "cards: masked as '[CARD]' in requests and answers, whole words (everybody)"
    both = ["input: at most 8,000 tokens", "input: at most 64,000 bytes"]
    support = [
        cards, 'system prompt: "You work for ACME." (acme)', 'disclaimer: "No advice." (acme)', "rivals: reported in answers", *both,
        "temperature: 0.2, whatever is asked for", "max_output: at most 2,048", "n: at most 1", "reasoning_effort: at most low",
        "thinking_budget: at most 1,024", "models: chat",
    ]  # fmt: skip
    bot = [line if line != support[3] else f"{line} (acme/support)" for line in support]
    forced = ["stop: 'END', whatever is asked for", "store: off, whatever is asked for"]
    acme = [
        cards, 'system prompt: "You work for ACME."', 'disclaimer: "No advice."', *both, "temperature: 0.5, whatever is asked for",
        "max_output: at most 2,048", "n: at most 2", "models: chat",
    ]  # fmt: skip
    sales = [line if "prompt" not in line and "disclaimer" not in line else f"{line} (acme)" for line in acme]
    want = [acme, support, sales, [cards], bot[:6] + bot[6:7] + forced + bot[7:]]
    names = ["acme", "acme/support", "acme/sales", "other", "acme/support/@bot"]
    text = "\n".join(rows)
    for name, lines in zip(names, want, strict=True):
        for line in lines:
            assert line in text, (name, line)
        assert f"{name} {lines[0]}" in text
    assert "\nthird\n" in text
    assert "acme/support/@man" not in text
    assert "Content rules" not in shown(loaded("[]", f"{{acme: {{keys: [{key('a')}]}}}}"))


def test_a_long_text_of_rules_is_shown_by_its_beginning() -> None:
    """On one line."""
    text = shown(loaded("[]", f"{{acme: {{keys: [{key('a')}]}}}}", more='rules: {system_prompt: "Be kind.\\n\\n' + "word " * 100 + '"}'))
    assert 'system prompt: "Be kind. word word' in text
    assert "…" in text and "(509 characters) (everybody)" in text


@pytest.mark.parametrize(
    ("more", "rows"),
    [
        ("", ["cache off", "access lines to standard error, as text", "request log off", "traces off"]),
        (
            "cache: {mode: all, max_bytes: 1MB}\nlog: {access: json, requests: {to: stdout}, prompts: hash}",
            [
                "cache in the memory of each worker, 1,000,000 bytes at most; answers of up to 262,144 bytes",
                "access lines to standard error, as json",
                "request log to standard output",
                "prompts in it by their hash and length",
            ],
        ),
        (
            "cache: {mode: all, backend: redis}\nledger: redis://127.0.0.1/0\nrecords: postgresql://u:p@h/d\n"
            "log: {access: 'off', requests: {to: /x/requests.log, rotate: {keep: 3, gzip: off}}, masks: [{name: STAFF, pattern: 'E[0-9]{6}'}]}\n"
            "tracing: {endpoint: 'http://127.0.0.1:4318', prompts: redacted}",
            [
                "cache in the ledger's Redis; answers of up to 262,144 bytes",
                "access lines off",
                "request log to /x/requests.log, a new file at 100,000,000 bytes, 3 old ones kept",
                "prompts in it with personal data and credentials masked; own masks: STAFF",
                "traces to http://127.0.0.1:4318/v1/traces, with the beginnings of prompts, masked",
            ],
        ),
    ],
)
def test_what_is_kept_of_requests_is_shown(more: str, rows: list[str]) -> None:
    """Where the cache and the logs are, and what of prompts is in them."""
    table = shown(loaded("[]", f"{{acme: {{keys: [{key('a')}]}}}}", more=more)).partition("Cache, logs and traces")[2]
    text = "\n".join([" ".join(line.replace("│", " ").split()) for line in table.splitlines()])
    assert [row for row in rows if row not in text] == []


def test_nothing_shown_is_a_secret() -> None:
    """Neither clients' keys nor credentials of providers."""
    text = (
        "providers: {up: {provider: mock, api_key: sk-up-secret, headers: {x: h-secret}}}\nmodels: {m: {deployments: [{provider: up, model: x}]}}\n"
    )
    one = load_text(text + "tenants: {a: {keys: [{name: k, key: sk-client-secret}]}}", {})
    assert "secret" not in shown(one) + "".join(warnings(one))


# -- warnings -----------------------------------------------------------------------------------------------------------------------------


def test_the_design_example_has_no_surprise() -> None:
    """Hashed keys, prices and sufficient limits give no warning."""
    assert warnings(loaded("[100 tokens/minute]", f"{{acme: {{limits: [$5/day], keys: [{key('a', '[100 tokens/minute]')}]}}}}")) == []


def test_a_plain_key_is_warned_about() -> None:
    """With its path, wherever it is in the tree."""
    one = loaded("[]", "{acme: {children: {t: {keys: [{name: k, key: sk-1}]}}}}")
    assert warnings(one) == [
        "tenants.acme.children.t.keys[0]: the key itself is in the file; better give the hash as sha256 (printf %s KEY | sha256sum)"
    ]


def test_many_plain_keys_are_one_warning() -> None:
    """With the number of them and the first three."""
    keys = ", ".join(f"{{name: k{i}, key: sk-{i}}}" for i in range(20))
    [line] = warnings(loaded("[]", f"{{acme: {{keys: [{keys}]}}, other: {{keys: [{{name: k, key: sk-k}}]}}}}"))
    assert line.startswith("tenants.acme.keys[0], tenants.acme.keys[1], tenants.acme.keys[2] and 18 more: 21 keys themselves are in the file; ")


@pytest.mark.parametrize(
    ("speaks", "warned"),
    [
        ("[openai_responses]", True),
        ("[openai_completions, openai_embeddings]", True),
        ("[openai_responses, openai_chat]", False),
        ("[anthropic_messages]", False),
        ("[openai_embeddings]", False),
    ],
)
def test_a_provider_to_which_nothing_is_translated(speaks: str, warned: bool) -> None:
    """Other requests than its own would be refused there, and why is said; a provider of embeddings alone is meant to be one."""
    text = f"providers: {{up: {{provider: openai, speaks: {speaks}}}}}\nmodels: {{m: {{deployments: [{{provider: up, model: x}}]}}}}\n"
    told = warnings(load_text(text + f"tenants: {{a: {{keys: [{key('k')}]}}}}", {}))
    assert [line.partition(";")[0].partition(" to ")[0] for line in told] == ["providers.up.speaks: nothing is translated"] * warned


def test_closed_metrics_are_warned_about() -> None:
    """Off loopback, nobody can read metrics without a credential for them."""
    [line] = warnings(loaded("[]", f"{{acme: {{keys: [{key('a')}]}}}}", more='server: {listen: "0.0.0.0:80"}'))
    assert line.startswith("server.listen: ")


def test_records_of_one_machine_beside_a_shared_ledger_are_warned_about() -> None:
    """Where the ledger is Redis and the records are a file; PostgreSQL beside it is as it should be."""
    keys = f"{{acme: {{keys: [{key('a')}]}}}}"
    redis = "ledger: redis://127.0.0.1/0\n"
    [line] = warnings(loaded("[]", keys, more=redis))
    assert line.startswith("records: ")
    assert line.endswith("a replica with other records is refused at its start")
    assert warnings(loaded("[]", keys, more=redis + "records: postgresql://u:p@h/d")) == []


@pytest.mark.parametrize(("unpriced", "then"), [("refuse", "are refused"), ("free", "count as free")])
def test_a_model_without_a_price_under_a_dollar_limit(unpriced: str, then: str) -> None:
    """Once per deployment, naming who is concerned; keys without dollar limits are not."""
    tenants = f"{{acme: {{keys: [{key('a', '[$5/day]')}, {key('b')}]}}}}"
    [line] = warnings(loaded("[]", tenants, "null", f"prices: {{unpriced: {unpriced}}}"))
    assert line == f"up/small has no price, but acme/@a has a dollar limit: their requests there {then} (prices.unpriced)"


def tree(*, top: str = "[]", team: str = "[]", **keys: tuple[str, str]) -> str:
    """acme > t > keys, each with limits and models, and limits above them."""
    return f"{{acme: {{limits: {top}, children: {{t: {{limits: {team}, keys: [{', '.join(key(name, *one) for name, one in keys.items())}]}}}}}}}}"


ALL = "null"


@pytest.mark.parametrize(
    ("own", "tenants", "asked"),
    [
        ("[100 tokens/minute]", tree(a=("[60 tokens/minute]", ALL), b=("[60 tokens/minute]", ALL)), "120 tokens/minute"),
        ("[100 tokens/minute]", tree(team="[100 tokens/minute]", a=("[60 tokens/minute]", ALL), b=("[60 tokens/minute]", ALL)), None),
        ("[100 tokens/minute]", tree(top="[100 tokens/minute]", a=("[60 tokens/minute]", ALL), b=("[]", ALL)), None),
        ("[100 tokens/minute]", tree(a=("[60 tokens/minute]", ALL), b=("[60 tokens/minute]", "[]")), None),
        ("[100 tokens/minute]", tree(a=("[3 tokens/second]", ALL)), "180 tokens/minute"),
        ("[100 tokens/minute]", tree(a=("[120 tokens/day]", ALL)), "120 tokens/minute"),
        ("[100 tokens/minute]", tree(a=("[{amount: 6000, unit: tokens, per: hour, window: bucket}]", ALL)), None),
        ("[100 tokens/day]", tree(a=("[5 tokens/hour]", ALL)), "120 tokens/day"),
        ("[$1/day]", tree(a=("[$2/lifetime]", ALL)), "$2/day"),
        ("[10 concurrent]", tree(a=("[6 concurrent]", ALL), b=("[6 concurrent]", ALL)), "12 concurrent"),
        ("[10 requests/s]", tree(a=("[600 requests/minute]", ALL)), None),
    ],
)
def test_rates_that_add_up_to_more_than_a_deployment_has(own: str, tenants: str, asked: str | None) -> None:
    """Summed over the keys that can reach it, each bound by the scopes above it; a longer window may be used up at once."""
    found = [line for line in warnings(loaded(own, tenants)) if "may ask for" in line]
    assert [line.split("may ask for ")[1] for line in found] == ([f"{asked} together"] if asked else [])


def test_keys_without_a_limit_that_a_deployment_has() -> None:
    """They may ask for any amount; a limit on one of several models that lead there does not bind."""
    on_chat = "[{amount: 5, unit: tokens, per: minute, models: [chat]}]"
    found = warnings(loaded("[100 tokens/minute]", tree(a=("[60 tokens/minute]", ALL), b=("[]", ALL), c=(on_chat, ALL), d=(on_chat, "[chat]"))))
    assert found == ["up/small has 100 tokens/minute, but acme/t/@b, acme/t/@c, acme/t/@d have no limit on tokens"]


SHADOW = "{amount: 4, unit: usd, per: day, mode: shadow}"


def test_a_shadow_limit_does_not_protect() -> None:
    """It is told wherever it stands, once, and marked in the tables."""
    tenants = f"{{acme: {{limits: [$5/day, {SHADOW}], keys: [{key('a')}, {key('b', '[{amount: 9, unit: requests, per: minute, mode: shadow}]')}]}}}}"
    one = loaded(f"[{SHADOW}]", tenants)
    assert warnings(one) == [
        "organization acme: $4/day is in mode shadow: it counts and reports, and does not protect",
        "key b: 9 requests/minute is in mode shadow: it counts and reports, and does not protect",
        "deployment up/small: $4/day is in mode shadow: it counts and reports, and does not protect",
    ]
    text = shown(one)
    assert "shadow: counts and reports only" in text
    assert "key b requests/minute (shadow)" in text


def test_shadow_limits_bound_nothing() -> None:
    """A deployment's is not oversold, a key's holds nobody back, and calls without a price pass below one of dollars."""
    tokens = "{amount: 5, unit: tokens, per: minute, mode: shadow}"
    tenants = f"{{acme: {{keys: [{key('a', f'[{SHADOW}, {tokens}]')}]}}}}"
    told = [line for line in warnings(loaded("[10 tokens/minute]", tenants, price="null")) if "does not protect" not in line]
    assert told == ["up/small has 10 tokens/minute, but acme/@a has no limit on tokens"]
    assert all("does not protect" in line for line in warnings(loaded(f"[{tokens}]", "{acme: {keys: [" + key("a") + "]}}")))


def test_priorities_and_reserves_are_shown() -> None:
    """Which key has which, and what a limit keeps from whom."""
    limit = "{amount: 100, unit: requests, per: minute, reserve: {normal: 10%, low: 30%}}"
    text = shown(loaded("[]", f"{{acme: {{limits: [{limit}], priority: low, keys: [{key('a')}]}}}}"))
    assert "(priority low)" in text
    assert "(10% kept from normal, 30% kept from low)" in text


def test_a_wait_longer_than_the_drain_is_warned_about() -> None:
    """A stopping server would cut it."""
    tenants = f"{{acme: {{keys: [{key('a')}]}}}}"
    more = "server: {drain: 5s}\nbudget: {queue: {max_wait: %s}}"
    assert warnings(loaded("[]", tenants, more=more % "5s")) == []
    assert warnings(loaded("[]", tenants, more=more % "6s")) == [
        "budget.queue.max_wait: is longer than server.drain, so that a stopping server ends waits early"
    ]


def test_the_example_warns_of_nothing_but_its_plain_keys_and_chaos() -> None:
    """It is to be copied."""
    keys, admin, chaos = warnings(load(EXAMPLE, {}))
    assert "3 keys themselves are in the file" in keys
    assert (admin.partition(":")[0], chaos.partition(":")[0]) == ("admin.key", "admin.chaos")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{mode: all}", "cache: all, each key's own, for 3600 s"),
        ("{mode: seeded, scope: team, ttl: 500ms}", "cache: seeded, shared in each team, for 0.5 s"),
        ("{mode: deterministic, scope: global}", "cache: deterministic, shared by all, for 3600 s"),
    ],
)
def test_a_cache_is_shown_with_its_model(written: str, expected: str) -> None:
    """Which requests it answers, and whose answers they may be."""
    tenants = f"{{acme: {{keys: [{key('k')}]}}}}"
    assert expected in shown(loaded("[]", tenants, more=f"cache: {written}")) and "cache:" not in shown(loaded("[]", tenants))


@pytest.mark.parametrize(
    ("to", "why"),
    [("dir", "dir is a directory"), ("file/logs/r.jsonl", "file is no directory"), ("file/r.jsonl", "file is no directory")],
)
def test_a_request_log_that_can_never_be_written(tmp_path: Path, to: str, why: str) -> None:
    """Is warned about; a directory that can be made is not, nor are stdout and a device."""
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()

    some = f"{{a: {{keys: [{key('k')}]}}}}"

    def warned(path: str) -> list[str]:
        return [line for line in warnings(loaded("[]", some, more=f"log: {{requests: {{to: {path}}}}}")) if line.startswith("log.requests.to")]

    assert len(warned(str(tmp_path / to))) == 1 and why in warned(str(tmp_path / to))[0]
    assert [warned(path) for path in (f"{tmp_path}/new/logs/r.jsonl", f"{tmp_path}/file", "stdout", "/dev/full")] == [[]] * 4

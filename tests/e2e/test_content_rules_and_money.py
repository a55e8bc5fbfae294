"""Content rules beside the cap, the cache, records and metrics, with an audit of every run: what upstreams produced is what is charged."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support_admin import Api, more
from support_inloop import running

MASK = "{name: words, pattern: of and to, action: mask, mask: '#', on: output}"
REFUSE = "{name: words, pattern: of and to, on: output}"
REPORT = "{name: words, pattern: of and to, action: report}"


def ruled(rules: str, **settings: Any) -> dict[str, Any]:
    return {"more": f"rules: {rules}", "limits": "[100000 tokens/day, $10/day]", **settings}


@pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
async def test_a_stream_under_rules_is_charged_as_it_was_produced(tmp_path: Path, extend: bool) -> None:
    """Masks and a disclaimer change what is read, not what is used; the record names the rule."""
    async with running(tmp_path, extend=extend, **ruled(f"{{disclaimer: No advice., banned: [{MASK}]}}")) as bench:
        reply = await bench.chat(stream=True, stream_options={"include_usage": True}, max_tokens=60)
        assert reply.text.startswith(" the # in is")
        assert reply.text.endswith("\n\nNo advice.")
        assert reply.done and reply.usages[0]["usage"]["completion_tokens"] == 20 == bench.record.output_tokens
        assert bench.record.rules == "words"
        whole = await bench.chat(max_tokens=60)
        assert whole.json["choices"][0]["message"]["content"] == reply.text
        assert whole.json["usage"]["completion_tokens"] == 20


async def test_a_stream_that_the_budget_cuts_says_only_what_is_covered(tmp_path: Path) -> None:
    """The cap holds; what waited and was covered comes before the end, and so does the disclaimer, once."""
    rules = f"{{disclaimer: No advice., banned: [{MASK}]}}\nbudget: {{estimator: fixed, fixed_output: 40}}"
    options = {"completion": 900, "tpot": 2}
    async with running(tmp_path, extend=True, options=options, **ruled(rules, limits="[1000 tokens/day]")) as bench:
        bench.slack = 1024
        connection = await bench.open(stream=True, max_tokens=900)
        await connection.until(b'" the"')
        await bench.chat(max_tokens=600)
        reply = await connection.rest()
        assert (reply.truncated, reply.finishes, reply.done) == ("budget", {0: "length"}, True)
        assert reply.text.startswith(" the # in is")
        assert reply.text.endswith("\n\nNo advice.") and reply.text.count("No advice.") == 1
        cut = next(record for record in bench.records if record.truncated == "budget")
        assert (cut.rules, cut.finish) == ("words", "length")
        assert bench.total <= 1000


LAST = "regex:the.{1,500}"  # its longest match waits for the end of any short answer


@pytest.mark.parametrize("action", ["mask", "refuse"])
async def test_a_rule_that_acts_in_the_last_bytes_of_a_translated_stream_is_in_its_record(tmp_path: Path, action: str) -> None:
    """These are written when the usage is known, and so after the record."""
    banned = f"{{name: last, pattern: '{LAST}', action: {action}, mask: '#', on: output}}"
    price = "price: {input: 0.5, output: 1}"
    translated = {
        "providers": "  chats: {provider: mock, base_url: BASE_URL, speaks: [openai_chat]}",
        "models": f"  other: {{deployments: [{{provider: chats, model: m, {price}}}]}}",
    }
    async with running(tmp_path, **ruled(f"{{banned: [{banned}]}}", **translated)) as bench:
        bench.slack = 60
        body = {"model": "other", "max_tokens": 60, "stream": True, "messages": [{"role": "user", "content": "Tell me"}]}
        head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: sk-key\r\ncontent-length: {len(json.dumps(body))}\r\n\r\n"
        reply = await bench.raw((head + json.dumps(body)).encode())
        assert bench.record.rules == "last" and bench.record.output_tokens
        if action == "refuse":
            assert (bench.record.error, bench.record.truncated, reply.clean) == ("content_policy", "policy", False)
            assert b"message_stop" not in reply.body and b" of and" not in reply.body
        else:
            assert (bench.record.error, bench.record.truncated, reply.clean) == ("", "", True)
            assert b"#" in reply.body and b" of and" not in reply.body


@pytest.mark.parametrize("extend", [False, True], ids=["capped", "extended"])
async def test_a_refused_stream_ends_at_once_and_pays_for_what_came(tmp_path: Path, extend: bool) -> None:
    """An honest error event behind the text before the phrase; the upstream is closed, and what it had produced is charged."""
    async with running(tmp_path, extend=extend, options={"completion": 500, "tpot": "2ms"}, **ruled(f"{{banned: [{REFUSE}]}}")) as bench:
        # What may have come unseen until it stopped, of a stream that had just begun and may be a fast one; or all that it may have produced.
        bench.slack = 1024
        reply = await bench.chat(stream=True, max_tokens=600)
        assert (reply.status, reply.text, reply.clean, reply.done) == (200, " the ", False, False)
        assert reply.error["code"] == "content_policy"
        assert reply.error["sluicegate"] == {"rule": "words", "on": "output"}
        await bench.mock.idle()
        record = bench.record
        assert (record.error, record.rules, record.truncated, record.finish) == ("content_policy", "words", "policy", "")
        assert 4 <= record.output_tokens <= 600


async def test_a_refused_answer_in_one_piece_is_charged(tmp_path: Path) -> None:
    """400 after the call."""
    async with running(tmp_path, **ruled(f"{{banned: [{REFUSE}]}}")) as bench:
        reply = await bench.chat(max_tokens=60)
        assert (reply.status, reply.error["code"]) == (400, "content_policy")
        assert (bench.record.output_tokens, bench.record.rules, bench.record.status) == (20, "words", 400)


async def test_a_refused_request_holds_and_charges_nothing(tmp_path: Path) -> None:
    """Not a request either."""
    async with running(tmp_path, **ruled("{banned: [{name: me, pattern: 'tell me'}]}", limits="[10 requests/day]")) as bench:
        for stream in (False, True):
            reply = await bench.chat(stream=stream)
            assert (reply.status, reply.error["code"], reply.error["sluicegate"]["rule"]) == (400, "content_policy", "me")
            assert (bench.record.rules, bench.record.attempts) == ("me", ())
        assert (await bench.usage())["key key requests/day"]["used"] == 0


async def test_a_report_changes_nothing_and_is_told(tmp_path: Path) -> None:
    """In the record, in the metrics, and as an event."""
    async with running(tmp_path, **ruled(f"{{banned: [{REPORT}]}}")) as bench:
        told: list[Any] = []
        bench.worker.gateway._notices.ruled = lambda rules, key_id: told.append((set(rules), key_id))  # type: ignore[method-assign]
        reply = await bench.chat(stream=True, max_tokens=30)
        assert reply.text.startswith(" the of and to in")
        assert bench.record.rules == "words"
        assert told == [({"words"}, "acme/@key")]
        metrics = bench.worker.metrics.counts()
        assert metrics.rules == {"words": 1}


async def test_what_the_cache_keeps_is_what_the_client_got(tmp_path: Path) -> None:
    """A hit repeats it byte for byte where it was whole, and as a stream; a key with other rules on answers never gets it."""
    tenants = f"""
  acme:
    children:
      a: {{rules: {{disclaimer: No advice., banned: [{MASK}]}}, keys: [{{name: a, key: sk-a}}]}}
      b: {{keys: [{{name: b, key: sk-b}}]}}"""
    async with running(tmp_path, tenants=tenants, more="cache: {mode: all, scope: global}") as bench:
        first = await bench.chat("sk-a", max_tokens=30, stream=True, user=...)
        again = await bench.chat("sk-a", max_tokens=30, user=...)
        third = await bench.chat("sk-a", max_tokens=30, stream=True, user=...)
        other = await bench.chat("sk-b", max_tokens=30, user=...)
        bench.whole = False
        assert [reply.headers["x-sluicegate-cache"] for reply in (first, again, third, other)] == ["miss", "hit", "hit", "miss"]
        assert again.json["choices"][0]["message"]["content"] == first.text == third.text
        assert first.text.startswith(" the # in is") and first.text.endswith("\n\nNo advice.")
        assert other.json["choices"][0]["message"]["content"].startswith(" the of and to")


async def test_two_requests_at_once_do_not_mix(tmp_path: Path) -> None:
    """Each answer has a state of its own, several choices too."""
    async with running(tmp_path, options={"completion": 12, "tpot": "1ms"}, **ruled(f"{{disclaimer: No advice., banned: [{MASK}]}}")) as bench:
        replies = await asyncio.gather(*[bench.chat(stream=True, n=2, max_tokens=30) for _ in range(5)])
        for reply in replies:
            texts = ["".join([c.get("delta", {}).get("content") or "" for c in reply.choices if c["index"] == n]) for n in (0, 1)]
            assert all(text.startswith(" the # in") and text.count("No advice.") == 1 for text in texts)


async def test_forced_and_injected_text_is_held(tmp_path: Path) -> None:
    """The hold is for the request that is sent: a system prompt that does not fit is refused before the call, a ceiling makes the hold smaller."""
    prompt = "word " * 80
    async with running(tmp_path, **ruled(f"{{system_prompt: '{prompt}'}}", limits="[60 tokens/day]")) as bench:
        reply = await bench.chat(max_tokens=5)
        assert (reply.status, reply.error["code"]) in [(400, "request_too_large"), (402, "budget_exceeded"), (429, "insufficient_quota")]
        assert bench.mock.truth.stats().total.requests == 0
    (tmp_path / "b").mkdir()
    async with running(tmp_path / "b", **ruled("{ceilings: {max_output: 10}}", limits="[40 tokens/day]")) as bench:
        reply = await bench.chat(max_tokens=1000)
        assert (reply.status, reply.headers["x-sluicegate-changed"]) == (200, "max_tokens")
        assert reply.json["usage"]["completion_tokens"] == 10


async def test_keys_made_at_run_time_have_the_rules_of_where_they_hang(tmp_path: Path) -> None:
    """A tenant's below it, a key's for its own keys."""
    rules = f"rules: {{banned: [{MASK}]}}"
    async with running(tmp_path, more=f"{more()}\n{rules}") as bench:
        bench.whole = False
        api = Api(bench)
        made = await api.key(may_create_sub_keys=True)
        reply = await bench.chat(made["secret"], max_tokens=30)
        assert reply.json["choices"][0]["message"]["content"].startswith(" the # in")
        assert bench.record.rules == "words"

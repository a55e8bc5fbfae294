"""Prices through the admin API, on SQLite and on a real PostgreSQL: read as in the file, put over it, in force at once and everywhere, audited."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate.config.load import load_text
from support_admin import KEY, OPERATOR, VIEWER, Api, more
from support_inloop import PROMPT_TOKENS, config_text, running

MODELS = "  unknown: {deployments: [{provider: mock, model: mystery}]}"
DATED = {"date": "2026-11-01", "source": "contract 17"}
DEAR = {"input": 5, "output": 10, **DATED}


def settings(tmp_path: Path, records: str = "") -> dict[str, Any]:
    return {"records": records or f"sqlite:///{tmp_path}/records.db", "more": more(), "limits": "[$0.01/day]", "models": MODELS}


@pytest.fixture
async def api(tmp_path: Path, records_url: str) -> AsyncIterator[Api]:
    async with running(tmp_path, **settings(tmp_path, records_url)) as bench:
        bench.whole = False  # prices change
        yield Api(bench)


async def cost(api: Api, **fields: Any) -> int:
    """What a request costs."""
    assert (await api.bench.chat(max_tokens=20, **fields)).code == "200"
    await api.bench.quiet()
    return api.bench.record.cost_nano_usd


async def test_a_model_without_a_price_is_usable_at_once(api: Api) -> None:
    """And costs what was said; without that price it is refused again."""
    assert await api.told("sk-key", model="unknown") == "price_unknown"
    told = await api("PUT", "prices/mock/mystery", DEAR)
    assert told.status == 200, told.body
    assert (told.json["origin"], told.json["over"]["origin"], told.json["models"], told.json["in_use"]) == ("api", "none", ["unknown"], True)
    assert await cost(api, model="unknown") == PROMPT_TOKENS * 5000 + 20 * 10_000
    assert (await api("DELETE", "prices/mock/mystery")).json == {"object": "price.deleted", "id": "mock/mystery"}
    assert await api.told("sk-key", model="unknown") == "price_unknown"


EVERYTHING = {
    "input": 0.1,
    "output": 0.6,
    "cached_input": 0.05,
    "cache_write": 0.125,
    "cache_write_1h": 0.2,
    "reasoning": 0.7,
    "audio_input": 2.0,
    "audio_output": 3.0,
    "request_fee": 0.005,
    "tools": {"web_search": 10.0},
    "tiers": [{"above": 272000, "input": 0.2, "output": 1.2}],
    "variants": [{"when": {"service_tier": "priority"}, "input": 0.2, "output": 1.2, "request_fee": 0.01, "tiers": []}],
}


def given(shown: Any, like: Any) -> Any:
    """Of what is shown, what was said."""
    if isinstance(like, dict):
        return {name: given(shown[name], value) for name, value in like.items()}
    return [given(one, value) for one, value in zip(shown, like, strict=True)] if isinstance(like, list) else shown


async def test_what_is_written_is_shown_and_goes_over_the_file(api: Api) -> None:
    """Every field, with its date and source, and what it is over; a second one takes its place, and without it the file's word counts."""
    put = (await api("PUT", "prices/mock/mock-chat", {**EVERYTHING, **DATED})).json
    assert given(put["price"], EVERYTHING) == EVERYTHING
    assert (put["date"], put["source"], put["over"]["origin"]) == ("2026-11-01", "contract 17", "deployment")
    assert put == (await api("GET", "prices/mock/mock-chat")).json
    assert await cost(api) == PROMPT_TOKENS * 100 + 20 * 700 + 5_000_000  # nobody says how much was reasoning
    await api("PUT", "prices/mock/mock-chat", DEAR)
    assert await cost(api) == PROMPT_TOKENS * 5000 + 20 * 10_000
    await api("DELETE", "prices/mock/mock-chat")
    assert await cost(api) == PROMPT_TOKENS * 500 + 20 * 1000
    shown = (await api("GET", "prices/mock/mock-chat")).json
    assert (shown["origin"], shown["over"], shown["set_at"]) == ("deployment", None, None)


WRONG: tuple[tuple[Any, str], ...] = (
    ({"input": 1, "output": 1, "source": "s"}, "400 missing_field date"),
    ({"input": 1, "output": 1, "date": "2026-11-01"}, "400 missing_field source"),
    ({**DEAR, "source": ""}, "400 invalid_value source"),
    ({**DEAR, "date": "soon"}, "400 invalid_value date"),
    ({**DEAR, "date": "2999-01-01"}, "400 invalid_value date"),
    ({**DEAR, "date": "1999-12-31"}, "400 invalid_value date"),
    ({**DEAR, "input": -1}, "400 invalid_value input"),
    ({**DEAR, "input": "1"}, "400 invalid_value input"),
    ({**DEAR, "input": 0.0000001}, "400 invalid_value input"),
    ({**DEAR, "inputs": 1}, "400 unknown_field inputs"),
    ({**DEAR, "tools": {"web_search": 0.0000001}}, "400 invalid_value tools.web_search"),
    ({**DEAR, "tiers": [{"above": 0, "input": 1, "output": 1}]}, "400 invalid_value tiers.0.above"),
    ({**DEAR, "tiers": [{"above": 9, "input": 1, "output": 1}] * 2}, "400 invalid_value tiers.1.above"),
    ({**DEAR, "variants": [{"when": {"model": "x"}, "input": 1, "output": 1}]}, "400 invalid_value variants.0.when"),
)


async def test_what_is_wrong_with_a_price(tmp_path: Path) -> None:
    """Is told with its field, as of the file; nothing is changed. Administrators alone may change one."""
    async with running(tmp_path, **settings(tmp_path)) as bench:
        api = Api(bench)
        for body, told in WRONG:
            assert await api.code("PUT", "prices/mock/mock-chat", body) == told
        assert await api.code("PUT", "prices/mock/none", DEAR) == "404 deployment_not_found deployment"
        assert await api.code("GET", "prices/mock/none") == "404 deployment_not_found deployment"
        assert await api.code("DELETE", "prices/mock/mock-chat") == "404 price_not_found deployment"
        for key in (OPERATOR, VIEWER, "sk-key"):
            assert (await api("PUT", "prices/mock/mock-chat", DEAR, key)).status == 403
            assert (await api("DELETE", "prices/mock/mock-chat", None, key)).status == 403
        assert [(await api("GET", "prices", None, key)).status for key in (OPERATOR, VIEWER, "sk-key")] == [200, 200, 403]
        assert {one["origin"] for one in (await api("GET", "prices")).json["data"]} == {"deployment", "none"}


async def test_the_list_comes_in_pages(api: Api) -> None:
    """By the deployments' ids, or those alone that somebody has said so."""
    await api("PUT", "prices/mock/mystery", DEAR)
    first = (await api("GET", "prices?limit=2")).json
    rest = (await api("GET", f"prices?after={first['next']}")).json
    assert [one["deployment"] for one in (*first["data"], *rest["data"])] == ["mock/mock-chat", "mock/mock-free", "mock/mystery"]
    assert (first["has_more"], rest["has_more"], rest["next"]) == (True, False, None)
    assert [one["deployment"] for one in (await api("GET", "prices?origin=api")).json["data"]] == ["mock/mystery"]


async def test_changes_are_audited(api: Api) -> None:
    """With what was and what is."""
    for _ in range(2):
        await api("PUT", "prices/mock/mystery", DEAR)
    await api("DELETE", "prices/mock/mystery")
    removed, again, first = (await api("GET", "audit-logs?action=price.*")).json["data"]
    assert [one["action"] for one in (removed, again, first)] == ["price.removed", "price.set", "price.set"]
    assert (first["subject"], first["actor"], first["before"], first["tenant"]) == ("mock/mystery", "admin key", None, [])
    assert first["after"]["price"] == DEAR == again["before"]["price"] == removed["before"]["price"]
    assert removed["after"] is None


async def test_a_request_under_way_keeps_its_price(api: Api) -> None:
    """The one after it has the new one; what is held in between is each at its own."""
    api.bench.mocked(completion=20, tpot=10)
    connection = await api.bench.open(max_tokens=20, stream=True)
    await connection.until(b"chat.completion.chunk")
    await api("PUT", "prices/mock/mock-chat", DEAR)
    await connection.until(b"[DONE]")
    await api.bench.quiet()
    assert api.bench.record.cost_nano_usd == PROMPT_TOKENS * 500 + 20 * 1000
    assert await cost(api) == PROMPT_TOKENS * 5000 + 20 * 10_000


async def test_it_outlives_restarts_and_reaches_other_replicas(tmp_path: Path, records_url: str) -> None:
    """A gateway that starts later knows it, and one that runs beside it hears of a change within a second or so."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    shared = {**settings(tmp_path, records_url), "ledger": f"sqlite:///{tmp_path}/ledger.db"}
    async with running(one, **shared) as bench:
        bench.whole = False
        await Api(bench)("PUT", "prices/mock/mystery", DEAR)
    async with running(one, **shared) as first, running(two, **shared) as second:
        first.whole = second.whole = False
        here, there = Api(first), Api(second)
        assert await here.told("sk-key", model="unknown") == await there.told("sk-key", model="unknown") == "200"
        await here("DELETE", "prices/mock/mystery")
        assert await here.told("sk-key", model="unknown") == "price_unknown"
        for _ in range(200):
            if await there.told("sk-key", model="unknown") == "price_unknown":
                break
            await asyncio.sleep(0.02)
        assert await there.told("sk-key", model="unknown") == "price_unknown"


async def test_it_survives_a_reload_that_loses_and_brings_back_the_deployment(tmp_path: Path) -> None:
    """Meanwhile it is shown as one that is for nothing, and can be taken back."""
    async with running(tmp_path, **settings(tmp_path)) as bench:
        bench.whole = False
        api = Api(bench)
        await api("PUT", "prices/mock/mystery", DEAR)
        without = config_text(tmp_path, bench.mock.base_url, **{**settings(tmp_path), "models": ""})
        await bench.worker.apply(load_text(without, {}))
        shown = (await api("GET", "prices/mock/mystery")).json
        assert (shown["in_use"], shown["price"], shown["models"], shown["over"]) == (False, None, [], None)
        await bench.worker.apply(bench.loaded)
        assert await api.told("sk-key", model="unknown") == "200"
        assert (await api("DELETE", "prices/mock/mystery")).status == 200


async def test_a_name_that_is_given_twice_is_refused(api: Api) -> None:
    """Wherever it stands; one of the two would count, and nobody would know which."""
    for body in (b'{"input": 1, "output": 1, "date": "2026-11-01", "source": "s", "input": 2}', b'{"tools": {"a": 1, "\\u0061": 2}}'):
        head = b"PUT /admin/v1/prices/mock/mock-chat HTTP/1.1\r\nhost: g\r\nauthorization: Bearer %b\r\ncontent-type: application/json\r\n"
        reply = await api.bench.raw(head % KEY.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert (reply.status, reply.code, reply.error["param"]) == (400, "invalid_body", "input" if b"input" in body else "a")
    assert (await api("GET", "prices/mock/mock-chat")).json["origin"] == "deployment"

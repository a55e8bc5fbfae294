"""Keys, tenants and limits through the admin API, on SQLite and on a real PostgreSQL: what is written is shown, binds at once and is audited."""

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import text

from sluicegate import app
from sluicegate.config.fields import ConfigError
from sluicegate.config.load import load_text
from sluicegate.core.claims import Admission
from sluicegate.core.counters import refs
from sluicegate.core.expired import tag
from sluicegate.ledger.contract import LedgerUnavailable
from support_admin import KEY, OPERATOR, VIEWER, Api, more
from support_inloop import Bench, config_text, running
from support_time import undisturbed


@pytest.fixture
async def api(tmp_path: Path, records_url: str) -> AsyncIterator[Api]:
    async with running(tmp_path, records=records_url, more=more(), org="[100k tokens/day]", limits="[50 requests/day]") as bench:
        bench.whole = False  # keys that are made here are not among those that the audit knows
        yield Api(bench)


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Api]:
    """On SQLite alone."""
    async with running(tmp_path, more=more(), org="[100k tokens/day]", limits="[50 requests/day]") as bench:
        bench.whole = False
        yield Api(bench)


# -- keys ---------------------------------------------------------------------------------------------------------------------------------

WRITTEN = {
    "limits": ["$5/month", {"amount": 20000, "unit": "tokens", "per": "minute", "burst": 40000}],
    "models": ["chat"],
    "cidr": ["127.0.0.0/8"],
    "priority": "low",
    "metadata": {"team": "ml"},
    "may_create_sub_keys": True,
}


async def test_case_5_what_is_written_is_echoed(api: Api) -> None:
    """By the answer, by GET and by the list, the secret by the first alone; it works."""
    made = await api.key(expires="2999-01-01T00:00:00+01:00", **WRITTEN)
    secret = made.pop("secret")
    assert {name: made[name] for name in WRITTEN} == WRITTEN
    assert (made["id"], made["owner"], made["source"], made["expires_at"]) == ("acme/@k", "acme", "api", "2998-12-31T23:00:00Z")
    assert [one["last4"] for one in made["secrets"]] == [secret[-4:]]
    assert (await api("GET", "keys/acme/@k")).json == made == (await api("GET", "keys?owner=acme&limit=1000")).json["data"][0]
    assert (await api("GET", f"keys/{quote('acme/@k', safe='')}")).json == made
    assert await api.told(secret) == "200"
    assert await api.told(secret, model="free") == "model_not_found"
    assert secret not in (await api("GET", "keys")).body.decode() + (await api("GET", "audit-logs")).body.decode()


WRONG: tuple[tuple[Any, str], ...] = (
    ({"name": "k", "budget": {"limit": 1}, "owner": "acme"}, "400 unknown_field budget"),
    ({"name": "k", "owner": "acme", "limits": ["5 apples/day"]}, "400 invalid_value limits.0"),
    ({"name": "k", "owner": "acme", "limits": [5]}, "400 invalid_value limits.0"),
    ({"name": "k", "owner": "acme", "metadata": {"a": 5}}, "400 invalid_value metadata.a"),
    ({"name": "k", "owner": "acme", "limits": [{"amount": 5, "unit": "usd", "per": "day", "limit": 1}]}, "400 invalid_value limits.0.limit"),
    ({"name": "k", "owner": "acme", "models": ["none"]}, "400 invalid_value models.0"),
    ({"name": "k", "owner": "acme", "cidr": ["10.0.0.0/99"]}, "400 invalid_value cidr.0"),
    ({"name": "k", "owner": "acme", "expires": "soon"}, "400 invalid_value expires"),
    ({"name": "k", "owner": "acme", "expires": "2020-01-01T00:00:00Z"}, "400 invalid_value expires"),
    ({"name": "k k", "owner": "acme"}, "400 invalid_value name"),
    ({"owner": "acme"}, "400 missing_field name"),
    ({"name": "k", "owner": "none"}, "404 tenant_not_found owner"),
    ({"name": "k", "owner": "acme/@none"}, "404 key_not_found owner"),
    ({"name": "key", "owner": "acme"}, "409 key_exists name"),
    ({"name": "k", "owner": "acme\x00"}, "400 invalid_value owner"),
)


async def test_what_is_wrong_with_a_key(small: Api) -> None:
    """Is told with its field; nothing is made."""
    for body, told in WRONG:
        assert await small.code("POST", "keys", body) == told
    assert [key["id"] for key in (await small("GET", "keys")).json["data"]] == ["acme/@key"]


async def test_case_8_null_is_no_limit_and_0_is_nothing(small: Api) -> None:
    """`limits: null` binds nothing, `$0/day` all that costs."""
    free = await small.key("free", limits=None)
    shut = await small.key("shut", limits=["$0/day"])
    assert [await small.told(one["secret"]) for one in (free, shut)] == ["200", "request_too_large"]
    assert await small.told(shut["secret"], model="free") == "200"


async def test_case_100_a_key_is_changed_blocked_rotated_and_deleted(api: Api) -> None:
    """At once; names that are taken, and what is not there any more, are told."""
    made = await api.key(limits=["1 requests/day"])
    assert [await api.told(made["secret"]) for _ in range(2)] == ["200", "budget_exceeded"]
    raised = await api("PATCH", "keys/acme/@k/limits", {"limits": ["3 requests/day"]})
    assert raised.json["limits"] == ["3 requests/day"]
    assert [await api.told(made["secret"]) for _ in range(3)] == ["200", "200", "budget_exceeded"]  # what was used stays used
    changed = await api("PATCH", "keys/acme/@k", {"limits": None, "metadata": {"a": "b"}, "expires": "1h"})
    assert (changed.json["limits"], changed.json["metadata"], changed.json["expires_at"] is not None) == ([], {"a": "b"}, True)
    assert changed.json["secrets"] == made["secrets"]
    for _ in range(2):
        assert (await api("POST", "keys/acme/@k/block")).json["blocked"] is True
    assert await api.told(made["secret"]) == "key_blocked"
    assert (await api("GET", "keys?blocked=true")).json["data"][0]["id"] == "acme/@k"
    assert (await api("POST", "keys/acme/@k/unblock")).json["blocked"] is False
    rotated = (await api("POST", "keys/acme/@k/rotate", {"grace": "60s"})).json
    assert [one["ends_at"] is not None for one in rotated["secrets"]] == [True, False]
    assert [await api.told(secret) for secret in (made["secret"], rotated["secret"])] == ["200", "200"]
    at_once = (await api("POST", "keys/acme/@k/rotate")).json
    await asyncio.sleep(0.01)
    assert [await api.told(secret) for secret in (rotated["secret"], at_once["secret"])] == ["key_expired", "200"]
    assert await api.code("POST", "keys", {"owner": "acme", "name": "k"}) == "409 key_exists name"
    assert (await api("DELETE", "keys/acme/@k")).json == {"object": "key.deleted", "id": "acme/@k"}
    assert await api.told(at_once["secret"]) == "invalid_api_key"
    assert {await api.code(verb, "keys/acme/@k") for verb in ("GET", "DELETE")} == {"404 key_not_found id"}


async def test_what_the_file_defines_is_overridden_and_comes_back(api: Api) -> None:
    """Limits, models and blocking, marked as such; everything else says where it is changed and what can be overridden."""
    shown = (await api("GET", "keys/acme/@key")).json
    assert (shown["source"], shown["limits"], shown["override"]) == ("file", ["50 requests/day"], None)
    changed = (await api("PATCH", "keys/acme/@key", {"limits": ["1 requests/day"]})).json
    assert (changed["limits"], changed["override"]["limits"]) == (["1 requests/day"], ["1 requests/day"])
    assert [await api.told("sk-key") for _ in range(2)] == ["200", "budget_exceeded"]
    assert (await api("POST", "keys/acme/@key/block")).json["override"]["limits"] == ["1 requests/day"]
    assert await api.told("sk-key") == "key_blocked"
    await api("POST", "keys/acme/@key/unblock")
    assert (await api("PATCH", "keys/acme/@key", {"limits": None})).json["override"] is None
    assert await api.told("sk-key") == "200"
    for verb, path, body in (
        *(("PATCH", "keys/acme/@key", {field: value}) for field, value in (("metadata", {}), ("expires", "1h"), ("cidr", []), ("priority", "low"))),
        ("DELETE", "keys/acme/@key", None),
        ("POST", "keys/acme/@key/rotate", {"grace": "1s"}),
        ("PATCH", "tenants/acme", {"metadata": {}}),
        ("DELETE", "tenants/acme", None),
    ):
        reply = await api(verb, path, body)
        assert (reply.status, reply.code) == (409, "defined_in_file") and "`limits`, `models` and `blocked`" in reply.error["message"], path
    await api("PATCH", "tenants/acme/limits", {"limits": ["10 tokens/day"]})
    assert await api.told("sk-key") == "request_too_large"
    assert (await api("DELETE", "tenants/acme/override")).json["object"] == "override.deleted"
    assert await api.code("DELETE", "tenants/acme/override") == "404 override_not_found id"
    assert await api.told("sk-key") == "200"


async def test_a_key_that_both_define_is_listed_once(tmp_path: Path) -> None:
    """As the file's."""
    async with running(tmp_path, more=more()) as bench:
        bench.whole = False
        api = Api(bench)
        for name in ("a", "new", "z"):
            await api.key(name)
        text = config_text(tmp_path, bench.mock.base_url, more=more(), tenants="\n  acme: {keys: [{name: new, key: sk-new}]}")
        await bench.worker.apply(load_text(text, {}))
        for size in (1, 2, 3):
            seen: list[tuple[str, str]] = []
            after: str | None = ""
            while after is not None:
                page = (await api("GET", f"keys?limit={size}&after={quote(after, safe='')}")).json
                seen += [(one["id"], one["source"]) for one in page["data"]]
                after = page["next"]
            assert seen == [("acme/@a", "api"), ("acme/@new", "file"), ("acme/@z", "api")]


async def test_lists_come_in_pages(api: Api) -> None:
    """Keys of the file and of the directory, and tenants, each once and by id, whatever the page; of one owner, with all below it."""
    await api("POST", "tenants", {"id": "acme/team"})
    for n in range(4):
        await api.key(f"k{n}", owner="acme/team" if n % 2 else "acme")
    for path in ("keys?", "tenants?", "keys?owner=acme/team&"):
        whole = [one["id"] for one in (await api("GET", path)).json["data"]]
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            page = (await api("GET", f"{path}limit=1&after={quote(after, safe='')}")).json
            seen += [one["id"] for one in page["data"]]
            after = page["next"]
        assert seen == whole == sorted(whole)
    assert whole == ["acme/team/@k1", "acme/team/@k3"]


# -- tenants and limits -------------------------------------------------------------------------------------------------------------------


async def test_tenants(api: Api) -> None:
    """A tree of the file's and of made ones; one with something below it stays; one that is called like an action can be asked for."""
    made = await api("POST", "tenants", {"id": "acme/status", "limits": ["$1/day"], "metadata": {"a": "b"}})
    assert (made.status, made.json["parent"], made.json["kind"], made.json["limits"]) == (201, "acme", "team", ["$1/day"])
    robot = (await api("POST", "tenants", {"id": "acme/status/robot", "kind": "service_account", "limits": ["2 requests/day"]})).json
    assert robot["kind"] == "service_account"
    key = await api.key(owner="acme/status/robot")
    assert [await api.told(key["secret"]) for _ in range(3)] == ["200", "200", "budget_exceeded"]
    status = (await api("GET", "tenants/acme/status/robot/status")).json
    assert [(one["id"], one["used"], one["remaining"]) for one in status["limits"]][-1] == ("acme/status/robot:requests:day", 2, 0)
    assert "service account robot" in status["limits"][-1]["name"]
    assert (await api("GET", "tenants/acme/status/")).json == made.json | {"limits": ["$1/day"]}
    assert (await api("GET", "tenants/acme/status")).json["id"] == "acme"  # how acme stands
    assert [one["id"] for one in (await api("GET", "tenants?below=acme")).json["data"]] == ["acme/status", "acme/status/robot"]
    assert (await api("POST", "tenants/acme/status/robot/block")).json["blocked"] is True
    assert await api.told(key["secret"]) == "key_blocked"
    assert await api.code("DELETE", "tenants/acme/status/") == "409 tenant_not_empty id"
    for code, body in (
        ("409 tenant_exists id", {"id": "acme"}),
        ("404 tenant_not_found id", {"id": "none/x"}),
        ("400 invalid_value kind", {"id": "robots", "kind": "service_account"}),
        ("400 invalid_value id", {"id": "acme/a b"}),
        ("400 unknown_field budget", {"id": "x", "budget": {}}),
    ):
        assert await api.code("POST", "tenants", body) == code
    await api("DELETE", "keys/acme/status/robot/@k")
    assert await api.code("DELETE", "tenants/acme/status/robot") == "200"
    assert await api.code("GET", "tenants/acme/status/robot") == "404 tenant_not_found id"


async def test_a_tenant_that_the_file_comes_to_define(tmp_path: Path) -> None:
    """Is the file's: it is shown and changed as such, and marked; what was made here binds nothing then, and can be deleted."""
    async with running(tmp_path, more=more()) as bench:
        bench.whole = False
        api = Api(bench)
        await api("POST", "tenants", {"id": "acme/team", "limits": ["1 requests/day"]})
        await api("POST", "tenants/acme/team/block")
        key = await api.key(owner="acme/team")
        assert await api.told(key["secret"]) == "key_blocked"
        text = config_text(tmp_path, bench.mock.base_url, more=more(), tenants="\n  acme: {children: {team: {limits: [2 requests/day]}}}")
        await bench.worker.apply(load_text(text, {}))
        shown = (await api("GET", "tenants/acme/team")).json
        assert (shown["source"], shown["limits"], shown["blocked"], shown["made_too"]) == ("file", ["2 requests/day"], False, True)
        assert [await api.told(key["secret"]) for _ in range(3)] == ["200", "200", "budget_exceeded"]
        changed = (await api("PATCH", "tenants/acme/team", {"limits": ["3 requests/day"]})).json
        assert (changed["limits"], changed["override"]["limits"]) == (["3 requests/day"], ["3 requests/day"])
        assert [await api.told(key["secret"]) for _ in range(2)] == ["200", "budget_exceeded"]
        assert await api.code("PATCH", "tenants/acme/team", {"metadata": {}}) == "409 defined_in_file id"
        assert await api.code("DELETE", "tenants/acme/team") == "200"
        assert (await api("GET", "tenants/acme/team")).json["made_too"] is False
        assert await api.code("DELETE", "tenants/acme/team") == "409 defined_in_file id"


async def test_an_increase_is_for_a_time(api: Api) -> None:
    """It shows in the limit, in the lists, and is gone when it is ended; what was used stays used."""
    made = await api.key(limits=["1 requests/lifetime"])
    assert [await api.told(made["secret"]) for _ in range(2)] == ["200", "budget_exceeded"]
    more = await api("POST", "keys/acme/@k/increases", {"limit": "requests:lifetime", "by": 2, "until": "1h", "reason": "a demo"})
    assert (more.status, more.json["limit"], more.json["by"], more.json["reason"]) == (201, "acme/@k:requests:lifetime", 2, "a demo")
    assert [await api.told(made["secret"]) for _ in range(3)] == ["200", "200", "budget_exceeded"]
    assert (await api("GET", "keys/acme/@k/increases")).json["data"] == [more.json] == (await api("GET", "keys/acme/@k")).json["increases"]
    path = f"keys/acme/@k/increases/{more.json['id']}"
    assert [await api.code("DELETE", path) for _ in range(2)] == ["200", "404 increase_not_found increase"]
    assert await api.told(made["secret"]) == "budget_exceeded"
    for told, body in (
        ("400 invalid_value limit", {"limit": "usd:day", "by": 1, "until": "1h"}),
        ("400 invalid_value by", {"limit": "requests:lifetime", "by": 0.5, "until": "1h"}),
        ("400 invalid_value until", {"limit": "requests:lifetime", "by": 1, "until": "2001-01-01T00:00:00Z"}),
    ):
        assert await api.code("POST", "keys/acme/@k/increases", body) == told
    assert (await api("POST", "tenants/acme/increases", {"limit": "acme:tokens:day", "by": 5, "until": "1h"})).status == 201
    assert await api.code("POST", "tenants/none/increases", {"limit": "tokens:day", "by": 5, "until": "1h"}) == "404 tenant_not_found id"


async def test_what_was_used_is_corrected(api: Api) -> None:
    """Of one limit alone; once for an id; never below nothing; the records agree when the ledger is made anew, and the audit log says who."""
    made = await api.key(limits=["$1/day", "5 requests/day"])
    assert await api.told(made["secret"]) == "200"
    limit = "limits/acme/@k:usd:day"
    used = (await api("GET", limit)).json["used"]
    assert used > 0
    asked = {"amount": 0.25, "reason": "billed by hand", "id": "fix-1"}
    for _ in range(2):
        done = (await api("POST", f"{limit}/adjust", asked)).json
        assert (done["id"], done["applied"], done["limit_status"]["used"]) == ("fix-1", True, pytest.approx(used + 0.25))
    assert await api.code("POST", f"{limit}/adjust", asked | {"amount": 1}) == "409 adjustment_exists id"
    back = (await api("POST", f"{limit}/adjust", {"amount": -0.05, "reason": "credited"})).json
    assert back["limit_status"]["used"] == pytest.approx(used + 0.2)
    assert await api.code("POST", f"{limit}/adjust", {"amount": -0.5, "reason": "x"}) == "409 below_zero amount"
    assert [one["id"] for one in (await api("GET", f"{limit}/adjustments")).json["data"]] == [back["id"], "fix-1"]
    requests = (await api("GET", "limits/acme/@k:requests:day")).json
    assert requests["used"] == 1
    await api("POST", f"{limit}/adjust", {"amount": 0.9, "reason": "all of it"})
    assert await api.told(made["secret"]) == "budget_exceeded"
    log = (await api("GET", "audit-logs?action=limit.adjusted")).json["data"]
    assert [(one["actor"], one["reason"], one["key_id"]) for one in log][-1] == ("admin key", "billed by hand", "acme/@k")
    assert len(log) == 3
    for told, path, body in (
        ("400 missing_field reason", limit, {"amount": 1}),
        ("400 invalid_value amount", limit, {"amount": 0, "reason": "x"}),
        ("404 limit_not_found id", "limits/acme/@k:usd:week", {"amount": 1, "reason": "x"}),
        ("404 key_not_found id", "limits/acme/@none:usd:day", {"amount": 1, "reason": "x"}),
    ):
        assert await api.code("POST", f"{path}/adjust", body) == told
    await seeded_anew(api)
    assert (await api("GET", limit)).json["used"] == pytest.approx(used + 1.1)
    assert (await api("GET", "limits/acme/@k:requests:day")).json["used"] == 1


@pytest.mark.parametrize("reached", [False, True])
@pytest.mark.parametrize("lost", [False, True])
async def test_a_correction_without_an_answer_is_sent_again(small: Api, reached: bool, lost: bool) -> None:
    """The ledger did not answer, whether it has taken it or not; by the next time it may have been made anew: it counts once."""
    made = await small.key(limits=["100 requests/day"])
    assert await small.told(made["secret"]) == "200"
    ledger, limit = small.bench.ledger, "limits/acme/@k:requests:day"
    settle = ledger.settle

    def silent(settlement: Any) -> Any:
        if settlement.hold_id.startswith("adjustment.") and reached:
            settle(settlement)
        failing = asyncio.get_running_loop().create_future()
        failing.set_exception(LedgerUnavailable("it does not answer"))
        return failing

    ledger.settle = silent  # type: ignore[method-assign]
    first = await small("POST", f"{limit}/adjust", {"amount": 7, "reason": "x"})
    ledger.settle = settle  # type: ignore[method-assign]
    assert (first.status, first.code) == (503, "ledger_unavailable") and first.headers["retry-after"] == "1"
    (row,) = (await small("GET", f"{limit}/adjustments")).json["data"]
    assert not row["applied"] and row["id"] in first.error["message"]
    if lost:
        await seeded_anew(small)
    for _ in range(2):
        again = (await small("POST", f"{limit}/adjust", {"amount": 7, "reason": "x", "id": row["id"]})).json
        assert (again["applied"], again["limit_status"]["used"]) == (True, 8)
    assert len((await small("GET", "audit-logs?action=limit.adjusted")).json["data"]) == 1


async def seeded_anew(api: Api) -> None:
    """The ledger has lost all, and got it back from the records."""
    worker = api.bench.worker
    await worker._outbox.flush()
    book = worker.ledger._book  # type: ignore[attr-defined]
    book.epochs, book.counters = {tree: {} for tree in book.epochs}, {}
    deadline = time.monotonic() + 60
    await api.told("sk-key")  # which finds out
    while await api.told("sk-key") != "200":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_limits_are_listed_with_their_ids(small: Api) -> None:
    """Of all tenants and keys, of a key of the directory, of a tenant; what refills is not adjusted."""
    await small.key(limits=["7 requests/minute"])
    of_all = [one["id"] for one in (await small("GET", "limits")).json["data"]]
    assert of_all == ["acme:tokens:day", "acme/@k:requests:bucket-1m", "acme/@key:requests:day"]
    of_key = (await small("GET", "limits?key=acme/@k")).json["data"]
    assert [(one["id"], one["limit"]) for one in of_key] == [("acme:tokens:day", 100_000), ("acme/@k:requests:bucket-1m", 7)]
    assert [one["id"] for one in (await small("GET", "limits?tenant=acme&limit=1")).json["data"]] == ["acme:tokens:day"]
    adjusting = {"amount": 1, "reason": "x"}
    assert await small.code("POST", "limits/acme/@k:requests:bucket-1m/adjust", adjusting) == "400 not_adjustable id"
    assert await small.code("GET", "limits?tenant=none") == "404 tenant_not_found tenant"


# -- holds --------------------------------------------------------------------------------------------------------------------------------


async def open_stream(api: Api, **fields: Any) -> Any:
    """A request that is under way, and its hold as the API shows it."""
    stream = await api.bench.open("sk-key", stream=True, max_tokens=fields.pop("max_tokens", 100))
    await stream.until(b"data: ")
    (hold,) = (await api("GET", "holds")).json["data"]
    return stream, hold


async def test_a_hold_of_a_live_request(api: Api) -> None:
    """It is shown; settled by an operator it is charged as held, and what the request really used counts in the end."""
    api.bench.mocked(completion=40, tpot="20ms")
    stream, hold = await open_stream(api)
    with api.bench.held():
        await settled_by_hand(api, hold)
    assert (await stream.rest()).done
    await api.bench.quiet()
    assert (await api("GET", "limits/acme:tokens:day")).json["used"] == 49
    assert (await api("GET", "holds")).json["data"] == []
    await api.bench.worker._outbox.flush()
    total = (await api("GET", "usage")).json["total"]
    assert total["input_tokens"] + total["output_tokens"] == 109  # of what an expiry and a late settlement tell, the records keep the higher
    assert await api.code("POST", f"holds/{hold['id']}/settle") == "404 hold_not_found id"
    actors = [one["actor"] for one in (await api("GET", "audit-logs?action=hold.settled")).json["data"]]
    assert actors == ["on-call", "on-call"]


async def settled_by_hand(api: Api, hold: Any) -> None:
    """What it is charged before its request has ended."""
    assert (hold["state"], hold["key_id"], hold["deployment"], hold["granted"]) == ("open", "acme/@key", "mock/mock-chat", 100)
    assert 0 <= hold["age_s"] < 60 and {"acme:tokens:day", "acme/@key:requests:day"} <= {one["counter"].rpartition(":")[0] for one in hold["amounts"]}
    assert (await api("GET", "tenants/acme/status")).json["in_flight"] == 1
    assert await api.code("POST", f"holds/{hold['id']}/settle", {"output_tokens": 1}) == "409 hold_alive id"
    assert await api.code("POST", f"holds/{hold['id']}/settle", {"output_tokens": 101}, OPERATOR) == "400 invalid_value output_tokens"
    for _ in range(2):
        settled = await api("POST", f"holds/{hold['id']}/settle", key=OPERATOR)
        assert (settled.status, [one["amount"] for one in settled.json["charged"] if one["unit"] == "tokens"]) == (200, [109])
        assert await api.code("POST", f"holds/{hold['id']}/settle", {"output_tokens": 0}, OPERATOR) == "409 hold_alive id"
    assert (await api("GET", "limits/acme:tokens:day")).json["used"] == 109
    (expired,) = (await api("GET", "holds")).json["data"]
    assert (expired["state"], expired["expires_at"]) == ("expired", None)


async def test_a_hold_that_nobody_has_any_more(api: Api) -> None:
    """Its worker is gone: an operator who knows what it produced says so, once; ledger and records agree."""
    ledger, key = api.bench.ledger, api.bench.keys["sk-key"]
    of = tag("req_gone", key.id, "mock/mock-chat", "chat", 9, app.time_ms() - 5_000)
    refset = refs("acme", key.counters, ledger.now_ms())
    amounts = [number for counter in key.counters for number in ((9, 1000) if counter.unit == "tokens" else (1, 0))]
    reply = await ledger.admit(Admission("req_gone.1", refset, tuple(amounts), 1, 100, 100, 10_000, of))
    assert reply.g == 100
    (hold,) = (await api("GET", "holds?tree=acme")).json["data"]
    assert (hold["id"], hold["model"], hold["input_tokens"], 4 < hold["age_s"] < 60) == ("acme:req_gone.1", "chat", 9, True)
    settled = await api("POST", "holds/acme:req_gone.1/settle", {"output_tokens": 30}, OPERATOR)
    assert settled.status == 200 and [one["amount"] for one in settled.json["charged"]] == [39, 1]
    assert (await api("GET", "limits/acme:tokens:day")).json["used"] == 39
    assert (await api("GET", "holds")).json["data"] == []
    await api.bench.worker._outbox.flush()
    total = (await api("GET", "usage")).json["total"]
    assert (total["input_tokens"], total["output_tokens"], total["counted"]) == (9, 30, 1)
    assert await api.code("POST", "holds/acme:req_gone.1/settle", {"output_tokens": 30}) == "404 hold_not_found id"
    for path in ("holds/none:x/settle", "holds/acme:x/settle", "holds/x/settle"):
        assert await api.code("POST", path) == "404 hold_not_found id"
    assert await api.code("GET", "holds?after=x") == "400 invalid_value after"


# -- of itself ----------------------------------------------------------------------------------------------------------------------------


async def test_case_101_and_125_a_key_sees_itself_and_makes_keys(api: Api) -> None:
    """Its limits, what it used, its sub-keys and nobody else's; ten of them have its limit together."""
    made = await api.key(limits=["8 requests/day"], may_create_sub_keys=True)
    await api.key("other", limits=["8 requests/day"])
    own = made["secret"]
    subs = [(await api("POST", "me/keys", {"name": f"s{n}", "limits": ["5 requests/day"]}, own)).json for n in range(10)]
    assert [one["id"] for one in subs] == [f"acme/@k/@s{n}" for n in range(10)]
    codes = await asyncio.gather(*(api.told(subs[n % 10]["secret"]) for n in range(12)))
    assert codes.count("200") == 8 and set(codes) <= {"200", "budget_exceeded", "budget_busy"}
    assert await api.told(own) == "budget_exceeded"
    me = (await api("GET", "me", key=own)).json
    assert (me["key"]["id"], len(me["keys"]), me["in_flight"]) == ("acme/@k", 10, 0)
    assert [(one["id"], one["used"]) for one in me["limits"] if one["unit"] == "requests"] == [("acme/@k:requests:day", 8)]
    assert "other" not in json.dumps(me)
    await api.bench.worker._outbox.flush()
    assert (await api("GET", "me/usage?group_by=key", key=own)).json["total"]["counted"] == 8
    assert (await api("GET", "me/usage?key=acme/@other", key=own)).json["total"]["requests"] == 0
    assert (await api("GET", "me/usage", key=subs[0]["secret"])).json["total"]["counted"] <= 2
    assert await api.code("POST", "me/keys", {"name": "x"}, subs[0]["secret"]) == "403 not_allowed"
    for verb, path in (("DELETE", "me/keys/acme/@other"), ("DELETE", "me/keys/acme/@k"), ("POST", "me/keys/acme/@key/rotate")):
        assert await api.code(verb, path, key=own) == "404 key_not_found id"
    rotated = await api("POST", "me/keys/acme/@k/@s0/rotate", {"grace": "0s"}, own)
    assert rotated.status == 200 and rotated.json["secret"] != subs[0]["secret"]
    assert await api.code("DELETE", "me/keys/acme/@k/@s1", key=own) == "200"
    assert len((await api("GET", "me/keys", key=own)).json["data"]) == 9
    actors = {one["actor"] for one in (await api("GET", "audit-logs?action=key.deleted")).json["data"]}
    assert actors == {"key acme/@k"}


async def test_a_key_of_the_file_may_make_keys(tmp_path: Path) -> None:
    """Where the file says so; a tenant of the file may be a service account, an organization may not."""
    key = "{name: key, key: sk-key, limits: [2 requests/day], may_create_sub_keys: on}"
    tenants = f"\n  acme: {{children: {{nightly: {{kind: service_account, keys: [{key}]}}}}}}"
    async with running(tmp_path, tenants=tenants, more=more()) as bench:
        bench.whole = False
        api = Api(bench)
        made = (await api("POST", "me/keys", {"name": "sub", "expires": "1h"}, "sk-key")).json
        assert (made["id"], made["may_create_sub_keys"]) == ("acme/nightly/@key/@sub", False)
        assert [await api.told(secret) for secret in (made["secret"], "sk-key", made["secret"])] == ["200", "200", "budget_exceeded"]
        assert (await api("GET", "me", key="sk-key")).json["key"]["may_create_sub_keys"] is True
        assert (await api("GET", "tenants/acme/nightly")).json["kind"] == "service_account"
        for n in range(96):
            await bench.worker.changes.create_key("acme/nightly/@key", f"s{n}")
        at_once = await asyncio.gather(*(api.code("POST", "me/keys", {"name": f"more{n}"}, "sk-key") for n in range(8)))
        assert sorted(at_once) == ["201"] * 3 + ["409 too_many_keys"] * 5
        with pytest.raises(ConfigError, match="kind"):
            load_text(config_text(tmp_path, "http://127.0.0.1:9", tenants="\n  acme: {kind: service_account}", more=more()), {})


ENFORCED = {
    "limits": [],
    "models": None,
    "cidr": [],
    "expires": None,
    "priority": "high",
    "blocked": False,
    "may_create_sub_keys": True,
    "owner": "other",
    "name": "x",
    "id": "x",
    "budget": 1,
    "max_budget": 1,
    "rpm_limit": 1,
    "override": None,
}


async def test_case_18_a_key_changes_nothing_that_is_enforced(api: Api) -> None:
    """By its own route each such field is a 403 that names it, by an administrator's any is one; what decides nothing it may write."""
    made = await api.key(limits=["8 requests/day"], may_create_sub_keys=True)
    before = (await api("GET", "keys/acme/@k")).json
    for field, value in ENFORCED.items():
        assert await api.code("PATCH", "me", {field: value, "metadata": {}}, made["secret"]) == f"403 not_allowed {field}"
        assert await api.code("PATCH", "keys/acme/@k", {field: value}, made["secret"]) == "403 not_allowed"
    for field in ("priority", "may_create_sub_keys", "owner", "blocked"):
        assert await api.code("POST", "me/keys", {"name": "s", field: ENFORCED[field]}, made["secret"]) == f"403 not_allowed {field}"
    for verb, path in (("POST", "keys/acme/@k/unblock"), ("DELETE", "keys/acme/@key"), ("GET", "keys"), ("GET", "tenants"), ("GET", "usage")):
        assert await api.code(verb, path, key=made["secret"]) == "403 not_allowed"
    assert (await api("GET", "keys/acme/@k")).json == before
    assert (await api("PATCH", "me", {"metadata": {"note": "mine"}}, made["secret"])).json["key"]["metadata"] == {"note": "mine"}
    assert await api.code("PATCH", "me", {"metadata": {}}, "sk-key") == "409 defined_in_file id"


async def test_case_100_on_another_replica(tmp_path: Path) -> None:
    """What is blocked, overridden or rotated at one is so at the other within a second."""
    shared = {"ledger": f"sqlite:///{tmp_path}/ledger.db", "records": f"sqlite:///{tmp_path}/records.db", "more": more()}
    async with running(tmp_path / "one", **shared) as bench:
        loaded = load_text(config_text(tmp_path / "two", bench.mock.base_url, **shared), {})
        async with app.serving(loaded) as (worker, server):
            here, there = Api(bench), Api(Bench(loaded, worker, server.port, bench.mock))
            made = await here.key()
            await there.until(made["secret"], "200")
            await here("POST", "keys/acme/@k/block")
            assert await there.until(made["secret"], "key_blocked") < 1.5
            await there("POST", "keys/acme/@k/unblock")
            assert await here.until(made["secret"], "200") < 1.5
            await here("PATCH", "keys/acme/@key", {"limits": ["0 requests/day"]})
            assert await there.until("sk-key", "request_too_large") < 1.5
            rotated = (await here("POST", "keys/acme/@k/rotate", {"grace": "60s"})).json
            await there.until(rotated["secret"], "200")
            assert await there.told(made["secret"]) == "200"
            await there("DELETE", "keys/acme/@k")
            assert await here.until(rotated["secret"], "invalid_api_key") < 1.5
            bench.whole = False


# -- who may ------------------------------------------------------------------------------------------------------------------------------

CHANGES = (
    ("POST", "keys", {"owner": "acme", "name": "x"}, "admin"),
    ("PATCH", "keys/acme/@k", {"metadata": {}}, "admin"),
    ("PATCH", "keys/acme/@k/limits", {"limits": []}, "admin"),
    ("POST", "keys/acme/@k/rotate", None, "admin"),
    ("DELETE", "keys/acme/@k/override", None, "admin"),
    ("DELETE", "keys/acme/@k", None, "admin"),
    ("POST", "tenants", {"id": "x"}, "admin"),
    ("PATCH", "tenants/acme", {"limits": []}, "admin"),
    ("PATCH", "tenants/acme/limits", {"limits": []}, "admin"),
    ("DELETE", "tenants/acme", None, "admin"),
    ("POST", "limits/acme:tokens:day/adjust", {"amount": 1, "reason": "x"}, "admin"),
    ("POST", "tenants/acme/increases", {"limit": "tokens:day", "by": 1, "until": "1h"}, "admin"),
    ("DELETE", "tenants/acme/increases/x", None, "admin"),
    ("POST", "keys/acme/@k/block", None, "operator"),
    ("POST", "keys/acme/@k/unblock", None, "operator"),
    ("POST", "tenants/acme/unblock", None, "operator"),
    ("POST", "holds/acme:x/settle", None, "operator"),
    ("POST", "reload", None, "operator"),
    ("GET", "keys", None, "viewer"),
    ("GET", "keys/acme/@k", None, "viewer"),
    ("GET", "tenants/acme/status", None, "viewer"),
    ("GET", "limits", None, "viewer"),
    ("GET", "holds", None, "viewer"),
    ("GET", "audit-logs", None, "viewer"),
)


async def test_roles(small: Api) -> None:
    """A viewer sees; an operator works the gateway, without secrets and limits; the audit log has their names."""
    await small.key()
    for verb, path, body, needed in CHANGES:
        if needed != "viewer":
            assert await small.code(verb, path, body, VIEWER) == "403 not_allowed", path
        if needed == "admin":
            assert await small.code(verb, path, body, OPERATOR) == "403 not_allowed", path
        else:
            assert await small.code(verb, path, body, OPERATOR) != "403 not_allowed", path
        if needed == "viewer":
            assert await small.code(verb, path, body, VIEWER) == "200", path
    log = (await small("GET", "audit-logs", key=VIEWER)).json["data"]
    assert {(one["actor"], one["action"]) for one in log} >= {("admin key", "key.created"), ("on-call", "key.blocked"), ("on-call", "key.unblocked")}


async def test_no_secret_is_told_twice(small: Api, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither logs nor errors nor lists have one, of keys or of administrators, nor the digest of one."""
    caplog.set_level(logging.DEBUG)
    made = await small.key()
    rotated = (await small("POST", "keys/acme/@k/rotate", {"grace": "1h"})).json
    secrets = [KEY, OPERATOR, VIEWER, made["secret"], rotated["secret"], "sk-key", "sk-provider-secret"]
    told = []
    for secret in secrets:
        for verb, path, body in (
            ("POST", "keys", {"owner": "acme", "name": "x y", "metadata": {"secret": secret}, "priority": secret}),
            ("POST", "keys", {"owner": "acme", "name": "k", "expires": secret}),
            ("PATCH", "keys/acme/@k", {secret: 1, "secret": secret}),
            ("POST", "limits/acme:tokens:day/adjust", {"amount": secret, "reason": "x"}),
        ):
            told.append((await small(verb, path, body)).error["message"].replace(f"'{secret}'", ""))
        told.append((await small("GET", "me", key=secret + "x")).body.decode())
    for path in ("keys", "tenants", "audit-logs", "limits", "holds", "health", "configuration"):
        told.append((await small("GET", path)).body.decode())
    seen = "".join(told) + caplog.text + "".join(capfd.readouterr())
    for secret in secrets:
        assert secret not in seen.replace("acme/@key", "") and hashlib.sha256(secret.encode()).hexdigest() not in seen


# -- many ---------------------------------------------------------------------------------------------------------------------------------

MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) "
ROWS = "'acme/@k' || i, 'acme', 'k' || i, '[]', NULL, '[]', '', '{}', 0, i % 1000 = 7, 0, 0, 0, 0, 'acme', 0"
KEYS = f"{MANY} INSERT INTO directory_keys SELECT {ROWS} FROM n"


async def test_a_hundred_thousand_keys(small: Api) -> None:
    """A page of them, one of them, and those of one owner or that are blocked are there at once."""
    await small.key("first")
    store = small.bench.worker.directory.store
    store._database._timeout_s = 60
    await store.call(lambda connection: connection.execute(text(KEYS)) and None)
    began = undisturbed()
    page = (await small("GET", "keys?limit=1000&after=acme/@k5")).json
    assert (len(page["data"]), page["data"][0]["id"], page["has_more"]) == (1000, "acme/@k50", True)
    assert (await small("GET", "keys/acme/@k77777")).json["id"] == "acme/@k77777"
    assert len((await small("GET", "keys?blocked=true&limit=50")).json["data"]) == 50
    assert (await small("GET", "keys?owner=acme/@k99999")).json["data"] == []
    assert (await small("POST", "keys/acme/@k5/block")).status == 200
    assert undisturbed() - began < 3

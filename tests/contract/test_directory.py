"""The tables of keys and tenants, on SQLite and on a real PostgreSQL: each change is whole, and shows in the version."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from sluicegate.records import directory as tables
from sluicegate.records.directory import Directory
from sluicegate.records.directory_rows import IncreaseRow, KeyRow, Missing, OverrideRow, SecretRow, Taken, TenantRow

DIGEST = "ab" * 32


@pytest.fixture
async def store(records_url: str) -> AsyncIterator[Directory]:
    store = Directory(records_url)
    yield store
    await store.close()


async def ask(store: Directory, work: Any, **arguments: Any) -> Any:
    return await store.call(partial(work, **arguments))


def key(name: str, owner: str = "acme", **fields: Any) -> KeyRow:
    return KeyRow(f"{owner}/@{name}", owner, name, **fields)


def secret(key_id: str, digest: str = DIGEST, **fields: Any) -> SecretRow:
    return SecretRow(digest, key_id, "1234", 5, **fields)


async def test_rows_come_back_as_they_were(store: Directory) -> None:
    """With lists, mappings and what was left out, whatever is in them."""
    row = key("k", limits=["5 tokens/day", {"amount": 5, "unit": "usd", "per": "month"}], models=[], cidr=["10.0.0.0/8"], metadata={"ü": "%_'"})
    await ask(store, tables.create_key, row=row, secret=secret(row.id))
    assert await ask(store, tables.get_key, key_id=row.id) == (row, [secret(row.id)])
    found = await ask(store, tables.find, digest=DIGEST)
    assert (found.secret, found.chain) == (secret(row.id), [row])
    assert await ask(store, tables.find, digest="cd" * 32) is None
    tenant, override = TenantRow("acme/team", "acme", ["1 concurrent"], None, "low", {"a": "b"}), OverrideRow("acme", None, ["chat"], True, 7)
    increase = IncreaseRow("inc", "acme", "usd:month", 2**51, 2**45, "until the invoice")
    await ask(store, tables.create_tenant, row=tenant)
    changes = {"models": ["chat"], "blocked": True}
    assert await ask(store, tables.change_override, id="acme", changes=changes, now_ms=7) == (None, override)
    await ask(store, tables.add_increase, row=increase, now_ms=0)
    tree = await ask(store, tables.tree)
    assert (tree.tenants, tree.overrides, tree.increases, tree.organizations, tree.any_keys) == ([tenant], [override], [increase], ["acme"], True)


async def test_versions_tell_what_has_changed(store: Directory) -> None:
    """Of a key only that it has; of the first key, and of an organization's first with limits, that the tree has."""
    seen = [await ask(store, tables.version)]

    async def moved() -> tuple[bool, bool, list[str]]:
        now = await ask(store, tables.version)
        changed = await ask(store, tables.changed, since=seen[-1].all)
        seen.append(now)
        return now.all > seen[-2].all, now.tree > seen[-2].tree, changed

    await ask(store, tables.create_key, row=key("a"), secret=secret("acme/@a"))
    assert await moved() == (True, True, ["acme/@a"])
    await ask(store, tables.create_key, row=key("b"), secret=secret("acme/@b", "b" * 64))
    assert await moved() == (True, False, ["acme/@b"])
    await ask(store, tables.change_key, key_id="acme/@b", changes={"limits": ["5 tokens/day"]})
    assert await moved() == (True, True, ["acme/@b"])
    await ask(store, tables.change_key, key_id="acme/@b", changes={"blocked": True})
    assert await moved() == (True, False, ["acme/@b"])
    await ask(store, tables.add_secret, secret=secret("acme/@a", "c" * 64), others_end_ms=100)
    assert await moved() == (True, False, ["acme/@a"])
    await ask(store, tables.create_tenant, row=TenantRow("x", ""))
    assert await moved() == (True, True, [])
    for failing, arguments, error in (
        (tables.create_key, {"row": key("a"), "secret": secret("acme/@a", "d" * 64)}, Taken),
        (tables.create_tenant, {"row": TenantRow("x", "")}, Taken),
        (tables.change_key, {"key_id": "acme/@none", "changes": {}}, Missing),
        (tables.delete_tenant, {"tenant_id": "none"}, Missing),
        (tables.remove_override, {"id": "none"}, Missing),
        (tables.remove_increase, {"id": "none", "scope_id": "acme"}, Missing),
    ):
        with pytest.raises(error):
            await ask(store, failing, **arguments)
    assert await moved() == (False, False, [])


async def test_old_secrets_end(store: Directory) -> None:
    """When the grace is over, or sooner if they were to end sooner."""
    await ask(store, tables.create_key, row=key("a"), secret=secret("acme/@a"))
    await ask(store, tables.add_secret, secret=secret("acme/@a", "b" * 64), others_end_ms=100)
    rows = await ask(store, tables.add_secret, secret=secret("acme/@a", "c" * 64), others_end_ms=200)
    assert sorted((row.digest[0], row.ends_ms) for row in rows) == [("a", 100), ("b", 200), ("c", 0)]


async def test_a_key_goes_with_those_below_it_and_may_come_back(store: Directory) -> None:
    """Its secrets find nothing any more; another key whose name begins alike stays. One that comes back counts what was used."""
    names = (("a", "acme"), ("b", "acme/@a"), ("c", "acme/@a/@b"), ("a2", "acme"))
    for number, (name, owner) in enumerate(names):
        await ask(store, tables.create_key, row=key(name, owner), secret=secret(f"{owner}/@{name}", str(number) * 64))
    assert [row.name for row in (await ask(store, tables.find, digest="2" * 64)).chain] == ["c", "b", "a"]
    await ask(store, tables.delete_key, key_id="acme/@a", now_ms=9)
    assert [await ask(store, tables.find, digest=str(number) * 64) is not None for number in range(4)] == [False, False, False, True]
    assert [row.id for row, _ in await ask(store, tables.list_keys, below="", after="", limit=9, deleted=False)] == ["acme/@a2"]
    listed = await ask(store, tables.list_keys, below="acme", after="", limit=10, deleted=True)
    assert [(row.id, row.deleted_ms, len(secrets)) for row, secrets in listed if row.deleted_ms] == [
        ("acme/@a", 9, 0),
        ("acme/@a/@b", 9, 0),
        ("acme/@a/@b/@c", 9, 0),
    ]
    await ask(store, tables.create_key, row=key("a", limits=["5 tokens/day"]), secret=secret("acme/@a"))
    assert (await ask(store, tables.get_key, key_id="acme/@a"))[0].late


async def test_lists_are_paged(store: Directory) -> None:
    """By id, from behind one on; of one organization, or of all."""
    for number, owner in enumerate(("acme", "acme", "b_c", "bxc")):
        row = key(f"k{number}", owner, limits=["1 concurrent"])
        await ask(store, tables.create_key, row=row, secret=secret(row.id, str(number) * 64))
    assert [row.id for row in await ask(store, tables.limited, organization="acme", after="acme/@k0", limit=5)] == ["acme/@k1"]
    assert len(await ask(store, tables.limited, organization="*", after="", limit=3)) == 3
    pages = [await ask(store, tables.list_keys, below=below, after="", limit=9, deleted=False) for below in ("b_c", "acme", "")]
    assert [len(page) for page in pages] == [1, 2, 4]


async def test_a_tenant_with_something_below_it_stays(store: Directory) -> None:
    """Tenants and keys are named."""
    for row in (TenantRow("x", ""), TenantRow("x/y", "x")):
        await ask(store, tables.create_tenant, row=row)
    with pytest.raises(Taken, match="x/y"):
        await ask(store, tables.delete_tenant, tenant_id="x")
    await ask(store, tables.create_key, row=key("k", "x/y"), secret=secret("x/y/@k"))
    with pytest.raises(Taken, match="x/y/@k"):
        await ask(store, tables.delete_tenant, tenant_id="x/y")


async def test_changes_at_once(records_url: str) -> None:
    """Several processes make the tables, and the same key, at the same time: one has made it, versions rise by one each, and no change is undone."""
    stores = [Directory(records_url) for _ in range(4)]
    made = await asyncio.gather(
        *(ask(store, tables.create_key, row=key("k"), secret=secret("acme/@k", str(n) * 64)) for n, store in enumerate(stores)),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in made) == ["NoneType", "Taken", "Taken", "Taken"]
    await asyncio.gather(*(ask(store, tables.change_key, key_id="acme/@k", changes={"expires_ms": n}) for n, store in enumerate(stores)))
    assert (await ask(stores[0], tables.version)).all == 5
    several = ({"blocked": True}, {"limits": ["5 tokens/day"]}, {"priority": "low"}, {"cidr": ["10.0.0.0/8"]})
    await asyncio.gather(*(ask(store, tables.change_key, key_id="acme/@k", changes=some) for store, some in zip(stores, several, strict=True)))
    row, _ = await ask(stores[0], tables.get_key, key_id="acme/@k")
    assert (row.blocked, row.limits, row.priority, row.cidr) == (True, ["5 tokens/day"], "low", ["10.0.0.0/8"])
    for store in stores:
        await store.close()

"""The `admin:` section: where the admin API is, and what it is not switched on with."""

import hashlib

import pytest

from sluicegate.config import ConfigError, load_text
from sluicegate.config.check import warnings

ENV = {"ADMIN": "an-admin-key-of-the-operators", "SHORT": "short"}


ON = "key_env: ADMIN"


def text(admin: str, listen: str = "127.0.0.1:8080") -> str:
    return f"""
server: {{listen: "{listen}"}}
admin: {{{admin}}}
providers: {{p: {{dialect: openai, api_key: sk-p}}}}
models: {{m: {{deployments: [{{provider: p, model: x, price: {{input: 1, output: 1}}}}]}}}}
tenants: {{a: {{keys: [{{name: k, sha256: {"a" * 64}}}]}}}}
"""


def problem(admin: str, listen: str = "127.0.0.1:8080") -> str:
    with pytest.raises(ConfigError) as raised:
        load_text(text(admin, listen), ENV)
    [found] = raised.value.problems
    return str(found)


def test_off_by_default() -> None:
    """Without a key there is no admin API, and no address of its own."""
    admin = load_text(text(""), {}).config.admin
    assert (admin.secret, admin.address, admin.chaos) == (None, None, False)


@pytest.mark.parametrize("key", ["key_env: ADMIN", "key: an-admin-key-of-the-operators"])
def test_a_key_from_the_environment_or_the_file(key: str) -> None:
    """Either way it is the same secret, and no text of the configuration shows it; one that stands in the file is warned about."""
    loaded = load_text(text(key), ENV)
    admin = loaded.config.admin
    assert admin.secret is not None
    assert admin.secret.get_secret_value() == ENV["ADMIN"]
    assert ENV["ADMIN"] not in repr(loaded.config)
    assert [line.partition(":")[0] for line in warnings(loaded)] == (["admin.key"] if key.startswith("key:") else [])


@pytest.mark.parametrize(
    ("admin", "listen", "told"),
    [
        ("key_env: ADMIN, key: an-admin-key-of-the-operators", "127.0.0.1:80", "admin.key: is given twice"),
        ("key_env: SHORT", "127.0.0.1:80", "admin.key_env: must have at least 16 characters"),
        ("key: short", "127.0.0.1:80", "admin.key: must have at least 16 characters"),
        ("key_env: GONE", "127.0.0.1:80", "admin.key_env: the environment variable GONE is not set"),
        ("key_env: ADMIN", "0.0.0.0:80", "admin: needs listen (an address for /admin and /metrics alone"),
        ("key_env: ADMIN, listen: 0.0.0.0:80", "0.0.0.0:80", "admin.listen: must be another address than that of server.listen"),
        ("listen: nowhere", "127.0.0.1:80", "admin.listen: must be host:port"),
        ("chaos: on", "127.0.0.1:80", "admin.chaos: has no effect without admin.key_env"),
        ("keys: [{name: a, role: viewer, key_env: ADMIN}]", "127.0.0.1:80", "admin.keys: has no effect without admin.key_env"),
        (f"{ON}, keys: [{{name: a, role: viewer}}]", "127.0.0.1:80", "admin.keys[0]: needs key_env or sha256"),
        (f"{ON}, keys: [{{name: a, role: viewer, key_env: SHORT}}]", "127.0.0.1:80", "admin.keys[0].key_env: must have at least 16 characters"),
        (
            f"{ON}, keys: [{{name: admin key, role: viewer, key_env: ADMIN}}]",
            "127.0.0.1:80",
            "admin.keys[0].name: 'admin key' is the name",
        ),
        (f"{ON}, keys: [{{name: a, role: root, key_env: ADMIN}}]", "127.0.0.1:80", "admin.keys[0].role"),
        ("kye_env: ADMIN", "127.0.0.1:80", "admin.kye_env: unknown field; did you mean 'key_env'?"),
    ],
)
def test_what_does_not_fit(admin: str, listen: str, told: str) -> None:
    """Each mistake is told at its field; an open gateway wants the admin API at an address of its own."""
    assert told in problem(admin, listen)


def test_an_address_of_its_own() -> None:
    """Whether others can connect to it decides about /metrics, not where the data plane listens."""
    loaded = load_text(text("key_env: ADMIN, listen: 127.0.0.1:81", "0.0.0.0:80"), ENV)
    assert loaded.config.admin.address == ("127.0.0.1", 81)
    assert warnings(loaded) == []
    assert [line.partition(":")[0] for line in warnings(load_text(text("key_env: ADMIN, listen: 0.0.0.0:81"), ENV))] == ["admin.listen"]


def test_chaos_is_warned_about() -> None:
    """Where it may be caused, `check` says so."""
    [line] = warnings(load_text(text("key_env: ADMIN, chaos: on"), ENV))
    assert line.startswith("admin.chaos: is on")


def test_further_keys() -> None:
    """Each has its role and is known by its digest, whichever way it is given; none of them shows in a text of the configuration."""
    keys = f"[{{name: on-call, role: operator, key_env: OTHER}}, {{name: finance, role: viewer, sha256: {'A1' * 32}}}]"
    config = load_text(text(f"{ON}, keys: {keys}"), ENV | {"OTHER": "another-key-of-operators"}).config
    assert [(name, role) for name, role, _ in config.admin.credentials] == [("admin key", "admin"), ("on-call", "operator"), ("finance", "viewer")]
    assert [digest for *_, digest in config.admin.credentials][1:] == [hashlib.sha256(b"another-key-of-operators").digest(), bytes.fromhex("a1" * 32)]
    assert "another-key" not in repr(config)

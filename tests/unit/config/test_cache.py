"""`cache` in a configuration: what holds for which model, and what about it does not fit."""

import re
from pathlib import Path

import pytest

from sluicegate.config import ConfigError, load_text
from sluicegate.config.schema_cache import Cache, ModelCache
from sluicegate.core.tenants import Caching

DOCS = Path(__file__).parents[3] / "docs"
REST = """
providers: {mock: {provider: mock}}
tenants: {acme: {keys: [{name: k, key: sk-1}]}}
"""


def caching(cache: str = "", model: str = "", ledger: str = "memory://") -> Caching | None:
    of_model = f", cache: {model}" if model else ""
    text = f"ledger: {ledger}\nmodels: {{a: {{deployments: [{{provider: mock, model: a}}]{of_model}}}}}{REST}"
    return load_text(text + (f"cache: {cache}\n" if cache else ""), {}).policy.models["a"].cache


def problems(cache: str = "", model: str = "", ledger: str = "memory://") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        caching(cache, model, ledger)
    return [str(problem) for problem in caught.value.problems]


def test_it_is_off_unless_somebody_says_otherwise() -> None:
    """For all models, or for one; an hour and the key alone, if nothing else is said; `off` is a word of YAML, too."""
    assert caching() is None and caching("{mode: off}") is None and caching('{mode: "off", scope: team}') is None
    assert caching("{mode: all}") == Caching("all", "key", 3_600_000) == caching(model="{mode: all}")
    assert caching("{mode: all}", "{mode: off}") is None


def test_a_model_says_what_is_otherwise() -> None:
    """Mode, scope and time, each by itself."""
    everywhere = "{mode: deterministic, scope: team, ttl: 10m}"
    assert caching(everywhere) == Caching("deterministic", "team", 600_000)
    assert caching(everywhere, "{mode: seeded}") == Caching("seeded", "team", 600_000)
    assert caching(everywhere, "{ttl: 1s}") == Caching("deterministic", "team", 1_000)
    assert caching(everywhere, "{scope: global}") == Caching("deterministic", "global", 600_000)


@pytest.mark.parametrize(
    ("cache", "model", "expected"),
    [
        ("{mode: sometimes}", "", ["cache.mode: must be"]),
        ("{scope: project}", "", ["cache.scope: must be"]),
        ("{ttl: 0s}", "", ["cache.ttl: must be at least 1ms"]),
        ("{ttl: 10}", "", ["cache.ttl: must be a duration"]),
        ("{max_bytes: 1KiB}", "", ["cache.max_bytes: must be at least 64KiB"]),
        ("{max_entry: 5}", "", ["cache.max_entry: must be at least 1KiB"]),
        ("{max_bytes: 1MiB, max_entry: 2MiB}", "", ["cache.max_entry: is more than max_bytes"]),
        ("{backend: disk}", "", ["cache.backend: must be"]),
        ("{backend: redis}", "", ["cache.backend: is the ledger's Redis, and the ledger is in none"]),
        ("{size: 1MB}", "", ["cache.size: "]),
        ("", "{mode: sometimes}", ["models.a.cache.mode: must be"]),
        ("", "{ttl: 1m}", ["models.a.cache.ttl: has no effect"]),
        ("{mode: all}", "{mode: off, scope: team}", ["models.a.cache.scope: has no effect"]),
        ("", "{max_entry: 5KiB}", ["models.a.cache.max_entry: "]),
    ],
)
def test_what_is_wrong_is_named(cache: str, model: str, expected: list[str]) -> None:
    """Every error has the path of its field."""
    found = problems(cache, model)
    assert len(found) == len(expected) and all(one.startswith(start) for one, start in zip(found, expected, strict=True)), found


def test_redis_needs_a_ledger_there() -> None:
    """Then the backend may be either."""
    for backend in ("redis", "memory"):
        assert caching(f"{{mode: all, backend: {backend}}}", ledger="redis://127.0.0.1:6379/0") is not None


def test_tenants_and_keys_may_be_left_out() -> None:
    """With all that is below them; who says that it is on below one where it is off is told so."""

    def keys(team: str, key: str) -> dict[str, bool]:
        written = f"children: {{t: {{cache: {team}, keys: [{{name: k, key: sk-1, cache: {key}}}, {{name: l, key: sk-2}}]}}}}"
        rest = REST.replace("keys: [{name: k, key: sk-1}]", f"keys: [{{name: k, key: sk-3}}], {written}")
        text = f"ledger: memory://\nmodels: {{a: {{deployments: [{{provider: mock, model: a}}]}}}}{rest}"
        return {one.id: one.cached for one in load_text(text, {}).policy.keys.values()}

    assert keys("on", "off") == {"acme/@k": True, "acme/t/@k": False, "acme/t/@l": True}
    assert keys("off", "off") == {"acme/@k": True, "acme/t/@k": False, "acme/t/@l": False}
    with pytest.raises(ConfigError, match=r"tenants.acme.children.t.keys\[0\].cache: is off at the tenant above"):
        keys("off", "on")


def test_the_page_says_what_is_so() -> None:
    """Every field is on it, and what it shows can be used."""
    page = (DOCS / "cache.md").read_text()
    for section in (Cache, ModelCache):
        assert [name for name, field in section.model_fields.items() if f"`{field.alias or name}`" not in page] == []
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    models = load_text(f"ledger: redis://127.0.0.1:6379/0\n{text}{REST}", {}).policy.models
    assert {name: model.cache for name, model in models.items()} == {
        "chat": Caching("deterministic", "team", 600_000),
        "classifier": Caching("all", "organization", 86_400_000),
        "poet": None,
    }

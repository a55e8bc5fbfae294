"""The pages on configuration and limits say what is so."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from sluicegate.config import load_text
from sluicegate.config.check import warnings
from sluicegate.config.schema import Budget, Config, Deployment, Key, Provider, Queue, Section, Server, Tenant
from sluicegate.core.limits import parse

DOCS = Path(__file__).parents[3] / "docs"
CONFIG, LIMITS = (DOCS / "config.md").read_text(), (DOCS / "limits.md").read_text()


def blocks(page: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)


def test_the_configuration_shown_can_be_used() -> None:
    """It loads, and only its plain key is warned about beside what it deliberately oversells."""
    [text] = blocks(CONFIG)
    loaded = load_text(text, {"OPENAI_API_KEY": "k", "METRICS_KEY": "m"})
    assert [line.split(":")[0] for line in warnings(loaded)] == ["tenants.acme.children.team-a.keys[1]"]


@pytest.mark.parametrize("section", [Config, Server, Budget, Queue, Provider, Deployment, Tenant, Key])
def test_every_field_is_explained(section: type[Section]) -> None:
    """No field of the schema is missing from the page."""
    missing = [field.alias or name for name, field in section.model_fields.items() if not re.search(rf"\b{field.alias or name}\b", CONFIG)]
    assert missing == []


@pytest.mark.parametrize("text", re.findall(r"^\| `([^`]+)` \| [^|]+\|$", LIMITS.split("## Long form")[0], re.MULTILINE))
def test_short_forms_shown_are_read(text: str) -> None:
    """Each limit in the table of short forms is one."""
    assert parse(text).text == text


def test_long_forms_shown_are_read() -> None:
    """Each limit in the blocks of long forms is one."""
    yaml = YAML(typ="safe", pure=True)
    long, shadow = blocks(LIMITS)
    assert [parse(one).amount for one in yaml.load(long)] == [20_000, 5 * 10**9, 100, 4 * 10**9]
    assert [parse(one).shadow for one in yaml.load(shadow)["limits"]] == [False, True]

"""`log` in a configuration."""

import pytest

from sluicegate.config import ConfigError, load_text
from sluicegate.config.schema_log import Log

REST = """
ledger: memory://
models: {a: {deployments: [{provider: mock, model: a}]}}
providers: {mock: {provider: mock}}
tenants: {acme: {keys: [{name: k, key: sk-1}]}}
"""


def read(log: str) -> Log:
    return load_text(f"{REST}log: {log}\n", {}).config.log


def problems(log: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(log)
    return [str(problem) for problem in caught.value.problems]


def test_by_itself_no_request_is_logged_with_its_prompt() -> None:
    """Only the access line is written."""
    assert Log() == read("{}") and Log().requests is None and Log().access == "text" and Log().prompts == "redacted"


def test_all_of_it() -> None:
    """Where to, how long files may be and what becomes of them, what of a prompt is told, and what else is masked."""
    log = read(
        "{access: off, requests: {to: logs/r.jsonl, rotate: {size: 10MB, keep: 3, gzip: off}}, prompts: full,"
        " masks: [{name: STAFF, pattern: 'E-[0-9]{6}'}]}".replace("off,", '"off",', 1)
    )
    assert log.requests is not None
    rotate = log.requests.rotate
    assert (log.access, log.requests.to, log.prompts, log.patterns) == ("off", "logs/r.jsonl", "full", (("STAFF", "E-[0-9]{6}"),))
    assert (rotate.size_bytes, rotate.keep, rotate.gzip) == (10_000_000, 3, False)


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        ("{prompts: some}", "log.prompts: must be 'hash', 'redacted' or 'full'"),
        ("{requests: {}}", "log.requests.to: is required"),
        ("{requests: {to: x, rotate: {size: 1KB}}}", "log.requests.rotate.size: must be at least 64KiB"),
        ("{requests: {to: x, rotate: {files: 3}}}", "log.requests.rotate.files: unknown field"),
        ("{masks: [{name: staff, pattern: x}]}", "log.masks[0].name"),
        ("{masks: [{name: STAFF, pattern: '('}]}", "log.masks[0].pattern: is no regular expression that can be used here"),
        ("{masks: [{name: STAFF, pattern: 'x'}, {name: STAFF, pattern: 'x+'}]}", "log.masks[1].pattern: may match 512 characters or more"),
    ],
)
def test_mistakes_name_their_field(log: str, problem: str) -> None:
    """And say what is wrong with it."""
    assert [text for text in problems(log) if text.startswith(problem)]

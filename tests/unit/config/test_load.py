"""Reading a configuration file: every problem with its path and line, variables, and no secret in any message."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from annotated_types import Ge, Gt, Interval, Le, Lt
from hypothesis import given
from hypothesis import strategies as st
from pydantic import PlainValidator

from sluicegate.config import ConfigError, Loaded, load, load_text
from sluicegate.config.load import env_lines
from sluicegate.config.section import Section

GOOD = """\
server: {workers: 2, drain: 5s, max_body: 64MiB}
ledger_timeout: 500ms
providers:
  up: {dialect: openai, base_url: http://127.0.0.1:1/v1}
models:
  chat:
    deployments:
      - provider: up
        model: small
        price: {input: 0.05, output: 0.10}
        limits: [200k tokens/minute]
    max_output: 1000
tenants:
  acme:
    limits: [$500/month]
    children:
      team:
        models: [chat]
        limits:
          - 20k tokens/minute
          - {amount: 3, unit: usd, per: day, tz: Europe/Berlin}
        keys:
          - {name: lab, key: sk-lab-only}
"""


def problems(text: str, environ: dict[str, str] | None = None) -> list[tuple[int, str]]:
    """Line and text of each problem."""
    with pytest.raises(ConfigError) as caught:
        load_text(text, environ or {})
    return [(problem.line, str(problem)) for problem in caught.value.problems]


def with_line(line: str, becomes: str) -> str:
    """GOOD with one of its lines replaced."""
    assert GOOD.count(line) == 1
    return GOOD.replace(line, becomes)


def test_a_good_file() -> None:
    """Durations, sizes and defaults are read into their final values."""
    config = load_text(GOOD, {}).config
    assert (config.server.workers, config.server.drain_ms, config.server.max_body) == (2, 5_000, 64 * 2**20)
    assert (config.server.address, config.server.address.on_loopback) == (("127.0.0.1", 8080), True)
    assert (config.ledger, config.ledger_timeout_ms, config.on_ledger_failure) == ("sqlite:///data/ledger.db", 500, "refuse")
    assert config.server.max_body >= 32 * 10**6


@pytest.mark.parametrize(("listen", "host", "port"), [("[::1]:80", "::1", 80), ("0.0.0.0:0", "0.0.0.0", 0), ("localhost:8080", "localhost", 8080)])
def test_listen(listen: str, host: str, port: int) -> None:
    """An address and a port, IPv6 in brackets."""
    config = load_text(with_line("server: {", f'server: {{listen: "{listen}", '), {}).config
    assert config.server.address == (host, port)


# -- what is refused ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "becomes", "problem"),
    [
        ("ledger_timeout: 500ms", "ledger_timout: 500ms", "2: ledger_timout: unknown field; did you mean 'ledger_timeout'?"),
        ("ledger_timeout: 500ms", "ledger_timeout: 500", "2: ledger_timeout: must be a duration such as 200ms, 30s, 1m or 2h"),
        ("ledger_timeout: 500ms", "ledger: postgres://x", "2: ledger: must be memory://, sqlite:///path, redis://host:6379/0, redis+cluster://"),
        ("ledger_timeout: 500ms", "ledger: redis+sentinel://h", "2: ledger: redis+sentinel:// needs the name of the service behind the hosts"),
        ("ledger_timeout: 500ms", "records: mysql://x", "2: records: must be sqlite:///path or postgresql://user@host/database"),
        ("ledger_timeout: 500ms", "records: postgresql://u:%zz@h/d", "2: records: is no URL of PostgreSQL; inside a password, spaces, %, "),
        ("ledger_timeout: 500ms", "ledger: memory://", "2: ledger: is kept in one process's memory; with several"),
        ("ledger_timeout: 500ms", "on_ledger_failure: maybe", "2: on_ledger_failure: must be 'refuse' or 'allow'"),
        ("ledger_timeout: 500ms", "budget: {warn_at: [80%]}", "2: budget.warn_at: '80%' is no mark; write a part of the amount, such as 0.8"),
        ("ledger_timeout: 500ms", "budget: {queue: {max_wait: 5}}", "2: budget.queue.max_wait: must be a duration such as 200ms, 30s"),
        ("ledger_timeout: 500ms", "budget: {queue: {wait: 5s}}", "2: budget.queue.wait: unknown field; did you mean 'max_wait'?"),
        ("ledger_timeout: 500ms", "budget: {queue: {max_depth: 0}}", "2: budget.queue.max_depth: must be greater than or equal to 1"),
        ("ledger_timeout: 500ms", "budget: {min_output: 0}", "2: budget.min_output: must be greater than or equal to 1"),
        ("ledger_timeout: 500ms", "budget: {min_output: 1.5}", "2: budget.min_output: must be a whole number"),
        ("ledger_timeout: 500ms", "budget: {figures: maybe}", "2: budget.figures: must be on or off"),
        ("ledger_timeout: 500ms", "resilience: {timeouts: {idel: 1s}}", "2: resilience.timeouts.idel: unknown field; did you mean 'idle'?"),
        ("server: {workers: 2,", "server: {workers: true,", "1: server.workers: must be a whole number"),
        ("server: {workers: 2,", "server: {listen: 8080,", "1: server.listen: must be a text"),
        ("server: {workers: 2,", "server: {listen: localhost,", "1: server.listen: must be host:port, such as 127.0.0.1:8080 or [::1]:8080"),
        ("max_body: 64MiB", "max_body: much", "1: server.max_body: must be a size such as 32MB or 64MiB"),
        ("        model: small\n", "", "8: DEPLOYED.model: is required"),
        ("      - provider: up", "      - provider: upp", "8: DEPLOYED.provider: there is no provider 'upp'; did you mean 'up'?"),
        ("{input: 0.05, output: 0.10}", "{input: 0.05}", "10: DEPLOYED.price.output: is required"),
        ("{input: 0.05,", "{input: -1,", "10: DEPLOYED.price.input: must be from 0 to 1000000 USD per 1M tokens"),
        ("{input: 0.05,", "{input: .nan,", "10: DEPLOYED.price.input: must be from 0 to 1000000 USD per 1M tokens"),
        ("{input: 0.05,", "{input: 0.0000001,", "10: DEPLOYED.price.input: must have at most six decimal places"),
        ("{input: 0.05,", "{input: cheap,", "10: DEPLOYED.price.input: must be a number: USD per 1M tokens"),
        ("limits: [200k tokens/minute]", "limits: 200k tokens/minute", "11: DEPLOYED.limits: must be a list, such as [a, b]"),
        ("limits: [200k tokens/minute]", "limits: [200k tokns/minute]", "11: DEPLOYED.limits[0]: 'tokns' is no unit; did you mean 'tokens'?"),
        ("limits: [200k tokens/minute]", "limits: [5]", "11: DEPLOYED.limits[0]: a limit is a text or a mapping"),
        ("    max_output: 1000", "    max_outputs: 1000", "12: models.chat.max_outputs: unknown field; did you mean 'max_output'?"),
        ("          - 20k tokens/minute", "          - -20k tokens/minute", "20: TEAM.limits[0]: '-20k tokens/minute': amount '-20k' is negative"),
        ("{amount: 3,", "{amount: .nan,", "21: TEAM.limits[1].amount: NaN is not a finite number"),
        ("{amount: 3,", "{amount: 9999999,", "21: TEAM.limits[1].amount: 9999999 is over the largest amount"),
        ("{amount: 3,", "{mode: off, amount: 3,", "21: TEAM.limits[1].mode: 'off' is no mode; write enforce, or shadow"),
        ("{amount: 3,", "{reserve: {high: 5%}, amount: 3,", "21: TEAM.limits[1].reserve.high: nothing is above it"),
        ("{amount: 3,", "{reserve: {low: 5}, amount: 3,", "21: TEAM.limits[1].reserve.low: 5 is no share; write a percentage"),
        ("{amount: 3,", "{warn_at: [1.2, 11], amount: 3,", "21: TEAM.limits[1].warn_at: 11 is no mark"),
        ("per: day, tz", "per: minute, warn_at: [1], tz", "21: TEAM.limits[1].tz: does not go with a bucket limit"),
        ("        models: [chat]", "        priority: urgent", "18: TEAM.priority: must be 'high', 'normal' or 'low'"),
        ("tz: Europe/Berlin}", "tz: Europe/Berln}", "21: TEAM.limits[1].tz: 'Europe/Berln' is no IANA time zone; did you mean 'Europe/Berlin'?"),
        ("    children:", "    childern:", "16: tenants.acme.childern: unknown field; did you mean 'children'?"),
        ("        models: [chat]", "        models: chat", "18: TEAM.models: must be a list, such as [a, b]"),
        ("{name: lab, key: sk-lab-only}", "{name: lab, kye: sk-lab-only}", "23: TEAM.keys[0].kye: unknown field; did you mean 'key'?"),
        ("{name: lab, key: sk-lab-only}", "{name: lab, sha256: abc}", "23: TEAM.keys[0].sha256: must be 64 hexadecimal digits"),
        ("{name: lab, key: sk-lab-only}", "{name: lab, name: lab, key: sk-lab-only}", "23: TEAM.keys[0].name: is written twice, first in line 23"),
        ("{name: lab, key: sk-lab-only}", "{name: lab, key: ''}", "23: TEAM.keys[0].key: must be visible ASCII without spaces"),
        ("{name: lab, key: sk-lab-only}", "{name: lab, key: sk lab}", "23: TEAM.keys[0].key: must be visible ASCII without spaces"),
        ("tenants:", "tenants: &t\n  again: *t", "14: tenants.again: an alias of something that contains it"),
        ("  acme:", "  empty:\n  acme:", "14: tenants.empty: must be a mapping of fields"),
        ("ledger_timeout: 500ms", "ledger_timeout: !secret 500ms", "2: ledger_timeout: has the tag !secret, which means nothing here"),
    ],
)
def test_problems_name_path_and_line(line: str, becomes: str, problem: str) -> None:
    """Each mistake is told with its line, the path of its field and what would be right."""
    problem = problem.replace("TEAM.", "tenants.acme.children.team.").replace("DEPLOYED.", "models.chat.deployments[0].")
    told = [f"{number}: {text}" for number, text in problems(with_line(line, becomes))]
    assert any(one.startswith(problem) for one in told), told


def test_a_text_where_a_list_of_keys_belongs() -> None:
    """Case 120: never keys of one letter each, and the secret is not repeated."""
    [(line, text)] = problems(with_line("        keys:\n          - {name: lab, key: sk-lab-only}\n", "        keys: sk-beta\n"))
    assert (line, text) == (22, "tenants.acme.children.team.keys: must be a list, such as [a, b]")


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    """One reading finds what is wrong in several places."""
    text = GOOD.replace("drain: 5s", "drain: 5").replace("max_output: 1000", "max_output: lots").replace("name: lab", "nam: lab")
    assert [line for line, _ in problems(text)] == [1, 12, 23, 23]


def test_the_text_of_an_error_names_the_file() -> None:
    """`file:line: path: message`, a line per problem, as editors understand it."""
    with pytest.raises(ConfigError) as caught:
        load_text(GOOD.replace("drain: 5s", "drain: 5"), {}, "conf/x.yaml")
    assert str(caught.value) == "conf/x.yaml:1: server.drain: must be a duration such as 200ms, 30s, 1m or 2h"


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\tx: 1", "? [1]\n: 2", "", "[]", "5", "null", "a: *x", "--- {}\n--- {}"])
def test_what_is_no_configuration(text: str) -> None:
    """Broken YAML and documents of another shape are refused with a line, never with another exception."""
    assert all(line >= 1 for line, _ in problems(text))


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#\n $%@,?", max_size=40))
def test_no_text_fails_in_another_way(text: str) -> None:
    """Whatever is in the file, the answer is a ConfigError."""
    with pytest.raises(ConfigError):
        load_text(text, {})


@pytest.mark.parametrize("limits", ["null", "[null]", "[{amount: null, unit: usd, per: day}]", "[]"])
def test_a_null_limit_is_no_limit(limits: str) -> None:
    """Case 8: null is not 0."""
    loaded = load_text(with_line("limits: [$500/month]", f"limits: {limits}"), {})
    assert all(counter.scope.id != "acme" for key in loaded.policy.keys.values() for counter in key.counters)


def test_a_limit_of_zero_is_a_limit() -> None:
    """Case 8: 0 allows nothing."""
    loaded = load_text(with_line("limits: [$500/month]", "limits: [$0/month]"), {})
    assert [counter.ceiling for key in loaded.policy.keys.values() for counter in key.counters if counter.scope.id == "acme"] == [0]


# -- variables ----------------------------------------------------------------------------------------------------------------------------


def base_url(loaded: Loaded) -> str:
    return loaded.config.providers["up"].base_url or ""


def test_variables() -> None:
    """`${NAME}` and `${NAME:-default}` anywhere in a text; an empty variable takes the default."""
    text = with_line("base_url: http://127.0.0.1:1/v1", 'base_url: "http://${HOST}:${PORT:-8081}/v1"')
    assert base_url(load_text(text, {"HOST": "h"})) == "http://h:8081/v1"
    assert base_url(load_text(text, {"HOST": "h", "PORT": ""})) == "http://h:8081/v1"
    assert base_url(load_text(text, {"HOST": "h", "PORT": "9"})) == "http://h:9/v1"


def test_few_lines_that_stand_for_a_billion_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aliases of aliases; they are not followed to the end."""
    monkeypatch.setitem(load_text.__globals__, "VALUES_MAX", 10_000)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    with pytest.raises(ConfigError, match="more than 10000 values"):
        load_text("\n".join(lines), {})


def test_what_is_nested_too_deeply_is_refused() -> None:
    """It is an error of the file, and no fault of ours."""
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_text("[" * 20_000, {})


def test_variables_are_never_read_as_yaml() -> None:
    """A value cannot add fields or change what is around it."""
    text = with_line("name: lab", "name: '${NAME}'")
    [(line, problem)] = problems(text, {"NAME": "a, limits: []"})
    assert line == 23
    assert "is no name" in problem


def test_numbers_and_booleans_from_variables() -> None:
    """A variable may stand where the file would have a number, a price or on and off."""
    text = (
        GOOD.replace("workers: 2", "workers: '${W}'")
        .replace("input: 0.05", "input: '${P}'")
        .replace("ledger_timeout: 500ms", "budget: {figures: '${F}'}")
    )
    loaded = load_text(text, {"W": "3", "P": "0.07", "F": "off"})
    assert (loaded.config.server.workers, loaded.config.budget.figures) == (3, False)
    assert loaded.policy.models["chat"].deployments[0].price.input == 70_000  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("written", "problem"), [("${NAME}", "the environment variable NAME is not set"), ("${NAME", "has a '${' that is not closed")]
)
def test_missing_variables(written: str, problem: str) -> None:
    """A missing variable names itself and the field."""
    [(line, text)] = problems(with_line("ledger_timeout: 500ms", f'journal: "{written}"'))
    assert line == 2
    assert text.startswith(f"journal: {problem}")


def test_an_unquoted_variable_in_a_flow_mapping_is_explained() -> None:
    """YAML does not allow it, and says so badly."""
    [(line, text)] = problems(with_line("workers: 2", "workers: ${W:-2}"))
    assert line == 1
    assert 'a variable needs quotes: "${NAME}"' in text


def test_env_file(tmp_path: Path) -> None:
    """The process's own variables win over those of the file."""
    config, env = tmp_path / "c.yaml", tmp_path / ".env"
    config.write_text(with_line("base_url: http://127.0.0.1:1/v1", 'base_url: "http://${A}:${B}/v1"'))
    env.write_text("# where\nexport A='from file'\nB = 7 # port\n\nC=\"x # y\"\nD=\n")
    assert env_lines(env.read_text(), env) == {"A": "from file", "B": "7", "C": "x # y", "D": ""}
    assert base_url(load(config, {"A": "process"}, env)) == "http://process:7/v1"


def test_a_bad_env_file_names_its_line(tmp_path: Path) -> None:
    """A line that is not NAME=value is not passed over."""
    env = tmp_path / ".env"
    env.write_text("A=1\nnot this\n")
    with pytest.raises(ConfigError, match=re.escape(f"{env}:2: must be NAME=value")):
        env_lines(env.read_text(), env)


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    """It is a mistake in the file, not a failure to read it."""
    config = tmp_path / "c.yaml"
    config.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load(config, {})
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.yaml", {})


# -- secrets ------------------------------------------------------------------------------------------------------------------------------

SECRET = "sk-very-secret-5f2a"


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("dialect: openai,", f"dialect: openai, api_key_env: {SECRET},"),
        ("dialect: openai,", f"dialect: openai, api_key: [{SECRET}],"),
        ("dialect: openai,", 'dialect: openai, api_key: "${S}\\n",'),
        ("ledger_timeout: 500ms", f"ledger: redis://u:{SECRET}/x@h"),
        ("ledger_timeout: 500ms", f"ledger: redis+cluster://u:{SECRET}@h/x"),
        ("ledger_timeout: 500ms", f"records: postgresql://u:{SECRET} %zz@h/d"),
        ("ledger_timeout: 500ms", f"records: mysql://u:{SECRET}@h/d"),
        ("{name: lab, key: sk-lab-only}", f"{SECRET}"),
        ("{name: lab, key: sk-lab-only}", f"{{name: lab, key: {SECRET}}}, {{name: other, key: {SECRET}}}"),
        ("{name: lab, key: sk-lab-only}", f"{{name: lab, key: [{SECRET}]}}"),
        ("{name: lab, key: sk-lab-only}", f"{{name: '!', key: {SECRET}}}"),
        ("{name: lab, key: sk-lab-only}", f"{{name: lab, sha256: {SECRET}}}"),
    ],
)
def test_no_error_repeats_a_secret(line: str, becomes: str) -> None:
    """Wherever a secret was put, right or wrong, it does not appear in a message."""
    text = with_line(line, becomes)
    if "other" in becomes:
        text = with_line("          - {name: lab, key: sk-lab-only}", f"          [{becomes}]")
    found = problems(text, {"S": SECRET})
    assert found
    assert not any(SECRET in message for _, message in found)


def test_no_repr_has_a_secret() -> None:
    """Neither a configuration nor its dump contains a client's or a provider's secret."""
    text = GOOD.replace("dialect: openai,", "dialect: openai, api_key_env: K,")
    text = text.replace("ledger_timeout:", f"ledger: redis://u:{SECRET}@h\nrecords: postgresql://u:{SECRET}@h/d\nledger_timeout:")
    config: Any = load_text(text, {"K": SECRET}).config
    assert SECRET not in repr(config)
    assert SECRET not in str(config.model_dump())
    assert "sk-lab-only" not in repr(config)
    assert "sk-lab-only" not in str(config.model_dump())


def _sections(model: type[Section]) -> Iterator[type[Section]]:
    yield model
    for below in model.__subclasses__():
        yield from _sections(below)


def test_every_bound_binds() -> None:
    """pydantic leaves out a bound of `Field` where the value is read from a text: such a field has its own (`at_least`)."""
    fields = [(model, name, field.metadata) for model in _sections(Section) for name, field in model.model_fields.items()]
    read = [(model, name, known) for model, name, known in fields if any(isinstance(one, PlainValidator) for one in known)]
    assert len(read) > 20
    assert [(model, name) for model, name, known in read if any(isinstance(one, Ge | Gt | Le | Lt | Interval) for one in known)] == []
    with pytest.raises(ConfigError, match=r"retention\.quarters: must be at least 32d"):
        load_text(f"retention: {{quarters: 1d}}\n{GOOD}", {})

"""Parameters that are forced, and ceilings, under the names of each dialect."""

import json
from typing import Any

import msgspec
import pytest

from sluicegate.core.efforts import Effort, both
from sluicegate.dialects.form import BadRequest, Target
from sluicegate.dialects.parameters import changed, most_effort
from sluicegate.dialects.registry import between
from support_ruled import MODULES


def applied(dialect: str, body: dict[str, Any], force: dict[str, Any], ceilings: dict[str, Any]) -> tuple[list[str], Any]:
    fields = msgspec.json.decode(json.dumps(body).encode(), type=dict[str, msgspec.Raw])
    names = changed(dialect, fields, force, ceilings)
    return names, json.loads(msgspec.json.encode(fields))


@pytest.mark.parametrize(
    ("dialect", "body", "force", "told", "names"),
    [
        ("openai_chat", {}, {"temperature": 0.2}, {"temperature": 0.2}, ["temperature"]),
        ("openai_chat", {"temperature": 0.2}, {"temperature": 0.2}, {"temperature": 0.2}, []),
        ("openai_chat", {"max_completion_tokens": 9}, {"max_output": 5}, {"max_tokens": 5}, ["max_tokens", "max_completion_tokens"]),
        ("openai_chat", {"n_cmpl": 3}, {"n": 1}, {"n": 1}, ["n", "n_cmpl"]),
        ("openai_chat", {}, {"stop": ("a",)}, {"stop": ["a"]}, ["stop"]),
        ("openai_responses", {}, {"max_output": 5, "seed": 1}, {"max_output_tokens": 5}, ["max_output_tokens"]),
        (
            "openai_responses",
            {"reasoning": {"summary": "auto"}},
            {"reasoning_effort": "low"},
            {"reasoning": {"summary": "auto", "effort": "low"}},
            ["reasoning.effort"],
        ),
        ("openai_responses", {"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}, []),
        ("anthropic_messages", {}, {"stop": ("a",), "seed": 1, "n": 2}, {"stop_sequences": ["a"]}, ["stop_sequences"]),
        ("openai_embeddings", {}, {"temperature": 0.2}, {}, []),
        (
            "openai_chat",
            {"reasoning": {"effort": "high", "max_tokens": 9}, "thinking": {"type": "enabled", "budget_tokens": 9}, "reasoning_effort": "low"},
            {"reasoning_effort": "low"},
            {"reasoning_effort": "low"},
            ["reasoning.effort", "reasoning.max_tokens", "thinking"],
        ),
        (
            "openai_chat",
            {"reasoning": "high", "extra_body": {"google": {"thinking_config": {"thinking_budget": 9}, "a": 1}}},
            {"reasoning_effort": "low"},
            {"extra_body": {"google": {"a": 1}}, "reasoning_effort": "low"},
            ["reasoning_effort", "reasoning", "extra_body.google.thinking_config"],
        ),
        (
            "openai_chat",
            {"chat_template_kwargs": {"enable_thinking": True}},
            {"reasoning_effort": "low"},
            {"reasoning_effort": "low"},
            ["reasoning_effort", "chat_template_kwargs.enable_thinking"],
        ),
        ("openai_chat", {"seed": 1, "random_seed": 2}, {"seed": 1}, {"seed": 1}, ["random_seed"]),
        (
            "openai_responses",
            {"reasoning": {"effort": "high", "max_tokens": 9, "summary": "auto"}, "reasoning_effort": "high", "thinking": {"budget_tokens": 9}},
            {"reasoning_effort": "low"},
            {"reasoning": {"effort": "low", "summary": "auto"}},
            ["reasoning.effort", "reasoning.max_tokens", "reasoning_effort", "thinking"],
        ),
        (
            "anthropic_messages",
            {"output_config": {"effort": "high", "format": {}}, "thinking": {"type": "enabled", "budget_tokens": 9}},
            {"reasoning_effort": "low"},
            {"output_config": {"effort": "low", "format": {}}},
            ["output_config.effort", "thinking"],
        ),
        (
            "anthropic_messages",
            {"thinking": {"type": "adaptive"}},
            {"reasoning_effort": "low"},
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
            ["output_config.effort"],
        ),
    ],
)
def test_parameters_are_forced(dialect: str, body: dict[str, Any], force: dict[str, Any], told: dict[str, Any], names: list[str]) -> None:
    """Whatever the client says, where the dialect has the parameter; what was so already is not told."""
    assert applied(dialect, body, force, {}) == (names, told)


@pytest.mark.parametrize(
    ("dialect", "body", "ceilings", "told", "names"),
    [
        ("openai_chat", {"temperature": 1.5}, {"temperature": 1.0}, {"temperature": 1.0}, ["temperature"]),
        ("openai_chat", {"temperature": 0.5}, {"temperature": 1.0}, {"temperature": 0.5}, []),
        ("openai_chat", {}, {"temperature": 1.0}, {}, []),
        ("openai_chat", {}, {"temperature": 0.5, "top_p": 0.5}, {"temperature": 0.5, "top_p": 0.5}, ["temperature", "top_p"]),
        ("openai_chat", {}, {"n": 1}, {}, []),
        ("openai_chat", {"n": 3, "n_cmpl": 4}, {"n": 2}, {"n": 2, "n_cmpl": 2}, ["n", "n_cmpl"]),
        (
            "openai_chat",
            {"max_tokens": 9, "max_completion_tokens": 3},
            {"max_output": 5},
            {"max_tokens": 5, "max_completion_tokens": 3},
            ["max_tokens"],
        ),
        ("openai_chat", {"max_tokens": None}, {"max_output": 5}, {"max_tokens": 5}, ["max_tokens"]),
        ("openai_chat", {}, {"max_output": 5}, {"max_tokens": 5}, ["max_tokens"]),
        ("openai_responses", {}, {"max_output": 5}, {"max_output_tokens": 5}, ["max_output_tokens"]),
        ("openai_responses", {"max_tokens": 9}, {"max_output": 5}, {"max_tokens": 5}, ["max_tokens"]),
        (
            "anthropic_messages",
            {"max_tokens": 9, "top_k": 50},
            {"max_output": 5, "top_k": 40},
            {"max_tokens": 5, "top_k": 40},
            ["max_tokens", "top_k"],
        ),
        ("openai_completions", {"best_of": 9, "n": 2}, {"n": 3}, {"best_of": 3, "n": 2}, ["best_of"]),
        ("openai_embeddings", {}, {"max_output": 5}, {}, []),
    ],
)
def test_what_is_above_its_ceiling_is_lowered(
    dialect: str, body: dict[str, Any], ceilings: dict[str, Any], told: dict[str, Any], names: list[str]
) -> None:
    """Under whichever name; what is not said counts as what providers take then."""
    assert applied(dialect, body, {}, ceilings) == (names, told)


def test_what_is_forced_is_under_its_ceiling_too() -> None:
    """A scope below may lower what is forced above."""
    assert applied("openai_chat", {"temperature": 0.3}, {"temperature": 0.8}, {"temperature": 0.3}) == ([], {"temperature": 0.3})


# -- how hard a model thinks --------------------------------------------------------------------------------------------------------------

LOW, NOTHING = {"reasoning_effort": "low", "thinking_budget": 1024}, {"reasoning_effort": "none", "thinking_budget": 0}
BIG = {"type": "enabled", "budget_tokens": 30_000}


@pytest.mark.parametrize(
    ("dialect", "body", "told", "names"),
    [
        ("openai_chat", {"reasoning_effort": "max"}, {"reasoning_effort": "low"}, ["reasoning_effort"]),
        ("openai_chat", {"reasoning_effort": "minimal"}, {"reasoning_effort": "minimal"}, []),
        ("openai_chat", {"reasoning_effort": "LOW"}, {"reasoning_effort": "LOW"}, []),
        ("openai_chat", {"reasoning_effort": "ultra"}, {"reasoning_effort": "low"}, ["reasoning_effort"]),
        ("openai_chat", {"reasoning_effort": 7}, {"reasoning_effort": "low"}, ["reasoning_effort"]),
        ("openai_chat", {"reasoning_effort": None}, {"reasoning_effort": None}, []),
        ("openai_chat", {}, {}, []),
        ("openai_chat", {"reasoning": "high"}, {"reasoning": "low"}, ["reasoning"]),
        (
            "openai_chat",
            {"reasoning": {"effort": "xhigh", "max_tokens": 9000, "exclude": True}},
            {"reasoning": {"effort": "low", "max_tokens": 1024, "exclude": True}},
            ["reasoning.effort", "reasoning.max_tokens"],
        ),
        ("openai_chat", {"thinking": BIG}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, ["thinking.budget_tokens"]),
        ("openai_chat", {"thinking_budget": -1}, {"thinking_budget": 1024}, ["thinking_budget"]),
        ("openai_chat", {"thinking_budget": "99999"}, {"thinking_budget": 1024}, ["thinking_budget"]),
        (
            "openai_chat",
            {"extra_body": {"google": {"thinking_config": {"thinking_budget": -1, "include_thoughts": True}, "a": 1}}},
            {"extra_body": {"google": {"thinking_config": {"thinking_budget": 1024, "include_thoughts": True}, "a": 1}}},
            ["extra_body.google.thinking_config.thinking_budget"],
        ),
        (
            "openai_chat",
            {"google": {"thinkingConfig": {"thinkingLevel": "HIGH"}}, "generationConfig": {"thinkingConfig": {"thinkingBudget": 9999}}},
            {"google": {"thinkingConfig": {"thinkingLevel": "low"}}, "generationConfig": {"thinkingConfig": {"thinkingBudget": 1024}}},
            ["google.thinkingConfig.thinkingLevel", "generationConfig.thinkingConfig.thinkingBudget"],
        ),
        (
            "openai_chat",
            {"chat_template_kwargs": {"reasoning_effort": "high", "thinking_budget": 5000, "x": "high"}, "extra_body": {"thinking": BIG}},
            {
                "chat_template_kwargs": {"reasoning_effort": "low", "thinking_budget": 1024, "x": "high"},
                "extra_body": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            },
            ["chat_template_kwargs.reasoning_effort", "chat_template_kwargs.thinking_budget", "extra_body.thinking.budget_tokens"],
        ),
        (
            "openai_responses",
            {"reasoning": {"effort": "high", "summary": "auto"}},
            {"reasoning": {"effort": "low", "summary": "auto"}},
            ["reasoning.effort"],
        ),
        (
            "anthropic_messages",
            {"output_config": {"effort": "max", "format": {}}, "thinking": BIG},
            {"output_config": {"effort": "low", "format": {}}, "thinking": {"type": "enabled", "budget_tokens": 1024}},
            ["output_config.effort", "thinking.budget_tokens"],
        ),
        ("openai_completions", {"reasoning_effort": "high"}, {"reasoning_effort": "high"}, []),
        (
            "openai_chat",
            {"think": "max", "max_thinking_tokens": 9999, "vllm_xargs": {"thinking_budget": 5000, "x": 1}},
            {"think": "low", "max_thinking_tokens": 1024, "vllm_xargs": {"thinking_budget": 1024, "x": 1}},
            ["think", "max_thinking_tokens", "vllm_xargs.thinking_budget"],
        ),
    ],
)
def test_thinking_is_lowered_whoever_names_it(dialect: str, body: dict[str, Any], told: dict[str, Any], names: list[str]) -> None:
    """Words by their order, numbers by theirs, as much as a model likes and what is not known as above all; in objects of any vendor."""
    assert applied(dialect, body, {}, LOW) == (names, told)


@pytest.mark.parametrize(
    ("dialect", "body", "told", "names"),
    [
        ("openai_chat", {"thinking": {"type": "enabled"}}, {"thinking": {"type": "enabled"}, "reasoning_effort": "low"}, ["reasoning_effort"]),
        ("openai_chat", {"thinking": True}, {"thinking": True, "reasoning_effort": "low"}, ["reasoning_effort"]),
        ("openai_chat", {"think": True}, {"think": True, "reasoning_effort": "low"}, ["reasoning_effort"]),
        ("openai_chat", {"reasoning": {"enabled": True}}, {"reasoning": {"enabled": True, "effort": "low"}}, ["reasoning.effort"]),
        (
            "openai_chat",
            {"thinking": {"type": "adaptive"}, "reasoning_effort": "minimal"},
            {"thinking": {"type": "adaptive"}, "reasoning_effort": "minimal"},
            [],
        ),
        ("openai_chat", {"reasoning": {"exclude": True}, "thinking": False}, {"reasoning": {"exclude": True}, "thinking": False}, []),
        ("openai_chat", {"enable_thinking": True}, {"enable_thinking": True, "thinking_budget": 1024}, ["thinking_budget"]),
        ("openai_chat", {"enable_thinking": True, "thinking_budget": 5}, {"enable_thinking": True, "thinking_budget": 5}, []),
        (
            "openai_chat",
            {"extra_body": {"google": {"thinking_config": {"include_thoughts": True}}}},
            {"extra_body": {"google": {"thinking_config": {"include_thoughts": True, "thinking_budget": 1024}}}},
            ["extra_body.google.thinking_config.thinking_budget"],
        ),
        ("openai_responses", {"reasoning": True}, {"reasoning": {"effort": "low"}}, ["reasoning.effort"]),
        (
            "anthropic_messages",
            {"thinking": {"type": "adaptive"}},
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
            ["output_config.effort"],
        ),
        ("anthropic_messages", {"thinking": {"type": "disabled"}}, {"thinking": {"type": "disabled"}}, []),
    ],
)
def test_thinking_without_a_size_gets_the_ceiling(dialect: str, body: dict[str, Any], told: dict[str, Any], names: list[str]) -> None:
    """Where it is turned on, and only there: what a model does that is told nothing is not known."""
    assert applied(dialect, body, {}, LOW) == (names, told)


@pytest.mark.parametrize(
    ("dialect", "body", "told"),
    [
        ("openai_chat", {"reasoning_effort": "low"}, {"reasoning_effort": "none"}),
        ("openai_chat", {"thinking": BIG}, {"thinking": {"type": "disabled"}}),
        ("openai_chat", {"reasoning": {"enabled": True, "max_tokens": 9}}, {"reasoning": {"enabled": False}}),
        ("openai_chat", {"reasoning": {"max_tokens": 9}, "thinking": True}, {"reasoning": {"enabled": False}, "thinking": False}),
        ("openai_chat", {"thinking": {"budget_tokens": 9}}, {"thinking": {"type": "disabled"}}),
        ("openai_chat", {"enable_thinking": True, "thinking_budget": 9}, {"enable_thinking": False, "thinking_budget": 0}),
        ("openai_chat", {"chat_template_kwargs": {"enable_thinking": True}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ("openai_chat", {"think": "high"}, {"think": False}),
        ("openai_chat", {"think": True, "output_config": {"effort": "max"}}, {"think": False, "output_config": {"effort": "none"}}),
        ("anthropic_messages", {"thinking": BIG}, {"thinking": {"type": "disabled"}}),
        (
            "anthropic_messages",
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
        ),
    ],
)
def test_no_thinking_is_a_ceiling_too(dialect: str, body: dict[str, Any], told: dict[str, Any]) -> None:
    """What turns it on turns it off; a budget that has to be more than nothing goes."""
    assert applied(dialect, body, {}, NOTHING)[1] == told


def test_high_ceilings_leave_what_is_below_them() -> None:
    """A ceiling of `high` puts nothing in where that is what providers take; a budget alone leaves words to the one that it is enough for."""
    for dialect, body in (("anthropic_messages", {"thinking": {"type": "adaptive"}}), ("openai_chat", {"thinking": True, "reasoning": "high"})):
        assert applied(dialect, body, {}, {"reasoning_effort": "high", "thinking_budget": 24_576}) == ([], body)
    assert applied("openai_chat", {"reasoning_effort": "odd", "thinking_budget": 9}, {}, {"reasoning_effort": "max"})[0] == []


SPELLED: list[tuple[dict[str, Any], dict[str, Any]]] = [  # and what is left of it
    *[({name: 9}, {}) for name in ("thinking_token_budget", "reasoning_budget", "thinkingBudget", "budget_tokens", "max_thinking_tokens")],
    *[({name: "high"}, {}) for name in ("reasoningEffort", "think", "thinking_level", "effort")],
    ({"think": True}, {}),
    ({"google": {"thinkingConfig": {"thinkingBudget": 9}}}, {}),
    ({"generation_config": {"thinking_config": {"thinking_budget": 9}, "x": 1}}, {"generation_config": {"x": 1}}),
    ({"vllm_xargs": {"thinking_budget": 9, "x": 1}}, {"vllm_xargs": {"x": 1}}),
    ({"reasoning": {"enabled": True, "exclude": True}}, {"reasoning": {"exclude": True}}),
    ({"reasoning": True, "enable_thinking": True, "output_config": {"effort": "max"}}, {}),
    ({"chat_template_kwargs": {"thinking": True, "x": 1}}, {"chat_template_kwargs": {"x": 1}}),
    ({"google": "x", "chat_template_kwargs": {}, "x": {"effort": "high"}}, {"google": "x", "chat_template_kwargs": {}, "x": {"effort": "high"}}),
]


@pytest.mark.parametrize(("said", "left"), SPELLED, ids=range(len(SPELLED)))
@pytest.mark.parametrize("around", [0, 1, 2])
def test_what_has_a_ceiling_in_any_spelling_is_taken_out_where_it_is_forced(said: dict[str, Any], left: dict[str, Any], around: int) -> None:
    """One list serves both, in the body and in what is read as one; what else stands beside it stays."""
    for _ in range(around):
        said, left = {"extra_body": said}, {"extra_body": left} if left else {}
    names, told = applied("openai_chat", said, {"reasoning_effort": Effort.LOW}, {})
    assert told == left | {"reasoning_effort": "low"}
    assert (len(names) > 1) == (said != left)
    if said != left:
        assert applied("openai_chat", said, {}, NOTHING)[0] != []


@pytest.mark.parametrize(("word", "told"), [("minimal", {"output_config": {"effort": "low"}}), ("none", {"thinking": {"type": "disabled"}})])
def test_what_messages_have_no_word_for_is_forced_as_they_say_it(word: str, told: dict[str, Any]) -> None:
    """The least that there is, and no thinking at all."""
    body = {"output_config": {"effort": "max"}, "thinking": BIG}
    assert applied("anthropic_messages", body, {"reasoning_effort": Effort(word)}, {})[1] == told


@pytest.mark.parametrize(("force", "ceilings"), [({"reasoning_effort": Effort.LOW}, {}), ({}, LOW)])
def test_a_body_that_is_nested_very_deeply_is_refused(force: dict[str, Any], ceilings: dict[str, Any]) -> None:
    """It is no error of the gateway's."""
    deep = msgspec.Raw(b'{"extra_body":' * 2_000 + b'{"think":true}' + b"}" * 2_000)
    with pytest.raises(BadRequest):
        changed("openai_chat", {"extra_body": deep}, force, ceilings)


def test_an_effort_that_is_forced_is_under_its_ceiling() -> None:
    """By the order of the words, not of letters."""
    assert applied("openai_chat", {}, {"reasoning_effort": Effort.XHIGH}, {"reasoning_effort": Effort.LOW})[1] == {"reasoning_effort": "low"}
    assert applied("openai_chat", {}, {"reasoning_effort": Effort.LOW}, {"reasoning_effort": Effort.MAX})[1] == {"reasoning_effort": "low"}


def test_ceilings_hold_inside_of_extra_body() -> None:
    """Some providers read it as if it were the body; what is forced is taken out there."""
    body = {"temperature": 0.5, "extra_body": {"temperature": 2, "top_k": 9, "a": 1}}
    names, told = applied("openai_chat", body, {}, {"temperature": 1.0, "top_k": 20})
    assert (names, told["extra_body"]) == (["extra_body.temperature"], {"temperature": 1.0, "top_k": 9, "a": 1})
    names, told = applied("openai_chat", body, {"temperature": 0.5}, {})
    assert (names, told) == (["extra_body.temperature"], {"temperature": 0.5, "extra_body": {"top_k": 9, "a": 1}})


@pytest.mark.parametrize(("said", "told"), [(0, 40), (-1, 40), ("50", 40), (True, 40), (7, 7), (None, None)])
def test_all_of_the_most_likely_tokens_are_above_every_ceiling(said: Any, told: Any) -> None:
    """As many as there are is what 0 and -1 mean; what is no number may be any."""
    assert applied("openai_chat", {"top_k": said}, {}, {"top_k": 40})[1] == {"top_k": told}


def sent(client: str, provider: str, model: str, ceilings: dict[str, Any], force: Any = None, **body: Any) -> Any:
    """The body that a provider of another dialect gets of a client's request under ceilings."""
    dialect: Any = MODULES[client]
    base = {"openai_responses": {"input": "hi"}}.get(client, {"messages": [{"role": "user", "content": "hi"}]})
    fields = msgspec.json.decode(json.dumps({"model": "m", "max_tokens": 60_000, **base, **body}).encode(), type=dict[str, msgspec.Raw])
    changed(client, fields, force or {}, ceilings)
    request = dialect.read_request(msgspec.json.encode(fields))
    request.effort_most = most_effort(force or {}, ceilings)
    return json.loads(between(client, provider, request, "r", 1).write_request(request, Target(model, 60_000, "max_tokens", True)))


OLD, NEW = "claude-sonnet-4-5", "claude-opus-4-7"


@pytest.mark.parametrize(
    ("client", "body"),
    [
        ("openai_chat", {"reasoning_effort": "high"}),
        ("openai_chat", {"thinking": BIG}),
        ("openai_chat", {"thinking": True}),
        ("openai_chat", {"thinking": {"type": "enabled"}}),
        ("openai_chat", {"reasoning": {"max_tokens": 30_000}}),
        ("openai_chat", {"reasoning": {"enabled": True}}),
        ("openai_chat", {"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"thinking_budget": 5}}),
        ("openai_responses", {"reasoning": {"effort": "max"}}),
        ("openai_responses", {"thinking": BIG}),
    ],
)
def test_a_ceiling_on_thinking_holds_in_other_dialects(client: str, body: dict[str, Any]) -> None:
    """A budget at models that take one, an effort at later ones: never the provider's own default."""
    for ceilings in ({"reasoning_effort": Effort.LOW}, {"thinking_budget": 1_500}):
        told = both(ceilings)
        assert sent(client, "anthropic_messages", OLD, told, **body)["thinking"]["budget_tokens"] <= told["thinking_budget"]
        assert sent(client, "anthropic_messages", NEW, told, **body)["output_config"]["effort"] == "low"


@pytest.mark.parametrize("body", [{"output_config": {"effort": "max"}}, {"thinking": {"type": "adaptive"}}])
def test_a_ceiling_on_thinking_of_messages_holds_at_chats(body: dict[str, Any]) -> None:
    """Where the client says that the model is to think."""
    assert sent("anthropic_messages", "openai_chat", "gpt-5", both({"reasoning_effort": Effort.LOW}), **body)["reasoning_effort"] == "low"


SAYING = [
    {"output_config": {"effort": "max"}},
    {"thinking": {"type": "adaptive"}},
    {"thinking": BIG},
    {"thinking": BIG, "output_config": {"effort": "low"}},
]


@pytest.mark.parametrize("body", SAYING)
@pytest.mark.parametrize(("ceilings", "force"), [(NOTHING, {}), ({}, {"reasoning_effort": Effort.NONE})], ids=["ceiling", "forced"])
def test_no_thinking_of_messages_is_none_at_others(body: dict[str, Any], ceilings: dict[str, Any], force: dict[str, Any]) -> None:
    """In their own words, which have one for it: and not the least that messages have."""
    assert sent("anthropic_messages", "openai_chat", "gpt-5.1", ceilings, force, **body)["reasoning_effort"] == "none"
    assert sent("anthropic_messages", "ollama", "qwen3", ceilings, force, **body)["think"] is False


CHATS: list[dict[str, Any]] = [
    {"reasoning_effort": "max"}, {"thinking": BIG}, {"thinking": {"type": "adaptive"}}, {"reasoning": {"enabled": True}}, {"think": "high"},
    {"enable_thinking": True}, {"output_config": {"effort": "max"}}, {"extra_body": {"google": {"thinking_config": {"thinking_budget": 9}}}},
    {"reasoning": {"max_tokens": 9}}, {"thinking": {"budget_tokens": 9}},
]  # fmt: skip


@pytest.mark.parametrize("body", CHATS, ids=range(len(CHATS)))
def test_no_thinking_of_chats_is_none_at_others(body: dict[str, Any]) -> None:
    """However a client turns it on, also in a way that nobody translates."""
    assert sent("openai_chat", "anthropic_messages", NEW, NOTHING, **body)["thinking"] == {"type": "disabled"}
    assert sent("openai_chat", "ollama", "qwen3", NOTHING, **body)["think"] is False


@pytest.mark.parametrize("body", SAYING[:3])
def test_a_budget_or_a_switch_is_bound_in_words_too(body: dict[str, Any]) -> None:
    """Where a provider has no budgets; one that is enough for less stays less."""
    assert sent("anthropic_messages", "openai_chat", "gpt-5", both({"reasoning_effort": Effort.MEDIUM}), **body)["reasoning_effort"] == "medium"
    assert sent("anthropic_messages", "ollama", "qwen3", LOW, **body)["think"] == "low"
    small = {"type": "enabled", "budget_tokens": 1_024}
    assert sent("anthropic_messages", "openai_chat", "gpt-5", both({"reasoning_effort": Effort.HIGH}), thinking=small)["reasoning_effort"] == "low"


def test_where_nothing_is_said_of_thinking_nothing_is_put_in() -> None:
    """Nor where there is no ceiling."""
    assert "reasoning_effort" not in sent("anthropic_messages", "openai_chat", "gpt-4o", NOTHING)
    assert "think" not in sent("anthropic_messages", "ollama", "qwen3", NOTHING)
    assert "think" not in sent("openai_chat", "ollama", "qwen3", NOTHING, extra_body={"a": 1}, chat_template_kwargs={})
    for body in ({"thinking": {"type": "disabled"}}, {"thinking": BIG}):
        assert "reasoning_effort" not in sent("anthropic_messages", "openai_chat", "gpt-4o", {}, **body)


def test_the_lower_of_what_is_forced_and_its_ceiling_is_the_most() -> None:
    """And there may be none."""
    assert most_effort({"reasoning_effort": "high"}, {"reasoning_effort": Effort.LOW}) == "low"
    assert most_effort({"temperature": 1}, {"reasoning_effort": Effort.MAX}) == ""

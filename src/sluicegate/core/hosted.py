"""Tools that a provider runs while it answers (searches, code): how many calls of them a request can make, and what these can cost.

Each round of such calls has the model read everything again, so n calls are held as n + 1 times what the model can read, and as all rounds that the
provider makes, where it makes more of them than calls. Calls are bounded by what the request says, by what the operator allows at the deployment
(`tool_calls`, which is sent upstream where a field is for it), or by neither: then it is refused under a dollar limit (pricing.py), and under one on
tokens its input is held once, or for the rounds that the provider makes.

What bounds calls is documented to bound these, and not rounds. OpenAI ignores what a model calls beyond `max_tool_calls`, which counts its own tools
together (https://platform.openai.com/docs/api-reference/responses/create). Anthropic answers a search beyond `max_uses` with the error
`max_uses_exceeded`, which is not charged for, and the model goes on
(https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/web-search-tool); newer searches run code between, which nothing counts; what ends it is
a limit of ten rounds in a request, with `pause_turn` (https://docs.anthropic.com/en/docs/build-with-claude/handling-stop-reasons). So there can be
more rounds than calls and one: ten are held at the least.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

# Tools of which vendors say that a call costs nothing beside its tokens.
# https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/web-fetch-tool, https://platform.openai.com/docs/guides/tools-connectors-mcp
FREE = frozenset(("mcp", "mcp_toolset", "tool_search", "tool_search_tool_bm25", "tool_search_tool_regex", "web_fetch"))
# Newer searches of Anthropic's (`web_search_20260209`) run some themselves, for nothing. Where it is asked for, it has a price: that of a time in a
# container. https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/code-execution-tool
UNASKED = "code_execution"


class Hosted(Struct, frozen=True, gc=False):
    """A tool that a provider is to run. name: without dates and versions, `web_search`."""

    name: str
    by: str  # the field of the request that asks for it
    most: int | None = None  # calls that the request allows; None: it does not say
    together: bool = False  # these are calls of all such tools together
    told: str | None = ""  # the name by which answers tell of its calls; "": the same; None: they do not
    again: bool = True  # all is read again after each call
    rounds: int = 0  # that the provider makes of its tools' calls in one request, whatever bounds those; 0: one for each call, and the last
    any: bool = False  # it is not said which tools these are: what the provider has kept may bring some


class Calls(Struct, gc=False):
    """What a request can make of such calls at one deployment. most: after which all is read again."""

    most: int = 0
    fees_nano_usd: int = 0  # at most, of calls that the answer tells of
    untold_nano_usd: int = 0  # at most, of all others: they are charged as if they had been made
    endless: Hosted | None = None  # a tool whose calls nobody bounds
    unpriced: Hosted | None = None  # a tool of which nobody says what a call costs


def calls_of(hosted: Sequence[Hosted], allowed: int, fees: Mapping[str, int]) -> Calls:
    """allowed: calls that the operator allows a request at most; 0: it is not said. fees: nano-USD of one call, by the names of tools."""
    found, together, dearest, rounds = Calls(), 0, 0, 1
    for tool in hosted:
        fee = max(fees.values(), default=None) if tool.any else fees.get(tool.name)
        if fee is None and tool.name not in FREE:
            found.unpriced = tool
        most = min(one for one in (tool.most, allowed or None, 10**9) if one is not None)
        if most == 10**9:
            found.endless, most = tool, 0
        if tool.together:
            together, dearest = max(together, most), max(dearest, fee or 0)
            continue
        found.most += most if tool.again else 0
        rounds = max(rounds, tool.rounds)
        if tool.told is None:
            found.untold_nano_usd += most * (fee or 0)
        else:
            found.fees_nano_usd += most * (fee or 0)
    found.most = max(found.most + together, rounds - 1)
    found.fees_nano_usd += together * dearest
    return found


def named_as_told(hosted: Sequence[Hosted], fees: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """What a call costs of each of these tools, by the names by which answers tell of them."""
    found: dict[str, int] = {}
    for tool in hosted:
        if tool.told is None:
            continue
        if tool.any:
            for name, fee in fees.items():
                found[told_as(name)] = max(found.get(told_as(name), 0), fee)
        else:
            name = tool.told or tool.name
            found[name] = max(found.get(name, 0), fees.get(tool.name, 0))
    return tuple(found.items())


def told_as(name: str) -> str:
    """The name by which answers tell of calls of a tool: without what makes it cheaper or dearer."""
    return "code_interpreter" if name.startswith("code_interpreter_") else name.removesuffix("_preview")


def fees_of(tools: Sequence[tuple[str, int]], calls: Mapping[str, int]) -> int:
    """Of calls that an answer tells of, in nano-USD: by name, and of a tool that has no price and is not known to be free the dearest."""
    fees = dict(tools)
    dearest = max(fees.values(), default=0)
    return sum([count * fees.get(name, 0 if name in FREE or name == UNASKED else dearest) for name, count in calls.items()])

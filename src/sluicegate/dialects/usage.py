"""Usage arithmetic: what the counts in a report of usage mean, for each shape that vendors write one in, in one table.

A shape says where its counts stand and which are parts of which. Two things differ so that a bill depends on them: whether the tokens that came
from a cache, or went into it, are inside the input's count (OpenAI) or beside it (Anthropic); and whether reasoning is inside the output's count.
The latter is seen from the figures: where it is not, the total counts more than input and output together, or reasoning is more than all output.

Nothing here raises, whatever is reported. A field that is no plausible count is taken as not reported, an explicit zero as zero; what that means
for a bill is decided in core/usage.py, as is what a later report of the same call does to an earlier one (`merge`). Where parts lie beside the
input, reports have to be laid over each other before they are read: `laid_over`.
"""

from typing import Any

from msgspec import Struct

from sluicegate.core.hosted import FREE
from sluicegate.core.usage import Usage

TOKENS_MAX = 10**9  # a reported count above it is no count
COST_MAX_USD = 1_000_000  # likewise
CALLS_MAX = 10_000  # likewise, of calls of tools in one answer


Place = tuple[str, ...]  # a field, or an object and a field in it


class Shape(Struct, frozen=True):
    """Where one wire format has its counts. Of several places the first with tokens in it counts."""

    input: str
    output: str  # "": there is none
    total: str = ""  # "": there is none
    cached: tuple[Place, ...] = ()  # read from the provider's cache
    written: tuple[Place, ...] = ()  # into it
    written_5m: Place = ()  # of those, by how long they stay; together they may be more than `written`
    written_1h: Place = ()
    reasoning: tuple[Place, ...] = ()
    heard: Place = ()  # audio in the input
    spoken: Place = ()  # audio in the output
    beside: bool = False  # cached and written tokens are not in the input's count
    calls: str = ""  # counts of calls of tools that the provider ran, `web_search_requests`
    rounds: str = ""  # a list of such reports, one for each time that a model was run; the counts beside it need not have all of them in them


# https://platform.openai.com/docs/api-reference/chat/object, of chat and of completions. Beside OpenAI's own places: DeepSeek's
# https://api-docs.deepseek.com/guides/kv_cache, Moonshot's `cached_tokens`, and OpenRouter's writes,
# https://openrouter.ai/docs/use-cases/usage-accounting.
OPENAI_CHAT = Shape(
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    cached=(("prompt_tokens_details", "cached_tokens"), ("prompt_cache_hit_tokens",), ("cached_tokens",)),
    written=(("prompt_tokens_details", "cache_write_tokens"),),
    reasoning=(("completion_tokens_details", "reasoning_tokens"), ("reasoning_tokens",)),
    heard=("prompt_tokens_details", "audio_tokens"),
    spoken=("completion_tokens_details", "audio_tokens"),
)
# https://platform.openai.com/docs/api-reference/responses/object
OPENAI_RESPONSES = Shape(
    "input_tokens",
    "output_tokens",
    "total_tokens",
    cached=(("input_tokens_details", "cached_tokens"),),
    written=(("input_tokens_details", "cache_write_tokens"),),
    reasoning=(("output_tokens_details", "reasoning_tokens"),),
)
# https://platform.openai.com/docs/api-reference/embeddings/create
OPENAI_EMBEDDINGS = Shape("prompt_tokens", "", "total_tokens")
# https://docs.anthropic.com/en/api/messages: all input is input_tokens + cache_creation_input_tokens + cache_read_input_tokens; thinking is output.
# `iterations`: https://docs.anthropic.com/en/docs/build-with-claude/compaction, a compaction is billed and in the list alone.
ANTHROPIC = Shape(
    "input_tokens",
    "output_tokens",
    cached=(("cache_read_input_tokens",),),
    written=(("cache_creation_input_tokens",),),
    written_5m=("cache_creation", "ephemeral_5m_input_tokens"),
    written_1h=("cache_creation", "ephemeral_1h_input_tokens"),
    reasoning=(("output_tokens_details", "thinking_tokens"),),
    beside=True,
    calls="server_tool_use",
    rounds="iterations",
)
# https://github.com/ollama/ollama/blob/main/docs/api.md: what is in its own cache is not counted, and where all of it is, the field is left out.
OLLAMA = Shape("prompt_eval_count", "eval_count")


def read(shape: Shape, reported: Any) -> Usage | None:
    """A report of usage; None where there is none."""
    if not isinstance(reported, dict):
        return None
    get = reported.get
    read: Any = get(shape.input)
    written: Any = get(shape.output)
    plain = type(read) is int and type(written) is int and 0 <= read <= TOKENS_MAX and 0 <= written <= TOKENS_MAX
    if plain and len(reported) == 3 and get(shape.total) == read + written:  # nothing but the counts
        return Usage(read, written)
    usage = _counts(shape, reported)
    rounds = get(shape.rounds) if shape.rounds else None
    if isinstance(rounds, list):
        usage = _at_least(usage, [_counts(shape, each) for each in rounds if isinstance(each, dict)])
    usage.cost_nano_usd = _cost(reported)
    if shape.calls:
        usage.calls, usage.calls_unread = _calls(reported.get(shape.calls))
    return usage


def laid_over(earlier: dict[str, Any] | None, later: Any) -> dict[str, Any] | None:
    """A later report of the same call over an earlier one, before either is read: field by field, where the later one says more than nothing."""
    if not isinstance(later, dict):
        return earlier
    over = dict(earlier or {})
    for name, value in later.items():
        known = over.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            over[name] = known | {part: count for part, count in value.items() if count or part not in known}
        elif value or name not in over:
            over[name] = value
    return over


def _counts(shape: Shape, reported: dict[str, Any]) -> Usage:
    usage = Usage(_tokens(reported.get(shape.input)), _tokens(reported.get(shape.output)) if shape.output else 0)
    cached, written, reasoning, hour = _first(reported, shape.cached), _first(reported, shape.written), _first(reported, shape.reasoning), 0
    if shape.written_1h:
        hour = _first(reported, (shape.written_1h,))
        written = max(written, hour + _first(reported, (shape.written_5m,)))
    if shape.beside and usage.input_tokens is not None:
        usage.input_tokens += cached + written
    said = usage.output_tokens
    if shape.total:
        _total(usage, _tokens(reported.get(shape.total)), shape)
    if usage.output_tokens is not None and reasoning > usage.output_tokens and not reported.get(shape.total):
        usage.output_tokens += reasoning  # it cannot be a part of it
    if cached or written:
        room = usage.input_tokens or 0
        usage.cache_write_tokens = min(written, room)
        usage.cached_tokens = cached if cached + usage.cache_write_tokens <= room else 0  # absurd, and it would make the call cheaper
        usage.cache_write_1h_tokens = min(hour, usage.cache_write_tokens)
    usage.reasoning_tokens = min(reasoning, usage.output_tokens or 0)
    if shape.heard:
        heard, spoken = _tokens(_at(reported, shape.heard)), _tokens(_at(reported, shape.spoken))
        usage.audio_told = heard is not None and spoken is not None
        usage.audio_input_tokens, usage.audio_output_tokens = heard or 0, spoken or 0
    usage.no_reasoning = not reasoning and usage.output_tokens == said and any(_tokens(_at(reported, place)) == 0 for place in shape.reasoning)
    return usage


def _calls(reported: Any) -> tuple[dict[str, int] | None, bool]:
    """By the names of tools, None where nothing is said of them; and whether a count that costs something cannot be read."""
    if not isinstance(reported, dict):
        return None, reported is not None
    counts = {str(name).removesuffix("_requests"): _tokens(value) for name, value in reported.items()}
    known = {name: count for name, count in counts.items() if count is not None and count <= CALLS_MAX}
    return known, any(name not in known and name not in FREE for name in counts)


def _total(usage: Usage, total: int | None, shape: Shape) -> None:
    """What the total alone counts."""
    if total is None:
        return
    if not shape.output:
        usage.input_tokens = max(usage.input_tokens or 0, total)
    elif usage.input_tokens is not None and total > usage.input_tokens + (usage.output_tokens or 0):
        usage.output_tokens = total - usage.input_tokens  # reasoning that nothing else counts
    elif usage.input_tokens is None and usage.output_tokens is not None and total > usage.output_tokens:
        usage.input_tokens = total - usage.output_tokens


def _at_least(usage: Usage, rounds: list[Usage]) -> Usage:
    """The usage of all rounds together, where that is more."""
    together = Usage(sum(one.input_tokens or 0 for one in rounds), sum(one.output_tokens or 0 for one in rounds))
    if (together.input_tokens or 0) + (together.output_tokens or 0) <= (usage.input_tokens or 0) + (usage.output_tokens or 0):
        return usage
    together.cached_tokens = sum(one.cached_tokens for one in rounds)
    together.cache_write_tokens = sum(one.cache_write_tokens for one in rounds)
    together.cache_write_1h_tokens = sum(one.cache_write_1h_tokens for one in rounds)
    together.reasoning_tokens = sum(one.reasoning_tokens for one in rounds)
    return together


def _first(reported: dict[str, Any], places: tuple[Place, ...]) -> int:
    for place in places:
        value = _at(reported, place)
        if value and (count := _tokens(value)):
            return count
    return 0


def _at(reported: dict[str, Any], place: Place) -> Any:
    value = reported.get(place[0])
    if len(place) > 1:
        return value.get(place[1]) if isinstance(value, dict) else None
    return value


def _tokens(value: Any) -> int | None:
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= TOKENS_MAX else None


def _cost(reported: dict[str, Any]) -> int | None:
    """What the provider says that the call costs. Of a key of one's own, OpenRouter says what the vendor takes beside its own fee:
    https://openrouter.ai/docs/use-cases/byok."""
    if "cost" not in reported:
        return _ticks(reported.get("cost_in_usd_ticks"))
    cost = reported["cost"]
    cost = _usd(cost.get("total_cost") if isinstance(cost, dict) else cost)  # the former is Perplexity's
    details = reported.get("cost_details")
    if cost is None or reported.get("is_byok") is not True or not isinstance(details, dict):
        return cost
    return cost + (_usd(details.get("upstream_inference_cost")) or 0)


def _ticks(value: Any) -> int | None:
    """10^10 of them are a dollar: https://docs.x.ai/developers/cost-tracking."""
    return -(-value // 10) if type(value) is int and 0 <= value <= COST_MAX_USD * 10**10 else None


def _usd(value: Any) -> int | None:
    """In nano-USD, rounded up, but for what binary fractions add beyond a thousandth of one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= COST_MAX_USD:
        return None
    return -(-round(value * 10**12) // 1000)

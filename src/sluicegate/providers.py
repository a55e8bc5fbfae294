"""Providers: a table of what is known of each kind of upstream. A new OpenAI-compatible vendor is a row (docs/how-to/add-a-provider.md).

A row states facts on which the cap depends: `extend` and `stops_on_close` say that every billed token is visible in the stream and that generation
stops when the connection closes, `streams_calls` that calls of tools are no exception; `token_per_event` that a stream has an event for each token.
They are False unless that is known. The field of the cap is the one that the vendor obeys, images and a provider's own prompt are the most that they
can cost. Where a fact comes from is said beside it.

Headers go upstream by an allow-list: the provider's own, those that trace a request, those that the row names, and those that the operator adds.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import quote

import msgspec

from sluicegate.core.tenants import Provider
from sluicegate.dialects.registry import DIALECTS, PROVIDERS

T = TypeVar("T")
ByModel = tuple[tuple[str, T], ...]  # (prefix of the model's name, value), the longer prefix first; "" is for any model


class Row(msgspec.Struct, frozen=True):
    """One kind of upstream."""

    dialect: str  # name of a module in dialects/: what requests of any other are translated to
    also: tuple[str, ...] = ()  # dialects that it speaks beside that one
    base_url: str = ""  # "": the operator must say
    base_url_ends: str = ""  # what any base URL must end with
    auth_header: str = "authorization"
    auth_scheme: str = "Bearer "
    path: str = "{path}"  # of a call, below the base URL; {path}: the dialect's own, {model}: the deployment's model, {api_version}: the operator's
    paths: tuple[tuple[str, str], ...] = ()  # of calls in dialects that are elsewhere
    headers: tuple[tuple[str, str], ...] = ()  # sent with every call
    forwards: tuple[str, ...] = ()  # headers of the client that concern this provider
    cap_field: str = "max_tokens"
    cap_fields: ByModel[str] = ()  # models that want another one
    stream_usage: bool = True  # accepts stream_options.include_usage
    rejects: tuple[str, ...] = ()  # fields that it answers with an error, and that no answer depends on
    renames: tuple[tuple[str, str], ...] = ()  # fields that it knows by another name
    thoughts: str = ""  # the field of an assistant's message in which it takes back what its model thought; "": it does not
    extend: bool = False
    stops_on_close: bool = False
    token_per_event: bool = False
    streams_calls: bool = False  # a call of a tool is seen as it is generated; else, with tools, output is capped and not extended
    cap_overrun: int = 0  # tokens per choice that may come beyond the cap that was sent
    marked_cache: bool = False  # at the row's own address nothing is written into its cache, for which it charges, but what a request marks
    own_prompt: int = 0  # tokens, at most, of a text of its own on the use of tools or the shape of the answer
    image_tokens: ByModel[int] = ()  # the most that one image counts; of others core/estimate.py assumes 4,096
    catalogue: str = ""  # whose prices there a call costs at most, at the row's own address; "": the name of a model does not say what it costs
    tokenizers: ByModel[str] = ()


def _below(prefix: str, pairs: ByModel[T]) -> ByModel[T]:
    """The same for models that are sold under `<maker>/<model>`."""
    return tuple((f"{prefix}/{name}", value) for name, value in pairs)


_CHAT, _COMPLETIONS, _RESPONSES, _EMBEDDINGS = "openai_chat", "openai_completions", "openai_responses", "openai_embeddings"
_MESSAGES, _OLLAMA = "anthropic_messages", "ollama"

# -- OpenAI's models ----------------------------------------------------------------------------------------------------------------------

# https://github.com/openai/tiktoken/blob/main/tiktoken/model.py has the same assignment.
_OPENAI_TOKENIZERS: ByModel[str] = (
    ("text-embedding-3", "cl100k_base"),
    ("text-embedding-ada-002", "cl100k_base"),
    ("chatgpt-4o", "o200k_base"),
    ("gpt-3.5", "cl100k_base"),
    ("gpt-4.1", "o200k_base"),
    ("gpt-4.5", "o200k_base"),
    ("gpt-4o", "o200k_base"),
    ("gpt-4", "cl100k_base"),
    ("gpt-5", "o200k_base"),
    ("o1", "o200k_base"),
    ("o3", "o200k_base"),
    ("o4", "o200k_base"),
)
# The open ones use o200k_harmony, which is o200k_base and special tokens: https://github.com/openai/harmony
_GPT_OSS_TOKENIZERS: ByModel[str] = (("openai/gpt-oss", "o200k_base"),)
# Reasoning models refuse max_tokens: https://platform.openai.com/docs/api-reference/chat/create#chat_create-max_tokens
_OPENAI_CAP_FIELDS: ByModel[str] = tuple((prefix, "max_completion_tokens") for prefix in ("gpt-5", "gpt-6", "o1", "o3", "o4"))
# https://platform.openai.com/docs/guides/images-vision#calculating-costs. By tiles: an image is scaled to 768 x 2048 at most, which is 8 tiles of
# 512 x 512 and the base. By patches of 32 x 32: 1,536 of them, with `detail: original` 10,000, times the model's factor.
_OPENAI_IMAGES: ByModel[int] = (
    ("gpt-4o-mini", 2833 + 8 * 5667),
    ("gpt-4o", 85 + 8 * 170),
    ("chatgpt-4o", 85 + 8 * 170),
    ("gpt-4.1-mini", 2_489),  # 1,536 x 1.62
    ("gpt-4.1-nano", 3_779),  # 1,536 x 2.46
    ("gpt-4.1", 1_536),
    ("gpt-4.5", 85 + 8 * 170),
    ("gpt-4-turbo", 85 + 8 * 170),
    ("gpt-5-mini", 2_489),
    ("gpt-5-nano", 3_779),
    ("gpt-5", 24_600),  # those of them that take 10,000 patches, at the largest factor of all
    ("gpt-6", 24_600),
    ("o1", 75 + 8 * 150),
    ("o3", 75 + 8 * 150),
    ("o4-mini", 2_642),  # 1,536 x 1.72
)
# What other vendors' models thought, as clients send it back, is unknown to these APIs, and an unknown field of a message is an error there:
# https://platform.openai.com/docs/api-reference/chat/create#chat_create-messages has the known ones.
_THOUGHTS = ("messages[].reasoning_content", "messages[].reasoning_details", "messages[].thinking_blocks")

# -- other makers' ------------------------------------------------------------------------------------------------------------------------

# https://docs.anthropic.com/en/docs/build-with-claude/vision#evaluate-image-size: 1,568 pixels and about 1,600 tokens at most; newer models 4,784.
_CLAUDE_IMAGES: ByModel[int] = (
    ("claude-3", 1_600),
    ("claude-haiku-4", 1_600),
    ("claude-sonnet-4", 1_600),
    ("claude-opus-4-0", 1_600),
    ("claude-opus-4-1", 1_600),
    ("claude-opus-4-5", 1_600),
    ("claude-opus-4-6", 1_600),
    ("", 4_784),
)
# https://docs.anthropic.com/en/docs/about-claude/pricing#tool-use-pricing: from 264 to 804 tokens, by model and tool_choice.
_CLAUDE_OWN_PROMPT = 804
# https://ai.google.dev/gemini-api/docs/tokens and https://ai.google.dev/gemini-api/docs/media-resolution: up to 2.5, 258 tokens for each tile of 256
# to 768 pixels of an image that is scaled to 3,072 at most, which is 12 x 2 tiles in the worst of shapes; later ones at most 2,240.
_GEMINI_IMAGE = 24 * 258
# Qwen's models take up to 16,384 visual tokens as they come: https://huggingface.co/Qwen/Qwen2-VL-7B-Instruct (max_pixels).
_OPEN_MODELS_IMAGE = 16_384

FORWARDED = ("traceparent", "tracestate")  # to every provider: https://www.w3.org/TR/trace-context/

# -- the table ----------------------------------------------------------------------------------------------------------------------------

ROWS = {
    "openai": Row(
        _CHAT,
        also=(_COMPLETIONS, _RESPONSES, _EMBEDDINGS),
        base_url="https://api.openai.com/v1",
        # https://platform.openai.com/docs/api-reference/authentication; the last one switches betas on.
        forwards=("openai-organization", "openai-project", "openai-beta"),
        cap_fields=_OPENAI_CAP_FIELDS,
        rejects=_THOUGHTS,
        image_tokens=_OPENAI_IMAGES,
        tokenizers=_OPENAI_TOKENIZERS,
        catalogue="openai",
    ),
    # The newer API of Azure, which is OpenAI's with another header: https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle.
    # Models are named by the operator's deployments; whatever its name, one may be a gpt-4o-mini.
    "azure_v1": Row(
        _CHAT,
        also=(_COMPLETIONS, _RESPONSES, _EMBEDDINGS),
        base_url_ends="/openai/v1",
        auth_header="api-key",
        auth_scheme="",
        cap_fields=_OPENAI_CAP_FIELDS,
        rejects=_THOUGHTS,
        image_tokens=(*_OPENAI_IMAGES, ("", 2833 + 8 * 5667)),
        tokenizers=_OPENAI_TOKENIZERS,
    ),
    # The older one: https://learn.microsoft.com/azure/ai-foundry/openai/reference#chat-completions
    "azure": Row(
        _CHAT,
        also=(_COMPLETIONS, _EMBEDDINGS),
        auth_header="api-key",
        auth_scheme="",
        path="/openai/deployments/{model}{path}?api-version={api_version}",
        cap_fields=_OPENAI_CAP_FIELDS,
        rejects=_THOUGHTS,
        image_tokens=(*_OPENAI_IMAGES, ("", 2833 + 8 * 5667)),
        tokenizers=_OPENAI_TOKENIZERS,
    ),
    # https://docs.anthropic.com/en/api/overview#authentication, https://docs.anthropic.com/en/api/versioning
    "anthropic": Row(
        _MESSAGES,
        base_url="https://api.anthropic.com",
        auth_header="x-api-key",
        auth_scheme="",
        headers=(("anthropic-version", "2023-06-01"),),
        forwards=("anthropic-beta",),
        marked_cache=True,  # https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching: `cache_control`, of a block or of the whole request
        own_prompt=_CLAUDE_OWN_PROMPT,
        image_tokens=_CLAUDE_IMAGES,
        catalogue="anthropic",
    ),
    # https://github.com/ollama/ollama/blob/main/docs/api.md. Its own chat API is used, not OpenAI's (openai.md there): where a model thinks and the
    # answer is to have a shape it generates twice, which only the former can prevent (dialects/ollama_content.py). It stops with the request.
    "ollama": Row(
        _OLLAMA,
        also=(_EMBEDDINGS,),
        base_url="http://127.0.0.1:11434",
        paths=((_EMBEDDINGS, "/v1{path}"),),
        cap_field="num_predict",
        extend=True,
        stops_on_close=True,
        image_tokens=(("", _OPEN_MODELS_IMAGE),),
    ),
    # https://console.groq.com/docs/openai: logit_bias and names of messages are a 400. https://console.groq.com/docs/api-reference#chat-create:
    # max_tokens is deprecated, neither metadata nor store is supported. Usage comes in `x_groq` if it is not asked for.
    "groq": Row(
        _CHAT,
        also=(_RESPONSES,),
        base_url="https://api.groq.com/openai/v1",
        cap_field="max_completion_tokens",
        rejects=("logit_bias", "metadata", "store", "messages[].name", *_THOUGHTS),
        tokenizers=_GPT_OSS_TOKENIZERS,
        catalogue="groq",
    ),
    # https://docs.mistral.ai/api/: `random_seed`, `output_dimension`, no `stream_options` (a stream's last chunk has the usage anyway); a field that
    # it does not have is a 422. An image is scaled to 1,024 pixels at most: 64 rows of 64 patches and the end of the row.
    "mistral": Row(
        _CHAT,
        also=(_EMBEDDINGS,),
        base_url="https://api.mistral.ai/v1",
        stream_usage=False,
        rejects=("stream_options", "logit_bias", "user", "store", "service_tier", "safety_identifier", "verbosity", *_THOUGHTS),
        renames=(("seed", "random_seed"), ("dimensions", "output_dimension")),
        image_tokens=(("", 64 * 65),),
        catalogue="mistral",
    ),
    # https://docs.together.ai/docs/inference/openai-compatibility; images: https://docs.together.ai/docs/vision-overview#pricing
    "together": Row(
        _CHAT,
        also=(_COMPLETIONS, _EMBEDDINGS),
        base_url="https://api.together.ai/v1",
        image_tokens=(("", 4 * 1601),),
        tokenizers=_GPT_OSS_TOKENIZERS,
        catalogue="together",
    ),
    # https://openrouter.ai/docs/api/reference/overview: parameters that a model does not know are left out there; usage comes unasked, with the cost.
    # No catalogue: it goes to another host of a model, at another price, when one is down.
    "openrouter": Row(
        _CHAT,
        also=(_COMPLETIONS, _RESPONSES, _EMBEDDINGS, _MESSAGES),
        base_url="https://openrouter.ai/api/v1",
        own_prompt=_CLAUDE_OWN_PROMPT,
        image_tokens=(*_below("openai", _OPENAI_IMAGES), ("", _OPEN_MODELS_IMAGE)),
        tokenizers=(*_GPT_OSS_TOKENIZERS, *_below("openai", _OPENAI_TOKENIZERS)),
    ),
    # https://api-docs.deepseek.com/api/create-chat-completion; completions are a beta; https://api-docs.deepseek.com/guides/anthropic_api
    "deepseek": Row(
        _CHAT,
        # A turn that called tools is a 400 without it: https://api-docs.deepseek.com/guides/thinking_mode
        thoughts="reasoning_content",
        also=(_COMPLETIONS, _MESSAGES),
        base_url="https://api.deepseek.com",
        paths=((_COMPLETIONS, "/beta{path}"), (_MESSAGES, "/anthropic{path}")),
        catalogue="deepseek",
    ),
    # https://ai.google.dev/gemini-api/docs/openai: thinking is part of the total alone, and inside the cap; usage on each chunk. Fields that it does
    # not know are a 400: https://github.com/Vali-98/ChatterUI/issues/227, https://github.com/MinLL/SkyrimNet-GamePlugin/issues/77.
    "gemini": Row(
        _CHAT,
        also=(_EMBEDDINGS,),
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        rejects=("frequency_penalty", "logit_bias", "seed", "store", *_THOUGHTS),
        image_tokens=(("", _GEMINI_IMAGE),),
        catalogue="google",
    ),
    "openai_compatible": Row(_CHAT, also=(_COMPLETIONS, _EMBEDDINGS)),
    # llama-cpp-python looks at the cap only where no character has begun: of four tokens that make one, three may come after it. llama.cpp's own
    # server speaks responses and messages, too: for the operator to say (`speaks`).
    "llama_cpp": Row(
        _CHAT,
        also=(_COMPLETIONS, _EMBEDDINGS),
        base_url="http://127.0.0.1:8081/v1",
        extend=True,
        stops_on_close=True,
        token_per_event=True,
        cap_overrun=3,
    ),
    # https://docs.vllm.ai/en/latest/serving/openai_compatible_server/: it aborts a request whose client has left. Several of its
    # parsers show a call only when it is complete: https://github.com/vllm-project/vllm/issues/40779, 42878, 47998.
    "vllm": Row(
        _CHAT,
        also=(_COMPLETIONS, _RESPONSES, _EMBEDDINGS, _MESSAGES),
        base_url="http://127.0.0.1:8000/v1",
        extend=True,
        stops_on_close=True,
        image_tokens=(("", _OPEN_MODELS_IMAGE),),
        tokenizers=_GPT_OSS_TOKENIZERS,
    ),
    "mock": Row(
        _CHAT,
        also=(_COMPLETIONS, _RESPONSES, _EMBEDDINGS, _MESSAGES),
        base_url="http://127.0.0.1:8089/v1",
        extend=True,
        streams_calls=True,
        stops_on_close=True,
    ),
}

# What `dialect: openai` means at another address than OpenAI's own: a server that is compatible with it, and may be in front of OpenAI's models.
OPENAI_ELSEWHERE = msgspec.structs.replace(ROWS["openai"], also=ROWS["openai_compatible"].also, forwards=(), rejects=(), catalogue="")

SPOKEN = tuple(DIALECTS)  # what an operator may say that a provider speaks
TRANSLATED_TO = tuple(PROVIDERS)


def spoken(row: Row, dialects: Sequence[str]) -> Row:
    """The row of a provider that speaks other dialects than its kind does. Requests in any other are translated to the first of them to which that is
    possible; if there is none, they are refused there."""
    first = min(dialects, key=lambda dialect: dialect not in TRANSLATED_TO)
    return msgspec.structs.replace(row, dialect=first, also=tuple(dialect for dialect in dialects if dialect != first))


def paths(row: Row, model: str, base_url: str = "", api_version: str = "") -> tuple[tuple[str, bytes], ...]:
    """Where a model of this row is called, below the base URL, by the dialects that the row speaks. A version that the base URL ends with is not said
    again."""
    quoted, found, elsewhere = quote(model, safe=""), [], dict(row.paths)
    for name in (row.dialect, *row.also):
        path = DIALECTS[name].PATH.decode()
        if base_url.endswith("/v1"):
            path = path.removeprefix("/v1")
        template = elsewhere.get(name, row.path)
        found.append((name, template.format(path=path, model=quoted, api_version=api_version).encode()))
    return tuple(found)


def forwarded(provider: Provider, headers: Mapping[bytes, bytes]) -> Sequence[tuple[bytes, bytes]]:
    """The headers of a call: the provider's own, and those of the client that concern it. Never a credential of the client."""
    if provider.forwards.isdisjoint(headers):
        return provider.headers
    own = {name for name, _ in provider.headers}
    if b"connection" in headers:  # what it names ends here (RFC 9110, 7.6.1)
        own.update(name.strip() for name in headers[b"connection"].lower().split(b","))
    names = [name for name in headers if name in provider.forwards and name not in own and headers[name].decode("latin-1").isprintable()]
    return [*provider.headers, *((name, headers[name]) for name in names)]


def tokenizer(row: Row, model: str) -> str:
    """The vocabulary that a model of this row counts in; "" if it is not known."""
    return _by_prefix(row.tokenizers, model, "")


def cap_field(row: Row, model: str) -> str:
    """The request field in which a model of this row takes its output cap."""
    return _by_prefix(row.cap_fields, model, row.cap_field)


def image_tokens(row: Row, model: str) -> int:
    """The most that one image counts at a model of this row; 0 if it is not known."""
    return _by_prefix(row.image_tokens, model, 0)


def _by_prefix(pairs: ByModel[T], model: str, default: T) -> T:
    """A prefix ends where a part of the name does: `o1` is for `o1-mini`, not for `o1x`. Fine-tuned models (`ft:`) are like their base."""
    base = model.removeprefix("ft:")
    for prefix, value in pairs:
        if not prefix or (base.startswith(prefix) and base[len(prefix) : len(prefix) + 1] in ("", "-", ".", ":")):
            return value
    return default

"""The request side of the OpenAI completions dialect: `POST /v1/completions` from bytes to `Request`, and to the bytes for one deployment.

As strict as openai_request, of which it is made. What is different, and the choices made here:

- An answer has a choice for each prompt and each of its `n`; `best_of` makes more than are returned, and all of them are billed. Together they are at
  most 128. `best_of` above 1 cannot be streamed, as at OpenAI.
- Without a cap, OpenAI takes 16. Here it is the model's `max_output` that is held and sent, as for a chat.
- `echo` gives the prompt back before the output. It is no output, and it is told from it by its text. So a streamed echo of a prompt that came as
  tokens is refused; a whole one is not, since what is charged is what the provider reports.
- `prompt_embeds` (vLLM) are prompts that nobody can count, and are refused; so are running counts of a stream (`continuous_usage_stats`) of several
  prompts, which would be of one prompt at a time.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from sluicegate.dialects import openai_request
from sluicegate.dialects.form import BadRequest, Request, Target
from sluicegate.dialects.openai_inputs import Counted, Inputs, counted
from sluicegate.dialects.openai_messages import Content
from sluicegate.dialects.openai_request import CHOICES_MAX, Choices, Count, StreamOptions, cap_of, more_fields, strictly
from sluicegate.dialects.repeats import refuse_repeats
from sluicegate.dialects.showing import shows_all
from sluicegate.dialects.tariffs import tariff


class _StreamOptions(StreamOptions, gc=False):
    continuous_usage_stats: bool | None = None


class Body(Struct, gc=False):
    """The body, as far as the gateway acts on it."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    prompt: Inputs | None
    suffix: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    max_output_tokens: Count | None = None
    max_new_tokens: Count | None = None
    n_predict: Count | None = None
    n: Choices | None = None
    best_of: Choices | None = None
    n_cmpl: Choices | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0)] | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    use_beam_search: bool | None = None


_ACTED_ON = frozenset((*Body.__struct_fields__, "background", "prompt_embeds"))
_SILENT = frozenset(Body.__struct_fields__) | {"metadata", "min_p", "provider", "repetition_penalty", "service_tier", "top_k"}
_ABSENT = (b"null", b"[]")
_FLAT = frozenset(("prompt",))  # holds no objects
_decode = msgspec.json.Decoder(Body).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def read_request(body: bytes) -> Request:
    """A client's request. Raises BadRequest, and nothing else, naming the field."""
    typed, fields, content = strictly(_read, body)
    prompts = Counted([], 1, 1) if typed.prompt is None else counted(typed.prompt, "prompt")  # without one, a token that begins a document
    each = max(typed.n or 1, typed.n_cmpl or 1)
    choices = prompts.inputs * max(each, typed.best_of or 1)
    stream, options = typed.stream is True, typed.stream_options
    _possible(typed, prompts, choices)
    cap, cap_by = cap_of(typed)
    texts = prompts.texts + ([typed.suffix] if typed.suffix else []) + content.texts
    return Request(
        model=typed.model,
        stream=stream,
        include_usage=stream and options is not None and options.include_usage is True,
        choices=choices,
        cap=cap,
        thinking=0,
        texts=texts,
        messages=prompts.inputs + (1 if typed.suffix else 0),
        images=0,
        prediction="",
        unbounded=content.unbounded,
        fields=fields,
        cap_by=cap_by,
        unbounded_by=content.unbounded_by,
        hosted=content.hosted,
        tariff=tariff(fields),
        tokens=prompts.tokens,
        echoed=[text for text in prompts.texts for _ in range(each)] if typed.echo else (),
        shown=not typed.echo and shows_all(fields),
    )


def write_request(request: Request, target: Target) -> bytes:
    """The request as one deployment gets it. Its cap field is `max_tokens`, also for models whose chats want another one."""
    if target.cap_field != "max_tokens":
        target = msgspec.structs.replace(target, cap_field="max_tokens")
    return openai_request.write_request(request, target)


def _read(body: bytes) -> tuple[Body, dict[str, Raw], Content]:
    fields: dict[str, Any] = _decode_fields(body)
    typed, content = _decode(body), Content()
    refuse_repeats(fields, _FLAT)
    if not fields.keys() <= _SILENT:
        more_fields(content, fields, _SILENT, _ACTED_ON)
        if bytes(fields.get("prompt_embeds", b"null")) not in _ABSENT:
            raise BadRequest("'prompt_embeds' is not supported: what a prompt costs is told by its text or its tokens.", "prompt_embeds")
    return typed, fields, content


def _possible(typed: Body, prompts: Counted, choices: int) -> None:
    if choices > CHOICES_MAX:
        name = "best_of" if typed.best_of else "n" if typed.n else "prompt"
        raise BadRequest(f"Prompts times answers to each are {choices}, more than {CHOICES_MAX}.", name)
    if not typed.stream:
        return
    if typed.best_of is not None and typed.best_of > 1:
        raise BadRequest("The best of several answers cannot be streamed.", "best_of")
    if typed.echo and prompts.tokens and typed.prompt is not None:
        raise BadRequest("The echo of a prompt that is given as tokens cannot be streamed: it could not be told from the output.", "echo")
    options = typed.stream_options
    if options is not None and options.continuous_usage_stats and prompts.inputs > 1:
        raise BadRequest("Usage cannot be counted continuously over several prompts.", "stream_options.continuous_usage_stats")

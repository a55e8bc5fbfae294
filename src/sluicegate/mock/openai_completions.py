"""OpenAI's legacy completions, as the mock speaks them. Reasoning is text like any other here, unless it is hidden."""

from typing import Any

import msgspec

from sluicegate.mock.answers import CREATED, Answer, Piece, pieces
from sluicegate.mock.calls import BadCall, Call, Choices, Positive, StreamOptions, read
from sluicegate.mock.openai_chunks import KEY_HEADER, STREAM_TYPE, Chunks, error, error_in_200, usage, wants_usage

__all__ = ["KEY_HEADER", "PATH", "STREAM_TYPE", "Writer", "error", "error_in_200", "read_call", "unary"]

PATH = "/v1/completions"
CAP = 16  # where none is given, as OpenAI has it
_json = msgspec.json.Encoder().encode


class Body(msgspec.Struct):
    """The body of a call, as far as the mock acts on it."""

    model: str
    prompt: msgspec.Raw
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    best_of: Choices | None = None
    echo: bool | None = None
    max_tokens: Positive | None = None
    user: str | None = None
    mock: dict[str, Any] | None = None
    prompts: list[str] = []  # filled in by `read_call`; "" where it is given in tokens

    @property
    def candidates(self) -> int:
        """Choices generated for each prompt."""
        return max(self.n or 1, self.best_of or 1)


_decode_body = msgspec.json.Decoder(Body).decode
_decode_prompt = msgspec.json.Decoder(str | list[str | int | list[int]]).decode


def read_call(body: bytes) -> Call:
    """Prompts x max(n, best_of) choices."""
    asked = read(_decode_body, body)
    asked.prompts, token_ids = read_prompts(asked.prompt)
    if asked.best_of is not None and (asked.stream or asked.best_of < (asked.n or 1)):
        raise BadCall("best_of must be at least n, and is not for streams")
    return Call(
        asked.model,
        asked.prompts,
        bytes(asked.prompt),
        asked,
        bool(asked.stream),
        wants_usage(asked.stream_options),
        len(asked.prompts) * asked.candidates,
        asked.max_tokens or CAP,
        token_ids=token_ids,
        user=asked.user or "",
        overrides=asked.mock,
    )


def read_prompts(raw: msgspec.Raw) -> tuple[list[str], int]:
    """The texts of each prompt, and how many tokens are given as such."""
    given = read(_decode_prompt, raw)
    if isinstance(given, str):
        return [given], 0
    if not given:
        raise BadCall("there is no prompt")
    ids = [one for one in given if isinstance(one, int)]
    if ids:
        if len(ids) < len(given):
            raise BadCall("tokens and texts are mixed")
        return [""], len(ids)
    return ["" if isinstance(one, list) else str(one) for one in given], sum(len(one) for one in given if isinstance(one, list))


def unary(answer: Answer) -> bytes:
    """The body of a unary answer: of each prompt's candidates the first n."""
    asked: Body = answer.call.body
    body: dict[str, Any] = {"id": _id(answer), "object": "text_completion", "created": CREATED, "model": answer.call.model}
    shown = [prompt * asked.candidates + candidate for prompt in range(len(asked.prompts)) for candidate in range(asked.n or 1)]
    body["choices"] = [
        {
            "index": index,
            "text": _echo(answer, place) + "".join([_text(answer, place, piece) for piece in pieces(answer.outputs[place], 0, answer.longest)]),
            "logprobs": None,
            "finish_reason": answer.outputs[place].finish,
            **answer.options.choice_fields,
        }
        for index, place in enumerate(shown)
    ]
    if answer.options.usage != "none":
        body["usage"] = usage(answer.figures(answer.longest))
    return _json({**body, **answer.options.chunk_fields})


def _id(answer: Answer) -> str:
    return f"cmpl-mock-{answer.number}"


def _echo(answer: Answer, place: int) -> str:
    asked: Body = answer.call.body
    return asked.prompts[place // asked.candidates] if asked.echo else ""


def _text(answer: Answer, index: int, piece: Piece) -> str:
    return "" if piece.kind == "reasoning" and not answer.shows_reasoning else answer.text(index, piece)


class Writer(Chunks):
    """A stream: the prompt where it is echoed, the texts, why each choice ended, usage."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer, _id(answer), "text_completion", "text")

    def lead(self) -> bytes:
        """The echo."""
        asked: Body = self.answer.call.body
        places = range(len(self.answer.outputs)) if asked.echo else ()
        return b"".join([self.silent(index, _json(_echo(self.answer, index))) for index in places]) + self.padding()

    def chunk(self, index: int, piece: Piece) -> bytes:
        """Some text."""
        text = _text(self.answer, index, piece)
        return self.output(index, piece, _json(text)) if text else b""

    def finish(self, index: int) -> bytes:
        """Why it ended."""
        return self.ending(index, b'""')

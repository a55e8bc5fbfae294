"""The OpenAI completions dialect in the content form (content.py), on the client's side: a prompt becomes what a user says, the reply its text.

Only a single prompt of text is that. Prompts of tokens, several prompts, an echo, the best of several, log probabilities, a suffix, and answers held
to a grammar raise `Inexpressible`: another deployment may speak completions. What a model thinks has no place in a reply and is left out.
"""

from typing import Any

import msgspec

from sluicegate.core.usage import Usage
from sluicegate.dialects.content import (
    Begin,
    Finish,
    Inexpressible,
    Message,
    Piece,
    Prompt,
    Refusal,
    RefusalDelta,
    Reply,
    Text,
    TextDelta,
)
from sluicegate.dialects.form import Request
from sluicegate.dialects.openai_completions import DONE, Head, chunk, counts
from sluicegate.dialects.openai_completions_request import Body


class _Said(Body, gc=False):
    top_k: int | None = None


# What is said in a prompt or in the request itself.
_SAID = frozenset((*_Said.__struct_fields__, "stream", "n_cmpl")) - {"logit_bias"}
# They change what kind of answer comes.
_KINDS = frozenset(
    ("grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "json_schema", "response_format", "structured_outputs")
)
_ABSENT = (b"null", b"false", b'""', b"[]", b"{}")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Said).decode


def read_prompt(request: Request) -> Prompt:
    """What a request says. Raises Inexpressible where no conversation says that."""
    said = _decode(_encode(request.fields))
    present = [name for name, raw in request.fields.items() if bytes(raw) not in _ABSENT]
    asked = [("echo", said.echo), ("best_of", (said.best_of or 1) > 1), ("logprobs", said.logprobs is not None), ("suffix", said.suffix)]
    asked += [("use_beam_search", said.use_beam_search), *((name, name in _KINDS) for name in present)]
    for name, value in asked:
        if value:
            raise Inexpressible(f"'{name}' cannot be said to a deployment that takes chats.", name)
    if len(request.texts) < 1 or request.tokens or request.messages > 1:
        raise Inexpressible("A deployment that takes chats needs a single prompt of text.", "prompt")
    prompt = said.prompt if isinstance(said.prompt, str) else request.texts[0]
    return Prompt(
        messages=[Message("user", [Text(prompt)])],
        temperature=said.temperature,
        top_p=said.top_p,
        top_k=said.top_k,
        stop=[said.stop] if isinstance(said.stop, str) else said.stop or [],
        seed=said.seed,
        presence_penalty=said.presence_penalty,
        frequency_penalty=said.frequency_penalty,
        user=said.user or "",
        left_out=[name for name in present if name not in _SAID],
    )


def write_reply(reply: Reply, request: Request) -> bytes:
    """A whole answer."""
    choices = []
    for choice in reply.choices:
        text = "".join([part.text for part in choice.parts if isinstance(part, Text | Refusal)])
        choices.append({"text": text, "index": choice.index, "logprobs": None, "finish_reason": choice.finish or "stop"})
    answer: dict[str, Any] = {"id": reply.id, "object": "text_completion", "created": reply.created, "model": reply.model, "choices": choices}
    if reply.usage is not None:
        answer["usage"] = counts(reply.usage)
    return _encode(answer)


class Writer:
    """Writes a streamed answer."""

    after = None

    def __init__(self, request: Request) -> None:
        self.head = Head()
        self._include_usage = request.include_usage
        self._unended: dict[int, None] = {}  # choices

    def write(self, pieces: list[Piece]) -> bytes:
        """The chunks of these pieces."""
        out = []
        for piece in pieces:
            if isinstance(piece, TextDelta | RefusalDelta):
                self._unended[piece.choice] = None
                out.append(chunk(self.head, piece.choice, piece.text, None))
            elif isinstance(piece, Finish):
                self._unended.pop(piece.choice, None)
                out.append(chunk(self.head, piece.choice, "", piece.reason))
            elif isinstance(piece, Begin):
                self.head = Head(piece.id, piece.created, piece.model)
                self._unended[0] = None
        return b"".join(out)

    def last(self, usage: Usage | None) -> bytes:
        """The end of choices of which the provider told none, the usage, if it was asked for, and the end."""
        ends = b"".join([chunk(self.head, index, "", "stop") for index in self._unended])
        told = chunk(self.head, None, "", None, {"usage": counts(usage)}) if self._include_usage and usage is not None else b""
        return ends + told + DONE

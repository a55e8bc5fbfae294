"""What OpenAI's older endpoints are given to read: a text, texts, tokens, or lists of tokens. Prompts of completions, inputs of embeddings.

Tokens are ids of the model's own vocabulary: each counts as one, whatever it stands for. A list of numbers is one input, of anything else as many as
it is long; lists in which kinds are mixed, which llama.cpp would take, are refused, since what they multiply is not agreed upon.
"""

from typing import Annotated, NamedTuple

from msgspec import Meta

from sluicegate.dialects.form import BadRequest

Token = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Tokens = Annotated[list[Token], Meta(min_length=1)]
Inputs = str | Annotated[list[str | Token | Tokens], Meta(min_length=1)]


class Counted(NamedTuple):
    """Texts, how many tokens there are beside them, and how many inputs."""

    texts: list[str]
    tokens: int
    inputs: int


def counted(inputs: Inputs, name: str) -> Counted:
    """What a field of this name holds. Raises BadRequest for a list of several kinds."""
    if isinstance(inputs, str):
        return Counted([inputs], 0, 1)
    kinds = set(map(type, inputs))
    if len(kinds) > 1:
        raise BadRequest(f"Invalid value for '{name}'. Expected a string, or a list of strings, of tokens or of lists of tokens.", name)
    if kinds == {int}:
        return Counted([], len(inputs), 1)
    texts = [text for text in inputs if isinstance(text, str)]
    return Counted(texts, sum([len(tokens) for tokens in inputs if isinstance(tokens, list)]), len(inputs))

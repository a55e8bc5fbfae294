"""Which dialects there are, and what is between two of them.

`DIALECTS` has every module by its NAME; `CLIENTS` and `PROVIDERS` the content modules of those that can be translated from and to.
"""

from types import ModuleType
from typing import Any

from sluicegate.dialects import (
    anthropic_content,
    anthropic_messages,
    ollama,
    ollama_content,
    openai_chat,
    openai_chat_content,
    openai_completions,
    openai_completions_content,
    openai_embeddings,
    openai_responses,
    openai_responses_content,
)
from sluicegate.dialects.between import Between, Origin
from sluicegate.dialects.content import Inexpressible
from sluicegate.dialects.form import Request

_MODULES = (
    openai_chat,
    openai_completions,
    openai_responses,
    openai_embeddings,
    anthropic_messages,
    ollama,
)
DIALECTS: dict[str, ModuleType] = {module.NAME: module for module in _MODULES}
CLIENTS: dict[str, Any] = {
    openai_chat.NAME: openai_chat_content,
    openai_completions.NAME: openai_completions_content,
    openai_responses.NAME: openai_responses_content,
    anthropic_messages.NAME: anthropic_content,
}
PROVIDERS: dict[str, Any] = {
    openai_chat.NAME: openai_chat_content,
    anthropic_messages.NAME: anthropic_content,
    ollama.NAME: ollama_content,
}


def between(client: str, provider: str, request: Request, request_id: str, time_s: int) -> Between:
    """What a client's request goes through on its way to a provider that speaks another dialect, and the answer on its way back.

    Raises Inexpressible.
    """
    if client not in CLIENTS or provider not in PROVIDERS:
        raise Inexpressible(f"No deployment of {request.model!r} takes requests of this kind.", "model")
    return Between(DIALECTS[client], CLIENTS[client], DIALECTS[provider], PROVIDERS[provider], request, Origin(request_id, time_s))

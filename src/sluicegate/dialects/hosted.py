"""Tools that a provider runs, as requests ask for them and answers tell of them: by one name, whatever the version.

https://platform.openai.com/docs/api-reference/responses/create, https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/overview
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Raw, structs

from sluicegate.core.hosted import Hosted, told_as

_VERSION = re.compile(r"(_\d{8}|_\d{4}_\d{2}_\d{2})?")
# Tools that the client runs, though the provider describes them.
_OF_CLIENTS = frozenset(("apply_patch", "computer", "computer_use_preview", "local_shell"))
# Words in the names of fields, without separators, by which the provider runs something; others by which it gets input are of what it keeps.
_RUNNING = ("agentid", "assistantid", "connector", "datasource", "grounding", "knowledge", "mcp", "plugin", "retriev", "search", "vectorstore")
_CALL = "_call"
_BY_CLIENTS = _OF_CLIENTS | {"computer"}  # as answers tell of them
LOOP = 10  # rounds in which Anthropic runs tools; `pause_turn` ends them: https://docs.anthropic.com/en/docs/build-with-claude/handling-stop-reasons
_OPENED = ("open_page", "find_in_page", "find")  # what a search does for nothing: all else is paid for
# Fields that name what the provider has kept, and that may bring tools of any kind.
_BRINGING = frozenset(("prompt", "promptid", "preset"))
_NULL = Raw(b"null")
_SMALL = "1g"  # of a container: what its price is for


def name_of(kind: str) -> str:
    """`web_search` of `web_search_20250305`, `openrouter:web_search`."""
    kind = kind[:100].lower().rpartition(":")[2]
    end = next(found.start() for i in range(len(kind) + 1) if (found := _VERSION.fullmatch(kind, i)))
    return kind[:end] or "tool"


def of_tool(kind: str, by: str, most: int | None = None, *, together: bool = False, told: str | None = "", rounds: int = 0) -> tuple[Hosted, ...]:
    """A tool of this type, if it is the provider that runs it."""
    name = name_of(kind)
    if told is not None and told_as(name) != name:
        told = told_as(name)
    return () if name in _OF_CLIENTS else (Hosted(name, by, most, together, told, rounds=rounds),)


def of_field(field: str) -> tuple[Hosted, ...]:
    """What a field of the body makes the provider run, if it does."""
    plain = field.casefold().replace("_", "").replace("-", "")
    if plain == "websearchoptions":  # of models that search once, before they answer
        return (Hosted("web_search", field, 1, told=None, again=False),)
    if plain in _BRINGING:
        return (Hosted(field[:64].lower(), field[:100], told=None, any=True),)
    if not any(word in plain for word in _RUNNING):
        return ()
    return (Hosted("mcp" if "mcp" in plain else field[:64].lower(), field[:100], told=None),)


def of_response(hosted: tuple[Hosted, ...], most: int | None) -> tuple[Hosted, ...]:
    """What fields make the provider run, where `max_tool_calls` bounds the calls of all tools together, and the answer tells of them."""
    return tuple(structs.replace(tool, most=most, together=True, told="") if tool.any else tool for tool in hosted)


def of_container(fields: Mapping[str, Raw]) -> tuple[Hosted, ...]:
    """What runs in a container of Anthropic's that a request names: skills have code of theirs run."""
    return () if fields.get("container", _NULL) == _NULL else (Hosted("code_execution", "container", rounds=LOOP),)


def of_code(container: Any, by: str, most: int | None) -> Hosted:
    """Code that runs in a container: dearer in a larger one, and in one that is kept nobody knows of which size."""
    size = container.get("memory_limit") or _SMALL if isinstance(container, dict) else "kept"
    name = "code_interpreter" if size == _SMALL else f"code_interpreter_{str(size)[:20].lower()}"
    return Hosted(name, by, most, together=True, told="code_interpreter")


def counted(items: Iterable[Any]) -> dict[str, int]:
    """Calls of such tools among the items of a response. Code is paid for by its container."""
    found: dict[str, int] = {}
    containers = set()
    for item in items:
        kind = item.get("type") if isinstance(item, dict) else None
        if not isinstance(kind, str) or not kind.endswith(_CALL) or kind in ("function_call", "custom_tool_call"):
            continue
        name, action = name_of(kind.removesuffix(_CALL)), item.get("action")
        if name in _BY_CLIENTS:
            continue
        if name == "web_search" and isinstance(action, dict) and action.get("type") in _OPENED:
            continue
        if name == "code_interpreter" and isinstance(container := item.get("container_id"), str):
            if container in containers:
                continue
            containers.add(container)
        found[name] = found.get(name, 0) + 1
    return found

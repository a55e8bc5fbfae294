"""How hard a model is to think, under whichever names a request says it: the ceiling on that (core/efforts.py), and what goes where it is forced.

Vendors have words (`reasoning_effort`, `reasoning.effort`, `output_config.effort`, `thinking_level`), numbers of tokens (`thinking.budget_tokens`,
`reasoning.max_tokens`, `thinking_budget`), and switches; in the body itself, in `extra_body`, in objects of their own, with underscores or capitals:

- https://platform.openai.com/docs/guides/reasoning, https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking
- https://ai.google.dev/gemini-api/docs/openai#thinking (a budget of -1 is as much as the model likes), https://openrouter.ai/docs/use-cases/reasoning-tokens
- https://help.aliyun.com/zh/model-studio/deep-thinking, https://api-docs.deepseek.com/guides/thinking_mode

A word that is not known, and a value of another kind, count as above every ceiling. Where thinking is turned on and no size is said beside it, one is
put there. Where nothing is said at all, nothing is put in: whether the model thinks, and whether it takes the parameter, only its provider knows.

What is lowered in the client's own words says less in those of another dialect, which may have other ones: so translations are bound once more.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from sluicegate.core.efforts import LEAST, UNSAID, Effort, effort_for
from sluicegate.dialects.content import Prompt

# Names of fields, in small letters, without underscores.
_WORDS = frozenset(("effort", "reasoningeffort", "thinkinglevel"))
_BUDGETS = frozenset((
    "budgettokens", "maxreasoningtokens", "maxthinkingtokens", "reasoningbudget", "thinkingbudget", "thinkingbudgettokens", "thinkingtokenbudget",
))  # fmt: skip
_THINKING = frozenset(("reasoning", "think", "thinking"))  # a word, a switch, or an object
_AROUND = frozenset(("chattemplatekwargs", "generationconfig", "google", "outputconfig", "vllmxargs"))  # have other members, too
_OBJECTS = _AROUND | _THINKING | {"thinkingconfig"}
_BODY = "extrabody"  # is read as if it were the body
_SAYING = _WORDS | _BUDGETS | _THINKING | {"enablethinking", "thinkingconfig"}
_SAYING_INSIDE = frozenset(("enabled", "maxtokens", "type"))  # of `reasoning`
_READ = _SAYING | _AROUND | {_BODY}
_ON = frozenset(("adaptive", "auto", "enabled"))  # types of `thinking`
_KNOWN = {effort.value: effort for effort in Effort}

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def lowered(dialect: str, fields: dict[str, Any], most: Effort, budget: int | None) -> list[str]:
    """Lowers what asks for more. budget: tokens; None: any number. The paths of what was not so before."""
    told = {name: _decode(raw) for name, raw in fields.items() if _plain(name) in _READ}
    if not told:
        return []
    lowering = _Lowering(dialect, most, budget)
    lowering.body(told, "")
    for name in {path.partition(".")[0] for path in lowering.changed}:
        fields[name] = Raw(_encode(told[name]))
    return list(lowering.changed)


def taken_out(dialect: str, fields: dict[str, Any], own: str) -> list[str]:
    """Takes everything out that says it, but for what stands where the dialect has it (own: a path). The paths of what was taken out."""
    told = {name: _decode(raw) for name, raw in fields.items() if _plain(name) in _READ}
    gone: list[str] = []
    for name in list(told):
        before = len(gone)
        if dialect != "anthropic_messages" or name != "thinking" or _has_budget(told[name]):  # else it says whether, and how hard stands beside it
            _take_out(told, name, "", "", own, gone)
        if len(gone) > before:
            fields.pop(name)
            fields |= {name: Raw(_encode(told[name]))} if name in told else {}
    return gone


def _take_out(holder: dict[str, Any], name: str, path: str, inside: str, own: str, gone: list[str]) -> None:
    value, plain, here = holder[name], _plain(name), path + name
    if value is None or here == own:
        return
    if isinstance(value, dict) and (plain in _AROUND or plain in ("reasoning", _BODY)):
        before = len(gone)
        for each in list(value):
            _take_out(value, each, f"{here}.", plain, own, gone)
        if not value and len(gone) > before:
            del holder[name]
    elif plain in _SAYING or (inside == "reasoning" and plain in _SAYING_INSIDE):
        del holder[name]
        gone.append(here)


def _has_budget(thinking: Any) -> bool:
    return isinstance(thinking, dict) and any(_plain(name) in _BUDGETS for name in thinking)


def bind(prompt: Prompt, fields: dict[str, Any], most: Effort) -> None:
    """Holds a request to a ceiling that goes to a provider of another dialect, where it says anything of thinking: in words, which all have."""
    budget = prompt.thinking_budget or 0
    said = prompt.effort or prompt.thinking or budget
    if most is Effort.NONE:
        if said or taken_out("", dict(fields), ""):  # be it in a way that is not translated
            prompt.effort, prompt.thinking, prompt.thinking_budget = most.value, "off", None
    elif said and prompt.thinking != "off" and not prompt.effort and (budget or most < UNSAID):
        prompt.effort = min(most, effort_for(max(budget, LEAST)) if budget else UNSAID).value


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower() if name.isascii() else name


class _Lowering:
    """Of one request."""

    def __init__(self, dialect: str, most: Effort, budget: int | None) -> None:
        self._dialect = dialect
        self._most = most
        self._budget = budget
        self.changed: dict[str, None] = {}

    def body(self, fields: dict[str, Any], path: str) -> None:
        """The body, or what is read as one."""
        for name in list(fields):
            self._field(fields, name, path)
        for name in list(fields):
            self._sized(fields, name, path)

    def _field(self, holder: dict[str, Any], name: str, path: str, inside: str = "") -> None:
        value, plain = holder[name], _plain(name)
        if value is None:
            return
        if plain == _BODY and isinstance(value, dict):
            self.body(value, f"{path}{name}.")
        elif plain in _OBJECTS and isinstance(value, dict):
            for each in list(value):
                self._field(value, each, f"{path}{name}.", plain)
        elif plain in _WORDS or (plain in _THINKING and isinstance(value, str)):
            self._word(holder, name, path, inside)
        elif plain in _BUDGETS or (plain == "maxtokens" and inside in _THINKING):
            self._tokens(holder, name, path, inside)
        elif self._most is Effort.NONE and value is True and (plain in _THINKING or plain in ("enablethinking", "enabled")):
            self._set(holder, name, path, False)

    def _word(self, holder: dict[str, Any], name: str, path: str, inside: str) -> None:
        value, plain = holder[name], _plain(name)
        effort = _KNOWN.get(value.lower()) if isinstance(value, str) else None
        if self._most is Effort.MAX or (effort is not None and effort <= self._most):
            return
        told = self._most
        if inside == "outputconfig" and self._dialect == "anthropic_messages":  # which has none below
            told = max(told, Effort.LOW)
        elif plain == "thinkinglevel":  # Google has no others
            told = min(max(told, Effort.MINIMAL), Effort.HIGH)
        elif plain == "think":  # Ollama neither
            told = min(max(told, Effort.LOW), Effort.HIGH)
        self._set(holder, name, path, False if plain == "think" and self._most is Effort.NONE else told.value)

    def _tokens(self, holder: dict[str, Any], name: str, path: str, inside: str) -> None:
        value, most = holder[name], self._budget
        if most is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most):
            return
        if most or inside not in _THINKING:
            self._set(holder, name, path, most)
        else:  # where it has to be more than nothing
            del holder[name]
            self.changed[path + name] = None
            holder |= {"enabled": False} if inside == "reasoning" else {} if "type" in holder else {"type": "disabled"}

    def _sized(self, fields: dict[str, Any], name: str, path: str) -> None:
        """Says how much, where thinking is turned on without a word of that."""
        value, plain = fields[name], _plain(name)
        if plain in _THINKING:
            if value is True:
                self._say(fields, path)
            elif isinstance(value, dict):
                self._sized_object(fields, name, path)
        elif plain == "enablethinking" and value is True:
            self._say_tokens(fields, "thinking_budget", path)
        elif plain in _OBJECTS and isinstance(value, dict):
            for each in list(value):
                if _plain(each) == "thinkingconfig" and isinstance(value[each], dict):
                    self._sized_config(value[each], f"{path}{name}.{each}.", each)
            if plain == "thinkingconfig":
                self._sized_config(value, f"{path}{name}.", name)

    def _sized_object(self, fields: dict[str, Any], name: str, path: str) -> None:
        thinking: dict[str, Any] = fields[name]
        sizes = {_plain(each) for each, value in thinking.items() if value is not None} & (_WORDS | _BUDGETS | {"maxtokens"})
        if thinking.get("type") not in _ON and thinking.get("enabled") is not True:
            return
        if self._most is Effort.NONE:
            self._set(fields, name, path, {"type": "disabled"} if "type" in thinking else {"enabled": False})
        elif self._dialect == "anthropic_messages":
            if thinking.get("type") != "enabled":  # which has a budget
                self._say(fields, path)
        elif not sizes and _plain(name) == "reasoning":
            if self._most < UNSAID:
                self._set(thinking, "effort", f"{path}{name}.", self._most.value)
        elif not sizes:
            self._say(fields, path)

    def _sized_config(self, config: dict[str, Any], path: str, name: str) -> None:
        if not any(value is not None and _plain(each) in (_WORDS | _BUDGETS) for each, value in config.items()):
            self._say_tokens(config, "thinking_budget" if "_" in name else "thinkingBudget", path)

    def _say_tokens(self, holder: dict[str, Any], name: str, path: str) -> None:
        if self._budget is not None and holder.get(name) is None:
            self._set(holder, name, path, self._budget)

    def _say(self, fields: dict[str, Any], path: str) -> None:
        """In the dialect's own words, where they are not there."""
        if self._most >= UNSAID:
            return
        place = {"openai_responses": "reasoning", "anthropic_messages": "output_config"}.get(self._dialect)
        if place is None:
            if not isinstance(fields.get("reasoning_effort"), str):
                self._set(fields, "reasoning_effort", path, self._most.value)
            return
        inside = fields.get(place)
        inside = inside if isinstance(inside, dict) else {}
        if not isinstance(inside.get("effort"), str):
            told = self._most if place == "reasoning" else max(self._most, Effort.LOW)
            fields[place] = inside
            self._set(inside, "effort", f"{path}{place}.", told.value)

    def _set(self, holder: dict[str, Any], name: str, path: str, value: Any) -> None:
        holder[name] = value
        self.changed[path + name] = None


def ceilings_of(ceilings: Mapping[str, Any]) -> tuple[Effort, int | None] | None:
    """The two that are on thinking; None where there is none."""
    effort, budget = ceilings.get("reasoning_effort"), ceilings.get("thinking_budget")
    return None if effort is None and budget is None else (Effort(effort or Effort.MAX), budget)

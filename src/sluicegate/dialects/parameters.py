"""Parameters of requests by common names, and how each dialect calls them: what content rules force and put ceilings on.

A parameter that a dialect does not have is left alone there. `max_output` is the cap, under whichever names a client gives it; `n` is the number of
answers, under the names of vendors too; how hard a model thinks is said in many ways (efforts.py). What is forced is said once, and its other
spellings are taken out; a ceiling holds for all of them, in `extra_body` too, which some providers read as if it were the body. Changes only fields
that are not as they must be, and says which.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from sluicegate.core.efforts import Effort
from sluicegate.dialects import efforts
from sluicegate.dialects.form import BadRequest
from sluicegate.dialects.openai_request import CAPS

_COMMON = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "seed", "stop", "n", "max_output", "service_tier")
_CHAT = (*_COMMON, "store", "parallel_tool_calls", "reasoning_effort", "top_logprobs")
_RESPONSES = ("temperature", "top_p", "max_output", "service_tier", "store", "parallel_tool_calls", "reasoning_effort", "top_logprobs")
_KNOWN = {  # by dialect
    "openai_chat": frozenset(_CHAT),
    "openai_completions": frozenset(_COMMON),
    "openai_responses": frozenset(_RESPONSES),
    "anthropic_messages": frozenset(("temperature", "top_p", "top_k", "stop", "max_output", "reasoning_effort")),
}
_NAMES = {  # where a dialect has a name of its own; of a field inside another, both
    ("openai_responses", "max_output"): ("max_output_tokens",),
    ("openai_responses", "reasoning_effort"): ("reasoning", "effort"),
    ("anthropic_messages", "stop"): ("stop_sequences",),
    ("anthropic_messages", "reasoning_effort"): ("output_config", "effort"),
}
_CAP = ("max_tokens",)
_ANSWERS = ("n", "best_of", "n_cmpl")
_NESTED = "extra_body"  # may have the same fields; caps and numbers of answers are refused there (openai_request.py)
_SAMPLING = frozenset(("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "seed", "stop", "top_logprobs", "service_tier"))
_OTHERS = {  # other spellings of what is forced, as paths; whichever is the dialect's own is none
    "max_output": tuple((name,) for name in CAPS),
    "n": tuple((name,) for name in _ANSWERS),
    "seed": (("random_seed",),),
}
_UNLESS_SAID = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}  # what providers take
_EFFORT = "reasoning_effort"

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def changed(dialect: str, fields: dict[str, Any], force: Mapping[str, Any], ceilings: Mapping[str, Any]) -> list[str]:
    """Forces parameters, then lowers what is above its ceiling. The names of the fields that were not so before. Raises BadRequest."""
    try:
        return _changed(dialect, fields, force, ceilings)
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None


def most_effort(force: Mapping[str, Any], ceilings: Mapping[str, Any]) -> str:
    """How hard a model may think that gets the request in another dialect; "" where there is no bound."""
    words = [Effort(of[_EFFORT]) for of in (force, ceilings) if of.get(_EFFORT, Effort.MAX) != Effort.MAX]
    return min(words).value if words else ""


def _changed(dialect: str, fields: dict[str, Any], force: Mapping[str, Any], ceilings: Mapping[str, Any]) -> list[str]:
    known = _KNOWN.get(dialect, frozenset())
    names: dict[str, None] = {}
    for name, value in force.items():
        if name in known:
            limited = min(ceilings[name], value) if name in ceilings else value
            names.update(dict.fromkeys(_forced(dialect, fields, name, limited)))
    for name, most in ceilings.items():
        if name in known and name != _EFFORT:
            names.update(dict.fromkeys(_lowered(dialect, fields, name, most)))
    on_thinking = efforts.ceilings_of(ceilings) if _EFFORT in known else None
    if on_thinking is not None:
        names.update(dict.fromkeys(efforts.lowered(dialect, fields, *on_thinking)))
    return list(names)


def _forced(dialect: str, fields: dict[str, Any], name: str, value: Any) -> list[str]:
    path = _NAMES.get((dialect, name), _CAP if name == "max_output" else (name,))
    if name == _EFFORT and dialect == "anthropic_messages" and value < Effort.LOW:  # which has no words for it
        value, path = (Effort.LOW, path) if value > Effort.NONE else ({"type": "disabled"}, ("thinking",))
    spelled = _OTHERS.get(name, ()) + (((_NESTED, path[0]),) if name in _SAMPLING else ())
    others = [".".join(other) for other in spelled if other != path and _taken_out(fields, other)]
    if name == _EFFORT:
        others += efforts.taken_out(dialect, fields, ".".join(path))
    if len(path) == 1:
        if _value(fields, path[0]) == (list(value) if isinstance(value, tuple) else value):
            return others
        fields[path[0]] = Raw(_encode(value))
    else:
        inside = fields.get(path[0], b"null")
        members: dict[str, Any] = _decode_fields(inside) if bytes(inside)[:1] == b"{" else {}
        if _value(members, path[1]) == value:
            return others
        fields[path[0]] = Raw(_encode(members | {path[1]: value}))
    return [".".join(path), *others]


def _taken_out(fields: dict[str, Any], path: tuple[str, ...]) -> bool:
    """Whether a spelling was there. A member goes by itself, and its object with the last one."""
    field = path[0]
    if field not in fields:
        return False
    value = bytes(fields[field])
    if len(path) > 1 and value[:1] == b"{":
        members = _decode_fields(value)
        if not _taken_out(members, path[1:]):
            return False
        if members:
            fields[field] = Raw(_encode(members))
            return True
    elif len(path) > 1:
        return False
    del fields[field]
    return True


def _lowered(dialect: str, fields: dict[str, Any], name: str, most: Any) -> list[str]:
    own = _NAMES.get((dialect, name), _CAP if name == "max_output" else (name,))[0]
    said = [(field, _value(fields, field)) for field in (CAPS if name == "max_output" else _ANSWERS if name == "n" else (own,))]
    given = [(field, value) for field, value in said if value is not None and not (name == "max_output" and not value)]
    above = [field for field, value in given if _is_above(name, value, most)]
    if not given and (name == "max_output" or _UNLESS_SAID.get(name, most) > most):
        above = [own]
    for field in above:
        fields[field] = Raw(_encode(most))
    if name in _SAMPLING and bytes(fields.get(_NESTED, b""))[:1] == b"{":
        members: dict[str, Any] = _decode_fields(fields[_NESTED])
        value = _value(members, own)
        if value is not None and _is_above(name, value, most):
            fields[_NESTED] = Raw(_encode(members | {own: most}))
            above.append(f"{_NESTED}.{own}")
    return above


def _is_above(name: str, value: Any, most: Any) -> bool:
    """What is no number may be any, and of the most likely tokens none or less are all."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return bool(value > most) or (name == "top_k" and value <= 0)


def _value(fields: Mapping[str, Any], name: str) -> Any:
    return _decode(fields[name]) if name in fields else None

"""Streams of responses under content rules: all that tell a text tell the same, and nothing of a phrase, over deltas, parts and repetitions."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.core.content_rules import ContentRules
from sluicegate.core.phrases import START, Phrase, Phrases
from sluicegate.dialects.form import Event
from support_ruled import events_of, mask, ruled, rules, shaped

NOTE = "This is no advice."
BOMB = rules(mask("bomb"))
ALL = ("part_added", "deltas", "text_done", "part_done", "item_done")
FIELD = {"refusal": "refusal"}  # where a part has its text, if not in `text`
KINDS = {  # item, part, where the parts stand, their number, text, part
    "text": ("message", "output_text", "content", "content_index", "response.output_text", "response.content_part"),
    "refusal": ("message", "refusal", "content", "content_index", "response.refusal", "response.content_part"),
    "thought": ("reasoning", "reasoning_text", "content", "content_index", "response.reasoning_text", "response.content_part"),
    "summary": ("reasoning", "summary_text", "summary", "summary_index", "response.reasoning_summary_text", "response.reasoning_summary_part"),
}


def told_by(
    kind: str, texts: Sequence[Sequence[str]], tells: Sequence[str] = ALL, prefilled: bool = False, index: int = 0
) -> Iterator[dict[str, Any]]:
    """The events of one item with these texts, each in pieces; of those that repeat a text only some. prefilled: parts begin with a piece."""
    item, part, inside, number, name, events = KINDS[kind]
    field = FIELD.get(kind, "text")
    yield {"type": "response.output_item.added", "output_index": index, "item": {"id": f"i{index}", "type": item, inside: []}}
    for place, pieces in enumerate(texts):
        at = {"item_id": f"i{index}", "output_index": index, number: place}
        begun = pieces[0] if prefilled and pieces and "part_added" in tells else ""
        if "part_added" in tells:
            yield {"type": f"{events}.added", **at, "part": {"type": part, field: begun}}
        if "deltas" in tells:
            yield from ({"type": f"{name}.delta", **at, "delta": piece} for piece in pieces[bool(begun) :])
        text = "".join(pieces)
        if "text_done" in tells:
            yield {"type": f"{name}.done", **at, field: text}
        if "part_done" in tells:
            yield {"type": f"{events}.done", **at, "part": {"type": part, field: text}}
    if "item_done" in tells:
        yield {"type": "response.output_item.done", "output_index": index, "item": whole_item(kind, texts, index)}


def whole_item(kind: str, texts: Sequence[Sequence[str]], index: int = 0) -> dict[str, Any]:
    item, part, inside, *_ = KINDS[kind]
    return {"id": f"i{index}", "type": item, inside: [{"type": part, FIELD.get(kind, "text"): "".join(pieces)} for pieces in texts]}


def stream(*told: dict[str, Any], output: Sequence[dict[str, Any]] = (), **more: Any) -> bytes:
    """A whole stream of these events, numbered."""
    response = {"id": "r", "object": "response", "output": []}
    end = {"type": "response.completed", "response": response | {"status": "completed", "output": list(output), **more}}
    numbered = [each | {"sequence_number": n} for n, each in enumerate([{"type": "response.created", "response": response}, *told, end])]
    return b"".join([b"event: %b\ndata: %b\n\n" % (each["type"].encode(), json.dumps(each).encode()) for each in numbered])


def read(by: ContentRules, data: bytes, cuts: Sequence[int] = (), acted: set[str] | None = None) -> tuple[list[dict[str, Any]], list[Event]]:
    """What a client reads, as JSON; its numbers follow each other."""
    raw, events = shaped("openai_responses", by, data, cuts=cuts, acted=acted)
    told = events_of(raw)
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    return told, events


def texts_in(told: Sequence[dict[str, Any]], kind: str, count: int) -> dict[str, list[str]]:
    """All texts of an item's parts, by who tells them; pieces are what a client has put together when a part, or the stream, ends."""
    _, _, inside, number, name, events = KINDS[kind]
    field = FIELD.get(kind, "text")
    found: dict[str, list[str]] = {"pieces": [""] * count}
    for each in told:
        match each["type"].removeprefix(name).removeprefix(events):
            case ".added":
                found["pieces"][each[number]] += each["part"][field]
            case ".delta":
                found["pieces"][each[number]] += each["delta"]
            case ".done":
                text = each[field] if each["type"].startswith(name) else each["part"][field]
                found.setdefault(each["type"], [""] * count)[each[number]] = text
        for item in [each["item"]] if each["type"].endswith("item.done") else each.get("response", {}).get("output", []):
            found[each["type"]] = [part[field] for part in item[inside]]
    return found


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_phrase_is_told_nowhere(kind: str, data: st.DataObject) -> None:
    """However it is split over deltas, parts and reads, and whichever events tell it: what a text is in one of them it is in all."""
    texts = data.draw(st.lists(st.lists(st.sampled_from(["bo", "mp", "b", "om", "x ", "BOMP", "cat", "é😀"]), max_size=4), min_size=1, max_size=3))
    tells = [one for one in ALL if data.draw(st.booleans())]
    bytes_ = stream(*told_by(kind, texts, tells, data.draw(st.booleans())), output=[whole_item(kind, texts)])
    reads = sorted(data.draw(st.lists(st.integers(0, len(bytes_)), max_size=4)))
    banned = [mask("bomp"), mask("😀x", "mask", "*")]  # of which none can begin in another: parts are read each by itself before they are read as one
    told, events = read(rules(*banned, disclaimer=data.draw(st.sampled_from(["", NOTE]))), bytes_, reads)
    found = texts_in(told, kind, len(texts))
    if "deltas" not in tells:
        found.pop("pieces")
    end = found.pop("response.completed")
    joined = "".join(end).removesuffix(f"\n\n{NOTE}")
    assert not Phrases(banned).anywhere([joined])
    came = "".join(["".join(pieces) for pieces in texts])
    assert re.sub(r"([#*])+", r"\1", joined) == re.sub(r"([#*])+", r"\1", Phrases(banned).read(START, came, end=True).text)
    if {"deltas", "text_done", "part_done"} & set(tells):
        assert found == dict.fromkeys(found, end)
    assert sum(len(delta.text) for event in events for delta in event.deltas) == len(came)


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_nothing_of_a_refused_phrase_goes_out(kind: str, data: st.DataObject) -> None:
    """What is told is a beginning of what stood before it; what would end the text or the response is not told."""
    pieces = data.draw(st.lists(st.sampled_from(["a ", "bo", "at "]), max_size=3))
    before, rest = "".join(pieces), [*"bomb", " and more"]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(pieces) + len(rest)), max_size=2)))
    flat = [*pieces, *rest]
    texts = [flat[a:b] for a, b in zip([0, *cuts], [*cuts, len(flat)], strict=True)]
    tells = [one for one in ALL if one == "deltas" or data.draw(st.booleans())]
    told, events = read(rules(mask("bomb", "refuse"), disclaimer=NOTE), stream(*told_by(kind, texts, tells), output=[whole_item(kind, texts)]))
    assert events[-1].kind == "refused"
    assert "".join(texts_in(told, kind, len(texts))["pieces"]) == before
    assert not any(each["type"] in ("response.output_item.done", "response.completed") for each in told)


@pytest.mark.parametrize("tells", [[], ["item_done"], ["part_done"], ["text_done"], ["text_done", "part_done", "item_done"]])
def test_a_refused_text_that_came_without_deltas_is_told_nowhere(tells: list[str]) -> None:
    """Not with an empty text either."""
    texts = [["a bo"], ["mb"]]
    told, events = read(rules(mask("bomb", "refuse")), stream(*told_by("text", texts, tells), output=[whole_item("text", texts)]))
    assert events[-1].kind == "refused"
    assert "response.completed" not in [each["type"] for each in told]
    assert "bo" not in json.dumps([each.get("part", each.get("text")) for each in told])


def test_the_beginning_of_a_phrase_goes_on_in_the_next_part() -> None:
    """The end of the first part waits for it, and then says what it was told to be."""
    texts = [["a ", "bo"], ["mb", " c"]]
    told, _ = read(BOMB, stream(*told_by("text", texts), output=[whole_item("text", texts)]))
    assert set(map(tuple, texts_in(told, "text", 2).values())) == {("a ", "# c")}
    assert [each["type"].removeprefix("response.") for each in told[4:8]] == [
        "output_text.delta", "output_text.done", "content_part.done", "content_part.added",
    ]  # fmt: skip


def test_what_stands_between_parts_keeps_its_place() -> None:
    """Events that nobody knows wait with those that end a part, and end nothing."""
    first, second = list(told_by("text", [["a bo"], ["mb"]]))[:5], list(told_by("text", [["a bo"], ["mb"]]))[5:]
    told, _ = read(BOMB, stream(*first, {"type": "response.odd", "x": 1}, *second, output=[whole_item("text", [["a bo"], ["mb"]])]))
    assert texts_in(told, "text", 2)["pieces"] == ["a ", "#"]
    assert [each["type"] for each in told].index("response.odd") == len(first) + 1


@pytest.mark.parametrize("between", ["refusal", "item"])
def test_other_parts_and_items_part_texts(between: str) -> None:
    """A phrase of two messages is none; what waited comes before the end of its own text."""
    part = {"item_id": "i0", "output_index": 0, "content_index": 1}
    told = [each for each in told_by("text", [["a bo"]]) if each["type"] != "response.output_item.done"]
    if between == "refusal":
        told += [{"type": "response.content_part.added", **part, "part": {"type": "refusal", "refusal": ""}}]
        told += [{"type": "response.refusal.delta", **part, "delta": "mb"}, {"type": "response.refusal.done", **part, "refusal": "mb"}]
        output = [{"id": "i0", "type": "message", "content": [{"type": "output_text", "text": "a bo"}, {"type": "refusal", "refusal": "mb"}]}]
    else:
        told += told_by("text", [["mb"]], index=1)
        output = [whole_item("text", [["a bo"]]), whole_item("text", [["mb"]], 1)]
    said, _ = read(BOMB, stream(*told, output=output))
    assert "".join([each["delta"] for each in said if each["type"].endswith(".delta")]) == "a bomb"
    assert said[-1]["response"]["output"] == output


CALLS = [
    ("function_call", "response.function_call_arguments", "arguments", '{"q": "a bomb"}', '{"q": "a #"}'),
    ("mcp_call", "response.mcp_call_arguments", "arguments", '{"q": "a b\\u006fmb"}', '{"q": "a #"}'),
    ("custom_tool_call", "response.custom_tool_call_input", "input", "a bomb", "a #"),
    ("code_interpreter_call", "response.code_interpreter_call_code", "code", "print('bomb')", "print('#')"),
]


@pytest.mark.parametrize(("type_", "name", "field", "text", "masked"), CALLS)
@pytest.mark.parametrize("deltas", [True, False])
def test_what_tools_are_called_with_is_told_alike(type_: str, name: str, field: str, text: str, masked: str, deltas: bool) -> None:
    """By the client and by the provider; JSON stays JSON."""
    at = {"item_id": "i", "output_index": 0}
    item = {"id": "i", "type": type_, "call_id": "c", "name": "bomb"}
    told = [{"type": "response.output_item.added", "output_index": 0, "item": item | {field: ""}}]
    told += [{"type": f"{name}.delta", **at, "delta": piece} for piece in (text[:8], text[8:]) if deltas]
    told += [{"type": f"{name}.done", **at, field: text}, {"type": "response.output_item.done", "output_index": 0, "item": item | {field: text}}]
    said, _ = read(BOMB, stream(*told, output=[item | {field: text}]))
    if deltas:
        assert "".join([each["delta"] for each in said if each["type"].endswith(".delta")]) == masked
    ends = {each["type"]: each for each in said}
    assert ends[f"{name}.done"][field] == masked
    assert ends["response.output_item.done"]["item"] == item | {field: masked}
    assert ends["response.completed"]["response"]["output"] == [item | {field: masked}]


def test_an_item_that_begins_with_texts() -> None:
    """As one that goes on: its parts are read as one, and go on in deltas."""
    item = {"id": "i0", "type": "message", "content": [{"type": "output_text", "text": "a bo"}, {"type": "output_text", "text": "mb and b"}]}
    delta = {"type": "response.output_text.delta", "item_id": "i0", "output_index": 0, "content_index": 1, "delta": "omb"}
    ended = item | {"content": [item["content"][0], {"type": "output_text", "text": "mb and bomb"}]}  # type: ignore[index]
    done = {"type": "response.output_item.done", "output_index": 0, "item": ended}
    told, _ = read(BOMB, stream({"type": "response.output_item.added", "output_index": 0, "item": item}, delta, done, output=[ended]))
    assert [part["text"] for part in told[1]["item"]["content"]] == ["a ", "# and "]
    assert "".join([each["delta"] for each in told if "delta" in each]) == "#"
    for last in (told[-2]["item"], told[-1]["response"]["output"][0]):
        assert [part["text"] for part in last["content"]] == ["a ", "# and #"]


def test_a_text_that_ends_as_another_than_it_came_is_searched() -> None:
    """Of an upstream that tells its texts differently: each is masked by itself."""
    told = [each | ({"text": "A BOMB?"} if each["type"].endswith("text.done") else {}) for each in told_by("text", [["a bo", "mb"]])]
    said, _ = read(BOMB, stream(*told, output=[whole_item("text", [["or bomb"]])]))
    ends = {each["type"]: each for each in said}
    assert ends["response.output_text.done"]["text"] == "A #?"
    assert ends["response.output_item.done"]["item"]["content"][0]["text"] == "a #"
    assert ends["response.completed"]["response"]["output"][0]["content"][0]["text"] == "or #"


def test_the_text_of_a_response_in_one_field() -> None:
    """Some servers repeat all of it there: masked, and with the disclaimer."""
    texts = [["a bo", "mb"]]
    by = rules(mask("bomb"), disclaimer=NOTE)
    told, _ = read(by, stream(*told_by("text", texts), output=[whole_item("text", texts)], output_text="a bomb"))
    assert told[-1]["response"]["output_text"] == f"a #\n\n{NOTE}"
    answer = {"object": "response", "status": "completed", "output": [whole_item("text", texts)], "output_text": "a bomb"}
    assert json.loads(ruled("openai_responses", by, stream=False).read_answer(json.dumps(answer).encode()).body)["output_text"] == f"a #\n\n{NOTE}"


def test_a_report_over_parts_changes_no_byte() -> None:
    """It is told once, however often the text is."""
    data = stream(*told_by("text", [["a bo"], ["mb"]]), output=[whole_item("text", [["a bo"], ["mb"]])])
    acted: set[str] = set()
    assert shaped("openai_responses", rules(mask("bomb", "report")), data, acted=acted)[0] == data
    assert acted == {"bomb"}


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_stream_of_parts_that_is_cut_tells_what_was_covered(cut: int) -> None:
    """What waited there, in whichever part, and the ends of all that was begun; each tells the same."""
    texts = [["a bo", "x b"], ["omb", "bo"]]
    one = ruled("openai_responses", rules(mask("bomb"), disclaimer=NOTE), stream=True)
    reader = one.StreamReader()
    events = reader.feed(stream(*told_by("text", texts), output=[whole_item("text", texts)]))
    covered = [place for place, event in enumerate(events) if event.deltas][cut - 1]
    raw = b"".join([event.raw for event in events[: covered + 1]])
    told = events_of(raw + one.write_truncation(reader.head, events[covered].after, [0], "budget", None))
    want = [["a bo"], ["a box b"], ["a box ", "#"], ["a box ", "#bo"]][cut - 1]
    want[-1] += f"\n\n{NOTE}"
    assert [part["text"] for part in told[-1]["response"]["output"][0]["content"]] == want
    assert texts_in(told, "text", len(want))["pieces"] == want
    assert [each["sequence_number"] for each in told] == list(range(len(told)))


def test_a_phrase_of_whole_words_ends_with_its_part() -> None:
    """What is one by itself is masked there, and does not wait for the next."""
    told, _ = read(rules(Phrase("w", "cat", "mask", words=True, mask="#")), stream(*told_by("text", [["a cat"], ["fish"]])))
    assert texts_in(told, "text", 2)["pieces"] == ["a #", "fish"]

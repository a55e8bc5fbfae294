"""Content rules on the path of a request (docs/content-rules.md): what they make of it before it is sent anywhere, and what they put over its
answer.

`ask` comes after the plan and before everything else, so the hold, the cache and the provider see the request as the rules have made it: its body is
changed and read once more by the reader that has read it first, but where all that has changed is that a text stands before the others. `over` stands
between the client and whatever reads the answer; what an upstream has produced is metered and charged as it was. Long requests and whole answers are
searched in slices, the loop getting a turn between them.
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from sluicegate import reject, telling
from sluicegate.core.content_rules import ContentRules
from sluicegate.core.estimate import Learned
from sluicegate.core.phrases import NONE, SLICE_LEAST, START, Pace, Passed, Phrases, Slices, Span, divided
from sluicegate.core.plan import Plan
from sluicegate.core.speech import CLEAR_MAX, Speech, Steps
from sluicegate.dialects import anthropic_messages, parameters, ruled_chat, ruled_messages, ruled_responses
from sluicegate.dialects.asking import Texts, begun, prompted, usual
from sluicegate.dialects.form import Request
from sluicegate.dialects.ruled import Ruled, Shaper
from sluicegate.relay import Relay
from sluicegate.trip import Attempt, Trip, Via

_SHAPERS: dict[str, Callable[[Speech, str], Shaper]] = {  # by the client's dialect
    "openai_chat": ruled_chat.Shaper,
    "openai_completions": ruled_chat.Shaper,
    "openai_responses": ruled_responses.Shaper,
    "anthropic_messages": ruled_messages.Shaper,
}
# Where an answer is asked to have a form, and how.
_SHAPES = {
    "openai_chat": "response_format",
    "openai_completions": "response_format",
    "openai_responses": "text",
    "anthropic_messages": "output_config",
}
_FORMS = (b"json", b"grammar", b"regex", b"ebnf", b"structural_tag")
_FORMED = frozenset((
    "output_format", "structured_outputs", "guided_json", "guided_regex", "guided_grammar", "guided_choice", "guided_json_object", "json_schema",
    "grammar", "regex", "ebnf", "format",
))  # fmt: skip
_UNSAID = (b"null", b'""', b"false", b"{}")

TURN = 0.001  # seconds that a turn of the loop takes, about

_encode = msgspec.json.Encoder().encode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def ask(trip: Trip, plan: Plan, rules: ContentRules, request: Request, size: int, learned: Learned) -> Request:
    """Applies the rules to a request: what goes on. size: of its body. Raises Reject, BadRequest."""
    trip.acted = set()
    if rules.max_input_bytes or rules.max_input_tokens:
        _check_size(plan, rules, request, size, learned, trip)
    banned, fields = rules.banned_in, request.fields
    changed = False
    if banned is not None and (request.tokens or not _is_clear(banned, request, size)):
        fields = dict(fields)
        changed = await _search(trip, banned, request, fields, size)
    if rules.force or rules.ceilings:
        fields = dict(fields)
        trip.changed = parameters.changed(trip.dialect.NAME, fields, rules.force, rules.ceilings)
        request.effort_most = parameters.most_effort(rules.force, rules.ceilings)
    if rules.prompts:
        if not changed and not trip.changed and (ruled := begun(trip.dialect.NAME, request, rules.prompts)) is not None:
            return ruled
        fields = dict(fields)
        changed |= prompted(trip.dialect.NAME, fields, rules.prompts)
    if not changed and not trip.changed:
        return request
    ruled = trip.dialect.read_request(_encode(fields))
    ruled.effort_most = request.effort_most
    if trip.include:
        telling.prepare(ruled, trip.dialect.NAME, trip.include)
    return ruled


def counted(rules: ContentRules, request: Request, read: Callable[[bytes], Request]) -> Request:
    """A request of Anthropic's messages whose tokens are to be counted, with the text that is put in. Raises BadRequest."""
    fields = dict(request.fields)
    return read(_encode(fields)) if rules.prompts and prompted(anthropic_messages.NAME, fields, rules.prompts) else request


def _check_size(plan: Plan, rules: ContentRules, request: Request, size: int, learned: Learned, trip: Trip) -> None:
    if rules.max_input_bytes and size > rules.max_input_bytes:
        raise reject.input_too_large("max_input", size, rules.max_input_bytes)
    most = rules.max_input_tokens
    if most and (size > most or request.images or request.unbounded):  # no token is less than a byte
        figures = learned.figures(request, plan.model, plan.model.deployments[0], plan.key, trip.policy.budget)
        tokens = figures.input_bound if request.unbounded else figures.input_estimate
        if tokens > most:
            raise reject.input_too_large("max_input_tokens", tokens, most)


def _is_clear(banned: Phrases, request: Request, size: int) -> bool:
    """Whether it shows in one turn, and without reading the body once more, that there is nothing that is banned."""
    if size > CLEAR_MAX or not usual(request):
        return False
    return not banned.anywhere(request.texts) if size <= banned.at_once else banned.lacking(request.texts)


async def _search(trip: Trip, banned: Phrases, request: Request, fields: dict[str, msgspec.Raw], size: int) -> bool:
    """Looks for what is banned. Whether something was masked."""
    if request.tokens:
        raise reject.tokens_unsearchable()
    texts = Texts(fields)
    if size <= banned.at_once and not banned.anywhere((*texts.all(), *texts.joined())):
        return False
    search = _Search(trip, banned)
    told: dict[str, str] = {}
    across: dict[int, str] = {}
    for number, without in texts.loose.items():
        _, masked = await search.read(without.text)
        if masked:
            across[number], _ = await search.read(without.masked(masked, search.masks))
    for text in texts.all():
        if text not in told:
            told[text], _ = await search.read(text)
    for places in texts.adjacent:
        pieces = [told[texts.at(number)] for number in places]
        _, masked = await search.read("".join(pieces))
        across.update(zip(places, divided(pieces, masked, search.masks), strict=True) if masked else ())
    return texts.replace(lambda text: told.get(text, text), across)


class _Turns(Pace):
    """Slices that take about as long as the loop may wait."""

    def __init__(self, most: int) -> None:
        """most: characters, whatever they take."""
        self.size = max(SLICE_LEAST, most // 8)
        self._most = most
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()

    async def give(self) -> None:
        """Others have their turn, if it is time."""
        took = self._clock() - self._since
        if took < TURN / 4:
            self.size = min(self._most, self.size * 2)
        elif took > TURN:
            self.size = max(SLICE_LEAST, self.size // 2)
        if took > TURN / 2:
            await asyncio.sleep(0)
            self._since = self._clock()


class _Search:
    """Reads the texts of one request."""

    def __init__(self, trip: Trip, banned: Phrases) -> None:
        self.masks = [phrase.mask for phrase in banned.phrases]
        self._trip = trip
        self._banned = banned
        self._reports = {index for index, phrase in enumerate(banned.phrases) if phrase.action == "report"}
        self._known = NONE  # that only report, and were found: once is enough
        self._state = START  # in which the next text is begun
        self._turns = _Turns(banned.at_once)

    async def read(self, text: str) -> tuple[str, list[Span]]:
        """What a text has become, and where it was masked. Raises Reject."""
        slices = Slices(self._banned, self._state, self._known)
        if len(self._known) == len(self.masks):
            return text, []
        for passed in slices.over(text, self._turns):
            self._found(passed)
            slices.known = self._known
            if len(self._known) == len(self.masks):
                return text, []
            await self._turns.give()
        self._state = slices.state
        return "".join(slices.out), slices.masked

    def _found(self, passed: Passed) -> None:
        self._trip.acted.update([self._banned.phrases[index].name for index in passed.found])
        if passed.refused >= 0:
            raise reject.content_policy(self._banned.phrases[passed.refused].name, "input")
        if passed.found & self._reports:
            self._known |= passed.found & self._reports


def over(trip: Trip, rules: ContentRules, via: Via, request: Request) -> Via:
    """An attempt whose answer is under rules."""
    new = _SHAPERS.get(trip.dialect.NAME)
    if new is None:  # of embeddings, which say nothing
        return via
    disclaimer = rules.disclaimer if rules.disclaimer and not _is_shaped(trip.dialect.NAME, request.fields) else ""
    return Ruled(via, lambda: new(Speech(rules, trip.acted), disclaimer), request)


async def take_steps(via: Ruled, steps: Steps[None]) -> None:
    """Reads a long answer under rules to its end."""
    turns = via.speech.pace = _Turns(via.speech.at_once)
    for _ in steps:
        await turns.give()


def end(attempt: Attempt, relay: Relay) -> None:
    """A stream has been relayed but for its last bytes. What rules find in these they find here, so that it is in the record, which goes before."""
    if not isinstance(attempt.via, Ruled) or relay.ended not in ("complete", "truncated"):
        return
    after = relay.after if relay.ended == "truncated" else None
    if (after is not None or relay.ended == "complete") and attempt.via.end(after):
        relay.truncated = "policy"


def refuse(attempt: Attempt) -> None:
    """Raises Reject where a rule refuses the answer."""
    if isinstance(attempt.via, Ruled) and attempt.via.refused:
        raise reject.content_policy(attempt.via.refused, "output")


def _is_shaped(dialect: str, fields: Mapping[str, msgspec.Raw]) -> bool:
    """The answer is asked to be JSON, or of another form that a disclaimer would break; `extra_body` is read as the body is."""
    while True:
        asked = bytes(fields.get(_SHAPES[dialect], b""))
        if asked and any(form in asked for form in _FORMS):
            return True
        if not _FORMED.isdisjoint(fields) and any(bytes(fields[name]) not in _UNSAID for name in _FORMED.intersection(fields)):
            return True
        more = bytes(fields.get("extra_body", b""))
        if more[:1] != b"{":
            return False
        fields = _decode_fields(more)

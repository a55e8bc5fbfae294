"""The texts of one answer under content rules: what the client reads of them, piece by piece or whole.

An answer has many texts, told apart by their channels: what is said, thought, refused, by choice and part; and the arguments of calls. Each is
searched by itself. Arguments are JSON: where something may be masked or refused they wait until they are whole, since only then is it known what
they say, and every string and number in them, names included, is a text of its own; so masked arguments stay JSON (arguments.py). What never becomes
JSON is read as a text, and without its escapes.

After a refusal every text is empty. A `mark` is the state up to some point, to which an answer can be taken back that ends there (relay.py).

What comes in one piece may be long: `Steps` are such a search, with a pause between two slices of a text (`Speech.pace`) and between two texts.
"""

from collections.abc import Generator
from typing import Any, TypeVar

from msgspec import Raw, Struct

from sluicegate.core.arguments import Change, Names, changed, is_json, loose, parts
from sluicegate.core.content_rules import ContentRules
from sluicegate.core.phrases import AT_ONCE, NONE, START, Phrases, Slices, Span, State, divided

T = TypeVar("T")
Steps = Generator[None, None, T]
Channel = tuple[str | int, ...]
Mark = dict[Channel, "_Open"]

CLEAR_MAX = 1 << 16  # characters that are looked over at once, where that is no search


class _Open(Struct, frozen=True, gc=False):
    """A text that goes on."""

    banned: State = START
    noted: State = START
    arguments: str | None = None  # so far; None: it is no JSON


_TEXT, _ARGUMENTS = _Open(), _Open(arguments="")


def at_once(steps: Steps[T]) -> T:
    """All of them without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            told: T = end.value
            return told


class Speech:
    """One answer. `acted` gets the names of the rules that were found; `refused` is the one that ends the answer."""

    def __init__(self, rules: ContentRules, acted: set[str]) -> None:
        self._banned = rules.banned_out
        self._noted = rules.noted_out
        self._any = rules.any_out
        self._acted = acted
        self._known = NONE  # phrases that only report, and were found: once is enough
        self._open: Mark = {}
        self.pace = AT_ONCE
        self.at_once = self._any.at_once if self._any is not None else CLEAR_MAX  # characters that may be read in one turn
        self.masks = 0  # times that something was found that may not be said
        self.refused = ""

    @property
    def acts(self) -> bool:
        """Texts may come out other than they came."""
        return self._banned is not None

    @property
    def silent(self) -> bool:
        """Nothing is looked for."""
        return self._any is None

    @property
    def _all_noted(self) -> bool:
        return self._noted is not None and len(self._known) == len(self._noted.phrases)

    @property
    def open(self) -> list[Channel]:
        """Texts that have not ended, in the order in which they began."""
        return list(self._open)

    def say(self, channel: Channel, text: str, *, last: bool = False) -> str:
        """One more piece of a text, as far as it can go on."""
        if self.silent:
            return text
        state = self._open.pop(channel, _TEXT) if last else self._open.get(channel, _TEXT)
        banned, noted = state.banned, state.noted
        if self._noted is not None and not self._all_noted:
            passed = self._noted.read(noted, text, end=last, known=self._known)
            noted = passed.state
            self._found(self._noted, passed.found)
        if self._banned is not None:
            passed = self._banned.read(banned, text, end=last)
            banned = passed.state
            text = "" if self.refused else passed.text
            self._found(self._banned, passed.found, passed.refused)
        if not last:
            self._open[channel] = _Open(banned, noted)
        return text

    def argue(self, channel: Channel, text: str, *, last: bool = False) -> str:
        """One more piece of a call's arguments."""
        if self.silent:
            return text
        state = self._open.get(channel, _ARGUMENTS)
        self._open[channel] = _Open(arguments=(state.arguments or "") + text)
        rest = self.end(channel) if last else ""
        return rest if self.acts else text

    def end(self, channel: Channel) -> str:
        """What is left of a text that has ended."""
        state = self._open.get(channel)
        if state is None:
            return ""
        if state.arguments is None:
            return self.say(channel, "", last=True)
        del self._open[channel]
        arguments = self.whole_arguments(state.arguments)
        return arguments if self.acts else ""

    def clear(self, text: str) -> bool:
        """Whether it shows without a search that nothing is in a text."""
        return self._any is None or (not self.refused and self._any.lacking((text,)))

    def whole(self, text: str) -> str:
        """A text that came in one piece."""
        if self._any is None or (not self.refused and not self._any.anywhere((text,))):
            return text
        return at_once(self._read(text))[0]

    def read(self, text: str) -> Steps[str]:
        """The same in steps."""
        if len(text) <= self.pace.size:
            yield
            return self.whole(text)
        if len(text) <= CLEAR_MAX and self.clear(text):
            yield
            return text
        told, _ = yield from self._read(text)
        return told

    def _read(self, text: str) -> Steps[tuple[str, list[Span]]]:
        """What a text has become, and where it was masked."""
        if self._noted is not None and not self._all_noted:
            slices = Slices(self._noted, known=self._known)
            for passed in slices.over(text, self.pace):
                self._found(self._noted, passed.found)
                slices.known = self._known
                yield
                if self._all_noted:
                    break
        if self._banned is None:
            return text, []
        slices = Slices(self._banned)
        for passed in slices.over(text, self.pace):
            self._found(self._banned, passed.found, passed.refused)
            yield
            if passed.refused >= 0:
                break
        return "" if self.refused else "".join(slices.out), slices.masked

    def joined(self, pieces: list[str]) -> Steps[list[str]]:
        """Texts, each of which was read, that a client reads as one."""
        text = "".join(pieces)
        if self._any is None or self.refused or (len(text) <= self.pace.size and not self._any.anywhere((text,))):
            return pieces
        _, masked = yield from self._read(text)
        if self.refused:
            return ["" for _ in pieces]
        return divided(pieces, masked, [phrase.mask for phrase in self._banned.phrases]) if self._banned is not None else pieces

    def waits(self, channel: Channel) -> bool:
        """Whether something of a text may be the beginning of a phrase."""
        state = self._open.get(channel)
        return state is not None and state.arguments is None and bool(state.banned.pending or state.noted.pending)

    def handed_on(self, channel: Channel, to: Channel) -> bool:
        """A text is over, but what waits of it may be the beginning of a phrase: that goes on in another. Whether anything does."""
        if not self.waits(channel):
            return False
        state = self._open[channel]
        ends = [phrases.read(of, "", end=True).found for phrases, of in ((self._banned, state.banned), (self._noted, state.noted)) if phrases]
        if any(ends):  # it is a phrase
            return False
        self._open[to] = self._open.pop(channel)
        return True

    def whole_arguments(self, arguments: str) -> str:
        """Arguments that came in one piece, as JSON text."""
        return at_once(self.read_arguments(arguments))

    def read_arguments(self, arguments: str) -> Steps[str]:
        """The same in steps."""
        if self._any is None:
            return arguments
        if not is_json(arguments):
            told = yield from self._read_loose(arguments)
            return told
        if len(arguments) <= self.pace.size and not self.refused and not self._any.anywhere([part.text for part in parts(arguments)]):
            yield
            return arguments
        changes, names = list[Change](), set[str]()
        for part in parts(arguments):
            if part.name:
                names.add(part.text)
            told = yield from self.read(part.text)
            if told != part.text:
                changes.append((part, told))
        return changed(arguments, changes, names) if changes else arguments

    def _read_loose(self, written: str) -> Steps[str]:
        """What is no JSON, as a text and without its escapes."""
        without = loose(written)
        if without is not None and not self.refused:
            _, masked = yield from self._read(without.text)
            if masked and self._banned is not None:
                written = without.masked(masked, [phrase.mask for phrase in self._banned.phrases])
        told = yield from self.read(written)
        return told

    def read_strings(self, value: Any) -> Steps[Any]:
        """A value with every string and number in it as it was read; raw is a number, as it is written."""
        if isinstance(value, str):
            value = yield from self.read(value)
        elif isinstance(value, list):
            told = []
            for each in value:
                told.append((yield from self.read_strings(each)))
            return told
        elif isinstance(value, dict):
            members: dict[str, Any] = {}
            names: Names | None = None
            for name, each in value.items():
                named = yield from self.read(name)
                if named != name:
                    names = names or Names(value)
                    named = names.of(name, named)
                members[named] = yield from self.read_strings(each)
            return members
        elif isinstance(value, int | float | Raw) and not isinstance(value, bool):
            digits = bytes(value).decode() if isinstance(value, Raw) else str(value)
            said = yield from self.read(digits)
            return value if said == digits else said
        return value

    def mark(self) -> Mark:
        """The state as it is now."""
        return dict(self._open)

    def back_to(self, mark: Mark) -> None:
        """Nothing was said since that mark."""
        self._open = dict(mark)
        self.refused = ""

    def _found(self, phrases: Phrases, found: frozenset[int], refused: int = -1) -> None:
        if found:
            if phrases is self._noted:
                self._known |= found
            self._acted.update([phrases.phrases[index].name for index in found])
            self.masks += phrases is self._banned
        if refused >= 0 and not self.refused:
            self.refused = phrases.phrases[refused].name

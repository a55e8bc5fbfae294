"""Texts of a stream that are told in pieces, and then whole, once or more: what came and what the client was told of it, so that it is told the same.

Grows with the texts until the stream is over. What was noted after a `count` can be taken back.
"""

from itertools import islice

from sluicegate.core.speech import Channel


class Pieces:
    """Of one stream."""

    def __init__(self) -> None:
        self._log: list[tuple[Channel, str, str]] = []  # which text, what came, what was told
        self._begin: dict[Channel, int] = {}  # where in it a text begins
        self._both: dict[Channel, tuple[str, str]] = {}  # texts that were put together

    def __contains__(self, key: Channel) -> bool:
        return key in self._begin

    @property
    def count(self) -> int:
        """Of all pieces so far."""
        return len(self._log)

    def back_to(self, count: int) -> None:
        """Nothing was noted since then."""
        del self._log[count:]
        self._begin = {key: place for key, place in self._begin.items() if place < count}
        self._both = {}

    def add(self, key: Channel, text: str, told: str) -> None:
        """One more piece of a text."""
        self._begin.setdefault(key, len(self._log))
        self._both.pop(key, None)
        self._log.append((key, text, told))

    def both(self, key: Channel) -> tuple[str, str]:
        """A text as it came, and as it was told."""
        if key not in self._begin:
            return "", ""
        if key not in self._both:
            pieces = [(text, told) for one, text, told in islice(self._log, self._begin[key], None) if one == key]
            self._both[key] = "".join([text for text, _ in pieces]), "".join([told for _, told in pieces])
        return self._both[key]

    def told(self, key: Channel, text: str) -> str | None:
        """What was told of a text that comes again; None if it is another, or one that did not come in pieces."""
        came, told = self.both(key)
        return told if came == text and (key in self._begin or not text) else None

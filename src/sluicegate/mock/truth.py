"""The count of what was really produced, per caller. It is the other side of every test that the cap holds.

A completion token counts at the moment in which it is generated: for a stream when its chunk is written to the transport, whether or not anyone
reads it; hidden tokens and unary answers as their time goes by. A prompt counts when its request is accepted. Errors count nothing.
"""

import msgspec


class Tally(msgspec.Struct):
    """Counts of one caller."""

    requests: int = 0
    errors: int = 0  # answered with an error, or not a byte: they count no tokens
    prompt_tokens: int = 0
    completion_tokens: int = 0
    chunks: int = 0
    disconnects: int = 0  # the client was gone before its answer was complete
    in_flight: int = 0
    in_flight_max: int = 0
    tokens: int = 0  # prompt and completion; filled in when the tally is shown


class Stats(msgspec.Struct):
    """What `GET /mock/stats` answers."""

    total: Tally
    callers: dict[str, Tally]


class Truth:
    """Tallies by caller."""

    def __init__(self) -> None:
        self._callers: dict[str, Tally] = {}
        self._in_flight_max = 0
        self.in_flight = 0  # calls that may still produce tokens

    def begin(self, caller: str) -> Tally:
        """A call has arrived: the tally that it counts in."""
        tally = self._callers.get(caller)
        if tally is None:
            tally = self._callers[caller] = Tally()
        tally.requests += 1
        tally.in_flight += 1
        tally.in_flight_max = max(tally.in_flight_max, tally.in_flight)
        self.in_flight += 1
        self._in_flight_max = max(self._in_flight_max, self.in_flight)
        return tally

    def end(self, tally: Tally) -> None:
        """A call of that tally produces nothing any more."""
        tally.in_flight -= 1
        self.in_flight -= 1

    def stats(self) -> Stats:
        """A copy of everything, with the sum of all callers."""
        callers = {
            caller: msgspec.structs.replace(tally, tokens=tally.prompt_tokens + tally.completion_tokens) for caller, tally in self._callers.items()
        }
        total = Tally(*(sum(getattr(tally, name) for tally in callers.values()) for name in Tally.__struct_fields__))
        total.in_flight, total.in_flight_max = self.in_flight, self._in_flight_max
        return Stats(total, callers)

    def reset(self) -> None:
        """Forgets all callers. Calls in flight go on in tallies that nobody sees any more."""
        self._callers = {}
        self._in_flight_max = self.in_flight

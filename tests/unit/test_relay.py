"""The relay by playbook: bytes in, bytes out, answers of the ledger at chosen moments, a clock that the test moves. One letter is one token."""

import asyncio
import json
import random
from collections import deque
from collections.abc import Collection
from types import ModuleType

import pytest

from sluicegate import growth as growth_module
from sluicegate.core.claims import Reply
from sluicegate.core.meter import Meter
from sluicegate.dialects import anthropic_messages, ollama, openai_chat, openai_completions, openai_responses
from sluicegate.dialects.form import Event
from sluicegate.growth import ASK_AGAIN_S, FASTEST, LOOKAHEAD_MIN, PATIENCE_S, Growth, Pace
from sluicegate.http.upstream import Reason
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.relay import CLIENT_BUFFER_MAX, Reader, Relay
from support_inloop import chunk, sse, usage_chunk
from support_playbook import FakeCall, FakeExchange
from support_sockets import settle

WRITE_TIMEOUT_S = 30.0
DONE = sse(None)
STOP = sse(chunk(finish="stop"))
ROLE = sse({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})


def text(tokens: int, index: int = 0) -> bytes:
    return sse(chunk("x" * tokens, index=index))


class Stage:
    """A relay between the two, with a ledger that answers when the test says so."""

    def __init__(
        self,
        *,
        granted: int = 0,
        want: int = 0,
        cap: int = 10**6,
        hide_usage: bool = True,
        run_on: Collection[str] = (),
        choices: int = 1,
        stop_lag_ms: int = 100,
        delta: int = 0,
        meter: Meter | None = None,
        reader: Reader | None = None,
    ) -> None:
        self.now = 100.0
        self.exchange = FakeExchange()
        self.exchange.started = True
        self.call = FakeCall()
        self.meter = meter or Meter("", 1000)
        self.asks: list[tuple[int, int, int]] = []
        self.answers: deque[asyncio.Future[Reply]] = deque()
        growth = None
        self.pace = pace = Pace(stop_lag_ms, delta)
        if granted:
            growth = Growth(self._extend, granted, want, pace, run_on, lambda: self.now)
        self.growth = growth
        self.relay = Relay(
            self.exchange,  # type: ignore[arg-type]
            self.call,  # type: ignore[arg-type]
            reader or openai_chat.StreamReader(),
            openai_chat.write_event,
            self.meter,
            hide_usage=hide_usage,
            choices=choices,
            cap=cap,
            pace=pace,
            growth=growth,
            visible=True,
            write_timeout_s=WRITE_TIMEOUT_S,
            clock=lambda: self.now,
        )
        self.exchange.on_gone = self.client_left
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        await self.relay.first()
        if self.relay.has_output or self.relay.ended in ("complete", "truncated"):
            await self.relay.rest()

    def client_left(self) -> None:
        self.call.close()
        self.relay.client_left()

    def _extend(self, need: int, want: int, seen: int) -> "asyncio.Future[Reply]":
        self.asks.append((need, want, seen))
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.answers.append(future)
        return future

    async def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.call.feed(piece)
        await settle()

    async def grant(self, g: int) -> None:
        self.answers.popleft().set_result(Reply("granted", 0, g, g))
        await settle()

    async def refuse(self) -> None:
        assert self.growth is not None
        self.answers.popleft().set_result(Reply("refused", 0, self.growth.granted, 0))
        await settle()

    async def lose_ledger(self) -> None:
        self.answers.popleft().set_exception(LedgerUnavailable("away"))
        await settle()

    async def ended(self) -> Relay:
        """The relay, which must be over by now."""
        await settle()
        assert self.task.done(), self.relay.ended
        await self.task
        return self.relay

    async def leave(self) -> None:
        self.call.close()
        await settle()
        self.task.cancel()

    @property
    def forwarded(self) -> int:
        """Tokens that the client has been sent."""
        return sum(
            len(choice["delta"].get("content") or "")
            for line in self.exchange.data.split(b"\n")
            if line.startswith(b"data: {")
            for choice in json.loads(line[6:])["choices"]
        )


# -- what passes --------------------------------------------------------------------------------------------------------------------------


async def test_a_stream_passes_as_it_came_but_for_its_last_event() -> None:
    """Bytes are the upstream's own; `[DONE]` waits for the settle."""
    stage = Stage()
    await stage.feed(ROLE + text(3), text(4), STOP, DONE)
    relay = await stage.ended()
    assert (relay.ended, relay.tail, stage.exchange.data) == ("complete", DONE, ROLE + text(3) + text(4) + STOP)
    assert (stage.meter.seen, relay.finishes) == (7, {0: "stop"})


@pytest.mark.parametrize("quiet", [ROLE, b": ping\n\n", b": OPENROUTER PROCESSING\n\n" + ROLE, b"event: x\ndata: {}\n\n"])
async def test_nothing_is_written_before_the_first_output(quiet: bytes) -> None:
    """A role, comments and unknown events are withheld, since the attempt may still move on, and then pass in order."""
    stage = Stage()
    await stage.feed(quiet, quiet)
    assert (stage.exchange.data, stage.relay.has_output) == (b"", False)
    await stage.feed(text(1))
    shown = quiet.replace(b": ping\n\n", b": ping\n").replace(b"PROCESSING\n\n", b"PROCESSING\n")
    assert stage.exchange.data == shown + shown + text(1)
    await stage.leave()


async def test_what_is_withheld_is_bounded() -> None:
    """Comments and unknown events without end, and no output: the upstream is closed."""
    stage = Stage()
    for _ in range(50):
        await stage.feed(b"event: x\ndata: {}\n\n" * 10_000)
    relay = await stage.ended()
    assert (relay.ended, relay.error is not None and relay.error.reason, stage.call.closed) == ("died", "protocol", True)
    assert stage.exchange.data == b""


async def test_a_finish_alone_is_output() -> None:
    """An empty answer is an answer."""
    stage = Stage()
    await stage.feed(ROLE + STOP + DONE)
    assert (await stage.ended()).ended == "complete"
    assert stage.exchange.data == ROLE + STOP


@pytest.mark.parametrize("hide", [True, False])
@pytest.mark.parametrize("shape", ["alone", "with_choices", "cumulative"])
async def test_usage_is_read_and_hidden_where_nobody_asked(shape: str, hide: bool) -> None:
    """Wherever the upstream puts it, it is taken, the last report counts, and only a client that asked for it sees it."""
    usage = {"prompt_tokens": 5, "completion_tokens": 3}
    stage = Stage(hide_usage=hide)
    if shape == "alone":
        await stage.feed(text(3) + STOP + sse(usage_chunk(5, 3)) + DONE)
    elif shape == "with_choices":
        await stage.feed(text(3) + sse(chunk(finish="stop", usage=usage)) + DONE)
    else:
        await stage.feed(*(sse(chunk("x", usage={"prompt_tokens": 5, "completion_tokens": i})) for i in (1, 2, 3)), STOP + DONE)
    relay = await stage.ended()
    assert relay.usage is not None
    assert (relay.usage.input_tokens, relay.usage.output_tokens) == (5, 3)
    assert (b"usage" in stage.exchange.data) is not hide
    assert stage.forwarded == 3


async def test_unreadable_events_are_left_out_and_counted() -> None:
    """One broken line neither ends a stream nor reaches the client."""
    stage = Stage()
    await stage.feed(text(1) + b"data: {bro\n\n" + b"data: null\n\n" + text(2) + STOP + DONE)
    relay = await stage.ended()
    assert (relay.ended, relay.bad_events, stage.exchange.data) == ("complete", 1, text(1) + text(2) + STOP)


async def test_unreadable_events_may_have_been_output() -> None:
    """What they hold is billed whether it can be read or not: without usage at the end, it would be free."""
    stage = Stage(granted=10_000, want=10_000)
    broken = b'data: {"choices":[{"index":0,"delta":{"content":"\xff tok"}}]}\n\n'
    await stage.feed(text(1), *[broken] * 20, STOP + DONE)
    assert ((await stage.ended()).bad_events, stage.forwarded) == (20, 1)
    assert stage.meter.seen >= 20 * len(b" tok")
    assert stage.meter.least == 1 + 20  # no more than that is certain: it is charged beyond any cap


# -- how it ends --------------------------------------------------------------------------------------------------------------------------


async def test_a_finish_without_done_is_an_end() -> None:
    """Some servers just close after the finish reason and the usage: case 112. The client is told its `[DONE]`, for which some wait."""
    stage = Stage()
    await stage.feed(text(3) + STOP + sse(usage_chunk(50, 333)))
    stage.call.end()
    relay = await stage.ended()
    assert (relay.ended, relay.tail) == ("complete", DONE)


@pytest.mark.parametrize("said", [text(3), ROLE, STOP, sse(usage_chunk(5, 0))])
async def test_done_without_a_finish_is_an_end(said: bytes) -> None:
    """`[DONE]` says that all was said."""
    stage = Stage()
    await stage.feed(said + DONE)
    assert (await stage.ended()).ended == "complete"


NOTHING = [
    *((openai_chat, said + DONE) for said in (b"", b": ping\n\n", b"data: {bro\n\n", b"event: x\ndata: {}\n\n")),
    *((openai_chat, sse(said) + DONE) for said in ({"choices": []}, {"choices": [], "usage": None}, {"choices": [], "prompt_filter_results": []})),
    (openai_completions, DONE),
    (anthropic_messages, sse({"type": "ping"}) + sse({"type": "message_stop"})),
    (anthropic_messages, sse({"type": "message_start", "message": {"id": "m", "content": []}}) + sse({"type": "message_stop"})),
    (anthropic_messages, sse({"type": "message_delta", "delta": {"stop_reason": None}}) + sse({"type": "message_stop"})),
    (openai_responses, sse({"type": "response.completed", "response": {"id": "r", "output": []}})),
    (openai_responses, sse({"type": "response.created", "response": {"status": "in_progress"}}, {"type": "response.completed", "response": {}})),
    (ollama, b'{"done":true}\n'),
    (ollama, b'{"model":"m","done":true,"total_duration":5}\n'),
]  # fmt: skip


@pytest.mark.parametrize("granted", [0, 50])
@pytest.mark.parametrize(("dialect", "said"), NOTHING)
async def test_an_end_without_an_answer_is_none(dialect: ModuleType, said: bytes, granted: int) -> None:
    """Nothing has been said, ended or counted, whatever the dialect calls its end: as if the stream were empty (cases 39, 74)."""
    stage = Stage(reader=dialect.StreamReader(), granted=granted, want=100)
    await stage.feed(said)
    relay = await stage.ended()
    assert (relay.ended, relay.has_output, relay.tail, relay.usage) == ("died", False, b"", None)
    assert (relay.failure, relay.error, stage.exchange.data) == (None, None, b"")


SOMETHING = [
    (anthropic_messages, sse({"type": "message_start", "message": {"usage": {"input_tokens": 5}}}) + sse({"type": "message_stop"})),
    (anthropic_messages, sse({"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}, {"type": "message_stop"})),
    (anthropic_messages, sse({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}) + sse({"type": "message_stop"})),
    (openai_responses, sse({"type": "response.completed", "response": {"status": "completed", "output": []}})),
    (openai_responses, sse({"type": "response.completed", "response": {"usage": {"input_tokens": 5, "output_tokens": 0}}})),
    (openai_responses, sse({"type": "response.incomplete", "response": {}})),
    (ollama, b'{"done":true,"eval_count":1}\n'),
    (ollama, b'{"done":true,"done_reason":"load"}\n'),
    (ollama, b'{"message":{"role":"assistant","content":""},"done":true}\n'),
    (ollama, b'{"message":{"role":"assistant","content":"a"},"done":false}\n{"done":true}\n'),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "said"), SOMETHING)
async def test_an_empty_answer_is_an_answer(dialect: ModuleType, said: bytes) -> None:
    """A block, an end that is told as such, or usage is one, without any text."""
    stage = Stage(reader=dialect.StreamReader(), hide_usage=False)
    await stage.feed(said)
    assert (await stage.ended()).ended == "complete"


@pytest.mark.parametrize("finished", [(), (0,), (1,), (0, 1)])
async def test_an_end_without_done_needs_every_choice_to_have_finished(finished: tuple[int, ...]) -> None:
    """Two choices asked for, one finished, connection closed: that answer is not whole."""
    stage = Stage(choices=2)
    await stage.feed(text(2, 0) + text(2, 1))
    for index in finished:
        await stage.feed(sse(chunk(finish="stop", index=index)))
    stage.call.end()
    assert (await stage.ended()).ended == ("complete" if len(finished) == 2 else "died")


async def test_an_event_without_its_blank_line_counts() -> None:
    """The last bytes of an answer that just stops are metered too."""
    stage = Stage()
    await stage.feed(text(2) + text(3)[:-2])
    stage.call.end()
    assert (await stage.ended()).ended == "died"
    assert (stage.meter.seen, stage.forwarded) == (5, 5)


@pytest.mark.parametrize("reason", ["reset", "timeout", "incomplete", "protocol", "closed"])
@pytest.mark.parametrize("phase", ["before", "withheld", "output", "finish"])
async def test_an_upstream_that_dies(phase: str, reason: Reason) -> None:
    """In every phase: what came before it is metered and, once there was output, forwarded; a stream without its `[DONE]` has died."""
    script = {"before": b"", "withheld": ROLE, "output": ROLE + text(3), "finish": ROLE + text(3) + STOP}
    stage = Stage(hide_usage=False)
    await stage.feed(script[phase])
    stage.call.fail(reason)
    relay = await stage.ended()
    assert (relay.ended, relay.error is not None and relay.error.reason) == ("died", reason)
    assert stage.exchange.data == (script[phase] if phase in ("output", "finish") else b"")


async def test_what_came_before_an_error_is_metered_though_nobody_read_it() -> None:
    """Bytes that arrived together with the end of the call are taken."""
    stage = Stage()
    await stage.feed(text(3))
    stage.call.pieces.append(text(4))
    stage.call.close()
    assert (await stage.ended()).ended == "died"
    assert stage.meter.seen == 7


@pytest.mark.parametrize("after_done", [False, True])
async def test_an_error_event_ends_the_stream(after_done: bool) -> None:
    """It is no output; what follows it, and what follows `[DONE]`, is nobody's."""
    stage = Stage()
    error = sse({"error": {"message": "overloaded", "code": 503}})
    await stage.feed(text(3) + (DONE if after_done else b"") + error + text(9))
    relay = await stage.ended()
    assert relay.ended == ("complete" if after_done else "died")
    assert (relay.failure is None, stage.meter.seen, stage.forwarded) == (after_done, 3, 3)


async def test_an_error_event_before_any_output_leaves_the_response_unstarted() -> None:
    """So that the client gets a real status, or another deployment's answer."""
    stage = Stage()
    await stage.feed(ROLE + sse({"error": {"message": "no", "code": 500}}))
    relay = await stage.ended()
    assert (relay.has_output, relay.ended, stage.exchange.data) == (False, "died", b"")


@pytest.mark.parametrize("vocabulary", ["o200k_base", ""])
async def test_an_upstream_far_beyond_its_cap_is_cut(vocabulary: str) -> None:
    """It is believed up to 1.1 x the cap + 16 tokens, counted or one per delta; what is beyond is not delivered."""
    stage = Stage(cap=100, meter=Meter(vocabulary, 1000))
    await stage.feed(*[sse(chunk(" the")) for _ in range(200)])
    relay = await stage.ended()
    assert (relay.ended, relay.truncated, stage.call.closed) == ("truncated", "budget", True)
    assert stage.exchange.data.count(b" the") <= 126


async def test_a_capped_upstream_counted_in_bytes_is_not_cut() -> None:
    """Where tokens are not known, a text of many bytes says nothing, unless no tokens have so many."""
    stage = Stage(cap=10)
    await stage.feed(*[text(160)] * 2 + [STOP + DONE])
    assert (await stage.ended()).ended == "complete"


# -- extending ----------------------------------------------------------------------------------------------------------------------------


async def test_more_is_asked_for_ahead_of_need_one_call_at_a_time() -> None:
    """At `granted - seen < 3 x lookahead`, for eight lookaheads beyond what was seen, as totals; and not again while that is under way."""
    stage = Stage(granted=160, want=1000)
    await stage.feed(*[text(10)] * 6)
    assert stage.asks == []
    await stage.feed(text(10))
    assert stage.asks == [(161, 70 + 8 * LOOKAHEAD_MIN, 70)]
    await stage.feed(text(10))
    assert len(stage.asks) == 1
    await stage.grant(400)
    await stage.feed(text(1))
    assert (len(stage.asks), stage.forwarded) == (1, 81)
    await stage.leave()


async def test_a_grant_of_everything_is_never_extended() -> None:
    """Held as a cap: nothing to ask for."""
    stage = Stage(granted=50, want=50)
    await stage.feed(text(49), text(1), text(30), STOP, DONE)
    assert ((await stage.ended()).ended, stage.asks, stage.forwarded) == ("complete", [], 80)


async def test_only_what_is_covered_is_forwarded() -> None:
    """What the grant does not cover waits, in order, with everything behind it, until the ledger has answered."""
    stage = Stage(granted=20, want=1000)
    await stage.feed(text(15), b": ping\n\n", text(10), b": pong\n\n", text(1))
    assert stage.exchange.data == text(15) + b": ping\n"
    await stage.grant(25)
    assert stage.exchange.data == text(15) + b": ping\n" + text(10) + b": pong\n"
    await stage.grant(500)
    assert stage.forwarded == 26
    assert stage.relay.ended == "open"
    await stage.leave()


async def test_partial_grants_carry_a_stream_to_the_edge() -> None:
    """A grant of less than asked for is used up before the next; a refusal then ends the stream inside it."""
    stage = Stage(granted=40, want=1000, stop_lag_ms=0)
    await stage.feed(text(5), text(5))
    await stage.grant(41)
    assert stage.asks[-1][0] == 42
    await stage.refuse()
    stage.now += ASK_AGAIN_S
    for _ in range(6):
        assert stage.relay.ended == "open"
        await stage.feed(text(5))
        if stage.answers:
            await stage.refuse()
    assert (stage.relay.ended, stage.call.closed, stage.forwarded) == ("truncated", True, 40)


@pytest.mark.parametrize("delta", [1, 3, 7, 10])
async def test_a_refused_stream_is_cut_at_its_margin(delta: int) -> None:
    """Not before: `granted - seen` is used up to the largest delta, and the upstream is closed in the same turn."""
    stage = Stage(granted=100, want=1000, stop_lag_ms=0)
    seen = 0
    while stage.relay.ended == "open":
        assert 100 - seen > delta or not stage.growth or not stage.growth.refused
        await stage.feed(text(delta))
        seen += delta
        if stage.answers:
            await stage.refuse()
    assert 100 - seen <= delta
    assert 100 - seen >= 0
    assert (stage.relay.truncated, stage.call.closed, stage.forwarded) == ("budget", True, seen)


async def test_the_margin_covers_what_comes_until_the_upstream_has_stopped() -> None:
    """100 tokens a second and a stop lag of 100 ms: cut with ten tokens and a delta to spare."""
    stage = Stage(granted=100, want=1000)
    seen = 0
    while stage.relay.ended == "open":
        stage.now += 0.01
        await stage.feed(text(1))
        seen += 1
        if stage.answers:
            await stage.refuse()
    assert seen == 100 - 11
    assert stage.relay.margin() == 11


def test_the_pace_of_a_stream() -> None:
    """What came since the first output, as soon as a hundredth of a second has gone by; a burst is believed, a lull is not."""
    pace, rates = Pace(100), []
    for now, seen in [(50.0, 0), (51.0, 5), (51.005, 15), (51.0125, 30), (51.125, 41), (51.25, 1041), (51.375, 1041), (51.5, 1042)]:
        pace.saw(seen, now)
        rates.append(round(pace.rate))
    assert rates == [0, 0, 0, 2000, 1620, 8000, 6400, 5122]


def test_before_the_pace_is_known_everything_is_taken_to_have_come_at_once() -> None:
    """Case 109: a client that leaves at once is charged what a fast upstream may have produced meanwhile."""
    pace = Pace(100)
    assert (pace.margin(0, 50.0), pace.lookahead(0, 0)) == (0, LOOKAHEAD_MIN)
    pace.saw(40, 50.0)
    pace.saw(1280, 50.003)
    assert (pace.margin(10, 50.003), pace.lookahead(10, 0)) == (10 + 12_800, LOOKAHEAD_MIN)
    assert pace.margin(10, 50.5) == 10 + 256  # a burst, and then nothing for long
    pace.saw(1300, 50.0625)
    assert pace.margin(10, 60.0) == 10 + 2016
    assert pace.lookahead(10, 0) == pytest.approx(10 + 3024, abs=1)


def test_a_stream_that_is_closed_early_is_charged_as_a_fast_one() -> None:
    """Its first reads show no pace, least of all if they came late; what was made since the last read is charged at its pace (cases 57, 58, 109)."""
    pace = Pace(100, 5)
    assert pace.beyond(0, 50.0) == 5 + FASTEST // 10  # before the first output: it may be on its way
    pace.saw(1, 50.0)
    assert pace.beyond(1, 50.0) == 5 + FASTEST // 10
    assert pace.beyond(1, 50.04) == pytest.approx(5 + 0.14 * FASTEST, abs=1)  # this process was held up
    pace.saw(2, 50.05)
    assert pace.rate == pytest.approx(20)
    assert pace.beyond(1, 50.05) == 5 + FASTEST // 10
    for step in range(1, 11):
        pace.saw(2 + 10 * step, 50.05 + step / 10)
    assert pace.beyond(1, 51.05) == pytest.approx(5 + 10, abs=1)
    assert pace.beyond(1, 51.25) == pytest.approx(5 + 30, abs=1)


def test_a_stream_that_is_known_to_be_faster_is_charged_as_it_came() -> None:
    """A burst is believed."""
    pace = Pace(100)
    pace.saw(40, 50.0)
    pace.saw(1280, 50.003)
    assert pace.beyond(10, 50.003) == 10 + 12_800


async def test_case_108_a_stream_is_stopped_where_the_next_delta_may_exceed_its_grant() -> None:
    """The largest delta that the deployment is known for counts before this stream has shown one, in what is asked, kept back and charged."""
    stage = Stage(granted=450, want=1000, delta=100)
    await stage.feed(text(100))
    assert (stage.relay.ended, stage.asks) == ("open", [])
    await stage.feed(text(260))
    assert stage.asks[0][2] == 360
    await stage.refuse()
    assert stage.relay.truncated == "budget"
    pace = Pace(100, 100)
    assert (pace.margin(4, 50.0), pace.lookahead(4, 0)) == (100, 100)


async def test_a_stream_that_falls_silent_is_taken_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 tokens a second and then nothing: the hold grows with what may be on its way, and where it cannot, the upstream is closed in time."""
    monkeypatch.setattr(growth_module, "SILENCE_S", 0.01)
    stage = Stage(granted=100, want=1000)
    for _ in range(4):
        await stage.feed(text(10))
        stage.now += 0.1
    stage.now += 0.2  # 30 tokens may be on their way: 70 of 100 are used up
    await asyncio.sleep(0.05)
    assert stage.asks and stage.relay.ended == "open"
    await stage.refuse()
    stage.now += 0.2
    await asyncio.sleep(0.05)
    relay = await stage.ended()
    assert (relay.truncated, stage.call.closed) == ("budget", True)
    assert 50 <= relay.margin() <= 80  # what may have been produced unseen is charged


async def test_a_stream_that_is_covered_may_be_silent() -> None:
    """Silence alone ends nothing, and asks for nothing where all is held."""
    stage = Stage(granted=1000, want=1000)
    await stage.feed(text(10))
    stage.now += 60
    stage.relay._watch()
    await stage.feed(text(10), STOP, DONE)
    assert ((await stage.ended()).ended, stage.asks) == ("complete", [])


async def test_a_refusal_may_be_taken_back() -> None:
    """Others settle meanwhile: a stream that is not at its margin asks again after a pause, and goes on."""
    stage = Stage(granted=40, want=1000, stop_lag_ms=0)
    await stage.feed(text(10))
    await stage.refuse()
    await stage.feed(text(10))
    assert len(stage.asks) == 1
    stage.now += ASK_AGAIN_S
    await stage.feed(text(1))
    assert len(stage.asks) == 2
    await stage.grant(1000)
    await stage.feed(text(200), STOP, DONE)
    assert ((await stage.ended()).ended, stage.forwarded) == ("complete", 221)


async def test_one_huge_delta_is_not_delivered_past_the_cap() -> None:
    """A single delta beyond everything that can be granted: withheld, the stream cut, all of it metered: case 108."""
    stage = Stage(granted=16, want=10_000)
    await stage.feed(text(3000))
    assert stage.exchange.data == b""
    await stage.refuse()
    assert (stage.relay.ended, stage.relay.truncated, stage.meter.seen, stage.forwarded) == ("truncated", "budget", 3000, 0)
    assert stage.call.closed


@pytest.mark.parametrize("granted", [16, 600])
async def test_case_108_a_delta_of_more_bytes_than_the_cap_can_have(granted: int) -> None:
    """12,000 bytes at once from an upstream that was sent a cap of 600: whatever is granted, that is not delivered, and all it may be is charged."""
    stage = Stage(granted=granted, want=600, cap=600)
    await stage.feed(text(12_000))
    if granted < 600:
        await stage.grant(600)
    assert (stage.relay.ended, stage.relay.truncated, stage.forwarded) == ("truncated", "budget", 0)
    assert (stage.call.closed, stage.meter.certain(600)) == (True, 12_000)


async def test_choices_are_metered_together_and_finish_apart() -> None:
    """The grant is for all choices; the end of one is not the end of the stream."""
    stage = Stage(granted=30, want=1000, choices=2, stop_lag_ms=0)
    await stage.feed(text(10, 0) + text(10, 1), sse(chunk(finish="stop", index=0)), text(9, 1))
    await stage.refuse()
    relay = await stage.ended()
    assert (relay.ended, relay.finishes, stage.forwarded) == ("truncated", {0: "stop"}, 29)


@pytest.mark.parametrize("answer", ["grant", "refuse", "away"])
async def test_an_answer_that_is_over_before_the_ledger_has_answered(answer: str) -> None:
    """Done with events still waiting: they are delivered if they are granted, and cut if not; the upstream has nothing more to say."""
    stage = Stage(granted=16, want=1000)
    await stage.feed(text(10), text(30) + STOP + DONE)
    stage.call.end()
    await settle()
    assert (stage.relay.ended, stage.forwarded) == ("open", 10)
    await {"grant": lambda: stage.grant(200), "refuse": stage.refuse, "away": stage.lose_ledger}[answer]()
    relay = await stage.ended()
    if answer == "grant":
        assert (relay.ended, relay.tail, stage.forwarded) == ("complete", DONE, 40)
    else:
        assert (relay.ended, relay.truncated, stage.forwarded) == ("truncated", "budget" if answer == "refuse" else "ledger", 10)
        assert relay.finishes == {}  # what was told of an end went with what was not delivered


class Numbered(openai_chat.StreamReader):
    """Numbers the chunks of a stream: what a dialect must know of it after each."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks = 0

    def feed(self, data: bytes) -> list[Event]:
        events = super().feed(data)
        for event in events:
            if event.kind == "chunk":
                self.chunks += 1
                event.after = self.chunks
        return events


@pytest.mark.parametrize(("granted", "after"), [(True, 3), (False, 1)])
async def test_a_stream_is_cut_after_what_the_client_has_been_sent(granted: bool, after: int) -> None:
    """The state that a truncation goes on from is that after the last event that was delivered; a comment has none and changes none."""
    stage = Stage(granted=LOOKAHEAD_MIN, want=10**5)
    stage.relay.reader = Numbered()
    await stage.feed(text(LOOKAHEAD_MIN - 1), text(9) + text(1) + b": ping\n\n")
    if granted:
        await stage.grant(10**4)
    assert stage.relay.after == after
    await stage.leave()


async def test_a_partial_grant_after_the_end_is_asked_for_again() -> None:
    """The last ask may grant a part: the rest is asked for, and what is covered goes out."""
    stage = Stage(granted=16, want=1000)
    await stage.feed(text(10), text(10), text(10) + STOP + DONE)
    await stage.grant(20)
    assert (stage.forwarded, stage.asks[-1][:2]) == (20, (21, 30))
    await stage.grant(30)
    assert ((await stage.ended()).ended, stage.forwarded) == ("complete", 30)


async def test_a_ledger_that_is_away_under_refuse() -> None:
    """The stream runs to the end of its grant and is cut there, told as a fault of the ledger."""
    stage = Stage(granted=50, want=1000, stop_lag_ms=0)
    await stage.feed(*[text(5)] * 4)
    await stage.lose_ledger()
    while stage.relay.ended == "open":
        stage.now += 0.01
        await stage.feed(text(5))
        if stage.answers:
            await stage.lose_ledger()
    assert (stage.relay.truncated, stage.call.closed, stage.forwarded) == ("ledger", True, 45)


@pytest.mark.parametrize("why", ["budget", "ledger"])
async def test_a_stream_that_may_run_on(why: str) -> None:
    """`on_ledger_failure: allow` and `on_exhausted: allow`: it is not cut, and asks no more."""
    stage = Stage(granted=16, want=1000, run_on={why})
    await stage.feed(text(30))
    await (stage.refuse() if why == "budget" else stage.lose_ledger())
    await stage.feed(text(500), STOP, DONE)
    assert ((await stage.ended()).ended, stage.forwarded, len(stage.asks)) == ("complete", 530, 1)


async def test_a_ledger_that_does_not_answer_is_not_waited_for_beyond_the_grant() -> None:
    """An upstream does not stop while the ledger thinks: at its margin, after some patience, the stream is cut as if it had been refused."""
    stage = Stage(granted=60, want=10_000, stop_lag_ms=0)
    await stage.feed(text(10), text(25))
    assert len(stage.asks) == 1
    await stage.feed(text(10))
    assert stage.relay.ended == "open"
    stage.now += 2 * PATIENCE_S
    await stage.feed(text(1))
    assert (stage.relay.ended, stage.relay.truncated, stage.call.closed) == ("truncated", "ledger", True)
    assert stage.meter.seen <= 60


async def test_a_ledger_that_does_not_answer_and_may_fail() -> None:
    """Under `allow` nothing is cut: what is not covered waits for the answer, or for the time after which it counts as away."""
    stage = Stage(granted=16, want=1000, run_on={"ledger"})
    await stage.feed(text(20))
    stage.now += 10 * PATIENCE_S
    await stage.feed(text(20))
    assert (stage.relay.ended, stage.forwarded) == ("open", 0)
    await stage.lose_ledger()
    assert stage.forwarded == 40
    await stage.leave()


async def test_patience_is_asked_for_ahead() -> None:
    """The faster the stream, the earlier it asks, so that a slow answer of the ledger comes before the margin is reached."""
    stage = Stage(granted=1000, want=100_000)
    seen = 0
    while not stage.asks:
        stage.now += 0.01
        await stage.feed(text(10))
        seen += 10
    rate = 1000
    assert 1000 - seen >= 10 + rate * (0.1 + PATIENCE_S) - 20
    stage.now += PATIENCE_S - 0.001
    await stage.feed(text(49))
    assert stage.relay.ended == "open"
    await stage.leave()


@pytest.mark.parametrize("seed", range(60))
async def test_no_script_makes_it_forward_what_is_not_covered(seed: int) -> None:
    """Deltas, pauses and answers of the ledger in any order: forwarded <= granted at every moment, always a prefix, and whole if complete."""
    dice = random.Random(seed)
    room, most = dice.choice([40, 200, 1000]), dice.choice([1, 8, 30])
    stage = Stage(granted=dice.randint(1, 40), want=10_000, stop_lag_ms=dice.choice([0, 100]))
    assert stage.growth is not None
    sent = b""
    for _ in range(dice.randint(5, 120)):
        stage.now += dice.choice([0, 0.001, 0.02, 0.2])
        if stage.relay.ended != "open":
            break
        step = dice.random()
        if step < 0.55:
            pieces = [text(dice.randint(1, most)) for _ in range(dice.randint(1, 3))]
            sent += b"".join(pieces)
            await stage.feed(b"".join(pieces))
        elif stage.answers:
            need, want, _ = stage.asks[-1]
            if step < 0.6:
                await stage.lose_ledger()
            elif need <= room:
                await stage.grant(min(want, room))
            else:
                await stage.refuse()
        assert stage.forwarded <= stage.growth.granted
        assert sent.startswith(stage.exchange.data)
        if stage.relay.ended == "open" and stage.growth.refused and stage.growth.asking is None:
            assert stage.growth.granted - stage.meter.seen > stage.pace.margin(stage.meter.largest, stage.now)
    if stage.relay.ended == "open":
        await stage.feed(STOP + DONE)
        while stage.answers:
            need, want, _ = stage.asks[-1]
            await (stage.grant(min(want, room)) if need <= room else stage.refuse())
    relay = await stage.ended()
    assert relay.ended == "truncated" or stage.exchange.data == sent + STOP
    assert stage.forwarded <= stage.growth.granted
    assert relay.ended == "complete" or stage.call.closed


# -- slow clients and those that leave ----------------------------------------------------------------------------------------------------


def big(size: int = 100_000) -> bytes:
    return sse(chunk("x", padding="y" * size))


async def fill(stage: Stage, size: int = CLIENT_BUFFER_MAX) -> None:
    """Until the client is a whole buffer behind."""
    while stage.exchange.buffered <= size and not stage.exchange.aborted:
        await stage.feed(big())


@pytest.mark.parametrize("seconds", [0.0, WRITE_TIMEOUT_S - 1])
async def test_a_capped_upstream_is_paused_for_a_slow_client(seconds: float) -> None:
    """A buffer behind, nothing more is read; once the client has taken it, reading goes on."""
    stage = Stage()
    await stage.feed(text(1))
    stage.exchange.kernel_takes = False
    await fill(stage)
    assert stage.call.paused
    stage.now += seconds
    stage.exchange.take(1 << 30)
    await settle()
    assert (stage.call.paused, stage.exchange.aborted) == (False, False)
    stage.exchange.kernel_takes = True
    await stage.feed(text(2), STOP, DONE)
    assert (await stage.ended()).ended == "complete"


async def test_an_extended_upstream_is_never_paused() -> None:
    """What it produces unread is produced all the same: a client that is a buffer behind is one that left."""
    stage = Stage(granted=10**6, want=10**7)
    await stage.feed(text(1))
    stage.exchange.kernel_takes = False
    await fill(stage)
    await settle()
    assert (stage.call.pauses, stage.exchange.aborted, stage.call.closed) == (0, True, True)
    assert (await stage.ended()).ended == "died"


@pytest.mark.parametrize("extended", [False, True])
async def test_a_client_that_takes_nothing_for_the_write_timeout(extended: bool) -> None:
    """It is treated as one that left, however little it is behind."""
    stage = Stage(granted=1000, want=10_000) if extended else Stage()
    await stage.feed(text(1))
    stage.exchange.kernel_takes = False
    await stage.feed(text(1))
    stage.now += WRITE_TIMEOUT_S - 1
    await stage.feed(text(1))
    assert not stage.exchange.aborted
    stage.now += 2
    await stage.feed(text(1))
    await stage.feed(text(1))
    assert (stage.exchange.aborted, stage.call.closed) == (True, True)


@pytest.mark.parametrize("extended", [False, True])
async def test_a_client_that_is_slow_but_reads_is_kept(extended: bool) -> None:
    """It takes less than comes, for longer than the write timeout, and is served to the end."""
    stage = Stage(granted=1000, want=10_000) if extended else Stage()
    await stage.feed(text(1))
    stage.exchange.kernel_takes = False
    for _ in range(10):
        stage.now += WRITE_TIMEOUT_S / 3
        stage.exchange.take(100)
        await stage.feed(text(1))
    assert not stage.exchange.aborted
    await stage.feed(STOP, DONE)
    assert (await stage.ended()).ended == "complete"


async def test_a_slow_reader_of_a_paused_stream_is_kept() -> None:
    """The pause ends with the write timeout; a client that has taken something by then has time again."""
    stage = Stage()
    stage.relay._write_timeout_s = 0.02  # of real time: the pause is waited for
    await stage.feed(text(1))
    stage.exchange.kernel_takes = False
    await fill(stage)
    assert stage.call.paused
    stage.exchange.take(500_000)
    stage.now += 0.03
    async with asyncio.timeout(30):
        while stage.call.paused:  # noqa: ASYNC110  (nothing to wait for)
            await asyncio.sleep(0.005)
    assert not stage.exchange.aborted
    await stage.leave()


async def test_a_client_that_leaves_while_its_stream_is_paused() -> None:
    """Nothing is waited for any longer."""
    stage = Stage()
    await stage.feed(text(1))
    stage.exchange.kernel_takes = False
    await fill(stage)
    assert stage.call.paused
    stage.exchange.abort()
    assert (await stage.ended()).ended == "died"


@pytest.mark.parametrize("phase", ["before", "withheld", "output", "waiting", "done"])
async def test_a_client_that_leaves(phase: str) -> None:
    """The upstream is closed; what it had sent by then is metered; after `[DONE]` the answer is complete all the same."""
    stage = Stage(granted=16, want=1000)
    script = {"before": b"", "withheld": ROLE, "output": text(5), "waiting": text(5) + text(40), "done": text(5) + STOP + DONE}
    await stage.feed(script[phase])
    stage.exchange.abort()
    relay = await stage.ended()
    assert relay.ended == ("complete" if phase == "done" else "died")
    assert stage.meter.seen == {"before": 0, "withheld": 0, "output": 5, "waiting": 45, "done": 5}[phase]

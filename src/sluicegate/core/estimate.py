"""How large a request is before it is sent: its input as an estimate and as a bound, and how much output it needs, aims at and wants.

The estimate goes on limits that refill, the bound on all others (ledger.md 8). What is learned here only ever tightens a bound that holds
without it, or widens one that has been seen not to hold. Learned figures come from complete usages alone, in bounded memory. Histograms of
output, and the names of deployments that bill more than they show, are shared by all workers through the ledger; ratios stay with the worker
that saw them.

Fails with BadRequest: input that no figure bounds, and amounts too large to be counted exactly.
"""

from collections import Counter, defaultdict

import msgspec

from sluicegate.core.hosted import calls_of
from sluicegate.core.learned import Histogram, Largest, Mean, bucket_of
from sluicegate.core.meter import TEXT_MAX, Meter, count, marks_of, size
from sluicegate.core.prices import Marks
from sluicegate.core.tenants import Budget, Deployment, Key, Model
from sluicegate.core.usage import Usage
from sluicegate.dialects.form import BadRequest, Request

PER_MESSAGE, PER_REQUEST = 4, 3  # tokens that frame a message, and that open the reply
IMAGE_TOKENS = 4096  # an image at an unknown provider, at most
AT_ONCE = 32  # answers that are learned from together
ENOUGH_USAGES = 200  # before that, a deployment's ratios are not trusted
FEW_USAGES = 8  # before that, a vocabulary that was named is not trusted to be the provider's
ENOUGH_SAMPLES = 50  # before that, a histogram has no p95
LAST_INPUTS, LAST_OUTPUTS = 1000, 200
ADDED_MAX = 4096  # tokens that a provider may add to a prompt, a system prompt of its own say; a token is a byte at least
HIDDEN_FLAT = 16  # tokens of an answer that need not show in it
SHORT_TEXT = 256  # bytes; below it what a provider adds to every prompt outweighs the text, and a ratio says nothing
PAIRS_MAX = 4096  # histograms kept: one per (model, tenant) and model, the oldest forgotten first
PLAIN_MAX = 2**12  # below it no rate that a price may have (10**12) comes near
EXACT_MAX = 2**53  # rate times tokens must stay below: what a double holds exactly

DELTA_TOLD = 32  # tokens; a smaller delta is inside the lookahead of every stream

_EXCEEDED = "exceeded"  # the shared table of deployments that are capped from now on
_DELTAS = "deltas"  # the shared table of deployments with large deltas: name and bits


class Figures(msgspec.Struct, gc=False):
    """Tokens. need <= aim <= want are totals over all choices. The rest is what the figures were made from, for learning."""

    input_estimate: int
    input_bound: int
    choices: int
    need: int
    aim: int
    want: int
    beyond_cap: int = 0  # part of need, aim and want that no cap ends: a prediction is billed where it is rejected, a character is written to its end
    counted: int = 0  # tokens where they can be counted, else characters / 4
    in_tokens: bool = False  # which of the two
    text_bytes: int = 0
    framing: int = 0
    plain: bool = True  # text and nothing else: something can be learned from it
    priced: bool = False  # the two below change what it costs at most
    marks: Marks = "1h"  # for the provider's cache
    fees_nano_usd: int = 0  # for calls of tools that the provider runs
    grows: bool = False  # there are such tools: what is read is not known before the end

    def cap(self, covered: int) -> int:
        """The cap per choice that `covered` output tokens pay for."""
        return (covered - self.beyond_cap) // self.choices


class _Known:
    """What is known of one deployment."""

    __slots__ = ("added", "delta", "density", "event_factor", "factor", "mean", "ratio")

    def __init__(self) -> None:
        self.mean = Mean(LAST_INPUTS)  # reported input per estimated token
        self.density = Largest(LAST_INPUTS)  # reported input per byte of longer texts, in thousandths
        self.added = Largest(LAST_INPUTS)  # reported input beyond the tokens counted of a short text, or beyond one per byte
        self.ratio = Largest(LAST_INPUTS)  # reported input per token counted of longer texts, beyond what is added to all, in thousandths
        self.factor = Largest(LAST_OUTPUTS)  # reported per metered output, in thousandths
        self.event_factor = Largest(LAST_OUTPUTS)  # the same where events were metered
        self.delta = Largest(LAST_OUTPUTS)  # output that came in one delta


_Answer = tuple[Figures, Usage, Model, Deployment, Key, bool]  # complete; the last: cut by a cap


class Learned:
    """Figures for requests, and what complete usages have taught; one per worker."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._exceeded: set[str] = set()
        self._deltas: dict[str, int] = {}  # by deployment, as other workers tell
        self._outputs: dict[str, Histogram] = {}
        self._names: dict[tuple[str, str], tuple[str, str]] = {}
        self._unlearned: list[_Answer] = []

    # -- figures --------------------------------------------------------------------------------------------------------------------------

    def figures(self, request: Request, model: Model, deployment: Deployment, key: Key, budget: Budget) -> Figures:
        """The figures of a request at one deployment. Raises BadRequest."""
        if request.unbounded and not deployment.context:
            why = f"The input cannot be bounded: it has {request.unbounded}, and the context of {model.name!r} is not known."
            raise BadRequest(why, request.unbounded_by, "unbounded_input")
        figures = self._input(request, deployment, self._output(request, model, deployment, key, budget))
        if request.unbounded:
            figures.input_bound = deployment.context
            if request.hosted:
                _hosted(figures, request, deployment)
        if deployment.provider.marked_cache and deployment.price is not None:
            figures.marks = marks_of(request)
            figures.priced = figures.priced or figures.marks != "1h"
        return figures

    def _input(self, request: Request, deployment: Deployment, output: tuple[int, int, int, int]) -> Figures:
        known = self._known.get(deployment.id)
        characters = text_bytes = sum(map(len, request.texts))
        if not all(map(str.isascii, request.texts)):
            text_bytes = sum(map(size, request.texts))
        framing = PER_MESSAGE * request.messages + PER_REQUEST
        in_tokens = bool(deployment.tokenizer) and characters <= TEXT_MAX
        counted = sum([count(text, deployment.tokenizer) for text in request.texts]) if in_tokens else -(-characters // 4)
        estimate, bound = counted, text_bytes  # until it is known what the provider adds, and that it counts alike
        if known is not None:
            if in_tokens:
                trusted = known.ratio.count + known.added.count >= FEW_USAGES
                bound = -(-counted * max(1000, known.ratio.value) // 1000) if trusted else max(bound, counted)
            else:
                if known.mean.count >= ENOUGH_USAGES:
                    estimate = -(-estimate * known.mean.milli // 1000)
                if known.density.count >= ENOUGH_USAGES:
                    bound = -(-text_bytes * known.density.value * 11 // 10_000)
            bound += known.added.value
        beside, plain = framing, not request.unbounded
        if request.images or request.tokens:
            beside += request.images * (deployment.image_tokens or IMAGE_TOKENS) + request.tokens
            plain = False
        bound += request.own_prompts * deployment.provider.own_prompt
        need, aim, want, beyond_cap = output
        estimate, bound = estimate + beside, bound + beside
        return Figures(estimate, bound, request.choices, need, aim, want, beyond_cap, counted, in_tokens, text_bytes, framing, plain)

    def _output(self, request: Request, model: Model, deployment: Deployment, key: Key, budget: Budget) -> tuple[int, int, int, int]:
        """need, aim, want and what of them is beyond the cap. (Comparisons: min and max would cost a request a third of a microsecond each.)"""
        choices, cap = request.choices, request.cap
        beyond_cap = choices * deployment.provider.cap_overrun if cap != 0 else 0
        if request.prediction:
            beyond_cap += count(request.prediction, deployment.tokenizer)
        want = choices * (model.max_output if cap is None else cap) + beyond_cap
        if want >= PLAIN_MAX:
            rate = deployment.price.utmost_output if deployment.price is not None else 0
            if max(rate, 1000) * want >= EXACT_MAX:
                raise BadRequest(f"{want} output tokens are more than can be counted.", request.cap_by)
        need = choices * (budget.min_output + request.thinking) + beyond_cap
        if need >= want:
            return want, want, want, beyond_cap
        aim = want
        if budget.estimator == "fixed":
            aim = choices * budget.fixed_output + beyond_cap
        elif budget.estimator == "p95":
            each = self._p95(model, key)
            aim = want if each is None else choices * each + beyond_cap
        if deployment.extend:
            aim = max(aim, 2 * choices * self.delta(deployment) + beyond_cap)  # covers the first one, and the next while the ledger is asked
        return need, need if aim < need else want if aim > want else aim, want, beyond_cap

    def _p95(self, model: Model, key: Key) -> int | None:
        """Output per choice that 95 % of answers stay within: of this tenant, else of the model; None where too few are known."""
        for name in self._tables(model, key):
            outputs = self._outputs.get(name)
            if outputs is None:
                outputs = self._new(name)
            if outputs.samples >= ENOUGH_SAMPLES:
                return outputs.p95()
            outputs.wanted = True
        return None

    def factor_milli(self, deployment: Deployment, by_event: bool = False) -> int:
        """What the meter multiplies by, in thousandths: the largest reported/metered of the last usages, at least 1."""
        known = self._known.get(deployment.id)
        if known is None:
            return 1000
        return max(1000, (known.event_factor if by_event else known.factor).value)

    def delta(self, deployment: Deployment) -> int:
        """The largest delta that may be expected of a deployment: an upstream that gathers its output shows nothing until it is too late."""
        known = self._known.get(deployment.id)
        return max(self._deltas.get(deployment.id, 0), known.delta.value if known is not None else 0)

    def exceeded(self, deployment: Deployment) -> bool:
        """Whether this deployment has billed more than it showed: it is capped from then on."""
        return deployment.id in self._exceeded

    # -- learning -------------------------------------------------------------------------------------------------------------------------

    def saw_delta(self, deployment: Deployment, largest: int) -> None:
        """Learns the largest delta of a stream, however it ended."""
        self._of(deployment).delta.add(largest)

    def observe_later(self, figures: Figures, usage: Usage, model: Model, deployment: Deployment, key: Key, truncated: bool) -> None:
        """As `observe`, some at a time, for a deployment whose answers decide nothing at once: that costs a quarter of as many single calls."""
        self._unlearned.append((figures, usage, model, deployment, key, truncated))
        if len(self._unlearned) >= AT_ONCE:
            self._learn_all()

    def _learn_all(self) -> None:
        answers, self._unlearned = self._unlearned, []
        self._learn(answers)

    def observe(self, figures: Figures, usage: Usage, meter: Meter, *, model: Model, deployment: Deployment, key: Key, truncated: bool) -> bool:
        """Learns from a complete usage. truncated: the answer was cut by a cap. True if the deployment is capped from now on."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return False
        self._learn([(figures, usage, model, deployment, key, truncated)])
        if not deployment.visible:
            return False
        written, known = usage.output_tokens, self._of(deployment)
        # Where events can be metered, text alone proves nothing: the vocabulary may be another one than the model's.
        judged = meter.by_event == deployment.provider.token_per_event
        if judged and 10 * written > 11 * meter.seen + 10 * HIDDEN_FLAT:
            capped = deployment.id not in self._exceeded
            self._exceeded.add(deployment.id)
            return capped
        # A few tokens that every answer has beside its text (its end, say) are no factor: a short answer would make one of them.
        if written > HIDDEN_FLAT and meter.counted:
            (known.event_factor if meter.by_event else known.factor).add(-(-(written - HIDDEN_FLAT) * 1000 // meter.counted))
        return False

    def _of(self, deployment: Deployment) -> _Known:
        known = self._known.get(deployment.id)
        if known is None:
            known = self._known[deployment.id] = _Known()
        return known

    def _learn(self, answers: list[_Answer]) -> None:
        """Learns from some answers together: what they say of each deployment's input, and of each model's output."""
        inputs: dict[str, list[tuple[Figures, int]]] = defaultdict(list)
        outputs: dict[tuple[str, str], list[int]] = defaultdict(list)
        for figures, usage, model, deployment, key, truncated in answers:
            read, written = usage.input_tokens, usage.output_tokens
            if read is None or written is None:
                continue
            if read and figures.plain and figures.text_bytes:
                inputs[deployment.id].append((figures, read))
            if written and not truncated:
                outputs[self._tables(model, key)].append(bucket_of(-(-written // figures.choices)))
        for name, some in inputs.items():
            _learn_inputs(self._known.setdefault(name, _Known()), some)
        for names, buckets in outputs.items():
            for bucket, samples in Counter(buckets).items():
                for name in names:
                    (self._outputs.get(name) or self._new(name)).add(bucket, samples)

    def _tables(self, model: Model, key: Key) -> tuple[str, str]:
        """The names of the histograms that a key's answers count in: of its tenant, of all."""
        names = self._names.get((key.id, model.name))
        if names is None:
            if len(self._names) >= PAIRS_MAX:
                self._names.clear()
            names = self._names[key.id, model.name] = (f"output {model.name} {_tenant(key)}", f"output {model.name}")
        return names

    def _new(self, name: str) -> Histogram:
        if len(self._outputs) >= PAIRS_MAX:
            del self._outputs[next(iter(self._outputs))]
        outputs = self._outputs[name] = Histogram()
        return outputs

    # -- shared through the ledger --------------------------------------------------------------------------------------------------------

    def increments(self) -> dict[str, dict[str, int]]:
        """What to add to the shared tables; an empty one is only read. What is known of deployments is told each time, since tables are forgotten."""
        self._learn_all()
        tables = {name: outputs.take() for name, outputs in self._outputs.items() if outputs.wanted}
        tables[_EXCEEDED] = dict.fromkeys(self._exceeded, 1)
        tables[_DELTAS] = {f"{name} {known.delta.value.bit_length()}": 1 for name, known in self._known.items() if known.delta.value > DELTA_TOLD}
        return tables

    def keep(self, increments: dict[str, dict[str, int]]) -> None:
        """These increments have not arrived."""
        for name in increments:
            if name in self._outputs:
                self._outputs[name].keep()

    def absorb(self, sums: dict[str, dict[str, int]]) -> None:
        """The sums over all workers."""
        self._exceeded.update(deployment for deployment, times in sums.get(_EXCEEDED, {}).items() if times > 0)
        self._deltas = {}
        for name in sums.get(_DELTAS, ()):
            deployment, _, bits = name.rpartition(" ")
            self._deltas[deployment] = max(2 ** int(bits) - 1, self._deltas.get(deployment, 0))
        for name, outputs in self._outputs.items():
            if name in sums:
                outputs.absorb(sums[name])


def _hosted(figures: Figures, request: Request, deployment: Deployment) -> None:
    """With each round of calls of tools that the provider runs, all is read again."""
    price = deployment.price
    calls = calls_of(request.hosted, deployment.tool_calls, dict(price.tools) if price is not None else {})
    figures.grows = True
    figures.input_bound *= 1 + calls.most
    figures.fees_nano_usd = calls.fees_nano_usd
    figures.priced = calls.fees_nano_usd > 0


def _learn_inputs(known: _Known, some: list[tuple[Figures, int]]) -> None:
    """Learns from what a deployment has reported of its input. The largest figure stays as long as the last would: a little longer, never less."""
    parts, wholes, expected = 0, [], known.added.value
    ratios, densities, added = [], [], []
    for figures, read in some:
        text_bytes, counted = figures.text_bytes, figures.counted
        tokens = read - figures.framing if read > figures.framing else 0
        if tokens > text_bytes + ADDED_MAX:
            continue  # not believed: one absurd report would shut everybody out, since no other could then push it out again
        if figures.in_tokens:
            if text_bytes >= SHORT_TEXT:
                ratios.append(-(-(tokens - expected) * 1000 // (counted or 1)))
            else:
                added.append(tokens - counted)
            continue
        parts += tokens
        wholes.append(counted)
        if text_bytes >= SHORT_TEXT:
            densities.append(-(-tokens * 1000 // text_bytes))
        else:
            added.append(tokens - text_bytes)
    if wholes:
        known.mean.add(parts, sum(wholes), len(wholes))
    if ratios:
        known.ratio.add(max(ratios), len(ratios))
    if densities:
        known.density.add(max(densities), len(densities))
    if added:
        known.added.add(max(0, *added), len(added))


def _tenant(key: Key) -> str:
    """The scope that a key belongs to."""
    for scope in reversed(key.path):
        if scope.kind != "key":
            return scope.id
    return key.id

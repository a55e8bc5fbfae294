"""Does the cap hold, and is the budget used up? Many clients, two gateway processes, one budget, and a mock provider that counts what it produced.

Six runs: two gateways on one Redis, and one gateway of two workers on SQLite; each with capped streams, with extended ones, and with extended
ones that begin with a grant of 32 tokens, so that nearly all of them extend and many are cut. Clients work in a closed loop: they stop at the
first `budget_exceeded` and wait 50 ms after `budget_busy`. The key has a budget of tokens that never resets. The gateways know the mock's
vocabulary: without it they hold a token for every byte of a prompt, and charge a cut stream by its bytes.

Prints, per run, the mock's own count of prompt and completion tokens and its share of the budget. Exits 1 if the count exceeds the budget in any
run, or falls short of 98.5 % of it (95 % where streams are cut on purpose).
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support_gateway import config, running_gateway, running_mock, running_redis

MODES = {  # deployment extends, the budget section, the share of the budget that must be used (a cut stream is charged a margin)
    "capped": (False, "", 0.985),
    "extended": (True, "", 0.985),
    "growing": (True, "budget: {estimator: fixed, fixed_output: 32}", 0.95),
}
TOKENIZER = "o200k_base"
BUDGET = 20_000
CLIENTS = 32
MAX_TOKENS = 1024
BUSY_PAUSE_S = 0.05
MOCK = ("--ttft", "20ms", "--tpot", "5ms", "--chunk", "4", "--median", "150", "--sigma", "0.8", "--tokenizer", TOKENIZER)
PROMPT = "Tell me something about rivers and the gates that people build into them."
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-budget\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
)
DEADLINE_S = 300.0


@dataclass
class Outcome:
    """What one run showed. Tokens are the mock's own count."""

    ledger: str
    mode: str
    budget: int
    tokens: int
    requests: int
    answers: dict[str, int]  # by outcome, over all clients
    seconds: float

    @property
    def utilisation(self) -> float:
        return self.tokens / self.budget


async def ask(port: int, body: bytes) -> str:
    """One streamed request on a connection of its own, read to its end: "ok", or the error's code."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD % len(body) + body)
    answer = await reader.read(-1)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    if answer.startswith(b"HTTP/1.1 200"):
        assert b"data: [DONE]" in answer, answer[-400:]
        return "truncated" if b'"truncated"' in answer else "ok"
    return str(json.loads(answer[answer.index(b"\r\n\r\n{") + 4 :])["error"]["code"])


async def client(port: int, number: int, answers: Counter[str]) -> None:
    """Asks again and again until the budget is used up."""
    turn = 0
    while True:
        turn += 1
        messages = [{"role": "user", "content": f"{PROMPT} {number}.{turn}"}]
        outcome = await ask(port, json.dumps({"model": "chat", "stream": True, "max_tokens": MAX_TOKENS, "messages": messages}).encode())
        answers[outcome] += 1
        if outcome == "budget_exceeded":
            return
        assert outcome in ("ok", "truncated", "budget_busy"), outcome
        if outcome == "budget_busy":
            await asyncio.sleep(BUSY_PAUSE_S)


async def drive(ports: list[int], clients: int) -> Counter[str]:
    answers: Counter[str] = Counter()
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(ports[number % len(ports)], number, answers))
    return answers


@contextlib.contextmanager
def gateways(directory: Path, ledger: str, mock_url: str, *, budget: int, mode: str) -> Iterator[list[int]]:
    """The ports of two gateways on one Redis, or of one with two workers on SQLite."""
    tenants = f"  acme:\n    keys: [{{name: budget, key: sk-budget, limits: [{budget} tokens/lifetime]}}]\n"
    extend, more, _ = MODES[mode]
    with contextlib.ExitStack() as stack:
        if ledger == "sqlite":
            text = config(directory, mock_url, tenants, extend=extend, tokenizer=TOKENIZER, more=more)
            yield [stack.enter_context(running_gateway(directory, text, arguments=("--workers", "2"))).port]
            return
        url = stack.enter_context(running_redis(directory))
        ports = []
        for name in ("one", "two"):
            (directory / name).mkdir()
            records = f"sqlite:///{directory}/records.db"  # that both share
            text = config(directory / name, mock_url, tenants, ledger=url, records=records, extend=extend, tokenizer=TOKENIZER, more=more)
            ports.append(stack.enter_context(running_gateway(directory, text, name)).port)
        yield ports


def run(ledger: str, mode: str, *, budget: int = BUDGET, clients: int = CLIENTS, mock_options: tuple[str, ...] = MOCK) -> Outcome:
    """One run, all processes of its own."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        mock = stack.enter_context(running_mock(directory, *mock_options))
        ports = stack.enter_context(gateways(directory, ledger, mock.url, budget=budget, mode=mode))
        started = time.monotonic()
        answers = asyncio.run(drive(ports, clients))
        seconds = time.monotonic() - started
        total = mock.total()
    return Outcome(ledger, mode, budget, total["tokens"], total["requests"], dict(answers), round(seconds, 1))


def main() -> int:
    """Runs, prints, and judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="how often each of the six runs is made")
    parser.add_argument("--json", type=Path, help="write the results here, with the machine and the parameters")
    options = parser.parse_args()
    outcomes = []
    for _ in range(options.rounds):
        for ledger in ("redis", "sqlite"):
            for mode in MODES:
                outcome = run(ledger, mode)
                outcomes.append(outcome)
                print(
                    f"{ledger:6} {outcome.mode:8} produced {outcome.tokens:6} of {outcome.budget} tokens ({outcome.utilisation:.2%})"
                    f" in {outcome.requests} calls, {outcome.seconds} s; {outcome.answers}",
                    flush=True,
                )
    if options.json:
        machine = {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}
        parameters = {"budget": BUDGET, "clients": CLIENTS, "max_tokens": MAX_TOKENS, "mock": MOCK}
        options.json.write_text(json.dumps({"machine": machine, "parameters": parameters, "runs": [asdict(o) for o in outcomes]}, indent=1) + "\n")
    over = [outcome for outcome in outcomes if outcome.tokens > outcome.budget]
    short = [outcome for outcome in outcomes if outcome.utilisation < MODES[outcome.mode][2]]
    print(f"{len(outcomes)} runs, {len(over)} over the budget, {len(short)} too far below it")
    return 1 if over or short else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What redaction costs: milliseconds per megabyte of hostile texts, the longest step, and the turns of a gateway's loop that logs a prompt of 10 MB.

    python bench/redaction.py [--json FILE]

Times are CPU times of the thread, so that other work on the machine does not count; on a machine that is not busy a step takes as long by the clock.
"""

import argparse
import asyncio
import gc
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from sluicegate.app import GC_THRESHOLD
from sluicegate.core.masks import mask
from sluicegate.core.matching import slices
from sluicegate.core.redact import BUILT_IN, How, prompt_at_once, prompt_json
from sluicegate.dialects.openai_chat import read_request
from support_gateway import running_mock
from support_hostile import HARMLESS, HOSTILE, SECRETS
from support_inloop import running

MB = 1_000_000
PROSE = "The quick brown fox, in 2024, jumps over the lazy dog (and 17 others); see https://example.org/a/b?c=d for more.\n"
MIXED = " ".join([text for _, text in SECRETS] + list(HARMLESS) + ["4444 4444 DE11 1111 ::1 sk-ant eyJ a@b.co 1.1.1.1 +1 "] * 3) + "\n"
BODY_MB = 10


def steps(text: str) -> tuple[float, float]:
    """Seconds in all, and of the longest step."""
    longest = total = 0.0
    pieces = slices(text, BUILT_IN)
    while True:
        began = time.thread_time()
        done = next(pieces, None) is None
        took = time.thread_time() - began
        longest, total = max(longest, took), total + took
        if done:
            return total, longest


def of_texts() -> dict[str, Any]:
    """Each hostile text, as many characters of it as there are bytes in a megabyte."""
    found = {}
    for unit in (PROSE, MIXED, *HOSTILE):
        total, longest = min(steps((unit * (MB // len(unit) + 1))[:MB]) for _ in range(3))
        name = {PROSE: "prose", MIXED: "all of them, mixed"}.get(unit, unit[:30])
        found[name] = {"ms_per_mb": round(total * 1000, 1), "longest_step_ms": round(longest * 1000, 2)}
    return dict(sorted(found.items(), key=lambda one: -one[1]["ms_per_mb"]))


def logged(texts: list[str], how: How) -> bytes:
    """As the log does it."""
    return prompt_at_once(texts, how, BUILT_IN) or b"".join(prompt_json(texts, how, BUILT_IN))


def of_short_prompts() -> dict[str, float]:
    """Microseconds for a prompt of a kilobyte, and for an error text with a credential of ours."""
    prompt, header = [(PROSE * 10)[:1000]], ((b"authorization", b"Bearer sk-proj-" + b"x1" * 20),)
    found = {}
    for name, work in {
        "prompt of 50 bytes, redacted": lambda: logged(["Tell me, please, what the capital of Norway is."], "redacted"),
        "prompt of 1 kB, redacted": lambda: logged(prompt, "redacted"),
        "prompt of 1 kB with an address, redacted": lambda: logged([*prompt, "bob@example.com"], "redacted"),
        "prompt of 1 kB, hash": lambda: logged(prompt, "hash"),
        "prompt of 1 kB, full": lambda: logged(prompt, "full"),
        "error text of 100 characters": lambda: mask("The model is overloaded. " * 4, header),
    }.items():
        times = []
        for _ in range(5):
            began = time.thread_time()
            for _ in range(200):
                work()
            times.append(time.thread_time() - began)
        found[name] = round(min(times) / 200 * 1e6, 1)
    return found


async def of_a_gateway(directory: Path, upstream: int) -> dict[str, Any]:
    """The longest turns of the loop of a gateway that is sent 10 MB of the mixture."""
    turns: list[float] = []
    run = asyncio.events.Handle._run  # type: ignore[attr-defined]

    def timed(handle: Any) -> None:
        began = time.thread_time()
        run(handle)
        turns.append((time.thread_time() - began) * 1000)

    text = (MIXED * (BODY_MB * MB // len(MIXED.encode()) + 1))[: BODY_MB * MB]
    body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": text}]}, ensure_ascii=False).encode()
    began = time.thread_time()
    read_request(body)
    decode_ms = (time.thread_time() - began) * 1000
    file = directory / "requests.jsonl"
    async with running(directory, upstream=upstream, log=f", requests: {{to: {file}}}") as bench:
        bench.whole = False
        asyncio.events.Handle._run = timed  # type: ignore[attr-defined]
        answer = await bench.post(body)
        serving, turns[:] = sorted(turns, reverse=True)[:3], []
        began_s = time.monotonic()
        while not file.exists() or not file.stat().st_size:  # noqa: ASYNC110  (another thread writes it)
            await asyncio.sleep(0.01)
        took_s = time.monotonic() - began_s
        asyncio.events.Handle._run = run  # type: ignore[attr-defined]
    return {
        "status": answer.status,
        "body_mb": round(len(body) / MB, 1),
        "json_decode_ms": round(decode_ms, 1),
        "longest_turns_while_serving_ms": [round(turn, 1) for turn in serving],
        "longest_turns_while_redacting_ms": [round(turn, 1) for turn in sorted(turns, reverse=True)[:3]],
        "turns_while_redacting": len(turns),
        "redacted_in_s": round(took_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the figures are written to")
    options = parser.parse_args()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)  # as in a worker
    texts = of_texts()
    for name, figures in list(texts.items())[:12]:
        print(f"{name!r:34} {figures['ms_per_mb']:7.1f} ms/MB  longest step {figures['longest_step_ms']:.2f} ms")
    print(f"{'prose':34} {texts['prose']['ms_per_mb']:7.1f} ms/MB")
    short = of_short_prompts()
    for name, us in short.items():
        print(f"{name:40} {us:7.1f} us")
    with tempfile.TemporaryDirectory() as directory, running_mock(Path(directory), "--ttft", "0ms", "--tpot", "0ms") as mock:
        gateway = asyncio.run(of_a_gateway(Path(directory), int(mock.url.rpartition(":")[2])))
    print(json.dumps(gateway, indent=1))
    if options.json is not None:
        machine = {"architecture": platform.machine(), "python": platform.python_version(), "cores": 2, "note": "CPU times; the machine was busy"}
        found = {"machine": machine, "ms_per_mb": texts, "us": short, "gateway": gateway}
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
